"""Simulate federated training: sample, plan, run the compiled round, report; save and resume.

A run is a pure function of its parts and its seed.  The host plans a block of rounds while the
device computes the block before it, and reports are read only when somebody looks, so nothing waits
for anything."""

import html
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.compose import check_heat, check_sampler
from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.data.submodel import WHOLE
from fedslice.errors import DivergedError, FedsliceError, InputError
from fedslice.privacy.accounting.account import Guarantee
from fedslice.privacy.ledger import spent
from fedslice.round.batches import check_query
from fedslice.round.debug import DebugEngine
from fedslice.round.devices import DeviceEngine, local_devices
from fedslice.round.disk import DiskMemory, DiskStore
from fedslice.round.engine import Engine
from fedslice.round.figures import Figures
from fedslice.round.mode import choose
from fedslice.round.plan import Plan, Planner
from fedslice.round.shapes import Shapes, works
from fedslice.round.store import RamStore
from fedslice.safeguards import check_rounds
from fedslice.simulation import checkpoint
from fedslice.simulation.ahead import Ahead, Wait
from fedslice.simulation.aside import Aside
from fedslice.simulation.counting import Counter
from fedslice.simulation.history import History
from fedslice.simulation.progress import bar
from fedslice.simulation.report import Report as Report
from fedslice.types import Algorithm, Key, Params, PyTree

LAG = 8  # rounds, or one block, that may be under way before the oldest one's report is checked,
UNDER_WAY = 1 << 25  # bytes of their plans, of two rounds at least: those are long enough
BLOCK = 1 << 21  # bytes of the plans of a block: what a cache holds,
LONGEST = 16  # and the most rounds of one, so that a run that goes wrong is soon stopped
PATIENCE = 3  # rounds with a far too high loss before a run is stopped
LAST = 5  # rounds that a notebook shows
WARM_UP = 16  # rounds planned ahead to find the sizes to pad to


