"""Simulate federated training: sample, plan, run the compiled round, report; save and resume.

A run is a pure function of its parts and its seed.  The host plans a block of rounds while the
device computes the block before it, and reports are read only when somebody looks, so nothing waits
for anything."""

import html
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.errors import FedsliceError, InputError
from fedslice.privacy.accounting.account import Guarantee
from fedslice.privacy.ledger import spent
from fedslice.round.batches import check_query
from fedslice.round.disk import DiskMemory, DiskStore, on_disk
from fedslice.round.figures import Figures
from fedslice.round.plan import Plan
from fedslice.round.store import RamStore
from fedslice.safeguards import check_rounds
from fedslice.simulation import checkpoint
from fedslice.simulation.ahead import Ahead, Wait, pace
from fedslice.simulation.aside import Aside
from fedslice.simulation.counting import Counter
from fedslice.simulation.health import Health
from fedslice.simulation.history import History
from fedslice.simulation.progress import bar
from fedslice.simulation.report import Report as Report
from fedslice.simulation.setup import Setup, checked
from fedslice.simulation.shown import check_rows, every_row
from fedslice.types import Algorithm, Params, PyTree

LAST = 5  # rounds that a notebook shows
WARM_UP = 16  # rounds planned ahead to find the sizes to pad to


class Run:
    """A simulation in progress; made by :func:`simulate`.

    ``round`` is the number of rounds done, ``totals`` what they moved and processed, ``planning``
    the seconds that the host spent on planning them, ``log`` whatever its user wants to be kept in
    each checkpoint, such as the metrics so far."""

    _kind: type[Setup] = Setup  # a cluster has another

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        sampler: Sampler,
        seed: int,
        engine: str | int,
        threads: int | None,
        rows: str | None,
        store: str | Path,
        stop_above: float,
        devices: int = 1,
    ) -> None:
        self.algorithm, self.model = algorithm, algorithm.client.model
        self.population, self.sampler, self.seed = population, sampler, seed
        self.stop_above, self.devices = stop_above, devices
        self.log, self.planning = b"", 0.0
        self._health = Health(noisy=algorithm.noise is not None)
        self._begin(0, {"examples": 0, "bytes_down": 0, "bytes_up": 0})
        self.eligible = np.flatnonzero(population.counts)
        self._most, self._counts = algorithm.most, population.counts[self.eligible]
        self._setup = self._kind(algorithm, population, sampler, seed, rows)
        self.spaces, self.shapes = self._setup.spaces, self._setup.shapes
        self.planner = self._setup.planner(self._setup.fields)
        check_query(self.planner.works, self.planner.pools)
        self.engine = self._setup.engine(engine, threads, devices, len(self.cohort(0)))
        self._store = self._setup.store(store)
        self._memory = self._setup.memory(self._store)
        self._counter = Counter(
            algorithm, self.model, self.shapes.wire, self.spaces, len(population), self.cohort
        )
        for ahead in range(WARM_UP):
            plan, _ = self.planner.plan(ahead, self.cohort(ahead))
        in_memory = isinstance(self._store, RamStore)
        self._blocks = self.engine.fused and in_memory
        busy = self.engine.threads > 1 or not in_memory
        self._aside: Aside[Figures] | None = Aside() if busy else None
        self._room, self._lag = pace(plan, self._blocks)

    def _begin(self, round: int, totals: dict[str, int]) -> None:
        """Go on after so many rounds; what was under way, if anything, is of another life."""
        self.round = self._computed = round  # those that were asked for, those in the store
        self._totals = dict(totals)
        self._history = History()
        self._uncounted: deque[Report] = deque()  # whose bytes are known after the round alone
        self._pending: deque[Report] = deque()  # that were not checked
        self._ahead: Ahead | None = None

    @property
    def store(self) -> RamStore | DiskStore:
        """Where the state is, after all rounds that were asked for."""
        self._settle()
        return self._store

    @property
    def memory(self) -> PyTree | DiskMemory:
        """What clients keep between their rounds, likewise."""
        self._settle()
        return self._memory

    @memory.setter
    def memory(self, given: PyTree | DiskMemory) -> None:
        self._memory = given

    @property
    def first_loss(self) -> float | None:
        """The loss of the first model; None before any client had one."""
        return self._health.first_loss

    @property
    def high(self) -> int:
        """In how many rounds in a row the loss was far too high."""
        return self._health.high

    # -- training ----------------------------------------------------------------------------------

    def cohort(self, round: int) -> np.ndarray:
        """The clients of a round, ascending: the same for every algorithm with this seed and
        sampler.  One that was drawn twice (``sampling.weighted``) is there twice."""
        drawn = self.eligible[self.sampler.cohort(self.seed, round, self._counts)]
        if self._most is not None and len(drawn) > self._most:
            raise InputError(
                f"round {round + 1} has {len(drawn)} clients, the secure sum room for {self._most}:"
                " give it more, stage.secure(clients=...)"
            )
        return drawn

    def rounds(self, count: int) -> Iterator[Report]:
        """Run ``count`` rounds, one each time the loop asks for the next report.

        Small rounds are planned, and computed, several at a time.  Whoever looks in between (at a
        figure of a report, :meth:`params`, ``store``, ``memory``, :meth:`save`) sees the run as it
        is after the rounds asked for so far, and not a bit differs: a round waits for the next ones
        only as long as nobody looks."""
        while count > 0:
            ahead = self._plan(min(count, self._room))
            while not ahead.full and self._ahead is ahead:  # else a checkpoint was restored
                report = ahead.ask()
                self.round += 1
                count -= 1
                self._uncounted.append(report)
                self._pending.append(report)
                if ahead.full:
                    self._compute()
                    while len(self._pending) > max(self._lag, self._room):
                        self._check(self._pending.popleft())
                yield report
        self.wait()

    def _plan(self, count: int) -> Ahead:
        """The next rounds, as many of them as fit the same padded sizes.  What one of them may not
        do is told when it is the first."""
        self._compute()
        begun = time.perf_counter()
        cohorts: list[np.ndarray] = []
        for round in range(self.round, self.round + count):
            try:
                if self.algorithm.noise is not None:
                    check_rounds(self.algorithm, round + 1)
                cohorts.append(self.cohort(round))
            except FedsliceError:
                if not cohorts:
                    raise
                break
        block = self.planner.block(self.round, cohorts, self._room)
        moved = self._counter.moved(block.traffic)
        self._ahead = Ahead(self.round, block, moved, self._hand_over)
        self.planning += time.perf_counter() - begun
        return self._ahead

    def _compute(self) -> None:
        """Hand over all rounds that were asked for.  If that fails, on a full disk say, those that
        were not computed are taken back."""
        if self._ahead is not None:
            self._safely(self._ahead.compute)

    def _settle(self) -> None:
        """The same, and wait for what is computed in another thread."""
        self._compute()
        if self._aside is not None:
            self._safely(self._aside.settle)

    def _safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception:
            for reports in (self._uncounted, self._pending):
                while reports and reports[-1].round > self._computed:
                    reports.pop()
            self.round, self._ahead = self._computed, None
            raise

    def _hand_over(self, plans: Plan, start: int, stop: int) -> Wait:
        """Have planned rounds computed: by a thread of its own, where that keeps a thread busy, so
        that the next round is planned meanwhile."""

        def work() -> Figures:
            figures = self._step(plans, start, stop)
            self._computed += stop - start
            return figures

        if self._aside is None:
            figures = work()
            return lambda: figures
        wait = self._aside.start(work)
        return lambda: self._safely(wait)

    def train(self, count: int, progress: bool = True) -> Report:
        """Run ``count`` rounds with a progress bar and return the last report."""
        report = None
        with bar(count, progress) as advance:
            for report in self.rounds(count):
                advance(self._pending[0] if self._pending else report)
        if report is None:
            raise InputError(f"count={count}: train at least one round")
        return report

    def wait(self) -> None:
        """Until all rounds are computed and found healthy."""
        while self._pending:
            self._check(self._pending.popleft())

    @property
    def history(self) -> Any:
        """A pandas DataFrame with a row for each round that was computed here: clients, examples,
        bytes, loss, clients that failed, the update's norm.  One that was restored begins with the
        rounds after that."""
        self.wait()
        return self._history.frame()

    def __repr__(self) -> str:
        people = f"{len(self.population):,} clients, {self.population.examples:,} examples"
        return f"<Run: {self.algorithm.name}, {self.round:,} rounds, {people}, seed {self.seed}>"

    def _repr_html_(self) -> str:
        """For a notebook: what it is, and its last rounds."""
        self.wait()
        return f"<p>{html.escape(repr(self))}</p>{self._history.table(LAST)}"

    @property
    def totals(self) -> dict[str, int]:
        """Examples and bytes of all rounds so far."""
        while self._uncounted:
            report = self._uncounted.popleft()  # waits for it, if codes leave numbers out
            self._count((report.examples, report.bytes_down, report.bytes_up))
        return dict(self._totals)

    def _count(self, moved: tuple[int, int, int]) -> None:
        """Add what a round moved."""
        for name, more in zip(self._totals, moved, strict=True):
            self._totals[name] += more

    def _step(self, plans: Plan, start: int, stop: int) -> Figures:
        """Compute some of the planned rounds: all in one call where the state is in memory and a
        round one program."""
        if self._blocks and isinstance(self._store, RamStore):
            self._store.state, self._memory, figures = self.engine.several(
                self._store.state, self._memory, plans, start, stop
            )
            return figures
        plan = jax.tree.map(lambda leaf: leaf[start], plans)
        if isinstance(self._store, RamStore):
            self._store.state, self._memory, figures = self.engine.in_memory(
                self._store.state, self._memory, plan
            )
        else:
            self._memory, figures = on_disk(self.engine, self._store, self._memory, plan)
        return jax.tree.map(lambda leaf: leaf[None], figures)

    def _check(self, report: Report) -> None:
        """Note what a round reported, and stop a run that went to infinity."""
        figures = report.figures
        values = np.asarray(figures.values).tolist()
        moved = report.examples, report.bytes_down, report.sent(figures)
        if self._uncounted and self._uncounted[0] is report:
            self._count(moved)
            self._uncounted.popleft()
        self._history.add((report.round, report.clients, *moved, *values))
        self._health.judge(report, values, self.stop_above)

    def remembered(self, drawers: dict[str, np.ndarray]) -> tuple[PyTree, dict[str, np.ndarray]]:
        """What clients keep, for a look, and where the ``drawers`` (of
        :class:`fedslice.round.plan.Own`) that are asked for stand in it."""
        if isinstance(self.memory, DiskMemory):
            return self.memory.look(drawers)
        return self.memory, drawers

    # -- keeping and restoring ---------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint into ``folder``, all or nothing; from it :meth:`restore` goes on bit
        for bit."""
        self.wait()
        where = {
            "round": self.round,
            "totals": self.totals,
            "capacity": self.planner.capacity,
            "first_loss": self.first_loss,
            "high": self.high,
        }
        saved = checkpoint.Saved(where, self.memory, self.log)
        return checkpoint.write(Path(folder), self.identity, self.store, saved)

    def restore(self, folder: str | Path) -> None:
        """Go on from the checkpoint in ``folder``.

        The run must have been set up in the same way: parts with all their rates and functions,
        seed, sampler, engine and data are compared.  Threads may differ, but where vectorised
        clients are divided among them, and where ``"auto"`` chose ``"scan"``, which is for runs
        without ``threads``."""
        where, self.memory, self.log = checkpoint.read(
            Path(folder), self.identity, self.store, self.memory
        )
        self._begin(where["round"], where["totals"])
        self.planner.capacity = dict(where["capacity"])
        self._health.first_loss, self._health.high = where["first_loss"], where["high"]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on from its checkpoint."""
        engine = self.engine
        return {
            "algorithm": self.algorithm.name,
            "seed": self.seed,
            "sampler": self.sampler.name,
            "work": [work.identity() for work in self.planner.works],
            "rows": "all" if self.planner.whole else self.planner.rows,
            "store": type(self._store).__name__,
            "engine": [engine.mode, *([engine.threads] if engine.mode == "vmap" else [])],
            "population": checkpoint.fingerprint(self.population),
            "program": self.shapes.program(),
            "versions": f"fedslice {version('fedslice')}, jax {jax.__version__}",
        }

    # -- looking at the model ----------------------------------------------------------------------

    def params(self, ids: dict[str, np.ndarray] | None = None) -> Params:
        """The model: dense leaves, and of each table the rows ``ids`` (by space; default: all rows
        anyone holds, or all of them with ``privacy.lazy``)."""
        for space, rows in (ids or {}).items():
            check_rows(self.model, space, np.asarray(rows))
        given = ids or {}
        wanted = {name: given[name] if name in given else self.listed(name) for name in self.spaces}
        return self.algorithm.server.params(self.store.rows(lambda state: state.server, wanted))

    def listed(self, space: str) -> np.ndarray:
        """The rows that the model is shown with: those that somebody holds, but with noise that is
        added where rows are read all of them, for the list would tell who holds what."""
        if self.algorithm.server.noise is None:
            return self.spaces[space].ids
        return every_row(self.model, space)

    def spent(self, delta: float | None = None) -> Guarantee | None:
        """What the rounds so far tell about any one client; None without noise."""
        return spent(self.algorithm, len(self.eligible), self.round, delta)

    def table(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows of one table; a row that was never trained has its first value.

        >>> import optax, fedslice as fs
        >>> task = fs.tasks.quadratic.example1(clients=4)
        >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
        >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
        >>> run.table("w", np.array([1, 0])).tolist()
        [1.0, 1.0]
        >>> _ = list(run.rounds(1))
        >>> run.table("w", np.array([1, 0])).tolist()  # row 0 is held by one client of four
        [0.0, 0.75]
        """
        if name not in self.model.tables:
            raise InputError(f"the model has no table {name!r}, only {sorted(self.model.tables)}")
        return np.asarray(self.params({self.model.space_of[name]: np.asarray(ids)})[name])


def simulate(
    algorithm: Algorithm,
    population: Population,
    *,
    sampler: Sampler,
    seed: int = 0,
    engine: str | int = "auto",
    threads: int | None = None,
    rows: str | None = None,
    store: str | Path = "ram",
    stop_above: float = 10.0,
    devices: int = 1,
) -> Run:
    """Set up a run; nothing is trained yet.

    ``engine``: ``"vmap"`` all clients at once, ``"map"`` one after the other in every thread,
    ``"scan"`` one after the other in one, which does not wait for the planning, a number to
    vectorise so many at a time, ``"auto"`` by the size of a client, ``"debug"`` slowly, naming the
    client that goes wrong.

    ``rows="held"`` works on all of S(i), ``"touched"`` on the rows that the round's batches read
    (default: what the client part needs); they differ only where rows without gradient move: server
    momentum, weight decay on clients.  With ``"all"`` a round is over all rows of the tables,
    whatever the data: the server steps on those that nobody holds, too, and what acts on the sum
    (noise) falls on all of them.  A round then costs as much as a table has rows.

    ``store`` is ``"ram"`` or a folder for memory-mapped tables.  The run stops when the loss stays
    over ``stop_above`` times the first model's.  So many JAX ``devices`` share the cohort, an equal
    part each; more machines do with :func:`fedslice.cluster.simulate`.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [report.round for report in run.rounds(2)]
    [1, 2]
    """
    rows = checked(algorithm, sampler, rows, seed)
    return Run(
        algorithm, population, sampler, seed, engine, threads, rows, store, stop_above, devices
    )
