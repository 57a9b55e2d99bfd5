"""What a coordinator believes of a reply: nothing that it has not checked.

Before anything is decoded: how long it is, whose letter it answers, what its sender computes.
Then the leaves (exact lengths, by the wire), their numbers (finite), the rows (ascending, and among
those that the node named when it registered), and what it counts for (no more than it registered).
What is wrong is an InputError that says so in a sentence, and the reply is left out.

What this cannot see: an update that is finite, small and made up.  Against those are robust
reductions and bounds on norms (``reduce``, ``stage.clip``); such a bound is checked here.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter
from fedslice.deploy.program import VERSIONS, Program
from fedslice.deploy.schema import Registered
from fedslice.errors import InputError
from fedslice.round import protocol
from fedslice.round.wire import HEAD, TOLD, Layout, Wire
from fedslice.stage.clipping import norm
from fedslice.types import Algorithm, Message, Work

ROUNDING = 1 + 1e-6  # sums of examples are 32-bit floats
CLIPPED = 1.001  # as are squares of many numbers
WIDEST = 4 * letters.LONGEST  # bytes of a refusal


class Asked(NamedTuple):
    """What a node was asked: the kind of reply, and the letter's round and nonce."""

    kind: int
    round: int
    nonce: bytes


class Checked(NamedTuple):
    """A reply that passed: the message with its codes opened, and the ids of its rows."""

    message: Message
    ids: dict[str, np.ndarray]


def check(
    reply: bytes, asked: Asked, node: Registered, program: Program, room: Mapping[str, int]
) -> Checked:
    """The message in a reply; raises an InputError with the reason to leave it out."""
    survey = asked.kind == letters.LOOK
    most = limit(program.wire, {name: len(rows) for name, rows in node.rows.items()}, survey)
    letter = head(reply, asked, program.fingerprint, most, node.versions)
    try:
        round, message, ids = program.wire.unpack_message(letter.body, room, survey)
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # InputError is one
        raise InputError(str(error)) from error
    if round != asked.round:
        raise InputError(f"a message of round {round + 1}, asked was {asked.round + 1}")
    for name, rows in ids.items():
        if not np.isin(rows, node.rows[name], assume_unique=True).all():
            raise InputError(f"a row of {name!r} that was not offered to it")
    message = protocol.receive(message)
    _check_numbers(message, node, program)
    return Checked(jax.tree.map(np.asarray, message), ids)


def head(reply: bytes, asked: Asked, program: str, most: int, versions: str = "") -> Letter:
    """The letter in a reply of at most so many bytes, if it is one to what was asked, from a node
    that computes the same."""
    most = max(most, letters.HEAD.size + WIDEST)
    if len(reply) > most:
        raise InputError(f"a reply of {len(reply):,} bytes, where {most:,} are the most")
    letter = letters.unpack(reply)
    if letter.kind == letters.REFUSED:
        raise InputError(f"it refused: {letters.reason(letter.body)}")
    if letter.nonce != asked.nonce:
        raise InputError("its reply is not to this letter: it was sent before, or to another")
    if letter.round != asked.round:
        raise InputError(f"an answer of round {letter.round + 1}, asked was {asked.round + 1}")
    if letter.kind != asked.kind:
        raise InputError(f"a reply of kind {letter.kind}, asked was {asked.kind}")
    if letter.program != program:
        raise InputError(
            f"it computes {letter.program} with {versions or 'other versions'}, here are {program}"
            f" and {VERSIONS}: model, client settings and versions must be the same"
        )
    return letter


def limit(wire: Wire, rows: Mapping[str, int], survey: bool) -> int:
    """The most bytes that a reply with so many rows takes, with all numbers kept.

    >>> from fedslice.round.wire import Leaf
    >>> wire = Wire({"item": 9}, Layout((), ()), Layout((), ()), Layout((), ()), [])
    >>> limit(wire, {"item": 0}, survey=False) >= WIDEST
    True
    """
    layout: Layout = wire.found if survey else wire.message
    items = [_numbers(leaf.like, rows.get(leaf.tag, 1)) for leaf in layout.codes]
    named = sum(wire.ids[name] * rows[name] for name in wire.spaces)
    body = HEAD.size + wire.counts + TOLD.size + named + int(layout.size(rows, items))
    return letters.HEAD.size + max(body, WIDEST)


def _numbers(like: Any, rows: int) -> int:
    """At least as many numbers as a code of so many rows keeps."""
    return max(1, rows) * max(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def _check_numbers(message: Message, node: Registered, program: Program) -> None:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((message.update, message.extra))]
    if not all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind == "f"):
        raise InputError("numbers that are not finite")
    told = {name: float(value) for name, value in message.report._asdict().items()}
    weight = float(message.weight)
    if not all(map(math.isfinite, (weight, *told.values()))):
        raise InputError("a weight or a report that is not finite")
    if told["failed"]:
        raise InputError("its own update or loss was not finite, as it says")
    most = program.most(node.examples)
    if not 0 <= weight <= most * ROUNDING:
        raise InputError(f"a weight of {weight:g}, where {most:g} was registered")
    if not within(message, program.algorithm):
        raise InputError("an update beyond the norm to which clients clip theirs")
    steps, examples = allowance(program.works, node.examples)
    if not (0 <= told["examples"] <= examples and 0 <= told["steps"] <= steps):
        raise InputError(
            f"a report of {told['examples']:g} examples in {told['steps']:g} steps, where"
            f" {node.examples} examples allow {examples:g} in {steps:g}"
        )


def within(message: Message, algorithm: Algorithm) -> bool:
    """Whether an update has the norm that the stage before the mean leaves it, if that bounds
    norms; whole numbers, which stages after the mean may make of it, and updates with noise of the
    nodes' own are not looked at."""
    place = algorithm.stages.index(algorithm.mean)
    bound = algorithm.stages[place - 1].bound if place else None
    whole = any(leaf.dtype.kind != "f" for leaf in jax.tree.leaves(message.update))
    noisy = any(stage.own for stage in algorithm.stages)
    if bound is None or whole or noisy:
        return True
    return float(norm(message.update)) <= CLIPPED * bound * float(message.weight)


def allowance(works: list[Work], examples: int) -> tuple[float, float]:
    """The most steps, and examples gone through, of a client with so many examples.

    >>> [round(most) for most in allowance([Work(steps=3, batch=4), Work(epochs=2, batch=4)], 6)]
    [7, 24]
    """
    steps = seen = 0
    for work in works:
        passes = -(-examples // work.batch) * (work.epochs or 0)
        taken = work.steps or 1 if work.epochs is None else min(work.steps or passes, passes)
        steps += taken
        whole = examples * work.epochs if work.epochs else taken * min(work.batch, examples)
        seen += min(whole, taken * work.batch)
    return steps * ROUNDING, seen * ROUNDING