class Run:
    """A simulation in progress; made by :func:`simulate`.

    ``round`` is the number of rounds done, ``totals`` what they moved and processed, ``planning``
    the seconds that the host spent on planning them, ``log`` whatever its user wants to be kept in
    each checkpoint, such as the metrics so far."""

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
        self.algorithm, self.population, self.sampler, self.seed = (
            algorithm,
            population,
            sampler,
            seed,
        )
        self.model = model = algorithm.client.model
        self.round, self.stop_above, self.devices = 0, stop_above, devices
        self._computed = 0  # rounds that are in the store
        self.log = b""
        self.planning = 0.0
        self.first_loss: float | None = None
        self.high = 0  # rounds in a row whose loss was far too high
        self._totals = {"examples": 0, "bytes_down": 0, "bytes_up": 0}
        self._history = History()
        self._uncounted: deque[Report] = deque()  # whose bytes are known after the round alone
        self.eligible = np.flatnonzero(population.counts)
        self._most = algorithm.most
        self._counts = population.counts[self.eligible]
        if not len(self.eligible):
            raise InputError("no client has any data: check the population or its split")
        self.spaces = population.spaces(model)
        meet(model, population)
        check_heat(algorithm, population)
        if rows == "all":
            sizes = {name: model.tables[name].rows for name in self.spaces}
            self.spaces = {name: self.spaces[name].whole(size) for name, size in sizes.items()}
        fields = model.fields(population.columns)
        columns = {name: population.columns[name] for name in sorted(fields)}
        data = Population(columns, population.offsets, population.clients)
        key = jax.random.key(seed)
        self.shapes = Shapes(algorithm, data, self.spaces, jax.random.fold_in(key, 0))
        self.planner = self._planner(rows, fields)
        check_query(self.planner.works, self.planner.pools)
        self.engine = self._engine(engine, threads, jax.random.fold_in(key, 1))
        self._store = self._make_store(store)
        self._memory = self._make_memory()
        self._pending: deque[Report] = deque()
        self._ahead: Ahead | None = None
        self._counter = Counter(
            algorithm, model, self.shapes.wire, self.spaces, len(population), self.cohort
        )
        for ahead in range(WARM_UP):
            plan, _ = self.planner.plan(ahead, self.cohort(ahead))
        in_memory = isinstance(self._store, RamStore)
        self._blocks = self.engine.fused and in_memory
        self._aside: Aside[Figures] | None = None
        if self.engine.threads > 1 or not in_memory:
            self._aside = Aside()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(plan))
        self._room = max(1, min(LONGEST, BLOCK // size)) if self._blocks else 1
        self._lag = min(LAG, max(2, UNDER_WAY // size))

    def _planner(self, rows: str | None, fields: Iterable[str]) -> Planner:
        return Planner(
            self.population,
            self.spaces,
            works(self.algorithm),
            self.seed,
            rows=rows if rows in ("touched", "held") else self.algorithm.client.rows,
            memory=bool(jax.tree.leaves(self.shapes.tags.memory)),
            fields=fields,
            repeats=self.sampler.by_examples,
            whole=rows == "all",
            answers=self.algorithm.answers,
        )

    def _engine(self, mode: str | int, threads: int | None, key: Key) -> Engine:
        alone = len(self.eligible) == 1
        expected = len(self.cohort(0))
        whole, own = self.devices == 1, 1 if alone else threads
        uneven = any(work.epochs is not None for work in self.planner.works)
        mode, cores = choose(mode, own, self.shapes.numbers, expected, whole, uneven)
        if mode == "debug":
            return DebugEngine(self.algorithm, self.shapes.tags, key, self.population.clients)
        if self.devices != 1:
            some = local_devices(self.devices)
            return DeviceEngine(self.algorithm, self.shapes.tags, key, mode, some)
        return Engine(
            self.algorithm, self.shapes.tags, key, mode, cores, alone, self.shapes.numbers
        )

    def _make_store(self, place: str | Path) -> RamStore | DiskStore:
        ids = {name: space.ids for name, space in self.spaces.items()}
        if str(place).lower() == "ram":
            return RamStore(self.shapes.make, self.shapes.tags.state, ids)
        shared = {} if self.planner.whole else self.population.shared(self.model)
        return DiskStore(self.shapes.make, self.shapes.tags.state, ids, Path(place), shared)

    def _make_memory(self) -> PyTree | DiskMemory:
        """What clients keep: where the tables are, in device memory or on disk."""
        tags = self.shapes.tags.memory
        if isinstance(self._store, RamStore) or not jax.tree.leaves(tags):
            return self.shapes.first_memory()
        shapes, folder = self.shapes, self._store.folder
        like, counts = shapes.memory_like(), shapes.memory_counts()
        return DiskMemory(tags, like, counts, shapes.first_memory_of, folder)

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
            figures = self._step_on_disk(self._store, plan)
        return jax.tree.map(lambda leaf: leaf[None], figures)

    def _step_on_disk(self, store: DiskStore, plan: Plan) -> Figures:
        """A round on rows, and memories, that are taken from files and put back."""
        memory, working = self._memory, store.take(plan.shared.union)
        if isinstance(self._memory, DiskMemory):
            memory, held = self._memory.take(plan.own.drawers)
            plan = plan._replace(own=plan.own._replace(held=held))
        working, memory, figures = self.engine.on_working_set(working, memory, plan)
        store.put(working)
        if isinstance(self._memory, DiskMemory):
            self._memory.put(memory)
        else:
            self._memory = memory
        return figures

    def remembered(self, drawers: dict[str, np.ndarray]) -> tuple[PyTree, dict[str, np.ndarray]]:
        """What clients keep, for a look, and where the ``drawers`` (:attr:`fedslice.round.plan.Own.drawers`)
        that are asked for stand in it."""
        if isinstance(self.memory, DiskMemory):
            return self.memory.look(drawers)
        return self.memory, drawers

    def _check(self, report: Report) -> None:
        """Stop a run that went to infinity, saying what to try."""
        figures = report.figures
        loss, start, failed, norm = np.asarray(figures.values).tolist()
        moved = report.examples, report.bytes_down, report.sent(figures)
        if self._uncounted and self._uncounted[0] is report:
            self._count(moved)
            self._uncounted.popleft()
        self._history.add((report.round, report.clients, *moved, loss, start, failed, norm))
        if self.first_loss is None and failed < report.clients:
            self.first_loss = start
        too_high = start > self.stop_above * max(abs(self.first_loss or 0.0), 1e-3)
        self.high = self.high + 1 if too_high else 0
        if report.clients and failed == report.clients:
            reason = f"none of the {report.clients} clients sent a finite update and loss"
        elif not np.isfinite(norm):
            reason = "the aggregated update is not finite"
        elif not np.isfinite(loss):
            reason = "the cohort's mean loss is not finite"
        elif self.high == PATIENCE:
            reason = (
                f"the training loss {start:.3g} is over {self.stop_above:g} times that of the first"
                " model"
            )
        else:
            return
        noisy = (
            " Noise alone can do this: try larger cohorts, a smaller clip or less noise."
            if self.algorithm.noise is not None
            else ""
        )
        raise DivergedError(
            f"training diverged in round {report.round}: {reason}. Try a smaller client learning"
            " rate (or rate of reconstruction, where local leaves are rebuilt), fewer local steps,"
            " or a gradient clip (optax.clip_by_global_norm before the client's optimizer). With"
            " heat correction a row held by one client moves N/K times as far as its update, so it"
            f" may need a smaller rate than FedAvg.{noisy}"
            ' engine="debug" (--set engine=debug) names the first client that goes wrong.'
        )

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
        self._ahead = None
        self.round, self.first_loss = where["round"], where["first_loss"]
        self._computed = self.round
        self._totals = dict(where["totals"])
        self._uncounted.clear()
        self._history = History()
        self.planner.capacity = dict(where["capacity"])
        self._pending.clear()  # rounds under way are of another life
        self.high = where["high"]

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
            self._check_rows(space, np.asarray(rows))
        given = ids or {}
        wanted = {name: given[name] if name in given else self.listed(name) for name in self.spaces}
        return self.algorithm.server.params(self.store.rows(lambda state: state.server, wanted))

    def listed(self, space: str) -> np.ndarray:
        """The rows that the model is shown with: those that somebody holds, but with noise that is
        added where rows are read all of them, for the list would tell who holds what."""
        if self.algorithm.server.noise is None:
            return self.spaces[space].ids
        if (rows := self.model.tables[space].rows) > WHOLE:
            raise InputError(
                f"table {space!r} has {rows:,} rows, all of which have noise: say which ones,"
                " run.params({space: ids}) or run.table(name, ids)"
            )
        return np.arange(rows)

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

    def _check_rows(self, space: str, ids: np.ndarray) -> None:
        if space not in self.spaces:
            raise InputError(f"the model has no index space {space!r}, only {sorted(self.spaces)}")
        size = self.model.tables[space].rows
        if ids.size and ids.dtype.kind not in "iu":
            raise InputError(
                f"rows of table {space!r} are asked for by whole numbers, got {ids.dtype}"
            )
        if ids.size and not (ids.min() >= 0 and ids.max() < size):
            raise InputError(
                f"table {space!r} has rows 0 to {size - 1}, asked for {ids.min()} to {ids.max()}"
            )


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


def checked(algorithm: Algorithm, sampler: Sampler, rows: str | None, seed: int) -> str | None:
    """Refuse what cannot be simulated; which rows a round goes over."""
    if rows not in (None, "touched", "held", "all"):
        raise InputError(f"rows={rows!r}: use 'touched', 'held' or 'all'")
    if not isinstance(sampler, Sampler):
        hint = (
            f"sampling.uniform({sampler})" if isinstance(sampler, int) else "sampling.uniform(50)"
        )
        raise InputError(
            f"sampler={sampler!r} is no sampler: say how clients are drawn, as in sampler={hint}"
        )
    check_sampler(algorithm, sampler)
    whole = any(stage.noise for stage in algorithm.stages)
    if whole and rows not in (None, "all"):
        raise InputError(
            f"rows={rows!r}: noise on some rows alone would name them, and the clients that hold"
            " them; with differential privacy a round goes over all rows, so leave rows out"
        )
    if not 0 <= seed < 2**31:
        raise InputError(f"seed={seed}: give a whole number from 0 to {2**31 - 1}")
    return "all" if whole else rows
