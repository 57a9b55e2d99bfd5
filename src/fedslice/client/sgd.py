"""Local training with any optax optimizer: ClientOpt of FedOpt (Reddi et al. 2021), SGD in FedAvg
(McMahan et al.).

    x_{j+1} = x_j - ClientOpt(grad F(x_j, xi_j)),  j = 1 ... I;     update = x_{I+1} - x_1

The optimizer starts anew each round.  Local leaves are drawn afresh, trained along and never sent.
"""

from collections.abc import Sequence

import optax

from fedslice.client.local import Correction, Schedule, check_optimizer, descend, subtract, work
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree


def sgd(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    corrections: Sequence[Correction] = (),
    schedule: Schedule | None = None,
) -> Client:
    """Steps of ``optimizer`` on the client's mini-batches; ``schedule`` is a factor on its rate by
    round.

    >>> from fedslice.tasks import quadratic
    >>> sgd(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).work[0].steps
    1
    """

    check_optimizer(optimizer)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        factor = 1.0 if schedule is None else schedule(data.round)
        end, report = descend(model, optimizer, offer, data.phases[0], key, corrections, factor)
        return Message(subtract(end, offer), data.examples, report), memory

    return Client(model, (work(steps, epochs, batch),), lambda params: (), run)
