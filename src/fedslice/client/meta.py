"""Federated MAML, Per-FedAvg (Fallah et al. 2020): a model that one gradient step makes the
client's own.

    w' = w - alpha grad f(w; s_j)                   a step on the support batch s_j
    w <- w - Opt((I - alpha H) grad f(w'; q_j))     H the Hessian of f(w; s_j)

H comes by differentiating through the step.  First order (FOMAML, Finn et al. 2017) leaves
alpha H out.  Support and query are parts of a
client's examples, as when it is judged; with ``split="none"`` both batches are drawn from all of
them, as in the paper (which draws a third one for H).  Local leaves are drawn afresh, take part in
both steps and are never sent, as in ``client.sgd``."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedslice.client.adapt import finetune, part_work
from fedslice.client.local import ONE_PASS, check_optimizer, mean_loss, subtract, train
from fedslice.data.halves import NEITHER, SUPPORT, Split, assign
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, Phase, PyTree, Work

BESIDE, SIZE = (
    "support: ",
    "support size",
)  # names of fields that a query batch gets from its support batch


def maml(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    inner_rate: float,
    first_order: bool = True,
    split: Split = "half",
) -> Client:
    """Steps of ``optimizer`` on query batches, each after a step of ``inner_rate`` on a support
    batch.

    ``epochs`` are passes over the query examples; support batches come again when they run out.
    The weight is the number of query examples: a client without any sends nothing.  To adapt is to
    take one inner step.  Without ``first_order`` the model's loss must be twice differentiable.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> [work.part for work in maml(model, optax.sgd(0.5), Work(steps=2), inner_rate=0.1).work]
    ['support', 'query']
    """
    check_optimizer(optimizer)
    if not inner_rate >= 0:
        raise InputError(
            f"inner_rate={inner_rate} must not be negative: it is the rate of the step that adapts"
        )
    learner = replace(model, loss=_after_a_step(model, inner_rate, first_order))
    query = part_work(work, "query", split)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        phase = _paired(*data.phases)
        start = {**offer, **model.fresh(key)}
        end, report = train(learner, optimizer, start, {}, phase, offer, data.round)
        change = subtract({name: end[name] for name in offer}, offer)
        return Message(change, phase.examples, report), memory

    one = Work(steps=1, epochs=1, batch=work.batch)
    adapt = finetune(model, optax.sgd(inner_rate), one, split=split)
    return Client(
        model, (_support(query, split, first_order), query), lambda params: (), run, adapt=adapt
    )


def _after_a_step(model: Model, rate: float, first_order: bool) -> Callable[[Params, Batch], Array]:
    """The loss of a query batch at the model that a step on the support batch beside it gives."""

    def loss(params: Params, batch: Batch) -> Array:
        query = {
            name: field
            for name, field in batch.items()
            if name != SIZE and not name.startswith(BESIDE)
        }
        support = {
            name.removeprefix(BESIDE): field
            for name, field in batch.items()
            if name.startswith(BESIDE)
        }
        if "step_key" in batch:
            support["step_key"] = jax.random.fold_in(batch["step_key"], 1)
        here = jax.lax.stop_gradient(params) if first_order else params
        inner = jax.grad(lambda p: mean_loss(model, p, support, batch[SIZE]))(here)
        return model.loss(jax.tree.map(lambda x, g: x - rate * g, params, inner), query)

    return loss


def _paired(support: Phase, query: Phase) -> Phase:
    """The query phase with a support batch beside each of its batches."""
    place = jnp.arange(len(query.sizes)) % jnp.maximum(support.steps, 1)
    beside = {BESIDE + name: field[place] for name, field in support.batches.items()}
    return query._replace(batches={**query.batches, **beside, SIZE: support.sizes[place]})


def _support(query: Work, split: Split, first_order: bool) -> Work:
    """The work on support batches.  First order only reads their rows; H changes them too, so then
    they are sent, and the phase is the query phase of the split the other way round."""
    if split == "fresh" and not first_order:
        raise InputError(
            "full MAML sends support rows too, so its halves must be fixed: use split='half' or"
            " first_order"
        )
    if split == "none":
        return query._replace(part="support", split=_all_support) if first_order else query
    return query._replace(part="support") if first_order else query._replace(split=_swapped(split))


def _all_support(population: Population) -> np.ndarray:
    return np.full(population.examples, SUPPORT)


def _swapped(split: Split) -> Split:
    def swapped(population: Population) -> np.ndarray:
        part = assign(population, split)
        return np.where(part == NEITHER, NEITHER, 1 - part)

    swapped.__name__ = f"{getattr(split, '__name__', split)}, swapped"  # a checkpoint keeps it
    return swapped
