"""A shard of the tables: some rows, with their optimizer's moments and all else that follows rows.

It hands out rows as clients are told them, adds up what clients send in the order of the clients,
and steps by itself: what becomes of a row hangs on that row and on a few dense values, or there
would be no shards (:mod:`fedslice.cluster.rowwise`).  A step counts only once a later call says so
(``done`` rounds count), so that a round can be repeated after somebody else has failed.
"""

import os
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.cluster.part import Push
from fedslice.cluster.pieces import Room, Slots, join, padded, spaces_of, split
from fedslice.reduce.sums import sum_rows
from fedslice.round.program import once
from fedslice.round.protocol import SERVER, Tags, conclude, key_of, offered
from fedslice.round.shapes import first_state
from fedslice.types import Algorithm, Array, ClientReport, Key, Message, PyTree

Given = Mapping[int, Any]
"""Dense values by their numbers among a tree's dense leaves: those that rows read."""


class Trust(NamedTuple):
    """What every shard is told once.  ``state`` and ``total`` are the shapes of their dense
    leaves."""

    algorithm: Algorithm
    tags: Tags
    seed: int
    state: list[jax.ShapeDtypeStruct]
    total: list[jax.ShapeDtypeStruct]


class Shard:
    """Every ``shards``-th slot of each space; ``ids`` are those of its rows."""

    def __init__(self, given: Trust, shards: int, ids: Slots) -> None:
        self.given, self.tags, self.shards = given, given.tags, shards
        self.names, self.ids = list(ids), ids
        self.key = jax.random.fold_in(jax.random.key(given.seed), 1)
        self.spaces = spaces_of(self.tags.state)
        leaves, tree = jax.tree.flatten(self.tags)
        bare = copy(self)  # without rows
        self.told, self.stepped = once(
            given.algorithm,
            ("shard", tree, *leaves),
            lambda: (jax.jit(bare._told), jax.jit(bare._stepped)),
        )
        self.rows = self._first()
        self.pending: tuple[int, dict[str, np.ndarray], list[np.ndarray]] | None = None
        self.room = Room()

    def pid(self) -> int:
        """The number of this process."""
        return os.getpid()

    # -- a round -----------------------------------------------------------------------------------

    def offer(self, done: int, dense: Given, *wanted: Slots) -> list[list[np.ndarray]]:
        """What clients are told of these rows, a list of leaves for each of those who want some."""
        self.commit(done)
        union = {
            name: np.unique(np.concatenate([each[name] for each in wanted])) for name in self.names
        }
        rows, _ = self._taken(union)
        told, _ = self.told(rows, self._filled(self.given.state, dense))
        leaves = [np.asarray(leaf) for leaf in told]
        named = list(zip(spaces_of(self.tags.invitation), leaves, strict=True))
        return [
            [leaf[np.searchsorted(union[name], each[name])] for name, leaf in named]
            for each in wanted
        ]

    def step(self, round: int, state: Given, total: Given, *pushed: Push) -> float:
        """Add up what was pushed, in the order of the workers, and step; the norm of the rows'
        update."""
        union = {
            name: np.unique(np.concatenate([each.slots[name] for each in pushed]))
            for name in self.names
        }
        rows, sizes = self._taken(union)
        places, values = {}, []
        for name in self.names:
            known = [np.searchsorted(union[name], each.slots[name]) for each in pushed]
            where = [place[each.places[name]] for place, each in zip(known, pushed, strict=True)]
            found = np.concatenate(where).astype(np.int32)
            places[name] = padded(found, self.room.of(f"{name} sent", len(found)), sizes[name])
        for name, *leaves in zip(
            spaces_of(self.tags.values), *(each.values for each in pushed), strict=True
        ):
            values.append(padded(np.concatenate(leaves), len(places[name])))
        given = self._filled(self.given.state, state), self._filled(self.given.total, total)
        after, _, size = self.stepped(rows, *given, values, places, np.uint32(round), self.key)
        cut = zip(self.spaces, after, strict=True)
        kept = [np.asarray(leaf)[: len(union[name])] for name, leaf in cut]
        self.pending = (round, union, kept)
        return float(size)

    def _taken(self, union: Slots) -> tuple[list[np.ndarray], dict[str, int]]:
        """The rows at these slots, and how many with padding."""
        places = {name: wanted // self.shards for name, wanted in union.items()}
        sizes = {name: self.room.of(name, max(1, len(rows))) for name, rows in union.items()}
        each = zip(self.spaces, self.rows, strict=True)
        return [padded(leaf[places[name]], sizes[name]) for name, leaf in each], sizes

    # Both programs are those of one process, with zeros in dense leaves that no row reads, and with
    # results that nobody reads: left out, the compiler would arrange the rest otherwise, and a row
    # could differ in its last bit.

    def _told(self, rows: list[Array], dense: list[Array]) -> tuple[list[Array], list[Array]]:
        told = offered(self.given.algorithm, join(self.tags.state, rows, dense))
        return split(self.tags.invitation, told)

    def _stepped(
        self,
        rows: list[Array],
        dense: list[Array],
        totals: list[Array],
        values: list[Array],
        places: dict[str, Array],
        round: Array,
        key: Key,
    ) -> tuple[list[Array], list[Array], Array]:
        sizes = {name: leaf.shape[0] for name, leaf in zip(self.spaces, rows, strict=True)}
        each = zip(spaces_of(self.tags.values), values, strict=True)
        sums = [sum_rows(leaf[None], places[name], sizes[name]) for name, leaf in each]
        total = message_of(join(total_tags(self.tags), sums, totals))
        state = join(self.tags.state, rows, dense)
        own_key = key_of(key, round, SERVER)
        after, size = conclude(self.given.algorithm, state, (), total, own_key)
        return *split(self.tags.state, after), size

    def _filled(self, likes: Sequence[Any], given: Given) -> list[Any]:
        """Dense leaves, zeros for those that no row reads."""
        return [
            given[place] if place in given else np.zeros(like.shape, like.dtype)
            for place, like in enumerate(likes)
        ]

    # -- keeping -----------------------------------------------------------------------------------

    def commit(self, done: int) -> None:
        """The last step counts, if it is one of the first ``done``."""
        if self.pending is not None and self.pending[0] < done:
            _, union, after = self.pending
            places = {name: wanted // self.shards for name, wanted in union.items()}
            for name, leaf, new in zip(self.spaces, self.rows, after, strict=True):
                leaf[places[name]] = new
        self.pending = None

    def read(self, done: int, leaves: Sequence[int], wanted: Slots) -> list[np.ndarray]:
        """Rows at these slots of some leaves of the state."""
        self.commit(done)
        places = {name: slots // self.shards for name, slots in wanted.items()}
        return [self.rows[n][places[self.spaces[n]]] for n in leaves]

    def snapshot(self, done: int) -> list[np.ndarray]:
        """All rows after ``done`` rounds, leaf by leaf."""
        self.commit(done)
        return self.rows

    def _first(self) -> list[np.ndarray]:
        key = jax.random.fold_in(jax.random.key(self.given.seed), 0)
        state = first_state(self.given.algorithm, key, self.ids)
        return [np.array(leaf) for leaf in split(self.tags.state, state)[0]]

    def restore(self, leaves: Sequence[np.ndarray] | None) -> None:
        """Go on with these rows, or the first ones."""
        self.pending = None
        self.rows = self._first() if leaves is None else [np.array(leaf) for leaf in leaves]


def total_tags(tags: Tags) -> PyTree:
    """Which leaves of the sum of all messages are rows: of (values, weight, report)."""
    return tags.values, "", ClientReport("", "", "", "", "")  # type: ignore[arg-type]


def parts_of(total: Message) -> PyTree:
    """The sum of all messages in this order."""
    return {"update": total.update, **total.extra}, total.weight, total.report


def message_of(parts: PyTree) -> Message:
    """And back."""
    values, weight, report = parts
    extra = dict(values)
    return Message(extra.pop("update"), weight, report, extra)
