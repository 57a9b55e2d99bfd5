"""Mime and MimeLite (Karimireddy et al. 2021): clients step with the server's optimizer, its state
frozen.

    Mime      y <- y - U(g(y; xi) - g(x; xi) + c, s),   c the cohort's mean of full gradients at x
    MimeLite  y <- y - U(g(y; xi), s)

U is the optimizer's rule and s its state, which only the server moves, with c.  Of a table's row c
is the mean over the cohort's holders; heat corrects the update alone.

A choice: U is optax's rule.  SGD's momentum is the paper's, beta m + g.  Adam and its kin first
advance m and v by the step's own gradient, use them, and forget that again; the paper's U takes v
as it stands in s."""

import jax
import optax

from fedslice.client.local import (
    Schedule,
    check_optimizer,
    everything,
    full_gradient,
    loop,
    mean_loss,
    negate,
    subtract,
    work,
)
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree


def mime(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    correct: bool = True,
    schedule: Schedule | None = None,
) -> Client:
    """Steps with frozen statistics; the offer is ((params, optimizer state), -c).

    ``correct=False``: MimeLite, whose offer is (params, optimizer state), and whose clients send
    their full gradient along with the update.

    >>> from fedslice.tasks import quadratic
    >>> len(mime(quadratic.example1(clients=4).model, optax.sgd(0.1), steps=2, batch=1).work)
    1
    """
    check_optimizer(optimizer)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        (start, state), found = offer if correct else (offer, ())
        centre = negate(found)
        local = model.fresh(key)
        factor = 1.0 if schedule is None else schedule(data.round)

        def gradient(params: Params, batch: Batch, size: Array) -> tuple[Array, Params]:
            return jax.value_and_grad(lambda p: mean_loss(model, {**p, **local}, batch, size))(
                params
            )

        def step(number: Array, params: Params, batch: Batch, size: Array) -> tuple[Params, Array]:
            loss, grads = gradient(params, batch, size)
            if correct:
                there = gradient(start, batch, size)[1]
                grads = jax.tree.map(
                    lambda here, old, mean: here - old + mean, grads, there, centre
                )
            updates, _ = optimizer.update(grads, state, params)
            return (
                optax.apply_updates(params, jax.tree.map(lambda leaf: factor * leaf, updates)),
                loss,
            )

        end, report = loop(data.phases[0], step, start)
        extra = {}
        if not correct:
            extra = {"gradient": full_gradient(model, start, data.phases[1], data.examples, key)[0]}
        return Message(subtract(end, start), data.examples, report, extra), memory

    works = (
        (work(steps, epochs, batch),)
        if correct
        else (work(steps, epochs, batch), everything(batch))
    )
    return Client(model, works, lambda params: (), run, rows="held" if correct else "touched")
