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
    ONE_PASS,
    check_optimizer,
    checked,
    everything,
    full_gradient,
    loop,
    mean_loss,
    negate,
    subtract,
)
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, PyTree, Work


def mime(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    correct: bool = True,
) -> Client:
    """Steps with frozen statistics; the offer is ((params, optimizer state), -c).

    ``correct=False``: MimeLite, whose offer is (params, optimizer state), and whose clients send
    their full gradient along with the update.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> [len(mime(model, optax.sgd(0.1), correct=correct).work) for correct in (True, False)]
    [1, 2]
    """
    check_optimizer(optimizer)
    rule = optax.with_extra_args_support(optimizer)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        (start, state), found = offer if correct else (offer, ())
        centre = negate(found)
        local = model.fresh(key)

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
            updates, _ = rule.update(grads, state, params, start=start, round=data.round)
            return optax.apply_updates(params, updates), loss

        end, report = loop(data.phases[0], step, start)
        extra = {}
        if not correct:
            extra = {"gradient": full_gradient(model, start, data.phases[1], data.examples, key)[0]}
        return Message(subtract(end, start), data.examples, report, extra), memory

    works = (checked(work),) if correct else (checked(work), everything(work.batch))
    rows = "held" if correct else "touched"
    return Client(model, works, lambda params: (), run, rows=rows, extras=not correct)
