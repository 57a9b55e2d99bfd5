"""Coordinate-wise robust means (Yin et al. 2018): median, and trimmed mean.

each number of each row: over the n clients that hold the row, drop the floor(share n) smallest and
largest, average

A vote needs voters.  Of a cold row a cohort has one or two holders, and a fifth of attackers is
often their majority.  Where n < quorum, the holders' updates are therefore first bounded in norm by
the cohort's median client,

    delta_i <- delta_i min(1, median_j ||delta_j|| / ||delta_i||)

so that the worst they can do there is what an honest client could.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.reduce.holders import SLACK, distances, expand, full, masses, unweighted
from fedslice.reduce.sums import add
from fedslice.types import Array, Cohort, PyTree, Reduce

# Of 9 clients at random, a fifth of all being bad, 1 time in 50 the bad are the majority; of 3,
# 1 in 10.
QUORUM = 10


def trimmed(share: float, quorum: int = QUORUM) -> Reduce:
    """Without the ``share`` smallest and largest of each number, by clients (their weights only
    scale the result).

    Rows that fewer than ``quorum`` clients of the round hold are bounded in norm first; 0 for none.

    >>> from fedslice.types import ClientReport
    >>> sent, ones = {"update": jnp.array([1.0, 2.0, 3.0, 90.0])}, jnp.ones(4)
    >>> cohort = Cohort(sent, ones, ClientReport(*[ones] * 4), {"update": ""}, {}, {})
    >>> jax.jit(lambda: trimmed(0.25, quorum=0).apply(cohort))()  # 2.5 of 2 and 3, times four
    ({'update': Array(10., dtype=float32)}, Array(4., dtype=float32))
    """
    if not 0 <= share < 0.5:
        raise InputError(
            f"trimmed({share}): the share cut off on each side must be at least 0 and below one"
            " half"
        )
    return _reduction(f"trimmed({share:g})", share, quorum)


def median(quorum: int = QUORUM) -> Reduce:
    """The median of each number; rows that fewer than ``quorum`` clients of the round hold are
    bounded in norm first.

    >>> from fedslice.types import ClientReport
    >>> sent, ones = {"update": jnp.array([1.0, 2.0, 9.0, 90.0])}, jnp.ones(4)
    >>> cohort = Cohort(sent, ones, ClientReport(*[ones] * 4), {"update": ""}, {}, {})
    >>> jax.jit(lambda: median(quorum=0).apply(cohort))()  # 5.5, times four clients
    ({'update': Array(22., dtype=float32)}, Array(4., dtype=float32))
    >>> jax.jit(lambda: median().apply(cohort)[0])()  # first 9 and 90 come down to norm 5.5
    {'update': Array(15., dtype=float32)}
    """
    return _reduction("median", None, quorum)


def _reduction(name: str, share: float | None, quorum: int) -> Reduce:
    if quorum < 0:
        raise InputError(
            f"{name}: quorum={quorum} must be 0 (no bound) or the holders below which a row is"
            " bounded"
        )
    return Reduce(name, lambda cohort: (_cut(cohort, share, quorum), jnp.sum(cohort.weight)))


def _cut(cohort: Cohort, share: float | None, quorum: int) -> PyTree:
    if share == 0:
        return add(cohort)
    values = unweighted(cohort)
    bound = _bounds(cohort, values)

    def leaf(limit: Array, tag: str, x: Array) -> Array:
        spread, held = full(tag, x, cohort)
        count = jnp.sum(held, axis=0)
        spread = spread * expand(jnp.where(count < quorum, limit[:, None], 1), spread)
        ordered = jnp.sort(jnp.where(expand(held, spread), spread, jnp.inf), axis=0)
        cut = (
            jnp.maximum(count - 1, 0) // 2
            if share is None
            else jnp.floor(share * count + SLACK).astype(count.dtype)
        )
        place = jnp.arange(len(held))[:, None]
        kept = (place >= cut) & (place < count - cut)
        mean = jnp.sum(jnp.where(expand(kept, ordered), ordered, 0), axis=0)
        mean = mean / expand(jnp.maximum(jnp.sum(kept, axis=0), 1), mean)
        out = mean * expand(masses(held, cohort.weight), mean)
        return out if tag else out[0]

    free = jnp.ones_like(bound)  # what comes along with an update (steps, losses) is not one
    limits = {name: bound if name == "update" else free for name in values}
    return {
        name: jax.tree.map(partial(leaf, limits[name]), cohort.tags[name], values[name])
        for name in values
    }


def _bounds(cohort: Cohort, values: PyTree) -> Array:
    """What brings each client's norm down to the median one, [clients]; 1 for half of them."""
    norms = distances(cohort, values, jax.tree.map(jnp.zeros_like, add(cohort)))
    alive = cohort.weight > 0
    middle = jnp.nanmedian(jnp.where(alive, norms, jnp.nan))
    return jnp.where(alive & (norms > middle), middle / jnp.where(norms > 0, norms, 1), 1)
