"""The servers of FedMiD and FedDualAvg (Yuan et al. 2021), for F + psi.

    FedMiD      x <- prox_{eta_s eta tau psi}(x + eta_s mean)
    FedDualAvg  z <- z + eta_s mean,   t <- t + eta_s eta tau,   the model is prox_{t psi}(z)

eta tau comes from the clients, averaged as their updates are.  FedDualAvg's model is exact for idle
rows too: the threshold t is global.  FedMiD is lazy: rows outside the round are not shrunk."""

import jax
import jax.numpy as jnp

from fedslice.prox import Regulariser
from fedslice.types import Message, Params, PyTree, Rows, Server


def mirror(regulariser: Regulariser, rate: float = 1.0) -> Server:
    """``rate`` is eta_s.

    >>> from fedslice.prox import l1
    >>> server = mirror(l1(0.1))
    """

    def step(state: PyTree, message: Message) -> PyTree:
        moved = jax.tree.map(lambda x, d: x + rate * d, state, message.update)
        return regulariser.prox(moved, rate * message.extra["time"])

    return Server(
        lambda params, rows: params, lambda state, survey: state, step, lambda state: state
    )


def dual(regulariser: Regulariser, rate: float = 1.0) -> Server:
    """``rate`` is eta_s; the offer is (z, t).

    >>> from fedslice.prox import l1
    >>> server = dual(l1(0.1))
    """

    def init(params: Params, rows: Rows) -> PyTree:
        return params, jnp.zeros(())

    def step(state: PyTree, message: Message) -> PyTree:
        z, time = state
        moved = jax.tree.map(lambda x, d: x + rate * d, z, message.update)
        return moved, time + rate * message.extra["time"]

    def params(state: PyTree) -> Params:
        return regulariser.prox(*state)

    return Server(init, lambda state, survey: state, step, params)
