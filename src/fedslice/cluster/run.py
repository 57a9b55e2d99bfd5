"""Simulate on several processes or machines: the same run, to the bit, as with ``engine="map"``.

The driver samples and plans; workers have the clients' data and memory and train; the tables are in
shards that step by themselves, or with the driver where the algorithm needs that
(:mod:`fedslice.cluster.layout`).  A process that is lost is started again: what it held is computed
anew, and the run goes on to the same result."""

import weakref
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.cluster.alike import divided, threads_here
from fedslice.cluster.crew import Crew, Lost
from fedslice.cluster.layout import Layout, layout
from fedslice.cluster.part import Assignment
from fedslice.cluster.recovery import EVERY, Recovery
from fedslice.cluster.rounds import Central, Sharded
from fedslice.cluster.shard import Trust
from fedslice.cluster.store import ShardedStore
from fedslice.cluster.team import Team
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError, RoundError
from fedslice.round.disk import DiskStore
from fedslice.round.engine import Engine
from fedslice.round.figures import Figures
from fedslice.round.mode import choose
from fedslice.round.plan import Plan, Planner
from fedslice.round.store import PER_CLIENT, RamStore
from fedslice.simulation.run import Run
from fedslice.simulation.setup import Setup, checked
from fedslice.types import Algorithm, PyTree

TOGETHER = 32  # tiny clients that are vectorised at a time
ATTEMPTS = 10  # at the same round before a run gives up


class ClusterSetup(Setup):
    """What a run on one machine makes otherwise."""

    @cached_property
    def layout(self) -> Layout:
        """Where the tables are."""
        return layout(self.algorithm, self.shapes)

    def planner(self, fields: Iterable[str]) -> Planner:
        """The driver's plans have ids alone; what else examples have is with the workers."""
        planner = super().planner(())
        planner.memory = False
        return planner

    def engine(self, mode: str | int, threads: int | None, devices: int, cohort: int) -> Engine:
        """In parts, as workers have the clients."""
        if mode in ("vmap", "scan", "debug"):
            raise InputError(
                f"engine={mode!r} looks at a whole cohort, which no machine of a cluster has: use"
                " 'auto', 'map' or a number of clients to vectorise at a time"
            )
        chosen, _ = choose(mode, 1, self.shapes.numbers, cohort)
        together = TOGETHER if chosen == "vmap" else chosen
        return Engine(self.algorithm, self.shapes.tags, self.key, together, 1)

    def store(self, place: str | Path) -> RamStore:
        """In memory: the shards', or the driver's."""
        ids = {name: space.ids for name, space in self.spaces.items()}
        kind = RamStore if self.layout.reason else ShardedStore
        return kind(self.shapes.make, self.shapes.tags.state, ids)

    def memory(self, store: RamStore | DiskStore) -> PyTree:
        """Of no meaning: it is with the workers."""
        return self.shapes.tags.memory


