"""Simulate federated training: sample, plan, run the compiled round, report; save and resume.

A run is a pure function of its parts and its seed.  The host plans round r + 1 while the device computes round r, and
reports are read only when somebody looks, so nothing waits for anything.
"""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice import checkpoint
from fedslice.debug import DebugEngine
from fedslice.engine import PER_CLIENT, REPORT, Engine, Tags, choose
from fedslice.errors import DivergedError, InputError
from fedslice.plan import Plan, Planner, Traffic
from fedslice.population import Population
from fedslice.sampling import Sampler
from fedslice.store import DiskStore, RamStore, row_leaves
from fedslice.types import Algorithm, Data, Message, Params, PyTree, State

LAG = 8  # rounds that may be under way before the oldest one's report is checked
PATIENCE = 3  # rounds with a far too high loss before a run is stopped
WARM_UP = 16  # rounds planned ahead to find the sizes to pad to


class Report(NamedTuple):
    """What happened in one round.  Reading a figure waits for that round's computation."""

    round: int
    clients: int
    examples: int
    bytes_down: int
    bytes_up: int
    values: Any

    @property
    def loss(self) -> float:
        """Mean training loss of the cohort during its local steps."""
        return self._value("loss")

    @property
    def start_loss(self) -> float:
        """Training loss of the cohort's first batches: that of the global model before the round."""
        return self._value("start_loss")

    @property
    def failed(self) -> int:
        """Clients whose update was not finite; they had weight zero."""
        return int(self._value("failed"))

    @property
    def update_norm(self) -> float:
        """L2 norm of the aggregated update."""
        return self._value("update_norm")

    def _value(self, name: str) -> float:
        return float(np.asarray(self.values)[REPORT.index(name)])

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"round {self.round}: {self.clients} clients{failed}, loss {self.loss:.4f}"


