"""What a server reads: the bytes of each client's message, and the numbers in them.

A server that follows the protocol may still be curious.  Here it gets what it would get: the run's
own program makes the messages, :mod:`fedslice.round.wire` their bytes, and those are what is read.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.errors import InputError
from fedslice.round.plan import Plan
from fedslice.round.store import RamStore
from fedslice.simulation.run import Run
from fedslice.types import Message

LARGEST = 1 << 28  # numbers of all messages side by side


class Overheard(NamedTuple):
    """The messages of one round, one client a line.

    ``values`` are the numbers that would be added up, dense leaves and then the slots of each
    table, zeros in rows that a client does not send; ``sent`` says of which rows the ids are in its
    bytes; ``held`` which are in S(i), sent this time or not; ``columns`` where each leaf lies.
    """

    values: np.ndarray  # float32 [clients, numbers]
    sent: np.ndarray  # bool [clients, numbers]
    held: np.ndarray  # bool [clients, numbers]
    columns: dict[str, slice]


def overheard(run: Run, round: int = 0) -> Overheard:
    """What every client would send if it were called in this round, with the model as it is now.

    Other rounds draw other batches.  Nobody's message depends on who else is called, so sums of
    these are the sums of any cohort.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1))
    >>> read = overheard(fs.simulate(method, task.train, sampler=fs.sampling.full()))
    >>> read.sent[:2].tolist()
    [[True, True], [False, True]]
    >>> read.values.tolist()
    [[-1.0, -1.0], [0.0, -1.0], [0.0, -1.0], [0.0, -1.0]]
    """
    if run.algorithm.survey is not None or any(s.codes for s in run.algorithm.stages):
        raise InputError(
            "messages of one trip and without compression are read here: use fedavg, fedsubavg,"
            " fedprox, ... and leave compress out"
        )
    plan, messages = _sent(run, round)
    columns, size = _columns(run)
    clients = len(run.eligible)
    if clients * size > LARGEST:
        raise InputError(
            f"{clients:,} clients with {size:,} numbers each are too many to look at side by side:"
            " take a part of the population, population.subset(...)"
        )
    values = np.zeros((clients, size), np.float32)
    sent = np.zeros((clients, size), bool)
    for client in range(clients):
        mine = jax.tree.map(lambda leaf: leaf[client], messages)
        update, ids = _through_bytes(run, plan, client, round, mine)
        for name, where in columns.items():
            slots = _slots(run, name, ids)
            leaf = np.asarray(update[name]).reshape(-1)  # its rows come first, then padding
            sent[client, where].reshape(len(slots), -1)[slots] = True
            values[client, where][sent[client, where]] = leaf[: sent[client, where].sum()]
    return Overheard(values, sent, _held(run, sent.shape, columns), columns)


def _sent(run: Run, round: int) -> tuple[Plan, Message]:
    """Every client's message by the run's own program, which is left as it was: padded sizes are a
    part of its state."""
    room = dict(run.planner.capacity)
    plan, _ = run.planner.plan(round, run.eligible)
    run.planner.capacity = room
    engine, union = run.engine, plan.shared.union
    if isinstance(run.store, RamStore):
        working = engine.begin(run.store.state, union)
    else:
        working = run.store.take(union)
    memory, held = run.remembered(plan.own.drawers)
    own = plan.own._replace(held=held)
    messages, _, _ = engine.compiled.train(working, memory, (), plan.shared, own, engine.key)
    return plan, jax.tree.map(np.asarray, messages)


def _through_bytes(
    run: Run, plan: Plan, client: int, round: int, message: Message
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Update and row ids, from the bytes of one message."""
    rows, ids, room = {}, {}, {}
    for name, space in run.spaces.items():
        union = np.asarray(plan.shared.union[name])
        places = np.asarray((plan.own.sent or plan.own.places)[name])[client]
        real = np.flatnonzero(places < len(union))
        rows[name], ids[name], room[name] = real, space.ids[union[places[real]]], len(places)
    wire = run.shapes.wire
    data = wire.pack_message(round, message, rows, ids)
    _, read, names = wire.unpack_message(data, room)
    return dict(read.update), names


def _slots(run: Run, leaf: str, ids: dict[str, np.ndarray]) -> np.ndarray:
    """Which slots of a leaf a message has; a dense leaf is one slot."""
    space = run.model.space_of.get(leaf)
    if space is None:
        return np.ones(1, bool)
    found = np.zeros(len(run.spaces[space].ids), bool)
    found[np.searchsorted(run.spaces[space].ids, ids[space])] = True
    return found


def _columns(run: Run) -> tuple[dict[str, slice], int]:
    """Where each leaf lies, dense ones first, and how many numbers there are in all."""
    likes, tables = run.params(), run.model.space_of
    columns, start = {}, 0
    for name in sorted(likes, key=lambda name: (name in tables, name)):
        if not hasattr(likes[name], "shape"):
            raise InputError(f"the leaf {name!r} is a tree of its own: only plain ones are read")
        columns[name] = slice(start, start + int(np.prod(likes[name].shape)))
        start = columns[name].stop
    return columns, start


def _held(run: Run, shape: tuple[int, ...], columns: dict[str, slice]) -> np.ndarray:
    """Which numbers belong to S(i): dense leaves to everyone's."""
    held = np.ones(shape, bool)
    for name, space in run.model.space_of.items():
        slots, where = run.spaces[space], columns[name]
        held[:, where] = False
        for line, client in enumerate(run.eligible):
            mine = slots.slots[slots.offsets[client] : slots.offsets[client + 1]]
            held[line, where].reshape(len(slots.ids), -1)[mine] = True
    return held
