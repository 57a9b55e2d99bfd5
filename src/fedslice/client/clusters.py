"""The client of HypCluster / IFCA (Mansour et al. 2020, Ghosh et al. 2020): pick the best of k
models, train it.

j = argmin_j F_i(x_j);   sends the update of model j, zeros for the others, and which one it was
"""

import jax
import jax.numpy as jnp
import optax

from fedslice.client.local import (
    ONE_PASS,
    check_optimizer,
    checked,
    descend,
    everything,
    loop,
    mean_loss,
    subtract,
)
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.stage.codes import OneOf
from fedslice.types import Array, Batch, Client, Data, Key, Message, Params, Phase, PyTree, Work


def cluster(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
) -> Client:
    """Train the best of the offered models; every leaf of the offer has the models side by side.

    >>> from fedslice.tasks import quadratic
    >>> local = cluster(quadratic.example1(clients=4).model, optax.sgd(0.1), Work(steps=2, batch=1))
    >>> [(work.steps, work.epochs) for work in local.work]  # training, and a look at all examples
    [(2, None), (None, 1)]
    """
    check_optimizer(optimizer)
    if model.local:
        raise InputError(
            f"IFCA cannot train a model with local leaves ({', '.join(model.local)}): clients"
            " choose among models by their losses, which mean nothing with local leaves as drawn."
            " Use fedrecon or fedper"
        )

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        tables = set(model.tables)
        losses = model_losses(model, offer, data.phases[1], data.examples, key)
        chosen = jnp.argmin(losses)
        start = pick(offer, chosen, tables)
        end, report = descend(model, optimizer, start, data.phases[0], key, data.round)
        member = (jnp.arange(len(losses)) == chosen).astype(jnp.float32)
        update = one_of(subtract(end, start), chosen, len(losses), tables)
        return Message(update, data.examples, report, {"member": member}), memory

    works = (checked(work), everything(work.batch))
    return Client(model, works, lambda params: (), run, extras=True)


def model_losses(model: Model, offer: Params, phase: Phase, examples: Array, key: Key) -> Array:
    """F_i of each of the offered models over a phase that goes once through the examples."""
    tables, local = set(model.tables), model.fresh(key)
    count = models_in(offer, tables)

    def add(number: Array, total: Array, batch: Batch, size: Array) -> tuple[Array, Array]:
        each = [
            mean_loss(model, {**pick(offer, jnp.array(j), tables), **local}, batch, size)
            for j in range(count)
        ]
        return total + jnp.stack(each) * size / jnp.maximum(examples, 1), each[0]

    return loop(phase, add, jnp.zeros(count))[0]


def pick(offer: Params, number: Array, tables: set[str]) -> Params:
    """One of the models: tables have them along their second axis, others along their first."""
    return {
        name: jax.tree.map(lambda x, axis=int(name in tables): jnp.take(x, number, axis=axis), leaf)
        for name, leaf in offer.items()
    }


def one_of(update: Params, number: Array, count: int, tables: set[str]) -> Params:
    """An update of one of the models, as a code of an update of all."""
    return {
        name: jax.tree.map(lambda x, axis=int(name in tables): OneOf(x, number, count, axis), leaf)
        for name, leaf in update.items()
    }


def models_in(offer: Params, tables: set[str]) -> int:
    """How many models stand side by side in ``offer``."""
    name = next(iter(offer))
    return int(jax.tree.leaves(offer[name])[0].shape[int(name in tables)])
