"""Norm bounding: a client's whole update in an L2 ball, so that no single client moves the model
far.

update <- update * min(1, bound / ||update||)
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.stage.codes import opened, times
from fedslice.types import Array, Key, Message, PyTree, Stage

HUGE = 1e15  # from here on squares are not far from overflowing


def clip(bound: float) -> Stage:
    """Clip the update's L2 norm.

    >>> from fedslice.types import ClientReport
    >>> report = ClientReport(*[jnp.zeros(())] * 4)
    >>> message = Message({"w": jnp.array([3.0, 4.0])}, jnp.ones(()), report)
    >>> clip(2.5).encode((), (), message, jax.random.key(0))[0].update["w"].tolist()
    [1.5, 2.0]
    """
    if not bound > 0:
        raise InputError(f"clip({bound}): the bound must be positive")

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        size = norm(opened(message.update))
        factor = jnp.minimum(1, bound / jnp.maximum(size, 1e-30))
        return message._replace(update=times(factor, message.update)), memory

    return Stage(
        lambda params, rows: (),
        encode,
        lambda state, total, key: (total, state),
        alters=True,
        bound=bound,
    )


def norm(tree: PyTree) -> Array:
    """L2 norm of a whole tree; by the largest number, so that squares of large ones do not
    overflow.

    >>> f"{float(norm({'w': jnp.array([3e30, 4e30])})):.3g}"
    '5e+30'
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    if not leaves:
        return jnp.zeros(())
    most = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    unit = jnp.where(most > HUGE, most, 1)  # others are squared as they are
    return unit * jnp.sqrt(
        sum((jnp.sum(jnp.square(leaf / unit)) for leaf in leaves), jnp.zeros(()))
    )
