"""A cohort in equal parts, filled up with copies of its last client, and back in one piece."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.round.plan import Own


def filled_up(own: Own, spare: int) -> Own:
    """A cohort with ``spare`` copies of its last client."""
    if not spare:
        return own
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[-1:], spare, axis=0)]), own)


def parted(own: Own, size: int, count: int) -> list[Own]:
    """A cohort in ``count`` parts of ``size`` clients."""
    own = filled_up(own, size * count - len(own.place))
    starts = range(0, size * count, size)
    return [jax.tree.map(lambda x, a=start: x[a : a + size], own) for start in starts]


@partial(jax.jit, static_argnums=1)
def joined(parts: list[Any], clients: int) -> Any:
    """The parts' first ``clients``.  One call for all leaves: one for each would cost more than
    the copies."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:clients], *parts)
