"""FedDANE's client (Li et al. 2019), after a survey of the cohort's gradients.

min_y F_i(y) + <mean_j grad F_j(x) - grad F_i(x), y - x> + mu/2 ||y - x||^2

Of a table's row the mean is that of the cohort's holders; heat corrects the update alone.
"""

import optax

from fedslice.client.local import (
    ONE_PASS,
    check_optimizer,
    checked,
    descend,
    everything,
    full_gradient,
    negate,
    subtract,
)
from fedslice.client.transforms import proximal, shift
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree, Work


def dane(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    mu: float = 0.01,
) -> Client:
    """Local steps on the corrected objective; the offer is (params, minus the mean gradient).

    >>> import jax, jax.numpy as jnp
    >>> from fedslice.tasks import quadratic
    >>> from fedslice.types import Phase
    >>> model, work = quadratic.example1(clients=4).model, Work(steps=2)  # w^2, from w = 1
    >>> row = {"rows": jnp.zeros((2, 1, 1), int)}
    >>> phase = Phase(row, jnp.ones(2), jnp.int32(2), 2, jnp.float32(1))
    >>> data = Data((phase, phase._replace(limit=1)), jnp.float32(1), jnp.int32(0))
    >>> offer = {"w": jnp.ones(1)}, {"w": -jnp.ones(1)}  # the cohort's gradient is 1, its own 2
    >>> local = dane(model, optax.sgd(0.25), work, mu=0.0)
    >>> local.run(offer, (), data, jax.random.key(0))[0].update  # 1, 0.75, 0.625, toward 0.5
    {'w': Array([-0.375], dtype=float32)}
    """
    check_optimizer(optimizer)
    pull = proximal(mu)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        params, found = offer
        own, _ = full_gradient(model, params, data.phases[1], data.examples, key)
        rule = optax.chain(shift(subtract(negate(found), own)), pull, optimizer)
        end, report = descend(model, rule, params, data.phases[0], key, data.round)
        return Message(subtract(end, params), data.examples, report), memory

    works = (checked(work), everything(work.batch))
    return Client(model, works, lambda params: (), run, rows="held")
