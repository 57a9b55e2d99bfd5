"""What goes with a client's optimizer, as optax transformations: corrections and schedules.

    optax.chain(proximal(0.01), optax.sgd(0.1), by_round(optax.cosine_decay_schedule(1.0, 100)))

Corrections stand before the optimizer, schedules after it.  Client parts tell their optimizers two
extra arguments: ``start``, the global leaves that the round began with, and ``round``, the rounds
done before it, or None where a client adapts outside of training.
"""

from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import optax

from fedslice.errors import InputError
from fedslice.types import Array, Params, PyTree

Transformation: TypeAlias = optax.GradientTransformationExtraArgs
NOT_TOLD: Final = object()


def proximal(mu: float) -> Transformation:
    """The gradient of mu/2 ||x - x_t||^2, added: FedProx (Li et al. 2020).  It pulls clients
    *towards* the global model x_t; local leaves are not pulled.

    >>> rule, x = proximal(0.5), {"w": jnp.array(3.0)}
    >>> moved, _ = rule.update({"w": jnp.array(0.0)}, rule.init(x), x, start={"w": jnp.array(1.0)})
    >>> float(moved["w"])
    1.0
    """
    if mu < 0:
        raise InputError(
            f"mu={mu} must not be negative: it would push clients away from the global model"
        )

    def update(
        grads: Params,
        state: optax.OptState,
        params: Params | None = None,
        *,
        start: Params | object = NOT_TOLD,
        **more: PyTree,
    ) -> tuple[Params, optax.OptState]:
        if not isinstance(start, dict) or params is None:
            _misplaced(f"proximal({mu:g})", "the model that a round starts from")
        pulled = {
            name: jax.tree.map(
                lambda g, x, x0: g + mu * (x - x0), grads[name], params[name], start[name]
            )
            for name in start
            if name in grads
        }
        return {**grads, **pulled}, state

    return Transformation(_nothing, update)


def shift(direction: Params) -> Transformation:
    """A constant added to every gradient of the leaves that it names: a control variate, a linear
    term.

    >>> rule, x = shift({"w": jnp.array(2.0)}), {"w": jnp.array(3.0)}
    >>> float(rule.update({"w": jnp.array(1.0)}, rule.init(x), x)[0]["w"])
    3.0
    """

    def update(
        grads: Params, state: optax.OptState, params: Params | None = None, **more: PyTree
    ) -> tuple[Params, optax.OptState]:
        shifted = {
            name: jax.tree.map(jnp.add, grads[name], added) for name, added in direction.items()
        }
        return {**grads, **shifted}, state

    return Transformation(_nothing, update)


def by_round(schedule: Callable[[Array], Array]) -> Transformation:
    """A factor on the optimizer's step by the number of rounds done, as optax's schedules are;
    none where a client adapts outside of training.

    >>> rule, x = by_round(optax.linear_schedule(1.0, 0.0, 10)), {"w": jnp.array(3.0)}
    >>> float(rule.update({"w": jnp.array(1.0)}, rule.init(x), x, round=4)[0]["w"])
    0.6000000238418579
    """

    def update(
        updates: Params,
        state: optax.OptState,
        params: Params | None = None,
        *,
        round: Array | object | None = NOT_TOLD,
        **more: PyTree,
    ) -> tuple[Params, optax.OptState]:
        if round is NOT_TOLD:
            _misplaced("by_round(...)", "the number of rounds done")
        if round is None:
            return updates, state
        factor = schedule(jnp.asarray(round))
        return jax.tree.map(lambda leaf: factor * leaf, updates), state

    return Transformation(_nothing, update)


def _nothing(params: Params) -> optax.OptState:
    return optax.EmptyState()


def _misplaced(name: str, needed: str) -> NoReturn:
    raise InputError(
        f"{name} needs {needed}, which only a client's optimizer is told: use it in the optimizer"
        " of a recipe or a client part, such as fs.recipes.fedavg(model,"
        " optax.chain(fs.client.proximal(0.01), optax.sgd(0.1)), work); a server's rate takes an"
        " optax schedule, optax.sgd(schedule)"
    )