class Run:
    """A simulation in progress; made by :func:`simulate`.

    ``round`` is the number of rounds done, ``totals`` what they moved and processed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        sampler: Sampler,
        seed: int,
        engine: str | int,
        threads: int | None,
        rows: str,
        store: str | Path,
        stop_above: float,
    ) -> None:
        self.algorithm, self.population, self.sampler, self.seed = algorithm, population, sampler, seed
        self.model = model = algorithm.client.model
        self.round, self.stop_above = 0, stop_above
        self.first_loss: float | None = None
        self._high = 0  # rounds in a row whose loss was far too high
        self.totals = {"examples": 0, "bytes_down": 0, "bytes_up": 0}
        self.eligible = np.flatnonzero(population.counts)
        if not len(self.eligible):
            raise InputError("no client has any data: check the population or its split")
        self.spaces = population.spaces(model)
        key = jax.random.key(seed)
        self._init_key = jax.random.fold_in(key, 0)
        self.tags, self._numbers = self._probe()
        mode, cores = choose(engine, threads, self._numbers, len(self.cohort(0)))
        stateful = bool(jax.tree.leaves(self.tags.memory))
        fields = model.fields(population.columns)
        data = Population({k: population.columns[k] for k in fields}, population.offsets, population.clients)
        self.planner = Planner(data, self.spaces, algorithm.client.work, seed, rows, stateful, cores)
        train_key = jax.random.fold_in(key, 1)
        self.engine = (
            DebugEngine(algorithm, self.tags, train_key, population.clients)
            if mode == "debug"
            else Engine(algorithm, self.tags, train_key, mode, cores)
        )
        ids = {name: space.ids for name, space in self.spaces.items()}
        self.store: RamStore | DiskStore = (
            RamStore(self._make, self.tags.state, ids)
            if store == "ram"
            else DiskStore(self._make, self.tags.state, ids, Path(store))
        )
        self.memory = self._first_memory()
        self._pending: deque[Report] = deque()
        for ahead in range(WARM_UP):
            self.planner.plan(ahead, self.cohort(ahead))

    # -- making the first state -------------------------------------------------------------------------------------

    def _make(self, ids: Any) -> State:
        """The server's first state for these rows of each space."""
        params = self.model.params(self._init_key, ids)
        rows = {table: ids[space] for table, space in self.model.space_of.items()}
        return State(
            self.algorithm.server.init(params), tuple(stage.init(params, rows) for stage in self.algorithm.stages)
        )

    def _probe(self) -> tuple[Tags, int]:
        """Which leaves of state, offer, message and memory are row-shaped, and how many numbers a client holds."""

        def state(sizes: dict[str, int]) -> State:
            return self._make({name: np.arange(size) for name, size in sizes.items()})

        def offer(sizes: dict[str, int]) -> PyTree:
            return self.algorithm.server.offer(state(sizes).server)

        def message(sizes: dict[str, int]) -> Message:
            data = self._blank()
            return self.algorithm.client.run(offer(sizes), memory(sizes), data, jax.random.key(0))[0]

        def memory(sizes: dict[str, int]) -> PyTree:
            return self.algorithm.client.init(self.algorithm.server.params(state(sizes).server))

        spaces = list(self.spaces)
        tags = Tags(*(row_leaves(make, spaces) for make in (state, offer, message, memory)))
        tags.memory = jax.tree.map(lambda tag: tag or PER_CLIENT, tags.memory)
        sizes = {name: int(np.ceil(space.sizes.mean())) for name, space in self.spaces.items()}
        shapes = jax.eval_shape(lambda: offer(sizes))
        return tags, sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))

    def _blank(self) -> Data:
        """One empty batch, for tracing."""
        batch = self.algorithm.client.work.batch
        fields = self.model.fields(self.population.columns)
        batches = {
            k: jnp.zeros((1, batch, *v.shape[1:]), jnp.int32 if v.dtype.kind in "iu" else jnp.float32)
            for k, v in self.population.columns.items()
            if k in fields
        }
        return Data(batches, jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.int32(0), jnp.zeros(()))

    def _first_memory(self) -> PyTree:
        """Every client's memory as after ``client.init``: dense leaves one a client, row leaves one a held row."""
        if not jax.tree.leaves(self.tags.memory):
            return self.tags.memory
        ids = {name: space.ids for name, space in self.spaces.items()}
        first = self.algorithm.client.init(self.algorithm.server.params(self._make(ids).server))
        return jax.tree.map(
            lambda tag, leaf: (
                jnp.broadcast_to(leaf, (len(self.population), *leaf.shape)) + 0
                if tag == PER_CLIENT
                else leaf[self.spaces[tag].slots]
            ),
            self.tags.memory,
            first,
        )

    # -- training -------------------------------------------------------------------------------------------------

    def cohort(self, round: int) -> np.ndarray:
        """The clients of a round, ascending: the same for every algorithm with this seed and sampler."""
        return self.eligible[self.sampler.cohort(self.seed, round, self.population.counts[self.eligible])]

    def rounds(self, count: int) -> Iterator[Report]:
        """Run ``count`` rounds, one each time the loop asks for the next report."""
        for _ in range(count):
            plan, traffic = self.planner.plan(self.round, self.cohort(self.round))
            values = self._step(plan)
            self.round += 1
            report = Report(self.round, traffic.clients, traffic.examples, *self._bytes(traffic), values)
            for name in self.totals:
                self.totals[name] += getattr(report, name)
            self._pending.append(report)
            if len(self._pending) > LAG:
                self._check(self._pending.popleft())
            yield report
        self.wait()

    def train(self, count: int, progress: bool = True) -> Report:
        """Run ``count`` rounds with a progress bar and return the last report."""
        from fedslice.progress import bar

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

    def _step(self, plan: Plan) -> Any:
        if isinstance(self.store, RamStore):
            self.store.state, self.memory, values = self.engine.in_memory(self.store.state, self.memory, plan)
            return values
        working = self.store.take(plan.union)
        working, self.memory, values = self.engine.on_working_set(working, self.memory, plan)
        self.store.put(plan.union, working)
        return values

    def _bytes(self, traffic: Traffic) -> tuple[int, int]:
        """Bytes of dense leaves and S(i) rows down; of dense leaves, trained rows and their numbers up."""
        width = self._widths
        dense = traffic.clients * width[""]
        down = dense + sum(width[space] * rows for space, rows in traffic.rows_down.items())
        up = dense + sum((width[space] + 4) * rows for space, rows in traffic.rows_up.items())
        return down, up

    @cached_property
    def _widths(self) -> dict[str, int]:
        """Bytes of one row of each space, and under "" of all dense leaves."""
        dense = jax.eval_shape(self.model.dense, jax.random.key(0))
        widths = dict.fromkeys(self.spaces, 0)
        widths[""] = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(dense))
        for name, table in self.model.tables.items():
            widths[self.model.space_of[name]] += 4 * table.width
        return widths

    def _check(self, report: Report) -> None:
        """Stop a run that went to infinity, saying what to try."""
        loss, start, failed, norm = np.asarray(report.values).tolist()
        if self.first_loss is None and failed < report.clients:
            self.first_loss = start
        too_high = start > self.stop_above * max(abs(self.first_loss or 0.0), 1e-3)
        self._high = self._high + 1 if too_high else 0
        if report.clients and failed == report.clients:
            reason = f"none of the {report.clients} clients sent a finite update"
        elif not np.isfinite(norm) or not np.isfinite(loss):
            reason = "the aggregated update is not finite"
        elif self._high == PATIENCE:
            reason = f"the training loss {start:.3g} is over {self.stop_above:g} times that of the first model"
        else:
            return
        raise DivergedError(
            f"training diverged in round {report.round}: {reason}. Try a smaller client learning rate, fewer local "
            "steps, or a gradient clip (optax.clip_by_global_norm before the client's optimizer). With heat correction "
            "a row held by one client moves N/K times as far as its update, so it may need a smaller rate than FedAvg. "
            'simulate(..., engine="debug") names the first client that goes wrong.'
        )

    # -- keeping and restoring ----------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint into ``folder``, all or nothing; from it :meth:`restore` goes on bit for bit."""
        self.wait()
        return checkpoint.write(self, Path(folder))

    def restore(self, folder: str | Path) -> None:
        """Go on from the checkpoint in ``folder``; the run must have been set up in the same way."""
        checkpoint.read(self, Path(folder))

    # -- looking at the model ---------------------------------------------------------------------------------------

    def params(self, ids: dict[str, np.ndarray] | None = None) -> Params:
        """The model: dense leaves, and of each table the rows ``ids`` (by space; default: all rows anyone holds)."""
        wanted = {name: space.ids for name, space in self.spaces.items()} | (ids or {})
        return self.store.rows(lambda state: self.algorithm.server.params(state.server), wanted)

    def table(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows of one table; a row that was never trained has its first value.

        >>> # run.table("item", np.array([3, 17]))
        """
        rows = np.asarray(ids, np.int64)
        size = self.model.tables[name].rows
        if len(rows) and not (rows.min() >= 0 and rows.max() < size):
            raise InputError(f"table {name!r} has rows 0 to {size - 1}, asked for {rows.min()} to {rows.max()}")
        return np.asarray(self.params({self.model.space_of[name]: rows})[name])


def simulate(
    algorithm: Algorithm,
    population: Population,
    *,
    sampler: Sampler,
    seed: int = 0,
    engine: str | int = "auto",
    threads: int | None = None,
    rows: str = "touched",
    store: str | Path = "ram",
    stop_above: float = 10.0,
) -> Run:
    """Set up a run; nothing is trained yet.

    ``engine``: ``"vmap"`` all clients at once, ``"map"`` one after the other, a number to vectorise so many at a time,
    ``"auto"`` by the size of a client, ``"debug"`` slowly, naming the client that goes wrong.  ``rows="held"`` works on
    all of S(i) instead of the rows that the round's batches touch: the same result, but for server optimizers with
    momentum, which then also move held rows that saw no example.  ``store`` is ``"ram"`` or a folder for memory-mapped
    tables.  The run stops when the loss stays over ``stop_above`` times the first model's.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), steps=1, batch=1, weights="uniform")
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [report.round for report in run.rounds(2)]
    [1, 2]
    """
    if rows not in ("touched", "held"):
        raise InputError(f"rows={rows!r}: use 'touched' or 'held'")
    if seed < 0:
        raise InputError(f"seed={seed}: give a whole number from 0")
    return Run(algorithm, population, sampler, seed, engine, threads, rows, store, stop_above)
