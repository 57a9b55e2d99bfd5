"""FedPA's client (Al-Shedivat et al. 2021): the update of a Gaussian posterior estimated from local
SGD.

    samples x_1 ... x_l: means of the iterates over windows of steps, after burn-in
    update = -Sigma^-1 (x - mean),  Sigma = r I + (1 - r) S,  r = 1 / (1 + (l - 1) rho)

S is the samples' covariance.  The inverse is applied through the l x l system of the Woodbury
identity, which gives what the paper's recursion gives. One sample is FedAvg on the averaged
iterate.  During the first ``burn_in_rounds`` rounds the client is FedAvg's."""

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedslice.client.local import check_optimizer, checked, loop, mean_loss, subtract
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree, Work


def posterior(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    samples: int = 5,
    window: int = 2,
    burn_in: int = 0,
    shrinkage: float = 0.1,
    burn_in_rounds: int = 0,
    batch: int = 32,
) -> Client:
    """``burn_in`` steps, then ``samples`` windows of ``window`` steps.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> posterior(model, optax.sgd(0.1), samples=3, window=2, burn_in=4, batch=5).work[0]
    Work(steps=10, epochs=None, batch=5, part='all', split='half')
    """
    check_optimizer(optimizer)
    rule = optax.with_extra_args_support(optimizer)
    if samples < 1 or window < 1 or burn_in < 0 or shrinkage < 0:
        raise InputError("FedPA needs samples >= 1, window >= 1, burn_in >= 0 and shrinkage >= 0")

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        start = {**offer, **model.fresh(key)}
        flat, restore = ravel_pytree(offer)

        def step(number: Array, carry: PyTree, batch: Batch, size: Array) -> tuple[PyTree, Array]:
            params, state, found = carry
            loss, grads = jax.value_and_grad(lambda p: mean_loss(model, p, batch, size))(params)
            updates, state = rule.update(grads, state, params, start=offer, round=data.round)
            params = optax.apply_updates(params, updates)
            here = ravel_pytree({name: params[name] for name in offer})[0]
            place = (number - burn_in) // window
            drawn = jnp.where((number >= burn_in) & (jnp.arange(samples) == place), 1 / window, 0)
            return (params, state, found + drawn[:, None] * (here - flat)), loss

        carry = (start, rule.init(start), jnp.zeros((samples, flat.size)))
        (end, _, found), report = loop(data.phases[0], step, carry)
        averaged: Params = restore(posterior_update(found, shrinkage))
        plain = subtract({name: end[name] for name in offer}, offer)
        early = data.round < burn_in_rounds
        update = jax.tree.map(lambda a, b: jnp.where(early, a, b), plain, averaged)
        some = report.steps > 0
        return (
            Message(
                jax.tree.map(lambda leaf: jnp.where(some, leaf, 0), update), data.examples, report
            ),
            memory,
        )

    local = checked(Work(steps=burn_in + samples * window, batch=batch))
    return Client(model, (local,), lambda params: (), run)


def posterior_update(samples: Array, shrinkage: float) -> Array:
    """Sigma^-1 applied to the mean of ``samples`` [l, d], given as differences from the global
    model.

    >>> posterior_update(jnp.array([[2.0, 1.0]]), 0.1).tolist()
    [2.0, 1.0]
    """
    count = samples.shape[0]
    mean = jnp.mean(samples, axis=0)
    if count == 1:
        return mean
    ratio = 1 / (1 + (count - 1) * shrinkage)
    spread = (samples - mean) * jnp.sqrt((1 - ratio) / (count - 1))
    inner = ratio * jnp.eye(count) + spread @ spread.T
    return (mean - spread.T @ jnp.linalg.solve(inner, spread @ mean)) / ratio
