"""SCAFFOLD's client (Karimireddy et al. 2020): local steps with the drift taken out by control
variates.

    y <- y - eta (g(y) - c_i + c)
    c_i+ = c_i - c + (x - y) / (tau eta)     option II, or grad f_i(x), option I
    sends y - x and c_i+ - c_i; all variates start at 0

With tables a client keeps c_i for its own rows only, and all of them move in every step, so it
works on all of S(i). Rows that it does not hold have g = 0 and c_i = 0 for ever: in a dense model
they move by -eta c a step, which needs no client.  So of its own rows it sends how they differ from
that, y - x + tau eta c, with tau eta, and the server does the rest
(:mod:`fedslice.server.variates`): the published method, to rounding, on slices."""

import jax
import jax.numpy as jnp
import optax

from fedslice.client.local import (
    ONE_PASS,
    check_rate,
    checked,
    descend,
    everything,
    full_gradient,
    subtract,
)
from fedslice.client.transforms import shift
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Client, Data, Key, Message, PyTree, Work


def scaffold(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    option: int = 2,
    holders: bool = False,
) -> Client:
    """SGD of the given rate with control variates; the offer is (params, c).

    With ``holders`` c of a row is the mean over its holders, who alone move it: y - x is sent as it
    is.

    >>> from fedslice.tasks import quadratic
    >>> from fedslice.types import Phase
    >>> model, work = quadratic.example1(clients=4).model, Work(steps=2)  # w^2, from w = 1
    >>> row = {"rows": jnp.zeros((2, 1, 1), int)}
    >>> phase = Phase(row, jnp.ones(2), jnp.int32(2), 2, jnp.float32(1))
    >>> data = Data((phase,), jnp.float32(1), jnp.int32(0))
    >>> one, zero = {"w": jnp.ones(1)}, {"w": jnp.zeros(1)}
    >>> message, c = scaffold(model, 0.25, work).run((one, zero), zero, data, jax.random.key(0))
    >>> message.update["w"], c["w"]  # 1, 0.5, 0.25; c_i is the mean of the gradients 2 and 1
    (Array([-0.75], dtype=float32), Array([1.5], dtype=float32))
    """
    if option not in (1, 2):
        raise InputError(
            f"option={option}: SCAFFOLD has options 1 (a full gradient) and 2 (from the local"
            " steps)"
        )
    check_rate(rate)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        params, c = offer
        drift = subtract(c, memory)
        rule = optax.chain(shift(drift), optax.sgd(rate))
        end, report = descend(model, rule, params, data.phases[0], key, data.round)
        update = subtract(end, params)
        if option == 1:
            new, _ = full_gradient(model, params, data.phases[1], data.examples, key)
        else:
            span = rate * jnp.maximum(report.steps, 1)
            new = jax.tree.map(lambda d, u: -d - u / span, drift, update)
        some = report.steps > 0
        change = jax.tree.map(lambda after, before: jnp.where(some, after - before, 0), new, memory)
        kept = jax.tree.map(jnp.add, memory, change)
        if holders or not model.tables:
            return Message(update, data.examples, report, {"variate": change}), kept
        span = rate * report.steps
        update = {
            name: plus(leaf, span, c[name]) if name in model.tables else leaf
            for name, leaf in update.items()
        }
        return Message(update, data.examples, report, {"variate": change, "span": span}), kept

    works = (checked(work),) if option == 2 else (checked(work), everything(work.batch))
    return Client(
        model,
        works,
        lambda params: jax.tree.map(jnp.zeros_like, params),
        run,
        rows="held",
        extras=True,
    )


def plus(leaf: PyTree, factor: Array, direction: PyTree) -> PyTree:
    """leaf + factor x direction, with one factor for all rows or one for each.

    >>> plus(jnp.ones((2, 1)), jnp.array([1.0, 2.0]), jnp.full((2, 1), 3.0)).tolist()
    [[4.0], [7.0]]
    """
    return jax.tree.map(
        lambda x, d: x + factor.reshape(factor.shape + (1,) * (d.ndim - factor.ndim)) * d,
        leaf,
        direction,
    )
