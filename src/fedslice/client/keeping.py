"""FedPer (Arivazhagan et al. 2019): global leaves are averaged, local ones stay with their client
between its rounds.

    (g, l_i) <- (g, l_i) - Opt(grad F_i(g, l_i; xi)),  tau times;     sends g's change, keeps l_i

l_i is drawn from a key in the client's first round.  The optimizer starts anew each round.  It is
for clients that come again (cross-silo); where hardly any comes twice, rebuild the local leaves
each time (``client.reconstruct``)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedslice.client.adapt import reconstruction
from fedslice.client.local import ONE_PASS, check_optimizer, checked, subtract, train
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Client, Data, Key, Message, Params, PyTree, Work


class Own(NamedTuple):
    """What a client keeps: leaves of its own, and how many rounds it trained them in."""

    leaves: Params
    rounds: Array


def keep(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
) -> Client:
    """Steps of ``optimizer`` on global leaves and the client's own ones; a proximal term pulls the
    global ones.

    A client serves the global model with its own leaves.  A newcomer trains its local leaves alone,
    by the same work on its support examples.

    >>> first = {"g": jnp.zeros(()), "l": jnp.zeros(())}
    >>> model = Model(lambda key: first, lambda p, b: (p["g"] + p["l"] - b["a"]) ** 2, local="l")
    >>> keep(model, optax.sgd(0.1)).init({"g": jnp.zeros(())}).leaves
    {'l': Array(0., dtype=float32)}
    """
    check_optimizer(optimizer)
    if not model.local:
        raise InputError(
            "the model has no local leaves to keep: name them, such as Model(..., local=('head',)),"
            " or use fedavg"
        )

    def run(offer: PyTree, memory: Own, data: Data, key: Key) -> tuple[Message, Own]:
        start = {**offer, **own_leaves(model, memory, key)}
        end, report = train(model, optimizer, start, {}, data.phases[0], offer, data.round)
        kept = Own({name: end[name] for name in model.local}, memory.rounds + (report.steps > 0))
        return (
            Message(subtract({name: end[name] for name in offer}, offer), data.examples, report),
            kept,
        )

    return Client(
        model,
        (checked(work),),
        lambda params: nothing_yet(model, {}),
        run,
        adapt=reconstruction(model, optimizer, work),
        serve=lambda params, memory, key: {**params, **own_leaves(model, memory, key)},
    )


def nothing_yet(model: Model, leaves: Params) -> Own:
    """The memory of a client before its first round: ``leaves`` and room for the local ones."""
    shapes = jax.eval_shape(model.fresh, jax.random.key(0))
    room = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return Own({**leaves, **room}, jnp.zeros((), jnp.int32))


def own_leaves(model: Model, own: Own, key: Key) -> Params:
    """The leaves that a client keeps; before its first round, local ones are drawn from ``key``."""
    drawn = model.fresh(key)
    kept = {name: own.leaves[name] for name in drawn}
    return {
        **own.leaves,
        **jax.tree.map(lambda new, old: jnp.where(own.rounds > 0, old, new), drawn, kept),
    }
