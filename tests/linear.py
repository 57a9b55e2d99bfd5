"""Least squares on rows of a table and a bias: its gradients and Hessians are short in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from problems import ROWS

from fedslice.data.population import Population
from fedslice.model import Model, Table, lookup
from fedslice.simulation.run import Run


def squares(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (lookup(params["w"], batch["history"]).sum(1) + params["bias"] - batch["x"]) ** 2


def linear(**more: Any) -> Model:
    table = Table(rows=ROWS, fields="history", init=jax.nn.initializers.normal(0.5))
    return Model(lambda key: {"bias": jnp.array(0.3)}, squares, {"w": table}, **more)


def dense(first: np.ndarray) -> Model:
    """The same with the table, whose first values are given, as a dense leaf."""
    return Model(lambda key: {"bias": jnp.array(0.3), "w": jnp.asarray(first)}, squares)


def features(population: Population) -> np.ndarray:
    """One row an example: the loss is (features @ theta - x)^2, theta the table, then the bias."""
    found = np.zeros((population.examples, ROWS + 1))
    history = population.columns["history"]
    for place in range(history.shape[1]):
        real = np.flatnonzero(history[:, place] >= 0)
        np.add.at(found, (real, history[real, place]), 1)
    found[:, ROWS] = 1
    return found


def slope(theta: np.ndarray, inputs: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of the mean loss of some examples."""
    return 2 * inputs.T @ (inputs @ theta - x) / max(1, len(x))


def theta_of(run: Run) -> np.ndarray:
    return np.append(run.table("w", np.arange(ROWS)), run.params()["bias"]).astype(float)
