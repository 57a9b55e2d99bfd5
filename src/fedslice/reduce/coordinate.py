"""Coordinate-wise robust means (Yin et al. 2018): median, and trimmed mean.

each number of each row: over the n clients that hold the row, drop the floor(share n) smallest and largest, average
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.reduce.holders import expand, full, masses, unweighted
from fedslice.reduce.total import add
from fedslice.types import Array, Cohort, PyTree, Reduce


def trimmed(share: float) -> Reduce:
    """Without the ``share`` smallest and largest of each number, by clients (their weights only scale the result).

    >>> trimmed(0.2).name
    'trimmed(0.2)'
    """
    if not 0 <= share < 0.5:
        raise InputError(f"trimmed({share}): the share cut off on each side must be at least 0 and below one half")
    return Reduce(f"trimmed({share:g})", lambda cohort: (_cut(cohort, share), jnp.sum(cohort.weight)))


def median() -> Reduce:
    """The median of each number.

    >>> median().name
    'median'
    """
    return Reduce("median", lambda cohort: (_cut(cohort, None), jnp.sum(cohort.weight)))


def _cut(cohort: Cohort, share: float | None) -> PyTree:
    if share == 0:
        return add(cohort)
    values = unweighted(cohort)

    def leaf(tag: str, x: Array) -> Array:
        spread, held = full(tag, x, cohort)
        count = jnp.sum(held, axis=0)
        ordered = jnp.sort(jnp.where(expand(held, spread), spread, jnp.inf), axis=0)
        cut = jnp.maximum(count - 1, 0) // 2 if share is None else jnp.floor(share * count).astype(count.dtype)
        place = jnp.arange(len(held))[:, None]
        kept = (place >= cut) & (place < count - cut)
        mean = jnp.sum(jnp.where(expand(kept, ordered), ordered, 0), axis=0)
        mean = mean / expand(jnp.maximum(jnp.sum(kept, axis=0), 1), mean)
        out = mean * expand(masses(held, cohort.weight), mean)
        return out if tag else out[0]

    return jax.tree.map(leaf, cohort.tags, values)
