"""A round on a cluster, to the last bit that of the local engine with clients one after the other.

With the tables in shards:

    driver                    shards                     workers
    who trains where
                              what clients are told  ->  plan, train
    few dense numbers of each client, weights       <-
                              rows of each client   <-   sums of large leaves, worker by worker
    sums of all that is dense
    dense leaves step     ->  rows are added, and step

Rows, and large dense leaves, are added client by client in the order of all clients, as one process
adds them, so neither the number of workers nor that of shards is in the result.  Arrows between
members do not pass the driver.  Nothing counts before all have answered.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.cluster.layout import Layout
from fedslice.cluster.part import Small, Told
from fedslice.cluster.pieces import home, join, sorted_by_home, spaces_of, split
from fedslice.cluster.shard import parts_of, total_tags
from fedslice.cluster.shares import Range, cuts
from fedslice.cluster.team import Team
from fedslice.round.engine import Engine
from fedslice.round.figures import REPORT, Figures
from fedslice.round.plan import Plan, Shared
from fedslice.round.protocol import Stacked, gather, offered
from fedslice.types import Message, PyTree, State


class Rounds:
    """What both ways of doing a round share."""

    def __init__(self, team: Team, engine: Engine) -> None:
        self.team, self.engine = team, engine
        self.algorithm, self.tags, self.crew = engine.algorithm, engine.tags, team.crew

    def tell(
        self, plan: Plan, capacity: dict[str, int], cohort: np.ndarray, slots: Sequence[Any]
    ) -> list[tuple[Any, Told]]:
        """The workers that have something to do, and what each is told."""
        found = []
        for (worker, part), known in zip(self.parts(plan, cohort), slots, strict=True):
            own = plan.own.place[part.start : part.stop]
            first, last = np.searchsorted(cohort, [own[0], own[-1] + 1])
            told = Told(
                int(plan.shared.round),
                self.team.done,
                cohort[first:last],
                part.stop - part.start,
                capacity,
                known,
            )
            found.append((worker, told))
        return found

    def parts(self, plan: Plan, cohort: np.ndarray) -> list[tuple[Any, Range]]:
        """The workers with a part of the plan's clients, and those."""
        real = len(np.unique(cohort))
        divided = cuts(plan.own.place, real, self.team.held)
        pairs = zip(self.team.workers, divided, strict=True)
        return [(worker, part) for worker, part in pairs if part.stop > part.start]

    def read(self, plan: Plan, part: Range) -> dict[str, np.ndarray]:
        """The places in the union of the rows that some clients read."""
        return {
            name: _below(places[part.start : part.stop], len(plan.shared.union[name]))
            for name, places in plan.own.places.items()
        }


