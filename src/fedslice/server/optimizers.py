"""Any optax optimizer on the server: FedOpt (Reddi et al. 2021), Algorithm 1 of the Field Guide.

    x <- ServerOpt(x, -mean)          FedAvg: SGD with rate 1

Only the rows of the round are at hand, so optimizers with moments are *lazy*: a row that no client
trained does not move, costs nothing, and keeps its moments.  Step counters are global.

The rules are optax's: a choice where papers differ.  Adam and Yogi are bias-corrected; Reddi et al.
leave that out and start v at the square of their epsilon.  Yogi's m and v both start at 1e-6.
Adagrad divides by sqrt(v + eps), v from 0.1, where Reddi et al. have sqrt(v) + eps.  As counters
are global, a row that is first trained late gets no correction: its first step with Adam is (1 -
b1) / sqrt(1 - b2) of an early one, 1 for 0.9 and 0.99, 3.2 for 0.999."""

from typing import NamedTuple

import optax

from fedslice.client.local import check_optimizer, negate
from fedslice.types import Key, Message, Params, Rows, Server


class Optimized(NamedTuple):
    """The model and the optimizer's state."""

    params: Params
    optimizer: optax.OptState


def optimize(optimizer: optax.GradientTransformation | None = None) -> Server:
    """``optimizer`` on minus the mean update; plain averaging if there is none.

    >>> import jax, jax.numpy as jnp
    >>> from fedslice.types import ClientReport
    >>> mean = Message({"w": jnp.ones(1)}, jnp.ones(()), ClientReport(*[jnp.ones(1)] * 4))
    >>> server = optimize(optax.sgd(1.0, momentum=0.5))
    >>> state = server.init({"w": jnp.zeros(1)}, {})
    >>> for _ in range(3):  # by 1, by 1.5, by 1.75
    ...     state = server.step(state, mean, jax.random.key(0))
    ...     print(server.params(state)["w"])
    [1.]
    [2.5]
    [4.25]
    """
    chosen = optax.sgd(1.0) if optimizer is None else optimizer
    check_optimizer(chosen)

    def init(params: Params, rows: Rows) -> Optimized:
        return Optimized(params, chosen.init(params))

    def step(state: Optimized, message: Message, key: Key) -> Optimized:
        minus = negate(message.update)
        updates, inner = chosen.update(minus, state.optimizer, state.params)
        return Optimized(optax.apply_updates(state.params, updates), inner)

    return Server(init, lambda state: state.params, step, lambda state: state.params)
