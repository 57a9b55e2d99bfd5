"""What every client part needs: the loss of a padded batch, a loop over a client's steps, an honest message."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Batch, Data, Params, PyTree, Work

Carry = TypeVar("Carry")


def work(steps: int | None, epochs: int | None, batch: int) -> Work:
    """Local work, checked; one epoch where nothing is said."""
    if steps is not None and epochs is not None:
        raise InputError("give steps= or epochs=, not both")
    if steps is None and epochs is None:
        epochs = 1
    for name, value in (("steps", steps), ("epochs", epochs), ("batch", batch)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    return Work(steps, epochs, batch)


def mean_loss(model: Model, params: Params, batch: Batch, size: Array) -> Array:
    """The loss of the first ``size`` examples of a batch."""
    losses = model.loss(params, batch)
    if losses.ndim != 1:
        raise InputError(f"loss must give one number for each example, shape [batch], but gave shape {losses.shape}")
    real = jnp.arange(losses.shape[0]) < size
    return jnp.sum(jnp.where(real, losses, 0)) / jnp.maximum(size, 1)


def loop(data: Data, body: Callable[[Carry, Batch, Array], Carry], carry: Carry) -> Carry:
    """``body(carry, batch, size)`` for each of the client's own steps: a client with less to do stops earlier."""

    def step(number: Array, carry: Carry) -> Carry:
        return body(carry, {name: field[number] for name, field in data.batches.items()}, data.sizes[number])

    return jax.lax.fori_loop(0, data.steps, step, carry)


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """left - right, leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)


def metrics(loss_sum: Array, data: Data) -> dict[str, Array]:
    """The client's report: its mean training loss and the examples it went through."""
    steps = jnp.maximum(data.steps, 1).astype(jnp.float32)
    seen = jnp.sum(data.sizes).astype(jnp.float32)
    return {"loss": loss_sum / steps, "examples": seen}
