"""The servers of Mime and MimeLite (Karimireddy et al. 2021) and FedDANE (Li et al. 2019).

Mime   x <- x + mean(y_i - x);   the optimizer's state s moves with c, the cohort's mean full
gradient at x"""

from typing import NamedTuple

import jax
import optax

from fedslice.client.local import negate
from fedslice.types import Key, Message, Params, PyTree, Rows, Server


class Frozen(NamedTuple):
    """The model, and the state of the optimizer with which clients step."""

    params: Params
    optimizer: optax.OptState


def mime(optimizer: optax.GradientTransformation, lite: bool = False) -> Server:
    """The offer is (params, state); with ``lite`` the gradients come along with the updates.

    >>> import jax.numpy as jnp
    >>> from fedslice.types import ClientReport
    >>> mean, found = {"w": jnp.ones(1)}, {"survey": {"w": jnp.full(1, -2.0)}}
    >>> told = Message(mean, jnp.ones(()), ClientReport(*[jnp.ones(1)] * 4), found)
    >>> server = mime(optax.sgd(0.1, momentum=0.9))
    >>> state = server.step(server.init({"w": jnp.zeros(1)}, {}), told, jax.random.key(0))
    >>> server.params(state)["w"], state.optimizer[0].trace["w"]  # plus the mean; c is 2
    (Array([1.], dtype=float32), Array([2.], dtype=float32))
    """

    rule = optax.with_extra_args_support(optimizer)

    def init(params: Params, rows: Rows) -> Frozen:
        return Frozen(params, rule.init(params))

    def step(state: Frozen, message: Message, key: Key) -> Frozen:
        params, inner = state
        centre = message.extra["gradient"] if lite else negate(message.extra["survey"])
        told = {"start": params, "round": 0}  # of no weight: the state counts, not the step
        _, inner = rule.update(centre, inner, params, **told)
        return Frozen(jax.tree.map(lambda x, d: x + d, params, message.update), inner)

    return Server(init, lambda state: state, step, lambda state: state.params)


def dane() -> Server:
    """Plain averaging.

    >>> import jax.numpy as jnp
    >>> from fedslice.types import ClientReport
    >>> mean = Message({"w": jnp.ones(1)}, jnp.ones(()), ClientReport(*[jnp.ones(1)] * 4))
    >>> server = dane()
    >>> server.step(server.init({"w": jnp.full(1, 3.0)}, {}), mean, jax.random.key(0))
    {'w': Array([4.], dtype=float32)}
    """

    def step(state: PyTree, message: Message, key: Key) -> PyTree:
        return jax.tree.map(lambda x, d: x + d, state, message.update)

    return Server(lambda params, rows: params, lambda state: state, step, lambda state: state)