class ClusterRun(Run):
    """A simulation on a crew; made by :func:`simulate`.  ``layout.reason`` says why its tables are
    with the driver, if they are."""

    store: RamStore  # the tables are in memory: that of the shards, or the driver's
    _kind = ClusterSetup
    _setup: ClusterSetup

    def __init__(self, crew: Crew, every: float, *given: Any) -> None:
        self.crew, self.team = crew, None
        super().__init__(*given)
        self.layout = self._setup.layout
        self.remembers = bool(jax.tree.leaves(self.shapes.tags.memory))
        self.team = self._team()
        weakref.finalize(self, self.team.close)
        if isinstance(self._store, ShardedStore):
            self._store.team, self._store.guard = self.team, self.guarded
            self.sharded = Sharded(self.team, self.engine, self.layout)
        else:
            self.central = Central(self.team, self.engine)
        self.recovery = Recovery(self._own(), every)
        self.broken = self.behind = False
        self.reached = 0  # rounds that count: one more than were reported while one is ending

    def _team(self) -> Team:
        planner, tags = self.planner, self.shapes.tags
        given = Assignment(
            self.algorithm,
            tags,
            self.seed,
            tuple(planner.works),
            planner.rows,
            planner.whole,
            planner.repeats,
            frozenset(self._setup.fields),
            self.engine.mode,
            self.crew.threads,
            self._cores(),
        )
        found = self.layout
        trust = Trust(self.algorithm, tags, self.seed, [*found.dense], [*found.totals])
        return Team(
            self.crew,
            given,
            None if found.reason else trust,
            self.population,
            self.spaces,
            self.eligible,
            self.remembers,
        )

    def _cores(self) -> int:
        """Among how many threads XLA divides the work of a worker: as here, unless it divides none
        of it anywhere."""
        most = {name: touch.most for name, touch in self.planner.touch.items()}
        here, own = threads_here(), self.crew.threads
        return here if divided(self.shapes.alone(most), self.engine.unit) else min(here, own)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """That of a run on one machine, which can go on from the same checkpoint."""
        return {**super().identity, "store": RamStore.__name__}

    # -- a round -----------------------------------------------------------------------------------

    def _step(self, plans: Plan, start: int, stop: int) -> Figures:
        plan: Plan = jax.tree.map(lambda leaf: leaf[start], plans)
        number, capacity = int(plan.shared.round), dict(self.planner.capacity)
        self.recovery.sizes[number] = capacity
        figures = self.guarded(lambda: self._attempt(plan, capacity, number))
        self.reached = number + 1
        if (self.remembers or not self.layout.reason) and self.recovery.due:
            self.guarded(lambda: self.recovery.keep(self._members(), self._own()))
        return jax.tree.map(lambda leaf: leaf[None], figures)

    def _attempt(self, plan: Plan, capacity: dict[str, int], round: int) -> Figures:
        """Do a round; it counts if nobody is lost."""
        team, cohort = self._members(), self.cohort(round)
        if isinstance(self._store, ShardedStore):
            given = self._store.dense
            self._store.dense, figures = self.sharded.run(given, plan, capacity, cohort)
        else:
            assert isinstance(self._store, RamStore)
            union = plan.shared.union
            working = self.engine.begin(self._store.state, union)
            working, figures = self.central.run(working, plan, capacity, cohort)
            self._store.state = self.engine.end(self._store.state, union, working)
        team.done = round + 1
        return figures

    # -- members that are lost ---------------------------------------------------------------------

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Do something with the members; again, after all is as it was, if one was lost."""
        for _ in range(ATTEMPTS):
            try:
                if self.broken:
                    self._mend()
                return action()
            except Lost as error:
                self.broken, last = True, error
        raise RoundError(
            f"round {self.reached + 1} was tried {ATTEMPTS} times and processes were lost every"
            f" time, at last: {last}. Look at the memory of the machines (ray status); a run with"
            " an --out folder goes on from its checkpoint"
        )

    def _mend(self) -> None:
        """Start again who was lost; if anything went with them, go back and replay."""
        workers, shards = self._members().revive()
        self.behind |= bool(shards or (workers and self.remembers))
        if self.behind:
            self._resume(self.recovery.go_back(self._members()))
            now = self.planner.capacity
            for round in range(self._members().done, self.reached):
                capacity = self.recovery.sizes[round]
                self.planner.capacity = dict(capacity)
                plan, _ = self.planner.plan(round, self.cohort(round))
                self._attempt(plan, capacity, round)
            self.planner.capacity = now
        self.broken = self.behind = False

    def _own(self) -> Any:
        """What the driver has to go back to."""
        if isinstance(self._store, ShardedStore):
            return self._store.dense
        return self._store.snapshot() if self.remembers else None

    def _resume(self, own: Any) -> None:
        if isinstance(self._store, ShardedStore):
            self._store.dense = own
        elif own is not None:
            self._store.restore(own)

    def _members(self) -> Team:
        if self.team is None or not self.team.workers:
            raise InputError("this run was closed: make another one")
        return self.team

    # -- keeping and restoring ---------------------------------------------------------------------

    @property
    def memory(self) -> PyTree:
        """What all clients remember, from the workers."""
        tags = self.shapes.tags.memory
        if self.team is None or not self.remembers:
            return tags
        team = self._members()
        parts = self.guarded(lambda: team.each(team.workers, "memories", team.done))
        found = []
        for place, tag in enumerate(jax.tree.leaves(tags)):
            leaves = [part[place][: self._size(tag, number)] for number, part in enumerate(parts)]
            whole = np.concatenate(leaves)
            found.append(jax.device_put(whole if len(whole) else parts[0][place]))
        return jax.tree.unflatten(jax.tree.structure(tags), found)

    @memory.setter
    def memory(self, given: PyTree) -> None:
        if self.team is None or not self.remembers:
            return
        team, tags = self._members(), jax.tree.leaves(self.shapes.tags.memory)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(given)]

        def mine(number: int) -> list[np.ndarray]:
            pairs = zip(tags, leaves, strict=True)
            return [_at_least_one(leaf[self._span(tag, number)]) for tag, leaf in pairs]

        self.guarded(lambda: team.one_by_one(team.workers, "remember", mine))

    def _span(self, tag: str, worker: int) -> slice:
        """A worker's entries of what clients remember."""
        start, stop = self._members().held[worker]
        if tag != PER_CLIENT:
            offsets = self.spaces[tag].offsets
            start, stop = int(offsets[start]), int(offsets[stop])
        return slice(start, stop)

    def _size(self, tag: str, worker: int) -> int:
        span = self._span(tag, worker)
        return span.stop - span.start

    def restore(self, folder: str | Path) -> None:
        """Go on from a checkpoint, of this run or of the same one on one machine."""
        super().restore(folder)
        team = self._members()
        team.done = self.reached = self.round
        self.recovery.sizes.clear()
        self.guarded(lambda: self.recovery.keep(team, self._own()))

    def close(self) -> None:
        """End the members' processes; the run is over."""
        if self.team is not None:
            self.team.close()

    def __enter__(self) -> "ClusterRun":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _at_least_one(rows: np.ndarray) -> np.ndarray:
    return rows if len(rows) else np.zeros((1, *rows.shape[1:]), rows.dtype)


def simulate(
    algorithm: Algorithm,
    population: Population,
    *,
    crew: Crew,
    sampler: Sampler,
    seed: int = 0,
    engine: str | int = "auto",
    rows: str | None = None,
    stop_above: float = 10.0,
    every: float = EVERY,
) -> ClusterRun:
    """Set up a run on a crew, as :func:`fedslice.simulate` does in one process.

    ``engine``: ``"map"`` clients one after the other on each worker, a number to vectorise so many
    at a time, ``"auto"`` by the size of a client.  With ``"map"`` the results are those of
    ``fedslice.simulate(..., engine="map")`` to the bit, whatever the crew, but for the reported
    norm of updates, which is a sum over shards.  ``every``: seconds between the points to which a
    run goes back when a process is lost that held more than clients' data.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    >>> with simulate(
    ...     method, task.train, crew=fs.cluster.here(workers=2), sampler=fs.sampling.full()
    ... ) as run:
    ...     [report.round for report in run.rounds(2)]
    [1, 2]
    """
    rows = checked(algorithm, sampler, rows, seed)
    return ClusterRun(
        crew, every, algorithm, population, sampler, seed, engine, None, rows, "ram", stop_above
    )
