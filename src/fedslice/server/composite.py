"""The servers of FedMiD and FedDualAvg (Yuan et al. 2021), for F + psi.

    FedMiD      x <- prox_{eta_s eta tau psi}(x + eta_s mean)
    FedDualAvg  z <- z + eta_s mean,   t <- t + eta_s eta tau,   the model is prox_{t psi}(z)

eta tau comes from the clients, averaged as their updates are.  FedDualAvg's model is exact for idle
rows too: the threshold t is global.  FedMiD is lazy: rows outside the round are not shrunk."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.prox import Regulariser
from fedslice.types import Array, Key, Message, Params, PyTree, Rows, Server


def mirror(regulariser: Regulariser, rate: float = 1.0) -> Server:
    """``rate`` is eta_s.

    >>> from fedslice.prox import l1
    >>> from fedslice.types import ClientReport
    >>> mean, time = {"w": jnp.array([3.0, 0.25])}, {"time": jnp.array(0.5)}
    >>> told = Message(mean, jnp.ones(()), ClientReport(*[jnp.ones(1)] * 4), time)
    >>> server = mirror(l1(1.0))
    >>> server.step(server.init({"w": jnp.zeros(2)}, {}), told, jax.random.key(0))  # shrunk by 0.5
    {'w': Array([2.5, 0. ], dtype=float32)}
    """

    def step(state: PyTree, message: Message, key: Key) -> PyTree:
        moved = jax.tree.map(lambda x, d: x + rate * d, state, message.update)
        return regulariser.prox(moved, rate * message.extra["time"])

    return Server(lambda params, rows: params, lambda state: state, step, lambda state: state)


class Dual(NamedTuple):
    """The dual state z and the time t; the model is prox_{t psi}(z)."""

    z: Params
    time: Array


def dual(regulariser: Regulariser, rate: float = 1.0) -> Server:
    """``rate`` is eta_s; the offer is (z, t).

    >>> from fedslice.prox import l1
    >>> from fedslice.types import ClientReport
    >>> mean, time = {"w": jnp.array([3.0, 0.25])}, {"time": jnp.array(0.5)}
    >>> told = Message(mean, jnp.ones(()), ClientReport(*[jnp.ones(1)] * 4), time)
    >>> server = dual(l1(1.0))
    >>> state = server.step(server.init({"w": jnp.zeros(2)}, {}), told, jax.random.key(0))
    >>> state.z, server.params(state)  # z is kept as it is, the model is shrunk
    ({'w': Array([3.  , 0.25], dtype=float32)}, {'w': Array([2.5, 0. ], dtype=float32)})
    """

    def init(params: Params, rows: Rows) -> Dual:
        return Dual(params, jnp.zeros(()))

    def step(state: Dual, message: Message, key: Key) -> Dual:
        moved = jax.tree.map(lambda x, d: x + rate * d, state.z, message.update)
        return Dual(moved, state.time + rate * message.extra["time"])

    def params(state: Dual) -> Params:
        return regulariser.prox(state.z, state.time)

    return Server(init, lambda state: state, step, params)
