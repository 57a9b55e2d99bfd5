"""One full-batch gradient: the client of FedSGD (McMahan et al. 2017).

    update = -grad f_i(x),   f_i the mean loss over all of the client's examples

The batch size says only how many examples are summed at once.
"""

import jax
import jax.numpy as jnp

from fedslice.client.local import loop, mean_loss, work
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree


def gradient(model: Model, *, batch: int = 32) -> Client:
    """Minus the gradient over all of the client's data.

    >>> from fedslice.tasks import quadratic
    >>> gradient(quadratic.example1(clients=4).model).work.epochs
    1
    """

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        local = model.fresh(key)

        def add(total: Params, batch: Batch, size: Array) -> tuple[Params, Array]:
            loss, grads = jax.value_and_grad(lambda p: mean_loss(model, {**p, **local}, batch, size))(offer)
            share = size / jnp.maximum(data.examples, 1)
            return jax.tree.map(lambda t, g: t - share * g, total, grads), loss

        update, metrics = loop(data, add, jax.tree.map(jnp.zeros_like, offer))
        return Message(update, data.examples, metrics), memory

    return Client(model, work(None, 1, batch), lambda params: (), run)
