"""A secure sum, as the compiled simulation computes it: fixed-point numbers modulo 2^32.

    client   q = fixed point of (w_i delta_i, w_i)        what :mod:`fedslice.privacy.secure` masks
    server   sum of q modulo 2^32, and back to floats

The masks of the protocol cancel in the sum, so the simulation leaves them out; what is left is its
rounding, of at most n / scale in the sum of n clients, and the law that both give the same whole
numbers.  The server sees the sum and nothing else of updates and weights: so no robust reduction, no
codes, no survey, and a bound on every number, which the stage before the mean must give.

Losses and counts that clients report do not go through it (docs/privacy.md).
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.stage.fixed import bounded, scale_for
from fedslice.stage.fixed import decode as from_fixed
from fedslice.stage.fixed import encode as to_fixed
from fedslice.stage.noise import refuse_extras
from fedslice.types import Key, Message, PyTree, Stage

WEIGHT = "weight"  # the extra that carries a client's weight


def secure(clients: int, bound: float = 1.0, heaviest: float = 1.0) -> Stage:
    """Sums of at most so many ``clients``, next to the wire.

    Args:
        clients: the most that a cohort can have: the sum of so many cannot overflow.
        bound: on the L2 norm of an update before the mean: that of ``stage.clip(bound)``, or 1
            with ``stage.ball``.
        heaviest: the largest weight of a client, 1 with uniform weights; with weights by examples
            a client that has more counts for so many.

    >>> from fedslice.types import ClientReport
    >>> message = Message({"w": jnp.array([0.25, -0.5])}, jnp.ones(()), ClientReport(*[jnp.ones(())] * 4))
    >>> stage, key = secure(clients=100), jax.random.key(0)
    >>> sent, _ = stage.encode((), (), message, key)
    >>> sent.update["w"], stage.decode((), sent, key)[0].update["w"].tolist()
    (Array([ 4194304, -8388608], dtype=int32), [0.25, -0.5])
    """
    if not heaviest >= 1:
        raise InputError(f"heaviest={heaviest}: the largest weight is at least 1")
    scale, weight_scale = scale_for(clients, bound * heaviest), scale_for(clients, heaviest)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        refuse_extras(message, "through numbers that have no bound")
        weight = jnp.minimum(message.weight, heaviest)
        factor = weight / jnp.maximum(message.weight, 1e-30)
        most = bound * heaviest
        leaves, tree = jax.tree.flatten((message.update, message.extra))
        whole = []
        for place, leaf in enumerate(leaves):
            uniform = jax.random.uniform(jax.random.fold_in(key, place), leaf.shape)
            within = bounded(factor * leaf, most)  # beyond it by rounding alone
            whole.append(to_fixed(within, uniform, scale))
        update, extra = jax.tree.unflatten(tree, whole)
        told = to_fixed(weight, jnp.zeros(()), weight_scale)
        hidden = jnp.zeros_like(message.weight)
        return message._replace(update=update, weight=hidden, extra={**extra, WEIGHT: told}), memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        extra = dict(total.extra)
        weight = from_fixed(extra.pop(WEIGHT), weight_scale)
        update, extra = jax.tree.map(lambda q: from_fixed(q, scale), (total.update, extra))
        return total._replace(update=update, weight=weight, extra=extra), state

    return Stage(
        lambda params, rows: (),
        encode,
        decode,
        on_sum=True,
        bound=bound,
        most=clients,
    )
