"""Local training with any optax optimizer: ClientOpt of FedOpt (Reddi et al. 2021), SGD in FedAvg (McMahan et al.).

    x_{j+1} = x_j - ClientOpt(grad F(x_j, xi_j)),  j = 1 ... I;     update = x_{I+1} - x_1

The optimizer starts anew each round.  Local leaves are drawn afresh, trained along and never sent.
"""

import jax
import optax

from fedslice.client.local import loop, mean_loss, subtract, work
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree


def sgd(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
) -> Client:
    """Steps of ``optimizer`` on the client's mini-batches.

    >>> from fedslice.tasks import quadratic
    >>> sgd(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).work.steps
    1
    """

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        start: Params = {**offer, **model.fresh(key)}

        def step(
            carry: tuple[Params, optax.OptState], batch: Batch, size: Array
        ) -> tuple[tuple[Params, optax.OptState], Array]:
            params, state = carry
            loss, grads = jax.value_and_grad(lambda p: mean_loss(model, p, batch, size))(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (end, _), metrics = loop(data, step, (start, optimizer.init(start)))
        update = subtract({name: end[name] for name in offer}, offer)
        return Message(update, data.examples, metrics), memory

    return Client(model, work(steps, epochs, batch), lambda params: (), run)
