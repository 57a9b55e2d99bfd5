"""One full-batch gradient: the client of FedSGD (McMahan et al. 2017), and of a survey before a
round.

    update = -grad f_i(x),   f_i the mean loss over all of the client's examples

The batch size says only how many examples are summed at once.
"""

from collections.abc import Callable

from fedslice.client.local import everything, full_gradient, negate
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, Params, PyTree


def gradient(
    model: Model,
    *,
    batch: int = 32,
    start: Callable[[PyTree], Params] = lambda offer: offer,
) -> Client:
    """Minus the gradient over all of the client's data; ``start(offer)`` is where.

    >>> from fedslice.tasks import quadratic
    >>> gradient(quadratic.example1(clients=4).model).work[0].epochs
    1
    """

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        grads, report = full_gradient(model, start(offer), data.phases[0], data.examples, key)
        return Message(negate(grads), data.examples, report), memory

    return Client(model, (everything(batch),), lambda params: (), run)