class Central(Rounds):
    """Tables and the server's step with the driver; clients train on the workers."""

    def __init__(self, team: Team, engine: Engine) -> None:
        super().__init__(team, engine)
        self.told = jax.jit(lambda working: offered(self.algorithm, working))

    def run(
        self, working: State, plan: Plan, capacity: dict[str, int], cohort: np.ndarray
    ) -> tuple[State, Figures]:
        """The working set after a round."""
        shared, own = plan
        parts = self.parts(plan, cohort)
        reads = [self.read(plan, part) for _, part in parts]
        slots = [{n: shared.union[n][places] for n, places in read.items()} for read in reads]
        told = self.tell(plan, capacity, cohort, slots)
        rows, dense = self._host(self.tags.invitation, self.told(working))
        each = [self._some(self.tags.invitation, rows, read) for read in reads]
        common = self.crew.share(dense)
        found: PyTree = ()
        if self.algorithm.survey is not None:
            calls = [
                self.crew.call(worker, "look", say, common, mine)[0]
                for (worker, say), mine in zip(told, each, strict=True)
            ]
            messages = _together(self.crew.get(calls))
            found = self.engine.compiled.find(messages, shared, own)
        seen, same = self._host(self.tags.found, found)
        calls = [
            self.crew.call(
                worker, "train", say, (same, self._some(self.tags.found, seen, read)), common, mine
            )[0]
            for (worker, say), mine, read in zip(told, each, reads, strict=True)
        ]
        messages, items = _together(self.crew.get(calls))
        return self.engine.compiled.finish(
            working, found, messages, items, shared, own.sent or own.places, self.engine.key
        )

    def _host(self, tags: PyTree, tree: PyTree) -> tuple[list[np.ndarray], list[np.ndarray]]:
        rows, dense = split(tags, tree)
        return [np.asarray(leaf) for leaf in rows], [np.asarray(leaf) for leaf in dense]

    def _some(
        self, tags: PyTree, rows: Sequence[np.ndarray], read: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        return [leaf[read[name]] for name, leaf in zip(spaces_of(tags), rows, strict=True)]


class Sharded(Rounds):
    """Tables in shards that step by themselves; the driver steps dense leaves."""

    def __init__(self, team: Team, engine: Engine, plan: Layout) -> None:
        super().__init__(team, engine)
        self.layout = plan
        self.shards = len(team.shards)
        # stands for the rows, of which no dense leaf reads any
        self.blank = [jnp.zeros((1, *like.shape[1:]), like.dtype) for like in plan.rows]
        self.told = jax.jit(self._told)
        self.summed = jax.jit(self._summed)

    def run(
        self, dense: list[Any], plan: Plan, capacity: dict[str, int], cohort: np.ndarray
    ) -> tuple[list[Any], Figures]:
        """The state's dense leaves after a round; the shards' rows wait until it counts."""
        parts = self.parts(plan, cohort)
        slots = [self._slots(plan, part) for _, part in parts]
        offers = self._offers(dense, slots)
        told = self.tell(plan, capacity, cohort, slots)
        answers, folded = self._answers(dense, told, offers)
        *small, sums = self.crew.get([*(answer[0] for answer in answers), folded])
        messages, items = self._messages(small, sums)
        round = int(plan.shared.round)
        steps = self._steps(dense, messages, round, answers)
        after, figures = self._finish(dense, messages, items, round)  # meanwhile
        values, place = np.array(figures.values), REPORT.index("update_norm")
        values[place] = math.hypot(values[place], *self.crew.get(steps))
        return after, Figures(jnp.asarray(values), figures.items)

    def _offers(self, dense: list[Any], slots: Sequence[Any]) -> list[list[Any]]:
        """Of each shard, promises of the rows for each worker."""
        reads = {n: np.asarray(dense[n]) for n in self.layout.told}
        found = []
        for number, shard in enumerate(self.team.shards):
            wanted = [self._of(known, number) for known in slots]
            given = (self.team.done, reads, *wanted)
            found.append(self.crew.call(shard, "offer", *given, returns=len(wanted)))
        return found

    def _answers(
        self, dense: list[Any], told: Sequence[tuple[Any, Told]], offers: Sequence[Sequence[Any]]
    ) -> tuple[list[list[Any]], Any]:
        """Of each worker, promises of what it answers: to the driver, then to each shard; and the
        promise of the sums of large leaves, which go from worker to worker."""
        common = self.crew.share([np.asarray(leaf) for leaf in self.told(dense)])
        answers = []
        for place, (worker, say) in enumerate(told):
            given = (say, self.shards, common, *(offer[place] for offer in offers))
            answers.append(self.crew.call(worker, "push", *given, returns=1 + self.shards))
        if not any(self.layout.large):
            return answers, self.crew.share([])
        folded = None
        for worker, _ in told:
            (folded,) = self.crew.call(worker, "fold", folded)
        return answers, folded

    def _steps(
        self, dense: list[Any], messages: Message, round: int, answers: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Of each shard, the promise of the norm of its rows' update."""
        total = self.summed(messages)
        given = {n: np.asarray(total[n]) for n in self.layout.total}
        before = {n: np.asarray(dense[n]) for n in self.layout.state}
        return [
            self.crew.call(
                shard, "step", round, before, given, *(answer[1 + number] for answer in answers)
            )[0]
            for number, shard in enumerate(self.team.shards)
        ]

    def _slots(self, plan: Plan, part: Range) -> dict[str, np.ndarray]:
        """The rows that a worker's clients read, sorted by shard."""
        read = self.read(plan, part)
        return {
            name: sorted_by_home(plan.shared.union[name][places], self.shards)
            for name, places in read.items()
        }

    def _of(self, slots: Mapping[str, np.ndarray], shard: int) -> dict[str, np.ndarray]:
        return {name: known[home(known, self.shards) == shard] for name, known in slots.items()}

    def _told(self, dense: list[Any]) -> list[Any]:
        invitation = offered(self.algorithm, join(self.tags.state, self.blank, dense))
        return split(self.tags.invitation, invitation)[1]

    def _messages(self, small: Sequence[Small], sums: list[np.ndarray]) -> tuple[Message, Any]:
        """All clients' messages as far as they are dense; of large leaves their sum stands for
        one client's."""
        stacked: Small = _together(small)
        few, many = iter(stacked.dense), iter(sums)
        dense = [next(many)[None] if large else next(few) for large in self.layout.large]
        rows = [jnp.zeros((1, 1, *like.shape[1:]), like.dtype) for like in self.layout.sent]
        values = join(self.tags.values, rows, dense)
        update = values.pop("update")
        weight = jnp.asarray(stacked.weight)
        return Message(update, weight, stacked.report, values), stacked.items

    def _summed(self, messages: Message) -> list[Any]:
        total = gather(self.algorithm, self.tags.values, messages, self._nowhere())
        return split(total_tags(self.tags), parts_of(total))[1]

    def _nowhere(self) -> Stacked:
        """Rows that belong to no place."""
        names = self.team.spaces
        return Stacked({n: jnp.ones((1, 1), jnp.int32) for n in names}, dict.fromkeys(names, 1))

    def _finish(
        self, dense: list[Any], messages: Message, items: Any, round: int
    ) -> tuple[list[Any], Figures]:
        places, sizes = self._nowhere()
        union = {name: np.zeros(size, np.int32) for name, size in sizes.items()}
        working = join(self.tags.state, self.blank, dense)
        after, figures = self.engine.compiled.finish(
            working,
            (),
            messages,
            items,
            Shared(np.uint32(round), union),
            places,
            self.engine.key,
        )
        return split(self.tags.state, after)[1], figures


def _below(places: np.ndarray, size: int) -> np.ndarray:
    """Distinct places, ascending, without padding."""
    found = np.unique(places)
    return found[found < size]


def _together(parts: Sequence[Any]) -> Any:
    """Stacked results of several workers as one."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
