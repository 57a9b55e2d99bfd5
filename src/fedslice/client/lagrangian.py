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
    >>> from fedslice.types import Phase
    >>> model, work = quadratic.example1(clients=4).model, Work(steps=2)  # w^2, from w = 1
    >>> row = {"rows": jnp.zeros((2, 1, 1), int)}
    >>> phase = Phase(row, jnp.ones(2), jnp.int32(2), 2, jnp.float32(1))
    >>> data = Data((phase,), jnp.float32(1), jnp.int32(0))
    >>> local, offer = dynamic(model, optax.sgd(0.25), work, mu=1.0), {"w": jnp.ones(1)}
    >>> message, dual = local.run(offer, {"w": jnp.zeros(1)}, data, jax.random.key(0))
    >>> message.update["w"], dual["w"]  # lambda moves as w does, for mu is 1
    (Array([-0.625], dtype=float32), Array([-0.625], dtype=float32))
    >>> done = {"w": jnp.full(1, -2.0)}  # minus the gradient: the fixed point
    >>> local.run(offer, done, data, jax.random.key(0))[0].update
    {'w': Array([0.], dtype=float32)}
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
