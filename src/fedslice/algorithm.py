"""Put the parts together, and refuse what cannot work."""

from collections.abc import Sequence

import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.types import Algorithm, Array, Client, Reduce, Server, Stage


def _sum_rows(values: Array, places: Array, rows: int) -> Array:
    """Each client's rows added into their places, in the order of the clients: the same bits every time."""
    width = values.shape[2:]
    return jnp.zeros((rows, *width), values.dtype).at[places.reshape(-1)].add(values.reshape(-1, *width), mode="drop")


total = Reduce("sum", lambda values: jnp.sum(values, axis=0), _sum_rows)
"""The sum of all messages: what a server, or secure aggregation, computes."""


def algorithm(
    client: Client, stages: Sequence[Stage], server: Server, reduce: Reduce = total, name: str = "custom"
) -> Algorithm:
    """An algorithm from its parts; ``stages`` are written from the learner to the wire.

    >>> import optax, fedslice as fs
    >>> model = fs.tasks.quadratic.example1(clients=4).model
    >>> algorithm(fs.client.sgd(model, optax.sgd(0.1)), [fs.stage.mean()], fs.server.optimize()).name
    'custom'
    """
    weighing = sum(stage.weighs for stage in stages)
    if weighing != 1:
        raise InputError(
            f"an algorithm needs exactly one stage that turns the sum into a mean, got {weighing}: "
            "put stage.mean(...) once among its stages"
        )
    return Algorithm(name, client, tuple(stages), server, reduce)
