"""Local training with any optax optimizer: ClientOpt of FedOpt (Reddi et al. 2021), SGD in FedAvg
(McMahan et al.).

    x_{j+1} = x_j - ClientOpt(grad F(x_j, xi_j)),  j = 1 ... I;     update = x_{I+1} - x_1

The optimizer starts anew each round.  Local leaves are drawn afresh, trained along and never sent.
"""

import optax

from fedslice.client.local import ONE_PASS, check_optimizer, checked, descend, subtract
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree, Work


def sgd(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
) -> Client:
    """Steps of ``optimizer`` on the client's mini-batches.

    >>> from fedslice.tasks import quadratic
    >>> sgd(quadratic.example1(clients=4).model, optax.sgd(0.5)).work
    (Work(steps=None, epochs=1, batch=32, part='all', split='half'),)
    """
    check_optimizer(optimizer)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        end, report = descend(model, optimizer, offer, data.phases[0], key, data.round)
        return Message(subtract(end, offer), data.examples, report), memory

    return Client(model, (checked(work),), lambda params: (), run)
