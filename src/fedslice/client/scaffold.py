"""SCAFFOLD's client (Karimireddy et al. 2020): local steps with the drift taken out by control variates.

    y <- y - eta (g(y) - c_i + c)
    c_i+ = c_i - c + (x - y) / (tau eta)     option II, or grad f_i(x), option I
    sends y - x and c_i+ - c_i; all variates start at 0

With tables a client keeps c_i for its own rows only, and all of them move in every step, so it works on all of S(i).
"""

import jax
import jax.numpy as jnp
import optax

from fedslice.client.local import check_rate, descend, everything, full_gradient, shift, subtract, work
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree


def scaffold(
    model: Model, rate: float, *, steps: int | None = None, epochs: int | None = None, batch: int = 32, option: int = 2
) -> Client:
    """SGD of the given rate with control variates; the offer is (params, c).

    >>> from fedslice.tasks import quadratic
    >>> scaffold(quadratic.example1(clients=4).model, 0.1, steps=2, batch=1).rows
    'held'
    """
    if option not in (1, 2):
        raise InputError(f"option={option}: SCAFFOLD has options 1 (a full gradient) and 2 (from the local steps)")
    local = work(steps, epochs, batch)

    check_rate(rate)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        params, c = offer
        drift = subtract(c, memory)
        end, metrics = descend(model, optax.sgd(rate), params, data.phases[0], key, [shift(drift)])
        update = subtract(end, params)
        if option == 1:
            new, _ = full_gradient(model, params, data.phases[1], data.examples, key)
        else:
            span = rate * jnp.maximum(metrics["steps"], 1)
            new = jax.tree.map(lambda d, u: -d - u / span, drift, update)
        some = metrics["steps"] > 0
        change = jax.tree.map(lambda after, before: jnp.where(some, after - before, 0), new, memory)
        kept = jax.tree.map(jnp.add, memory, change)
        return Message(update, data.examples, metrics, {"variate": change}), kept

    works = (local,) if option == 2 else (local, everything(batch))
    return Client(model, works, lambda params: jax.tree.map(jnp.zeros_like, params), run, rows="held")
