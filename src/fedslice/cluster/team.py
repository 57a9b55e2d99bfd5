"""The members of a run on a crew: workers with their clients, shards with their rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedslice.cluster.alike import threads_here
from fedslice.cluster.crew import Crew
from fedslice.cluster.part import Assignment, Part, Share
from fedslice.cluster.shard import Shard, Trust
from fedslice.cluster.shares import Range, cut_out, ranges
from fedslice.data.halves import Split, assign
from fedslice.data.population import Population
from fedslice.data.submodel import Submodels

Member = Any


class Team:
    """Starts members, and starts again those that were lost.  ``done`` is the number of rounds that
    count: all members are told with each call."""

    def __init__(
        self,
        crew: Crew,
        given: Assignment,
        trust: Trust | None,
        population: Population,
        spaces: dict[str, Submodels],
        eligible: np.ndarray,
        remembers: bool,
    ) -> None:
        self.crew, self.population, self.spaces = crew, population, spaces
        self.works, self.fields, self.whole = given.works, given.fields, given.whole
        self.done, self.remembers, self.cores = 0, remembers, given.cores
        self.held = ranges(eligible, len(population), crew.workers, remembers)
        self.given, self.trust = crew.share(given), None if trust is None else crew.share(trust)
        self.count = 0 if trust is None else crew.shards
        self.splits = {
            number: assign(population, work.split)
            for number, work in enumerate(given.works)
            if callable(work.split) and work.part != "all"
        }
        self.shares = [crew.share(self._share(held)) for held in self.held]
        self.workers: list[Member] = [self._worker(n) for n in range(len(self.held))]
        self.shards: list[Member] = [self._shard(n) for n in range(self.count)]

    def _share(self, held: Range) -> Share:
        slots = {
            name: np.arange(len(space.ids))
            if self.whole
            else np.unique(space.slots[space.offsets[held.start] : space.offsets[held.stop]])
            for name, space in self.spaces.items()
        }
        span = slice(self.population.offsets[held.start], self.population.offsets[held.stop])
        halves = {number: each[span] for number, each in self.splits.items()}
        return Share(self.population.home or self._data(held), held, slots, halves)

    def _data(self, held: Range) -> Population:
        """The columns that workers need, of a range of clients."""
        wanted = self.fields | {
            field for space in self.spaces.values() for field in space.positions
        }
        wanted |= {_column(work.split) for work in self.works}
        part = cut_out(self.population, held)
        columns = {name: column for name, column in part.columns.items() if name in wanted}
        return Population(columns, part.offsets, part.clients, {}, part.numbers)

    def _worker(self, number: int) -> Member:
        share = self.shares[number]
        return self.crew.start(Part, self.given, share, busy=True, cores=self.cores)

    def _shard(self, number: int) -> Member:
        ids = {name: space.ids[number :: self.count] for name, space in self.spaces.items()}
        cores = threads_here()
        return self.crew.start(Shard, self.trust, self.count, ids, busy=False, cores=cores)

    def revive(self) -> tuple[int, int]:
        """Start the members anew that are gone: how many workers and shards those were."""
        gone = []
        for members, start in ((self.workers, self._worker), (self.shards, self._shard)):
            lost = [n for n, member in enumerate(members) if not self.crew.alive(member)]
            for number in lost:
                members[number] = start(number)
            gone.append(len(lost))
        return gone[0], gone[1]

    def each(self, members: Sequence[Member], method: str, *given: Any) -> list[Any]:
        """The result of the same call of all members."""
        return self.crew.get([self.crew.call(each, method, *given)[0] for each in members])

    def one_by_one(
        self, members: Sequence[Member], method: str, given: Callable[[int], Any]
    ) -> None:
        """A call of each, with what belongs to it, one after the other: the driver has room for
        one."""
        for number, member in enumerate(members):
            self.crew.get(self.crew.call(member, method, given(number)))

    def close(self) -> None:
        """Let all members go."""
        for member in [*self.workers, *self.shards]:
            self.crew.end(member)
        self.workers, self.shards = [], []


def _column(split: Split) -> str:
    """The column that a split goes by, if it goes by one."""
    return split.removeprefix("time:") if isinstance(split, str) else ""
