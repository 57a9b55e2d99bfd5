"""What the heat does to an optimisation problem (Ding et al. 2022, sections 3 and 4).

f = sum_i w_i f_i / sum_i w_i,    D = diag(sum_all w / sum_{i: m in S(i)} w_i)   (N / n_m for
uniform weights) element-wise gradient norm   grad f^T D grad f condition numbers
kappa(H) and kappa(D^1/2 H D^1/2),   H the Hessian of f"""

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.scores import Evaluator
from fedslice.model import Model
from fedslice.simulation.run import Run
from fedslice.types import Array, Batch, Params

LARGEST = 3000  # parameters up to which a Hessian is built


class GradientNorms(NamedTuple):
    """Two ways to see how far a model is from a stationary point."""

    element_wise: float
    squared: float


class ConditionNumbers(NamedTuple):
    """Of the plain Hessian, and of the one that FedSubAvg's correction makes."""

    plain: float
    corrected: float


def gradient_norms(run: Run, population: Population, weights: str = "uniform") -> GradientNorms:
    """Norms of the full gradient of f at the run's model.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1))
    >>> gradient_norms(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.train)
    GradientNorms(element_wise=5.0, squared=4.25)
    """
    model, scorer = run.model, Evaluator(run, population)
    params, local = run.params(scorer.ids()), run.model.fresh(jax.random.key(0))
    grad = jax.jit(
        jax.grad(lambda p, batch, share: jnp.sum(share * model.loss({**p, **local}, batch)))
    )
    total = jax.tree.map(jnp.zeros_like, params)
    start = 0
    shares = _shares(population, weights)
    for chunk in scorer.chunks:
        size = len(next(iter(chunk.values())))
        share = np.zeros(size, np.float32)
        part = shares[start : start + size]
        share[: len(part)] = part
        total = jax.tree.map(jnp.add, total, grad(params, chunk, share))
        start += size
    flat = np.asarray(jax.flatten_util.ravel_pytree(total)[0], np.float64)
    scale = np.asarray(
        jax.flatten_util.ravel_pytree(_diagonal(model, population, params, weights))[0], np.float64
    )
    return GradientNorms(float(np.sum(scale * flat**2)), float(np.sum(flat**2)))


def condition_numbers(
    run: Run, population: Population, weights: str = "uniform"
) -> ConditionNumbers:
    """Condition numbers of f's Hessian at the run's model; for problems of at most 3,000
    parameters.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1))
    >>> condition_numbers(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.train)
    ConditionNumbers(plain=4.0, corrected=1.0)
    """
    model, scorer = run.model, Evaluator(run, population)
    params, local = run.params(scorer.ids()), run.model.fresh(jax.random.key(0))
    flat, restore = jax.flatten_util.ravel_pytree(params)
    if flat.size > LARGEST:
        raise InputError(
            f"a Hessian of {flat.size} parameters is too large; condition numbers go up to"
            f" {LARGEST}"
        )
    shares = jnp.asarray(_shares(population, weights))

    def objective(vector: Array, batch: Batch) -> Array:
        losses = model.loss({**restore(vector), **local}, batch)
        return jnp.sum(shares * losses[: population.examples])

    if len(scorer.chunks) != 1:
        raise InputError(
            f"{population.examples} examples are too many for a Hessian: use population.sample(...)"
        )
    hessian = np.asarray(jax.jit(jax.hessian(objective))(flat, scorer.chunks[0]), np.float64)
    scale = np.asarray(
        jax.flatten_util.ravel_pytree(_diagonal(model, population, params, weights))[0], np.float64
    )
    root = np.sqrt(scale)
    return ConditionNumbers(
        float(np.linalg.cond(hessian)), float(np.linalg.cond(root[:, None] * hessian * root))
    )


def _shares(population: Population, weights: str) -> np.ndarray:
    """Each example's share in f: 1 / (N |D_i|) for uniform weights, 1 / examples otherwise."""
    if weights == "uniform":
        clients = np.sum(population.counts > 0)
        return (1.0 / (clients * population.counts[population.owners])).astype(np.float32)
    return np.full(population.examples, 1.0 / population.examples, np.float32)


def _diagonal(model: Model, population: Population, params: Params, weights: str) -> Params:
    """D, shaped like the parameters."""
    heat = population.heat(model)
    ids = {name: population.spaces(model)[space].ids for name, space in model.space_of.items()}
    out = {}
    for name, leaf in params.items():
        out[name] = jax.tree.map(jnp.ones_like, leaf)
        if name in ids:
            factor = heat.coefficient(name, ids[name], weights)
            out[name] = jnp.broadcast_to(factor.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf.shape)
    return out
