"""Setting up a run: what follows from its parts and its data before any client is drawn."""

from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

from fedslice.compose import check_heat, check_sampler
from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.round.debug import DebugEngine
from fedslice.round.devices import DeviceEngine, local_devices
from fedslice.round.disk import DiskMemory, DiskStore
from fedslice.round.engine import Engine
from fedslice.round.mode import choose
from fedslice.round.plan import Planner
from fedslice.round.shapes import Shapes, works
from fedslice.round.store import RamStore
from fedslice.types import Algorithm, PyTree


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


class Setup:
    """Makes what a run in one process works with.  ``fields`` are the columns that its model reads;
    with ``rows="all"`` rounds are over ``whole`` tables."""

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        sampler: Sampler,
        seed: int,
        rows: str | None,
    ) -> None:
        if not population.counts.any():
            raise InputError("no client has any data: check the population or its split")
        self.algorithm, self.population, self.sampler = algorithm, population, sampler
        self.seed, self.rows, self.whole = seed, rows, rows == "all"
        self.model = model = algorithm.client.model
        self.spaces = population.spaces(model)
        meet(model, population)
        check_heat(algorithm, population)
        if self.whole:
            sizes = {name: model.tables[name].rows for name in self.spaces}
            self.spaces = {name: self.spaces[name].whole(size) for name, size in sizes.items()}
        self.fields = model.fields(population.columns)
        columns = {name: population.columns[name] for name in sorted(self.fields)}
        data = Population(columns, population.offsets, population.clients)
        key = jax.random.key(seed)
        self.shapes = Shapes(algorithm, data, self.spaces, jax.random.fold_in(key, 0))
        self.key = jax.random.fold_in(key, 1)

    def planner(self, fields: Iterable[str]) -> Planner:
        """Of rounds whose batches have these columns."""
        return Planner(
            self.population,
            self.spaces,
            works(self.algorithm),
            self.seed,
            rows=self.rows if self.rows in ("touched", "held") else self.algorithm.client.rows,
            memory=bool(jax.tree.leaves(self.shapes.tags.memory)),
            fields=fields,
            repeats=self.sampler.by_examples,
            whole=self.whole,
            answers=self.algorithm.answers,
        )

    def engine(self, mode: str | int, threads: int | None, devices: int, cohort: int) -> Engine:
        """For cohorts of about this size."""
        algorithm, tags, numbers = self.algorithm, self.shapes.tags, self.shapes.numbers
        alone = np.count_nonzero(self.population.counts) == 1
        uneven = any(work.epochs is not None for work in works(algorithm))
        own = 1 if alone else threads
        mode, cores = choose(mode, own, numbers, cohort, devices == 1, uneven)
        if mode == "debug":
            return DebugEngine(algorithm, tags, self.key, self.population.clients)
        if devices != 1:
            return DeviceEngine(algorithm, tags, self.key, mode, local_devices(devices))
        return Engine(algorithm, tags, self.key, mode, cores, alone, numbers)

    def store(self, place: str | Path) -> RamStore | DiskStore:
        """The first state, in device memory or in a folder."""
        ids = {name: space.ids for name, space in self.spaces.items()}
        if str(place).lower() == "ram":
            return RamStore(self.shapes.make, self.shapes.tags.state, ids)
        shared = {} if self.whole else self.population.shared(self.model)
        return DiskStore(self.shapes.make, self.shapes.tags.state, ids, Path(place), shared)

    def memory(self, store: RamStore | DiskStore) -> PyTree | DiskMemory:
        """What clients keep: where the tables are, in device memory or on disk."""
        shapes, tags = self.shapes, self.shapes.tags.memory
        if isinstance(store, RamStore) or not jax.tree.leaves(tags):
            return shapes.first_memory()
        like, counts = shapes.memory_like(), shapes.memory_counts()
        return DiskMemory(tags, like, counts, shapes.first_memory_of, store.folder)
