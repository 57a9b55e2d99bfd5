"""FedDANE's client (Li et al. 2019), after a survey of the cohort's gradients.

min_y F_i(y) + <mean_j grad F_j(x) - grad F_i(x), y - x> + mu/2 ||y - x||^2

Of a table's row the mean is that of the cohort's holders; heat corrects the update alone.
"""

import optax

from fedslice.client.local import (
    check_optimizer,
    descend,
    everything,
    full_gradient,
    negate,
    proximal,
    shift,
    subtract,
    work,
)
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree


def dane(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    mu: float = 0.01,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
) -> Client:
    """Local steps on the corrected objective; the offer is (params, minus the mean gradient).

    >>> from fedslice.tasks import quadratic
    >>> dane(quadratic.example1(clients=4).model, optax.sgd(0.1), steps=2, batch=1).rows
    'held'
    """
    check_optimizer(optimizer)
    pull = proximal(mu)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        params, found = offer
        own, _ = full_gradient(model, params, data.phases[1], data.examples, key)
        corrections = [shift(subtract(negate(found), own)), pull]
        end, report = descend(model, optimizer, params, data.phases[0], key, corrections)
        return Message(subtract(end, params), data.examples, report), memory

    return Client(
        model, (work(steps, epochs, batch), everything(batch)), lambda params: (), run, rows="held"
    )
