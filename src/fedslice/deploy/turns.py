"""The turns of a secure sum as letters: how one is opened, and what goes around its messages.

    letter   number | opening (turn 0) | message of the coordinator (turns 1 to 4) | beside
    reply    number |                  | message of the participant                | beside

What is beside: the union of rows in turn 0 of the sum of updates, and in the reply which of them
the node takes; the invitation in turn 2.  Who takes part, and with which key, is in the opening;
how many neighbours they have, and how many can rebuild a mask, follows from how many they are, so
that nobody can be talked into fewer.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.rows import Plan
from fedslice.privacy.secure.degree import degree
from fedslice.privacy.secure.parts import Part, Parts, dense
from fedslice.privacy.secure.parts import rows as table_rows
from fedslice.privacy.secure.session import Session
from fedslice.round.wire import Layout
from fedslice.stage.fixed import scale_for

ROWS, SUM, HEAT = "rows", "sum", "heat"
"""What a secure sum is for: the union of rows, updates, how many hold each row."""
LOSS = "loss"  # the part with a node's training loss
WIDEST_LOSS = 1024.0  # larger ones are told as so much
_HEAD = struct.Struct("<B3x3I")


class Turn(NamedTuple):
    """A letter or a reply of a turn.

    >>> turn = Turn(2, message=b"shares", beside=b"invitation")
    >>> Turn.unpack(turn.pack()) == turn
    True
    """

    number: int
    opening: bytes = b""
    message: bytes = b""
    beside: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of it."""
        return _HEAD.size + len(self.opening) + len(self.message) + len(self.beside)

    def pack(self) -> bytes:
        """Its bytes."""
        parts = self.opening, self.message, self.beside
        return _HEAD.pack(self.number, *map(len, parts)) + b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> "Turn":
        """It again."""
        if len(data) < _HEAD.size:
            raise InputError(f"{len(data)} bytes that are no turn of a secure sum")
        number, *sizes = _HEAD.unpack_from(data)
        if number > 4 or len(data) != _HEAD.size + sum(sizes):
            raise InputError("a turn of a secure sum that announces other lengths than it has")
        parts, start = [], _HEAD.size
        for size in sizes:
            parts.append(data[start : start + size])
            start += size
        return cls(number, *parts)


class Opening(NamedTuple):
    """A secure sum: what it is for, of which round and try of which run (its seed), its own public
    seed, below how many participants it must not be opened, and who they are.  ``plans`` say how
    the union of each table's rows is asked, ``how`` the noise of a count (multiplier, most rows).
    """

    purpose: str
    run: int
    round: int
    attempt: int
    seed: bytes
    least: int
    roster: Mapping[int, bytes]
    plans: tuple[Plan, ...] = ()
    how: tuple[float, int] = (0.0, 0)

    def pack(self) -> bytes:
        """Its bytes."""
        roster = [[number, key.hex()] for number, key in self.roster.items()]
        plans = [list(plan) for plan in self.plans]
        told = self._replace(seed=self.seed.hex(), roster=roster, plans=plans)  # type: ignore[arg-type]
        return json.dumps(told._asdict()).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "Opening":
        """It again; refuses what is none.

        >>> Opening.unpack(b"{}")
        Traceback (most recent call last):
        fedslice.errors.InputError: bytes that open no secure sum
        """
        try:
            told = json.loads(data)
            found = cls(
                str(told["purpose"]),
                int(told["run"]),
                int(told["round"]),
                int(told["attempt"]),
                bytes.fromhex(told["seed"]),
                int(told["least"]),
                {int(number): bytes.fromhex(key) for number, key in told["roster"]},
                tuple(Plan(*map(int, plan)) for plan in told["plans"]),
                (float(told["how"][0]), int(told["how"][1])),
            )
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise InputError("bytes that open no secure sum") from error
        return found

    @property
    def session(self) -> Session:
        """With as many neighbours as so many participants need."""
        return Session(self.roster, self.seed, degree(len(self.roster)), self.least)


