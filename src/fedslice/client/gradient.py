"""One full-batch gradient: the client of FedSGD (McMahan et al. 2017), and of a survey before a
round.

    update = -grad f_i(x),   f_i the mean loss over all of the client's examples

The batch size says only how many examples are summed at once.
"""

from fedslice.client.local import everything, full_gradient, negate
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree


def gradient(model: Model, *, batch: int = 32) -> Client:
    """Minus the gradient over all of the client's data.

    >>> from fedslice.tasks import quadratic
    >>> gradient(quadratic.example1(clients=4).model).work[0].epochs
    1
    """

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        grads, metrics = full_gradient(model, offer, data.phases[0], data.examples, key)
        return Message(negate(grads), data.examples, metrics), memory

    return Client(model, (everything(batch),), lambda params: (), run)
