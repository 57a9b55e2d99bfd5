"""Updates in a ball: what bounds the part of one client in a sum, so that noise can hide it.

    client   v_i = A delta_i / C,   sent: v_i min(1, 1 / ||v_i||)
    server   delta = C A^-1 (what arrives)

Between the two halves every update has norm at most 1, whatever C is.  A = diag(c^power) is the
geometry: with c_m = N / n_m the heat coefficients that the mean multiplies with, 1/2 is FedSubAvg's
own (see docs/privacy.md for the derivation), 0 clips plain updates, 1 corrected ones.  Dense leaves
have c = 1.  Clients are told A for their own rows, and the heat behind it must be public.

Adaptive clipping (Andrew et al. 2021): each client also says whether it was within the ball, as
b_i - 1/2; from the (noisy) share b of those who were

    C <- C exp(-rate (b - quantile))

so that C follows a quantile of the clients' norms.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.clipping import norm
from fedslice.types import Array, Key, Message, Params, PyTree, Rows, Stage

BELOW = "below"  # the extra that says whether a client was within the ball


class Adapt(NamedTuple):
    """How the bound follows a quantile of the clients' norms; the constants are the paper's."""

    quantile: float = 0.5
    rate: float = 0.2


def ball(
    bound: float, heat: Heat | None = None, power: float = 0.5, adapt: Adapt | None = None
) -> Stage:
    """Clip to ``bound`` in the geometry of ``heat`` and divide by it; to stand right before the
    mean.  With ``adapt`` it is the first bound.

    >>> from fedslice.types import ClientReport
    >>> report = ClientReport(*[jnp.ones(())] * 4)
    >>> message = Message({"w": jnp.array([3.0, 4.0])}, jnp.ones(()), report)
    >>> stage, key = ball(2.5), jax.random.key(0)
    >>> sent, _ = stage.encode(stage.offer(stage.init({}, {})), (), message, key)
    >>> sent.update["w"], stage.decode(stage.init({}, {}), sent, key)[0].update["w"]
    (Array([0.6, 0.8], dtype=float32), Array([1.5, 2. ], dtype=float32))
    """
    if not 0 < bound < float("inf"):
        raise InputError(f"ball({bound}): the bound must be positive")
    if not 0 <= power <= 1:
        raise InputError(f"power={power}: from 0 (plain updates) to 1 (corrected ones)")
    if adapt is not None and not (0 < adapt.quantile < 1 and adapt.rate > 0):
        raise InputError(f"{adapt}: the quantile is between 0 and 1, the rate positive")

    def init(params: Params, rows: Rows) -> PyTree:
        factors = {} if heat is None else _factors(heat, rows, power)
        return {"factors": factors, "bound": jnp.float32(bound) if adapt else ()}

    def limit(state: PyTree) -> Array:
        return state["bound"] if adapt else jnp.float32(bound)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        update = _times(offer["factors"], message.update)
        size = norm(update) / limit(offer)
        factor = 1 / (limit(offer) * jnp.maximum(size, 1))
        message = message._replace(update=jax.tree.map(lambda leaf: factor * leaf, update))
        if adapt:
            below = (size <= 1).astype(jnp.float32) - 0.5
            message = message._replace(extra={**message.extra, BELOW: below})
        return message, memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        back = {
            table: jnp.where(f > 0, 1 / jnp.where(f > 0, f, 1), 0)
            for table, f in state["factors"].items()
        }
        size = limit(state)
        update = jax.tree.map(lambda leaf: size * leaf, _times(back, total.update))
        if adapt is None:
            return total._replace(update=update), state
        extra = dict(total.extra)
        share = jnp.clip(extra.pop(BELOW) + 0.5, 0, 1)
        after = size * jnp.exp(-adapt.rate * (share - adapt.quantile))
        return total._replace(update=update, extra=extra), {**state, "bound": after}

    return Stage(init, encode, decode, offer=lambda state: state, alters=True, bound=1.0, heat=heat)


def _factors(heat: Heat, rows: Rows, power: float) -> dict[str, Array]:
    return {
        table: jnp.asarray(heat.coefficient(table, ids, "uniform") ** power)
        for table, ids in rows.items()
    }


def _times(factors: dict[str, Array], update: PyTree) -> PyTree:
    """Rows of tables times their factors."""

    def leaf(factor: Array, x: Array) -> Array:
        return x * factor.reshape(factor.shape + (1,) * (x.ndim - 1))

    return {
        name: jax.tree.map(lambda x: leaf(factors[name], x), tree) if name in factors else tree
        for name, tree in update.items()
    }
