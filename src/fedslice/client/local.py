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


def loop(
    data: Data, body: Callable[[Carry, Batch, Array], tuple[Carry, Array]], carry: Carry
) -> tuple[Carry, dict[str, Array]]:
    """``body(carry, batch, size) -> (carry, loss)`` for each of the client's own steps, and the client's report.

    A client with less to do stays as it is in the steps beyond its own; the loop is the same for all clients that run
    side by side, or reading a batch would become a gather.  The report has the mean loss over the steps, the loss of
    the first one, which is that of the offered model, and the examples gone through.
    """

    def step(number: Array, state: tuple[Carry, Array, Array]) -> tuple[Carry, Array, Array]:
        carry, total, first = state
        batch = {name: field[number] for name, field in data.batches.items()}
        new, loss = body(carry, batch, data.sizes[number])
        due = number < data.steps
        kept = jax.tree.map(lambda after, before: jnp.where(due, after, before), new, carry)
        return kept, total + jnp.where(due, loss, 0), jnp.where(due & (number == 0), loss, first)

    zero = jnp.zeros(())
    carry, total, first = jax.lax.fori_loop(0, data.limit, step, (carry, zero, zero))
    steps = jnp.maximum(data.steps, 1).astype(jnp.float32)
    seen = jnp.sum(data.sizes).astype(jnp.float32)
    return carry, {"loss": total / steps, "start_loss": first, "examples": seen}


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """left - right, leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)
