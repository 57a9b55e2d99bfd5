"""A two-tower model by hand, for the modules of each framework to be compared with: the user's row
times a layer over the item's row and the mean of the history's rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedslice as fs
from fedslice.simulation.run import Run
from fedslice.types import Array, Batch, Params

USERS, ITEMS, WIDTH, EXAMPLES = 12, 30, 4, 80


def people(history: bool = True) -> fs.Population:
    """Clients with four or more examples each; some histories are short, and row 0 is not used."""
    rng = np.random.default_rng(0)
    user = np.sort(rng.integers(USERS, size=EXAMPLES))
    columns = {
        "user": user,
        "item": rng.integers(1, ITEMS, EXAMPLES),
        "label": rng.integers(0, 2, EXAMPLES).astype(np.float32),
    }
    if history:
        seen = rng.integers(1, ITEMS, (EXAMPLES, 3))
        columns["history"] = np.where(rng.random((EXAMPLES, 3)) < 0.7, seen, -1)
    return fs.Population.from_arrays(user, **columns)


def by_hand(first: dict[str, np.ndarray]) -> fs.Model:
    """Written as one would in JAX, from the same first values; ``weight`` is [out, in]."""

    def score(params: Params, batch: Batch) -> Array:
        seen = fs.lookup(params["item"], batch["history"])
        many = jnp.maximum(jnp.sum(batch["history"] >= 0, 1, keepdims=True), 1)
        both = jnp.concatenate([params["item"][batch["item"]], seen.sum(1) / many], -1)
        tower = jax.nn.relu(both @ params["weight"].T + params["bias"])
        return jnp.sum(params["user"][batch["user"]] * tower, -1)

    def loss(params: Params, batch: Batch) -> Array:
        logit = score(params, batch)
        return jax.nn.softplus(logit) - batch["label"] * logit

    tables = {
        "user": fs.Table(USERS, ("user",), (WIDTH,), values=first["user"]),
        "item": fs.Table(ITEMS, ("history", "item"), (WIDTH,), values=first["item"]),
    }
    dense = {name: jnp.asarray(first[name]) for name in ("weight", "bias")}
    return fs.Model(lambda key: dict(dense), loss, tables)


def trained(model: fs.Model, population: fs.Population, rounds: int = 4) -> Run:
    heat = population.heat(model)
    method = fs.recipes.fedsubavg(model, optax.sgd(0.3), fs.Work(steps=3, batch=2), heat=heat)
    run = fs.simulate(method, population, sampler=fs.sampling.uniform(5), seed=3)
    run.train(rounds, progress=False)
    return run


def first_values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {
        "user": (USERS, WIDTH),
        "item": (ITEMS, WIDTH),
        "weight": (WIDTH, 2 * WIDTH),
        "bias": (WIDTH,),
    }
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
