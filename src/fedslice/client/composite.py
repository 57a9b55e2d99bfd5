"""Clients for F + psi, psi not smooth: FedDualAvg and FedMiD (Yuan et al. 2021).

    FedMiD      y <- prox_{eta psi}(y - eta g(y))                         sends y - x
    FedDualAvg  y = prox_{t psi}(z),  z <- z - eta g(y),  t <- t + eta    sends z - z_0

z_0 is the server's dual state.
"""

import jax
import jax.numpy as jnp

from fedslice.client.local import ONE_PASS, check_rate, checked, loop, mean_loss, subtract
from fedslice.model import Model
from fedslice.prox import Regulariser
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree, Work


def mirror(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    regulariser: Regulariser,
    server_only: bool = False,
) -> Client:
    """Proximal SGD of the given rate: FedMiD's client; ``server_only`` leaves the prox to the
    server.

    >>> from fedslice.prox import l1
    >>> from fedslice.tasks import quadratic
    >>> mirror(quadratic.example1(clients=4).model, 0.5, regulariser=l1(0.1)).rows
    'held'
    """

    check_rate(rate)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        local = model.fresh(key)

        def step(number: Array, params: Params, batch: Batch, size: Array) -> tuple[Params, Array]:
            loss, grads = jax.value_and_grad(
                lambda p: mean_loss(model, {**p, **local}, batch, size)
            )(params)
            moved = jax.tree.map(lambda x, g: x - rate * g, params, grads)
            return moved if server_only else regulariser.prox(moved, jnp.asarray(rate)), loss

        end, report = loop(data.phases[0], step, offer)
        extra = {"time": rate * report.steps}
        return Message(subtract(end, offer), data.examples, report, extra), memory

    return Client(
        model,
        (checked(work),),
        lambda params: (),
        run,
        rows="touched" if server_only else "held",
        extras=True,
    )


def dual(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    regulariser: Regulariser,
) -> Client:
    """Dual averaging of the given rate: FedDualAvg's client; the offer is (z, t).

    >>> from fedslice.prox import l1
    >>> from fedslice.tasks import quadratic
    >>> dual(quadratic.example1(clients=4).model, 0.5, regulariser=l1(0.1)).rows
    'touched'
    """

    check_rate(rate)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        start, time = offer
        local = model.fresh(key)

        def step(number: Array, z: Params, batch: Batch, size: Array) -> tuple[Params, Array]:
            params = regulariser.prox(z, time + rate * number)
            loss, grads = jax.value_and_grad(
                lambda p: mean_loss(model, {**p, **local}, batch, size)
            )(params)
            return jax.tree.map(lambda x, g: x - rate * g, z, grads), loss

        end, report = loop(data.phases[0], step, start)
        extra = {"time": rate * report.steps}
        return Message(subtract(end, start), data.examples, report, extra), memory

    return Client(model, (checked(work),), lambda params: (), run, extras=True)
