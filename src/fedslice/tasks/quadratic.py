"""Quadratics with known answers.

Example 1 of Ding et al.: f = w1^2 / N + w2^2 + const, w1 held by one client of N, w2 by all.  With
exact gradients, one local step and rate 1/2, FedAvg has w1 = (1 - 1/N)^r w1(0) after r rounds and
w2 = 0 after one; FedSubAvg has both 0 after one.

The general population (Field Guide 4.3): F_i(x) = 1/2 (x - c_i)^T A_i (x - c_i), here on the rows
S(i) of a table, with optimum (E A_i)^+ E A_i c_i."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.model import Model, Table, lookup, remembered
from fedslice.tasks.base import Target, Task, Workload
from fedslice.types import Array, Batch, Params

SETTINGS = {"cohort": 10, "steps": 5, "batch": 1}


@remembered
def squares(start: float = 1.0) -> Model:
    """The sum of the squares of the rows of a table of two, which begin at ``start``.

    >>> squares().tables["w"].rows
    2
    """

    def loss(params: Params, batch: Batch) -> Array:
        return jnp.sum(lookup(params["w"], batch["rows"]) ** 2, axis=-1)

    table = Table(rows=2, fields=("rows",), init=lambda key, shape: jnp.full(shape, start))
    return Model(lambda key: {}, loss, {"w": table})


def example1(clients: int = 100, start: float = 1.0) -> Task:
    """Example 1: one cold row held by one client, one hot row held by all.

    >>> task = example1(clients=4)
    >>> task.train.heat(task.model).counts("w").tolist()
    [1.0, 4.0]
    """
    model = squares(start)
    rows = np.full((clients, 2), 1, np.int32)
    rows[:, 0] = -1
    rows[0, 0] = 0
    people = Population.from_arrays(np.arange(clients), rows=rows)
    settings = {"cohort": clients, "steps": 1, "batch": 1, "weights": "uniform"}
    return Task(
        "example1",
        model,
        people,
        people,
        settings,
        {"": 0.5},
        Target("train_loss", 1e-6),
        source="generated",
    )


class Quadratic(NamedTuple):
    """A task with its exact Hessian, linear term and optimum."""

    task: Task
    hessians: np.ndarray  # [N, M, M]: A_i, zero outside S(i)
    centres: np.ndarray  # [N, M]: c_i

    @property
    def hessian(self) -> np.ndarray:
        """H of f = mean_i F_i."""
        return np.asarray(self.hessians.mean(0))

    @property
    def optimum(self) -> np.ndarray:
        """(E A_i)^+ E A_i c_i."""
        return np.asarray(
            np.linalg.pinv(self.hessian) @ np.einsum("nij,nj->i", self.hessians, self.centres)
        ) / len(self.centres)


def random_quadratic(
    clients: int = 50,
    rows: int = 20,
    hold: float = 0.3,
    curvature: tuple[float, float] = (0.5, 2.0),
    seed: int = 0,
) -> Quadratic:
    """Random A_i with eigenvalues in ``curvature`` on random S(i); row 0 is held by all, the last
    one by few.

    >>> q = random_quadratic(clients=6, rows=4)
    >>> bool(np.allclose(q.hessian @ q.optimum, (q.hessians @ q.centres[..., None]).mean(0)[:, 0]))
    True
    """
    rng = np.random.default_rng(seed)
    chance = np.geomspace(1.0, max(hold**2, 1.5 / clients), rows)
    mask = rng.random((clients, rows)) < chance
    mask[:, 0] = True
    mask[rng.integers(clients, size=rows), np.arange(rows)] = True
    hessians, centres = np.zeros((clients, rows, rows)), np.zeros((clients, rows))
    ids = np.full((clients, rows), -1, np.int32)
    matrix, centre = (
        np.zeros((clients, rows, rows), np.float32),
        np.zeros((clients, rows), np.float32),
    )
    for i, held in enumerate(mask):
        s = np.flatnonzero(held)
        basis, _ = np.linalg.qr(rng.normal(size=(len(s), len(s))))
        block = basis @ np.diag(rng.uniform(*curvature, len(s))) @ basis.T
        hessians[i][np.ix_(s, s)], centres[i, s] = block, rng.normal(size=len(s))
        ids[i, : len(s)] = s
        matrix[i, : len(s), : len(s)], centre[i, : len(s)] = block, centres[i, s]
    task = _task(rows, ids, matrix, centre)
    return Quadratic(task, hessians, centres)


@remembered
def quadratic(rows: int) -> Model:
    """1/2 (x - c)^T A (x - c) on the rows x that an example names, with its own A and c.

    >>> quadratic(20).tables["w"].rows
    20
    """

    def loss(params: Params, batch: Batch) -> Array:
        gap = lookup(params["w"], batch["rows"]) - batch["centre"]
        return 0.5 * jnp.einsum("bi,bij,bj->b", gap, batch["matrix"], gap)

    return Model(
        lambda key: {},
        loss,
        {"w": Table(rows=rows, fields=("rows",), init=jax.nn.initializers.zeros)},
    )


def _task(rows: int, ids: np.ndarray, matrix: np.ndarray, centre: np.ndarray) -> Task:
    model = quadratic(rows)
    people = Population.from_arrays(np.arange(len(ids)), rows=ids, matrix=matrix, centre=centre)
    settings: dict[str, Any] = {
        **SETTINGS,
        "cohort": min(SETTINGS["cohort"], len(ids)),
        "weights": "uniform",
    }
    return Task("quadratic", model, people, people, settings, {"": 0.1}, source="generated")


WORKLOADS = (
    Workload(
        "quadratic",
        "random quadratics on random slices of 20 rows, with known optimum; 50 clients",
        lambda seed=0, scale=1.0: (
            random_quadratic(clients=max(2, round(50 * scale)), seed=seed).task
        ),
        settings=SETTINGS,
        learning_rates={"": 0.1},
    ),
    Workload(
        "example1",
        "two parameters, one held by all 100 clients and one by a single client (FedSubAvg paper,"
        " Example 1)",
        lambda seed=0, scale=1.0: example1(max(2, round(100 * scale))),
        settings={"steps": 1, "batch": 1, "weights": "uniform"},
        learning_rates={"": 0.5},
        target=Target("train_loss", 1e-6),
        published={
            "cold parameter after r rounds, FedAvg": "(1 - 1/N)^r of its first value",
            "after one round, FedSubAvg": "0",
        },
    ),
)
