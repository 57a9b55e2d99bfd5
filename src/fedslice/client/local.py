"""What client parts are made of: the loss of a padded batch, a loop over steps, local descent, the
full gradient."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax

from fedslice.client.by_rows import by_rows
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Batch, ClientReport, Key, Params, Phase, PyTree, Work

Carry = TypeVar("Carry")
ONE_PASS = Work(epochs=1)


def check_optimizer(optimizer: optax.GradientTransformation) -> None:
    """Refuse a bare learning rate and the like."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise InputError(f"an optax optimizer is needed, such as optax.sgd(0.1), got {optimizer!r}")


def check_rate(rate: float) -> None:
    """Refuse a learning rate that is not positive, or an optimizer in its place."""
    if isinstance(rate, optax.GradientTransformation):
        raise InputError("this method is for SGD alone: give its learning rate, such as 0.1")
    if not rate > 0:
        raise InputError(f"a client rate of {rate} is not possible: give a positive number")


def checked(work: Work) -> Work:
    """Local work that can be done; one pass where it names neither steps nor epochs.

    >>> checked(Work(batch=5))
    Work(steps=None, epochs=1, batch=5, part='all', split='half')
    """
    if not isinstance(work, Work):
        raise InputError(f"local work is given as fs.Work(steps=10, batch=5), got {work!r}")
    for name in ("steps", "epochs", "batch"):
        value = getattr(work, name)
        if value is not None and value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    return work._replace(epochs=1) if work.steps is None and work.epochs is None else work


def everything(batch: int) -> Work:
    """One pass over all of a client's examples, in large batches: they are only summed."""
    return checked(Work(epochs=1, batch=batch))._replace(batch=max(batch, 128))


def mean_loss(model: Model, params: Params, batch: Batch, size: Array) -> Array:
    """The loss of the first ``size`` examples of a batch."""
    losses = model.loss(params, batch)
    if losses.ndim != 1:
        raise InputError(
            "loss must give one number for each example, shape [batch], but gave shape"
            f" {losses.shape}"
        )
    real = jnp.arange(losses.shape[0]) < size
    return jnp.sum(jnp.where(real, losses, 0)) / jnp.maximum(size, 1)


def loop(
    phase: Phase, body: Callable[[Array, Carry, Batch, Array], tuple[Carry, Array]], carry: Carry
) -> tuple[Carry, ClientReport]:
    """``body(number, carry, batch, size) -> (carry, loss)`` for each of the client's steps, and the
    client's report.

    A client with less to do stays as it is in the steps beyond its own; the loop is the same for
    all clients that run side by side, or reading a batch would become a gather.  The report has the
    mean loss over the steps, the loss of the first one, which is that of the offered model, the
    examples gone through, and the steps."""

    def step(number: Array, state: tuple[Carry, Array, Array]) -> tuple[Carry, Array, Array]:
        carry, total, first = state
        batch = {name: field[number] for name, field in phase.batches.items()}
        if phase.key is not None:
            batch["step_key"] = jax.random.fold_in(phase.key, number)
        new, loss = body(number, carry, batch, phase.sizes[number])
        if phase.limit is not phase.steps:  # others run along
            due = number < phase.steps
            new = jax.tree.map(lambda after, before: jnp.where(due, after, before), new, carry)
            loss = jnp.where(due, loss, 0)
        return new, total + loss, jnp.where(number == 0, loss, first)

    total = first = jnp.zeros(())
    if not (isinstance(phase.limit, int) and phase.limit == 0):  # else no need to look at a step
        carry, total, first = jax.lax.fori_loop(
            0, phase.limit, by_rows(step), (carry, total, first)
        )
    steps = phase.steps.astype(jnp.float32)
    seen = jnp.sum(phase.sizes).astype(jnp.float32)
    return carry, ClientReport(total / jnp.maximum(steps, 1), first, seen, steps)


def descend(
    model: Model,
    optimizer: optax.GradientTransformation,
    offer: Params,
    phase: Phase,
    key: Key,
    round: Array,
) -> tuple[Params, ClientReport]:
    """Steps of ``optimizer`` from ``offer``; the model after them, without its local leaves, and
    the report.

    The optimizer starts anew; local leaves are drawn afresh from ``key`` and trained along.
    """
    trained = {**offer, **model.fresh(key)}
    end, report = train(model, optimizer, trained, {}, phase, offer, round)
    return {name: end[name] for name in offer}, report


def train(
    model: Model,
    optimizer: optax.GradientTransformation,
    trained: Params,
    frozen: Params,
    phase: Phase,
    start: Params,
    round: Array | None,
) -> tuple[Params, ClientReport]:
    """Steps of ``optimizer`` on some leaves with the others ``frozen``; the trained leaves after
    them, and the report.

    The optimizer is told ``start``, the global leaves as offered, and ``round``, how many rounds
    were done (None: this is not one of them), as optax's extra arguments."""
    rule = optax.with_extra_args_support(optimizer)

    def step(
        number: Array, carry: tuple[Params, optax.OptState], batch: Batch, size: Array
    ) -> tuple[tuple[Params, optax.OptState], Array]:
        params, state = carry
        loss, grads = jax.value_and_grad(lambda p: mean_loss(model, {**frozen, **p}, batch, size))(
            params
        )
        updates, state = rule.update(grads, state, params, start=start, round=round)
        return (optax.apply_updates(params, updates), state), loss

    (end, _), report = loop(phase, step, (trained, rule.init(trained)))
    return end, report


def full_gradient(
    model: Model, offer: Params, phase: Phase, examples: Array, key: Key
) -> tuple[Params, ClientReport]:
    """The gradient of the mean loss over all examples of a phase that goes once through them, and
    the report."""
    local = model.fresh(key)

    def add(number: Array, total: Params, batch: Batch, size: Array) -> tuple[Params, Array]:
        loss, grads = jax.value_and_grad(lambda p: mean_loss(model, {**p, **local}, batch, size))(
            offer
        )
        share = size / jnp.maximum(examples, 1)
        return jax.tree.map(lambda t, g: t + share * g, total, grads), loss

    return loop(phase, add, jax.tree.map(jnp.zeros_like, offer))


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """left - right, leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)


def negate(tree: PyTree) -> PyTree:
    """Minus a tree."""
    return jax.tree.map(jnp.negative, tree)
