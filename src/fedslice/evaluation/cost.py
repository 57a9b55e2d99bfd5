"""What a run would take on devices: seconds of every round, from the bytes of the packed messages
and the operations of the model (the model of time is :mod:`fedslice.data.devices`).

Every client is sent, and sends, all rows of its S(i), as Ding et al. 2022 do it; what it sends is
scaled so that the sum over the cohorts is what their messages really had (compression, and rows
that were not touched).  Examples are those that it goes through.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.devices import Devices, ending
from fedslice.data.population import Population
from fedslice.model import Model
from fedslice.simulation.run import Run

SPEED = 5e9  # operations a second of one core of a simulation, on models of this kind
BATCH = 16  # examples whose operations are counted


class Cost:
    """Estimated seconds of a run's rounds on these ``devices`` (default: the published ones, with
    the time for an example worked out from the model's operations).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> for _ in run.rounds(2):
    ...     pass
    >>> round(Cost(run)(), 1)  # two rounds of little more than 10 seconds
    20.0
    """

    def __init__(self, run: Run, devices: Devices | None = None) -> None:
        self.run = run
        self.devices = (devices or with_example(run.model, run.population)).checked()
        rows = {name: space.sizes for name, space in run.spaces.items()}
        clients, wire = len(run.population), run.shapes.wire
        self.down = np.broadcast_to(wire.down(rows), clients).astype(float)
        self.up = np.broadcast_to(wire.up(rows), clients).astype(float)
        self.examples = _examples(run)

    def __call__(self, done: int = 0, bytes_up: int = 0, seconds: float = 0.0) -> float:
        """Seconds of all rounds so far, given those of the first ``done`` ones, in which clients
        sent so many bytes."""
        rounds = range(done, self.run.round)
        cohorts = {number: np.unique(self.run.cohort(number)) for number in rounds}
        whole = sum(float(self.up[who].sum()) for who in cohorts.values())
        share = (self.run.totals["bytes_up"] - bytes_up) / whole if whole else 1.0
        return seconds + sum(self._round(number, who, share) for number, who in cohorts.items())

    def _round(self, number: int, who: np.ndarray, share: float) -> float:
        """Seconds of a round in which clients send this share of their rows."""
        each = self.devices.seconds(
            self.down[who],
            share * self.up[who],
            self.examples[who],
            self.run.population.numbers[who],
            number,
            self.run.seed,
        )
        return ending(self.devices, each).seconds


def _examples(run: Run) -> np.ndarray:
    """What each client goes through in a round."""
    found = np.zeros(len(run.population))
    for work, pool in zip(run.planner.works, run.planner.pools, strict=True):
        batch = np.minimum(work.batch, pool.counts)
        passes = np.inf if work.epochs is None else work.epochs * pool.counts
        found += np.minimum(passes, np.inf if work.steps is None else work.steps * batch)
    return found


def with_example(model: Model, population: Population) -> Devices:
    """The published devices, with the seconds for an example of this model.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> with_example(task.model, task.train).example < 1e-6
    True
    """
    return Devices(example=operations(model, population) / SPEED)


def operations(model: Model, population: Population) -> float:
    """Operations of the loss and gradient of one example, counted in the traced program: two for
    each product of a sum, one for each number of any other result."""
    rows = BATCH * max(
        1, max((_width(population, table.fields) for table in model.tables.values()), default=1)
    )
    tables = {
        name: jax.ShapeDtypeStruct((rows, *table.shape), jnp.float32)
        for name, table in model.tables.items()
    }
    params = {**jax.eval_shape(model.init, jax.random.key(0)), **tables}
    columns = population.columns
    batch: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(
            (BATCH, *columns[name].shape[1:]),
            jnp.int32 if columns[name].dtype.kind in "iu" else jnp.float32,
        )
        for name in model.fields(columns)
    }
    if model.noisy:
        batch["step_key"] = jax.eval_shape(lambda: jax.random.key(0))
    traced = jax.make_jaxpr(jax.value_and_grad(lambda p, b: jnp.sum(model.loss(p, b))))(
        params, batch
    )
    return _count(traced.jaxpr) / BATCH


def _width(population: Population, fields: tuple[str, ...]) -> int:
    return sum(math.prod(population.columns[field].shape[1:]) for field in fields)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        inner = [
            getattr(value, "jaxpr", value)
            for value in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            )
        ]
        inner = [each for each in inner if hasattr(each, "eqns")]
        if inner:
            times = equation.params.get("length", 1)
            counts = [_count(each) for each in inner]
            branches = equation.primitive.name == "cond"
            total += times * (max(counts) if branches else sum(counts))
            continue
        results = sum(math.prod(variable.aval.shape) for variable in equation.outvars)
        total += results * _inside(equation)
    return total


def _inside(equation: Any) -> float:
    """Operations for each number of a result."""
    name = equation.primitive.name
    if name == "dot_general":
        (summed, _), _ = equation.params["dimension_numbers"]
        return 2.0 * math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out = equation.params["dimension_numbers"].rhs_spec[0]
        return 2.0 * math.prod(kernel) / kernel[out]
    if name.startswith("reduce_"):
        before = math.prod(equation.invars[0].aval.shape)
        return before / max(1, sum(math.prod(v.aval.shape) for v in equation.outvars))
    return 1.0
