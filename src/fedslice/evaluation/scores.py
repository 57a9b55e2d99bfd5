"""Measure a model: pooled over examples and client by client."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.population import Population, numeric
from fedslice.errors import InputError
from fedslice.metrics import Metric
from fedslice.model import Model
from fedslice.round.program import once
from fedslice.simulation.run import Run
from fedslice.types import Params

CHUNK = 1 << 22  # numbers that the largest intermediate result may have


class Scores(NamedTuple):
    """Figures of one evaluation: ``pooled`` over all examples, ``clients`` one value for each
    client (NaN: no data); those named in ``more`` are the better the larger.

    >>> Scores({"loss": 0.5}, {"loss": np.array([0.25, 0.75])}).spread("loss")["worst"]
    0.75
    """

    pooled: dict[str, float]
    clients: dict[str, np.ndarray]
    more: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in self.pooled.items())

    def spread(self, name: str) -> dict[str, float]:
        """How a figure varies over clients; ``worst`` is the largest, or where more is better the
        smallest."""
        values = self.clients[name][~np.isnan(self.clients[name])]
        low, middle, high = np.percentile(values, [10, 50, 90])
        worst = values.min() if name in self.more else values.max()
        figures = {"mean": values.mean(), "p10": low, "median": middle, "p90": high, "worst": worst}
        return {key: float(figure) for key, figure in figures.items()}


class Evaluator:
    """Scores models on one population; the data are prepared once, however often it is called.

    Made for a run, it also compares the names of the ids with those of the training; a model alone
    knows none.  Local leaves, which no server has, get the same first values for every client.
    """

    def __init__(self, trained: Model | Run, population: Population) -> None:
        if not population.examples:
            raise InputError("there are no examples to measure on: check how the data were split")
        self.model = model = trained.model if isinstance(trained, Run) else trained
        self.population, self.spaces = population, population.spaces(model)
        meet(model, population, trained.population if isinstance(trained, Run) else None)
        indexed = {field: space for space in self.spaces.values() for field in space.positions}
        plain = [name for name in model.fields(population.columns) if name not in indexed]
        read = tuple((n, population.columns[n].shape[1:]) for n in (*plain, *indexed))
        growth, self.score = once(
            model,
            ("growth", read),
            lambda: (self._growth([*plain, *indexed]), jax.jit(model.measure)),
        )
        # as many examples at once as keep the largest intermediate result in bounds
        size = min(max(1, CHUNK // growth), max(1, population.examples))
        self.chunks = []
        for start in range(0, population.examples, size):
            span = slice(start, start + size)
            chunk = {name: numeric(name, population.columns[name][span]) for name in plain}
            chunk |= {
                name: space.global_slots(name, population.owners, span)
                for name, space in indexed.items()
            }
            self.chunks.append(
                {name: jnp.asarray(_pad(column, size)) for name, column in chunk.items()}
            )

    def _growth(self, fields: list[str]) -> int:
        """By how many numbers an example makes the largest intermediate result larger."""
        model, columns = self.model, self.population.columns
        tables = {
            name: jax.ShapeDtypeStruct((1, *table.shape), jnp.float32)
            for name, table in model.tables.items()
        }
        params = {**jax.eval_shape(model.init, jax.random.key(0)), **tables}

        def sizes(examples: int) -> list[int]:
            kinds = {
                name: jnp.int32 if columns[name].dtype.kind in "iu" else jnp.float32
                for name in fields
            }
            batch = {
                n: jax.ShapeDtypeStruct((examples, *columns[n].shape[1:]), kind)
                for n, kind in kinds.items()
            }
            inputs = [int(np.prod(leaf.shape)) for leaf in batch.values()]
            return [sum(inputs), *_results(jax.make_jaxpr(model.measure)(params, batch).jaxpr)]

        return max(1, *(two - one for one, two in zip(sizes(2), sizes(3), strict=True)))

    def ids(self) -> dict[str, np.ndarray]:
        """The rows, by space, that the population's examples need."""
        return {name: space.ids for name, space in self.spaces.items()}

    def __call__(self, params: Params) -> Scores:
        """Score ``params``, whose tables hold the rows :meth:`ids`."""
        return self.tallied(self.numbers(params))

    def pooled(self, params: Params, names: Sequence[str] | None = None) -> dict[str, float]:
        """The figures over all examples alone, or some of them: all that a curve needs, for a part
        of the time."""
        owners, clients = self.population.owners, len(self.population)
        parts, room, found = self._scored(params), None, {}
        for name in self.model.figures if names is None else names:
            room = joined(parts, name, room)  # new memory for each would take as long as the sums
            metric, pair = self.model.figures[name], room[:, : len(owners)]
            found[name] = _pooled(metric, pair, owners, clients)
        return found

    def tallied(self, numbers: Mapping[str, Any]) -> Scores:
        """The figures of what :meth:`numbers` gave."""
        return tally(self.model, [numbers], self.population.owners, len(self.population))

    def numbers(self, params: Params, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """``model.measure`` of every example: of each figure, or some, a pair, [2, examples]."""
        parts = self._scored(params)
        return {
            name: joined(parts, name)[:, : self.population.examples]
            for name in (self.model.figures if names is None else names)
        }

    def _scored(self, params: Params) -> list[dict[str, Any]]:
        """``model.measure`` of each chunk."""
        whole = {**params, **self.model.fresh(jax.random.key(0))}
        return [self.score(whole, chunk) for chunk in self.chunks]


def joined(
    parts: Sequence[Mapping[str, Any]], name: str, room: np.ndarray | None = None
) -> np.ndarray:
    """The pairs of one figure of all examples, [2, examples], given in parts; in ``room``, if that
    is given."""
    ends = np.cumsum([0, *(len(part[name][0]) for part in parts)])
    whole = np.empty((2, ends[-1])) if room is None else room
    for part, start, stop in zip(parts, ends[:-1], ends[1:], strict=True):
        whole[0, start:stop], whole[1, start:stop] = part[name]
    return whole


def tally(
    model: Model, parts: Sequence[Mapping[str, Any]], owners: np.ndarray, clients: int
) -> Scores:
    """The figures of ``model.measure``'s numbers, given in parts, of examples that belong to
    ``owners``; numbers beyond those are padding."""
    pooled, single = {}, {}
    for name, metric in model.figures.items():
        left, right = joined(parts, name)[:, : len(owners)]
        single[name] = metric.grouped(left, right, owners, clients)
        pooled[name] = _mean(single[name]) if metric.by_client else metric.figure(left, right)
    return Scores(
        pooled, single, frozenset(name for name, metric in model.figures.items() if metric.more)
    )


def _pooled(metric: Metric, pair: np.ndarray, owners: np.ndarray, clients: int) -> float:
    left, right = pair
    if metric.by_client:
        return _mean(metric.grouped(left, right, owners, clients))
    return metric.figure(left, right)


def _mean(values: np.ndarray) -> float:
    """Over the clients that have the figure."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def evaluate(run: Run, population: Population) -> Scores:
    """The run's present model on ``population``.  In a loop, :class:`Evaluator` prepares the data
    only once.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    >>> fs.evaluate(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.test).pooled
    {'loss': 1.25}
    """
    evaluator = Evaluator(run, population)
    return evaluator(run.params(evaluator.ids()))


def _pad(values: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])


def _results(jaxpr: Any) -> list[int]:
    """The sizes of all intermediate results, those of inner loops and functions too."""
    found = []
    for equation in jaxpr.eqns:
        found += [int(np.prod(variable.aval.shape)) for variable in equation.outvars]
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += _results(inner)
    return found
