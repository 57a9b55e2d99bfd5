"""Measure a model: pooled over examples and client by client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.model import Model
from fedslice.population import Population, numeric
from fedslice.simulate import Run
from fedslice.types import Array, Params

CHUNK = 1 << 19  # numbers and ids scored at once


class Scores(NamedTuple):
    """Figures of one evaluation: ``pooled`` over all examples, ``clients`` one value for each client (NaN: no data).

    >>> Scores({"loss": 0.5}, {"loss": np.array([0.25, 0.75])}).spread("loss")["worst"]
    0.75
    """

    pooled: dict[str, float]
    clients: dict[str, np.ndarray]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in self.pooled.items())

    def spread(self, name: str) -> dict[str, float]:
        """How a figure varies over clients.  ``worst`` is the largest: meant for losses."""
        values = self.clients[name][~np.isnan(self.clients[name])]
        low, middle, high = np.percentile(values, [10, 50, 90])
        figures = {"mean": values.mean(), "p10": low, "median": middle, "p90": high, "worst": values.max()}
        return {key: float(figure) for key, figure in figures.items()}


class Evaluator:
    """Scores models on one population; the data are prepared once, however often it is called.

    Local leaves, which no server has, get the same first values for every client.
    """

    def __init__(self, model: Model, population: Population) -> None:
        self.model, self.population = model, population
        self.spaces = population.spaces(model)
        indexed = {field: space for space in self.spaces.values() for field in space.positions}
        plain = [name for name in model.fields(population.columns) if name not in indexed]
        width = sum(int(np.prod(population.columns[name].shape[1:])) for name in (*plain, *indexed))
        size = min(max(1, CHUNK // max(1, width)), max(1, population.examples))
        self.chunks = []
        for start in range(0, population.examples, size):
            span = slice(start, start + size)
            chunk = {name: numeric(name, population.columns[name][span]) for name in plain}
            chunk |= {name: space.global_slots(name, population.owners, span) for name, space in indexed.items()}
            self.chunks.append({name: jnp.asarray(_pad(column, size)) for name, column in chunk.items()})
        self.functions = {"loss": model.loss, **model.metrics}
        self.score = jax.jit(lambda params, batch: {name: f(params, batch) for name, f in self.functions.items()})

    def ids(self) -> dict[str, np.ndarray]:
        """The rows, by space, that the population's examples need."""
        return {name: space.ids for name, space in self.spaces.items()}

    def __call__(self, params: Params) -> Scores:
        """Score ``params``, whose tables hold the rows :meth:`ids`."""
        whole = {**params, **self.model.fresh(jax.random.key(0))}
        parts: list[dict[str, Array]] = [self.score(whole, chunk) for chunk in self.chunks]
        population = self.population
        pooled, clients = {}, {}
        for name in self.functions:
            values = np.concatenate([np.asarray(part[name], np.float64) for part in parts] or [np.zeros(0)])
            values = values[: population.examples]
            pooled[name] = float(values.mean()) if len(values) else float("nan")
            sums = np.bincount(population.owners, values, minlength=len(population))
            with np.errstate(invalid="ignore"):
                clients[name] = np.where(population.counts > 0, sums / population.counts, np.nan)
        return Scores(pooled, clients)


def evaluate(run: Run, population: Population) -> Scores:
    """The run's present model on ``population``.  In a loop, :class:`Evaluator` prepares the data only once.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), steps=1, batch=1, weights="uniform")
    >>> fs.evaluate(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.test).pooled
    {'loss': 1.25}
    """
    evaluator = Evaluator(run.model, population)
    return evaluator(run.params(evaluator.ids()))


def _pad(values: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])