def fewest(clients: int, least: int = 0) -> int:
    """Below how many the sum of so many clients is not opened: ``least``, and those that can
    rebuild a mask and one.

    >>> fewest(7), fewest(7, least=6)
    (5, 6)
    """
    return max(degree(clients).threshold + 1, least)


def parts_of(layout: Layout, ids: Mapping[str, np.ndarray], loss: bool) -> Parts:
    """What is summed for messages of this layout, of the rows ``ids``."""
    found: list[Part] = []
    for place, leaf in enumerate(layout.leaves):
        if leaf.tag:
            found.append(table_rows(str(place), ids[leaf.tag], prod(leaf.like.shape[1:])))
        else:
            found.append(dense(str(place), prod(leaf.like.shape)))
    return Parts([*found, *([dense(LOSS, 1)] if loss else [])])


def loss_scale(clients: int) -> tuple[float, float]:
    """Steps of a unit of the loss, in a sum of so many clients, and the largest that is told.

    >>> loss_scale(50)
    (32768.0, 1024.0)
    """
    return scale_for(clients, WIDEST_LOSS), WIDEST_LOSS


def union_parts(plans: Sequence[Plan]) -> Parts:
    """What is summed to find the union of the rows of each table."""
    return Parts([dense(str(place), plan.cells) for place, plan in enumerate(plans)])


def pack_ids(ids: Mapping[str, np.ndarray]) -> bytes:
    """Ascending row ids of each table.

    >>> ids = {"item": np.array([3, 9]), "user": np.zeros(0, np.int64)}
    >>> unpack_ids(pack_ids(ids), {"item": 10, "user": 1})["item"]
    array([3, 9])
    >>> unpack_ids(pack_ids(ids), {"item": 9, "user": 1})
    Traceback (most recent call last):
    fedslice.errors.InputError: rows of 'item' that are not ascending ids below 9
    """
    sizes = np.array([len(rows) for rows in ids.values()], "<u4").tobytes()
    return sizes + b"".join(rows.astype("<i8").tobytes() for rows in ids.values())


def unpack_ids(data: bytes, spaces: Mapping[str, int]) -> dict[str, np.ndarray]:
    """They again, for tables of so many rows."""
    if len(data) < 4 * len(spaces):
        raise InputError("row ids that are cut off")
    sizes = np.frombuffer(data, "<u4", len(spaces)).astype(np.int64)
    if len(data) != 4 * len(spaces) + 8 * int(sizes.sum()):
        raise InputError("row ids of another length than they announce")
    found, start = {}, 4 * len(spaces)
    for (name, rows), size in zip(spaces.items(), sizes, strict=True):
        ids = np.frombuffer(data, "<i8", size, start).astype(np.int64)
        if size and not ((np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < rows):
            raise InputError(f"rows of {name!r} that are not ascending ids below {rows}")
        found[name], start = ids, start + 8 * int(size)
    return found


def pack_taken(union: Mapping[str, np.ndarray], taken: Mapping[str, np.ndarray]) -> bytes:
    """One bit for each row of the union: whether a node takes it.

    >>> union, some = {"item": np.array([3, 5, 9])}, {"item": np.array([3, 9])}
    >>> unpack_taken(pack_taken(union, some), union)["item"].tolist()
    [3, 9]
    """
    bits = [np.isin(union[name], taken[name], assume_unique=True) for name in union]
    return b"".join(np.packbits(each, bitorder="little").tobytes() for each in bits)


def unpack_taken(data: bytes, union: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows that it takes."""
    if len(data) != sum(-(-len(rows) // 8) for rows in union.values()):
        raise InputError("answers about other rows than those of the union")
    found, start = {}, 0
    for name, rows in union.items():
        size = -(-len(rows) // 8)
        bits = np.unpackbits(np.frombuffer(data, np.uint8, size, start), bitorder="little")
        if bits[len(rows) :].any():
            raise InputError("answers that go beyond the union")
        found[name], start = rows[bits[: len(rows)].astype(bool)], start + size
    return found
