"""A node's update on all rows of a round, and with noise of its own on each of them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.discretion import Discretion
from fedslice.deploy.letter import Letter
from fedslice.deploy.rows import places_in, spread
from fedslice.deploy.training import Task, Trainer
from fedslice.types import ClientReport, Message


def answer_noisily(trainer: Trainer, own: Discretion, head: Letter) -> Letter:
    """The message of a node for all rows, with noise on each, and nothing else of it: a node that
    failed sends noise, too.  The same invitation has the same answer, and another of the same round
    none."""
    program, wire = trainer.program, trainer.program.wire
    every = {name: np.arange(rows) for name, rows in wire.spaces.items()}
    task = trainer.task(head.body, every)
    asked = hashlib.sha256(head.body)
    use = f"answer {task.seed} {program.fingerprint}", task.round, 0, asked.hexdigest()
    own.given.check(*use, once=True)
    values = values_on(trainer, task, trainer.trained(head, task), every, every)
    key = own.vault.noise(task.seed, task.round, trainer.number, asked.digest())
    zero, one = jnp.float32(0), jnp.float32(1)
    nothing = ClientReport(*[zero] * len(ClientReport._fields))
    message = Message(program.shake(values["update"], key), one, nothing)
    body = wire.pack_message(task.round, message, every, every)
    own.given.note(*use)
    return head.reply(letters.ANSWER, program.fingerprint, body)


def values_on(
    trainer: Trainer,
    task: Task,
    message: Message,
    rows: Mapping[str, np.ndarray],
    taken: Mapping[str, np.ndarray],
) -> Any:
    """Update and extra of a message on all ``rows`` of a round: zeros on those that are not the
    node's own, that it did not take, or that it only read."""
    own, places = task.plan.own, {}
    for name, ids in trainer.rows.items():
        past = len(task.plan.shared.union[name])
        sent = (own.sent or own.places)[name][0] < past
        there = places_in(rows[name], ids)
        there[places_in(taken[name], ids) == len(taken[name])] = len(rows[name])
        places[name] = there[np.where(sent, own.held[name][0], len(ids))]
    sizes = {name: len(ids) for name, ids in rows.items()}
    values = {"update": message.update, **message.extra}
    return spread(trainer.program.tags.values, values, places, sizes)
