"""A worker: some of the clients with their data and memory, who train where their data are.

It plans the rounds of its own clients as a run of all plans them (batches hang on a client's
number, padded sizes are told) and answers with what the server adds up.  What its clients remember
of a round counts only once a later call says so: ``done`` is the number of rounds that count, so
that a round can be asked for again after somebody else has failed.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.cluster.pieces import Room, Slots, home, join, spaces_of, split, spread
from fedslice.cluster.shares import Range, cut_out
from fedslice.data.population import Population
from fedslice.reduce.sums import one_by_one
from fedslice.round.engine import Engine
from fedslice.round.figures import Items
from fedslice.round.plan import Own, Plan, Planner
from fedslice.round.program import once
from fedslice.round.protocol import Tags
from fedslice.round.shapes import Shapes
from fedslice.types import Algorithm, Array, ClientReport, Message, PyTree, State, Work


class Assignment(NamedTuple):
    """What every worker is told once: what is computed."""

    algorithm: Algorithm
    tags: Tags
    seed: int
    works: tuple[Work, ...]
    rows: str
    whole: bool
    repeats: bool
    fields: frozenset[str]
    mode: str | int
    threads: int
    cores: int  # among which XLA divides its work


class Share(NamedTuple):
    """The clients of one worker: their data, or the folder in which all machines find those of all
    clients, their range among all, and for each space the slots of the rows that they hold."""

    data: Population | Path
    held: Range
    slots: Slots
    splits: dict[int, np.ndarray]  # by number of the work: halves that a function of all drew

    def read(self) -> Population:
        """The clients, who may be in memory-mapped columns."""
        if isinstance(self.data, Population):
            return self.data
        return cut_out(Population.open(self.data), self.held)


class Told(NamedTuple):
    """What a worker is told in a round: who trains (places among all), for how many it answers,
    with padding, the padded sizes of all, and the slots of the rows whose values it gets."""

    round: int
    done: int
    cohort: np.ndarray
    clients: int
    capacity: dict[str, int]
    slots: Slots


class Small(NamedTuple):
    """What the driver gets of each client: dense leaves of few numbers, weight, report, counts of
    the numbers that codes keep."""

    dense: list[np.ndarray]
    weight: np.ndarray
    report: ClientReport
    items: Items


class Push(NamedTuple):
    """Rows for one shard: the ``slots`` that the clients of a worker read; for each row that they
    send, client by client, its ``places`` among those, and the ``values`` of each leaf."""

    slots: dict[str, np.ndarray]
    places: dict[str, np.ndarray]
    values: list[np.ndarray]


class Part:
    """The worker of a :class:`Share` of the clients."""

    def __init__(self, given: Assignment, share: Share) -> None:
        self.given, self.tags, self.first = given, given.tags, share.held.start
        population, model = share.read(), given.algorithm.client.model
        self.spaces = population.spaces(model)
        if given.whole:
            sizes = {name: model.tables[name].rows for name in self.spaces}
            self.spaces = {name: self.spaces[name].whole(size) for name, size in sizes.items()}
        self.slots = {
            name: np.append(known, np.full(len(self.spaces[name].ids) + 1 - len(known), -1))
            for name, known in share.slots.items()
        }  # of local ones; past the end, and where nobody holds a row: none
        self.planner = Planner(
            population,
            self.spaces,
            [_drawn(work, share.splits.get(n)) for n, work in enumerate(given.works)],
            given.seed,
            rows=given.rows,
            memory=bool(jax.tree.leaves(self.tags.memory)),
            fields=given.fields,
            repeats=given.repeats,
            whole=given.whole,
            answers=given.algorithm.answers,
        )
        key = jax.random.key(given.seed)
        tags = self.tags._replace(state=State(*self.tags.invitation))
        algorithm = once(given.algorithm, "echoing", partial(_echoing, given.algorithm))
        self.engine = Engine(algorithm, tags, jax.random.fold_in(key, 1), given.mode, given.threads)
        columns = {name: population.columns[name] for name in sorted(given.fields)}
        self.data = Population(columns, population.offsets, population.clients)
        self.memory = self._first_memory()
        self.pending: tuple[int, PyTree, Own] | None = None  # memories of a round, if it counts
        self.room = Room()
        self.large: list[Array] = []
        self.clients = 0

    def pid(self) -> int:
        """The number of this process."""
        return os.getpid()

    # -- a round -----------------------------------------------------------------------------------

    def look(self, told: Told, dense: Sequence[Any], *rows: Sequence[np.ndarray]) -> Message:
        """The clients' messages of a survey."""
        plan = self._plan(told)
        working = self._working(self.tags.invitation, told.slots, plan, dense, rows)
        messages = self.engine.compiled.look(
            State(*working), plan.shared, plan.own, self.engine.key
        )
        return _host(messages, told.clients)

    def train(
        self, told: Told, found: Sequence[Any], dense: Sequence[Any], *rows: Sequence[np.ndarray]
    ) -> tuple[Message, Items]:
        """The clients' messages, and how many numbers their codes keep; ``found`` by the survey:
        dense leaves, then rows."""
        messages, items = self._train(told, self._plan(told), found, dense, rows)
        return _host((messages, items), told.clients)

    def push(
        self, told: Told, shards: int, dense: Sequence[Any], *rows: Sequence[np.ndarray]
    ) -> list[Any]:
        """What the driver gets of each client, then the rows for each shard.  Large dense leaves
        wait for :meth:`fold`."""
        plan = self._plan(told)
        messages, items = self._train(told, plan, ([], []), dense, rows)
        sent, other = split(self.tags.values, {"update": messages.update, **messages.extra})
        self.large, self.clients = [leaf for leaf in other if one_by_one(leaf)], told.clients
        few = [leaf for leaf in other if not one_by_one(leaf)]
        small = Small(*_host((few, messages.weight, messages.report, items), told.clients))
        values = _host(sent, told.clients)
        where = {
            name: places[: told.clients].reshape(-1)
            for name, places in (plan.own.sent or plan.own.places).items()
        }
        wanted = self._wanted(plan)
        return [small, *(self._rows(n, shards, wanted, where, values) for n in range(shards))]

    def fold(self, before: list[np.ndarray] | None) -> list[np.ndarray]:
        """The sums of the large dense leaves over the clients of the workers ``before``, with this
        one's added client by client: in the order of all clients, whoever has them."""
        start = before or [np.zeros(leaf.shape[1:], leaf.dtype) for leaf in self.large]
        found = _add(start, self.large, self.clients)
        self.large = []
        return [np.asarray(leaf) for leaf in found]

    def _plan(self, told: Told) -> Plan:
        own = {key: size for key, size in self.planner.capacity.items() if key.endswith(" union")}
        clients = self.room.of("clients", told.clients)
        self.planner.capacity = {**told.capacity, **own, "clients": clients}
        plan, _ = self.planner.plan(told.round, told.cohort - self.first)
        return plan

    def _train(
        self,
        told: Told,
        plan: Plan,
        found: Sequence[Any],
        dense: Sequence[Any],
        rows: Sequence[Sequence[np.ndarray]],
    ) -> tuple[Message, Items]:
        self.commit(told.done)
        working = self._working(self.tags.invitation, told.slots, plan, dense, rows)
        seen = self._working(self.tags.found, told.slots, plan, found[0], [found[1]])
        messages, items, memories = self.engine.compiled.train(
            State(*working), self.memory, seen, plan.shared, plan.own, self.engine.key
        )
        if self.planner.memory:
            self.pending = (told.round, memories, plan.own)
        return messages, items

    def _wanted(self, plan: Plan) -> dict[str, np.ndarray]:
        """The slots of the round's rows here; -1 for padding."""
        return {name: self.slots[name][union] for name, union in plan.shared.union.items()}

    def _working(
        self,
        tags: PyTree,
        slots: Slots,
        plan: Plan,
        dense: Sequence[Any],
        rows: Sequence[Sequence[np.ndarray]],
    ) -> PyTree:
        """A tree with the rows of this worker's union, of rows that came from several shards."""
        wanted = self._wanted(plan)
        given = [np.concatenate(leaves) for leaves in zip(*rows, strict=True)]
        each = zip(spaces_of(tags), given, strict=True)
        return join(tags, [spread(slots[n], leaf, wanted[n]) for n, leaf in each], dense)

    def _rows(
        self,
        shard: int,
        shards: int,
        wanted: Mapping[str, np.ndarray],
        where: Mapping[str, np.ndarray],
        values: Sequence[np.ndarray],
    ) -> Push:
        slots, places, chosen = {}, {}, {}
        for name, known in wanted.items():
            mine = (known >= 0) & (home(known, shards) == shard)
            number = np.append(np.where(mine, np.cumsum(mine) - 1, -1), -1)  # past the end: none
            place = number[where[name]]
            chosen[name] = np.flatnonzero(place >= 0)
            slots[name], places[name] = known[mine], place[chosen[name]].astype(np.int32)
        each = zip(spaces_of(self.tags.values), values, strict=True)
        flat = [leaf.reshape(-1, *leaf.shape[2:])[chosen[name]] for name, leaf in each]
        return Push(slots, places, flat)

    # -- what clients remember ---------------------------------------------------------------------

    def commit(self, done: int) -> None:
        """What clients remember of the last round counts, if it is one of the first ``done``."""
        if self.pending is not None and self.pending[0] < done:
            _, memories, own = self.pending
            self.memory = self.engine.compiled.keep(self.memory, memories, own)
        self.pending = None

    def memories(self, done: int) -> list[np.ndarray]:
        """What clients remember after ``done`` rounds, leaf by leaf."""
        self.commit(done)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.memory)]

    def _first_memory(self) -> PyTree:
        if not self.planner.memory:
            return self.tags.memory
        key = jax.random.fold_in(jax.random.key(self.given.seed), 0)
        return Shapes(self.given.algorithm, self.data, self.spaces, key).first_memory()

    def remember(self, leaves: Sequence[np.ndarray] | None) -> None:
        """Go on with these memories, or the first ones."""
        self.pending = None
        if leaves is None:
            self.memory = self._first_memory()
            return
        given = [jax.device_put(np.array(leaf)) for leaf in leaves]
        self.memory = jax.tree.unflatten(jax.tree.structure(self.memory), given)


@jax.jit
def _add(start: list[Array], stacked: list[Array], clients: Array) -> list[Array]:
    def one(client: Array, total: list[Array]) -> list[Array]:
        return [sum + leaf[client] for sum, leaf in zip(total, stacked, strict=True)]

    return jax.lax.fori_loop(0, clients, one, start)


def _echoing(algorithm: Algorithm) -> Algorithm:
    """The algorithm of a worker, whose state is what the server offers."""
    stages = tuple(stage._replace(offer=lambda told: told) for stage in algorithm.stages)
    return algorithm._replace(
        stages=stages, server=algorithm.server._replace(offer=lambda told: told)
    )


def _drawn(work: Work, halves: np.ndarray | None) -> Work:
    return work if halves is None else work._replace(split=lambda population: halves)


def _host(tree: Any, clients: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:clients], tree)
