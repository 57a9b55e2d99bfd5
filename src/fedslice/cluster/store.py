"""Rows in shards, read and restored as those of a :class:`~fedslice.round.store.RamStore`: a run
goes on from its checkpoint with either."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedslice.cluster.pieces import join, spaces_of, split
from fedslice.cluster.team import Team
from fedslice.round.store import Make, RamStore, expect
from fedslice.types import PyTree

Guard = Callable[[Callable[[], Any]], Any]
"""Does something, again if a member was lost meanwhile and is there again."""


class ShardedStore(RamStore):
    """Dense leaves here, rows in the shards of a team."""

    def __init__(self, make: Make, tags: PyTree, ids: Mapping[str, np.ndarray]) -> None:
        self.make, self.tags, self.ids = make, tags, ids
        self.paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tags)
        ]
        self.dense = self.first()
        self.team: Team
        self.guard: Guard

    def first(self) -> list[Any]:
        """Dense leaves as they start."""
        some = self.make({name: rows[:1] for name, rows in self.ids.items()})
        return [jax.device_put(np.array(leaf)) for leaf in split(self.tags, some)[1]]

    def rows(self, select: Callable[[PyTree], PyTree], ids: Mapping[str, np.ndarray]) -> PyTree:
        """As a RamStore that has the rows that are asked for."""
        slots = {name: self._held(name, wanted) for name, wanted in ids.items()}
        known = {name: self.ids[name][found] for name, found in slots.items()}
        small = RamStore(self.make, self.tags, known)
        small.state = self.guard(lambda: self._read(slots))
        return small.rows(select, ids)

    def _held(self, name: str, wanted: np.ndarray) -> np.ndarray:
        """Slots of the ids that somebody holds, ascending; one at least."""
        known = self.ids[name]
        place = np.searchsorted(known, np.unique(wanted))
        inside = np.minimum(place, len(known) - 1)
        hit = inside[known[inside] == np.unique(wanted)]
        return hit if len(hit) else np.zeros(1, np.int64)

    def _read(self, slots: Mapping[str, np.ndarray]) -> PyTree:
        team, count = self.team, len(self.team.shards)
        names = spaces_of(self.tags)
        homes = [{n: s[s % count == shard] for n, s in slots.items()} for shard in range(count)]
        calls = [
            team.crew.call(shard, "read", team.done, range(len(names)), mine)[0]
            for shard, mine in zip(team.shards, homes, strict=True)
        ]
        parts = team.crew.get(calls)
        found = []
        for place, name in enumerate(names):
            order = np.argsort(np.concatenate([mine[name] for mine in homes]))
            rows = np.concatenate([part[place] for part in parts])[order]
            found.append(jax.device_put(rows))
        return join(self.tags, found, self.dense)

    def snapshot(self) -> dict[str, np.ndarray]:
        """All leaves, by path."""
        every = {name: np.arange(len(rows)) for name, rows in self.ids.items()}
        state = self.guard(lambda: self._read(every))
        return dict(zip(self.paths, map(np.asarray, jax.tree.leaves(state)), strict=True))

    def restore(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Back to a snapshot of the same structure, row by row to the shards."""
        likes = jax.eval_shape(lambda: self.make(self.ids))
        shapes = split(self.tags, likes)
        paths = split(self.tags, join_paths(self.tags, self.paths))
        rows, dense = (
            [expect(leaves, path, like.shape, like.dtype) for path, like in zip(*pair, strict=True)]
            for pair in zip(paths, shapes, strict=True)
        )
        count = len(self.team.shards)
        self.dense = [jax.device_put(np.array(leaf)) for leaf in dense]
        self.guard(
            lambda: self.team.one_by_one(
                self.team.shards, "restore", lambda n: [leaf[n::count] for leaf in rows]
            )
        )


def join_paths(tags: PyTree, paths: list[str]) -> PyTree:
    """The path of each leaf, in its place."""
    return jax.tree.unflatten(jax.tree.structure(tags), paths)
