"""Clients with a dual variable: FedDyn (Acar et al. 2021) and FedPD (Zhang et al. 2021).

    min_y F_i(y) + <lambda_i, y - x> + mu/2 ||y - x||^2,     lambda_i <- lambda_i + mu (y - x)

At the fixed point y = x, lambda_i = -grad F_i(x), and the server makes the lambda_i average to
zero. FedDyn sends y - x; FedPD sends y - x + lambda_i / mu, all its clients take part in every
round."""

import jax
import jax.numpy as jnp
import optax

from fedslice.client.local import ONE_PASS, check_optimizer, checked, descend, subtract
from fedslice.client.transforms import proximal, shift
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, Params, PyTree, Work


def dynamic(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    mu: float = 0.1,
    send_dual: bool = False,
) -> Client:
    """Local steps on the augmented Lagrangian; ``send_dual`` for FedPD.

    >>> from fedslice.tasks import quadratic
    >>> dynamic(quadratic.example1(clients=4).model, optax.sgd(0.1), Work(steps=2)).rows
    'held'
    """
    check_optimizer(optimizer)
    if not mu > 0:
        raise InputError(f"mu={mu} must be positive: the dual step is divided by it")

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        rule = optax.chain(shift(memory), proximal(mu), optimizer)
        end, report = descend(model, rule, offer, data.phases[0], key, data.round)
        move = subtract(end, offer)
        some = report.steps > 0
        dual = jax.tree.map(lambda held, moved: held + jnp.where(some, mu * moved, 0), memory, move)
        update = (
            jax.tree.map(lambda moved, held: moved + held / mu, move, dual) if send_dual else move
        )
        return Message(update, data.examples, report), dual

    def zeros(params: Params) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    return Client(model, (checked(work),), zeros, run, rows="held", everyone=send_dual)
