"""Small problems that many tests share."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedslice as fs
from fedslice.data.population import Population
from fedslice.metrics import Metric
from fedslice.model import Model, Table, lookup
from fedslice.round.disk import DiskMemory, DiskStore
from fedslice.round.store import RamStore
from fedslice.simulation.run import Run

ROWS = 24
COUNTS = (3, 1, 5, 8, 2, 6, 4)  # unequal on purpose; batches of 4 leave partial ones


def arrays(
    counts: tuple[int, ...] = COUNTS, rows: int = ROWS, seed: int = 0
) -> dict[str, np.ndarray]:
    """Columns of a population with two fields for one table, one of them padded, and labels."""
    rng = np.random.default_rng(seed)
    n = sum(counts)
    history = rng.integers(0, rows, (n, 3))
    history[np.arange(3) >= rng.integers(0, 4, n)[:, None]] = -1
    return {
        "client": np.repeat(np.arange(len(counts)) * 10, counts),
        "item": rng.integers(0, rows, (n, 2)),
        "history": history,
        "x": rng.normal(size=n).astype(np.float32),
        "label": rng.integers(0, 2, n).astype(np.float32),
    }


def people(**changes: Any) -> Population:
    columns = arrays(**changes)
    return Population.from_arrays(columns.pop("client"), **columns)


def logistic_loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    """Logistic regression: rows named by two fields, a dense slope and a bias."""
    score = params["w"][batch["item"]].sum(1) + lookup(params["w"], batch["history"]).sum(1)
    score += params["dense"]["slope"] * batch["x"] + params["dense"]["bias"]
    return optax.sigmoid_binary_cross_entropy(score, batch["label"])


def logistic(rows: int = ROWS) -> Model:
    table = Table(rows=rows, fields=("item", "history"), init=jax.nn.initializers.normal(0.3))
    return Model(dense_init, logistic_loss, {"w": table})


def dense_init(key: jax.Array) -> dict[str, Any]:
    return {"dense": {"slope": jnp.ones(()) / 10, "bias": jnp.zeros(())}}


def compiled(model: Model) -> Model:
    """The model with its figures compiled: called by themselves, they would be compiled operation
    by operation."""

    def figure(given: Any) -> Any:
        if isinstance(given, Metric):
            return given._replace(values=jax.jit(given.values))
        return jax.jit(given)

    metrics = {name: figure(given) for name, given in model.metrics.items()}
    return replace(model, loss=jax.jit(model.loss), metrics=metrics)


def run_of(method: Any, population: Population, rounds: int = 0, **settings: Any) -> Run:
    """A run after so many rounds; the cheap engine and sampler unless told otherwise."""
    settings = {"sampler": fs.sampling.full(), "engine": "vmap"} | settings
    run = fs.simulate(method, population, **settings)
    for _ in run.rounds(rounds):
        pass
    return run


def state_bytes(run: Run) -> bytes:
    """Every bit of the server's state and the clients' memory, wherever they are."""
    leaves: list[Any] = []
    for part in (run.store, run.memory):
        if isinstance(part, DiskStore | DiskMemory):
            leaves += getattr(part, "dense", [])
            for group in part.groups.values():
                leaves += group.look(np.arange(group.count)) if group.count else []
        else:
            leaves += jax.tree.leaves(part.state if isinstance(part, RamStore) else part)
    return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)


def assert_params_close(left: Any, right: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Two models, leaf by leaf."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
