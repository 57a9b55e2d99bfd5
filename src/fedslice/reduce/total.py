"""The sum of all messages: what a server, or secure aggregation, computes."""

import jax
import jax.numpy as jnp

from fedslice.types import Array, Cohort, PyTree, Reduce


def sum_rows(values: Array, places: Array, rows: int) -> Array:
    """Each client's rows added into their places, in the order of the clients: the same bits every time.

    >>> sum_rows(jnp.array([[1.0, 2.0], [4.0, 9.0]]), jnp.array([[0, 2], [0, 3]]), 3).tolist()
    [5.0, 0.0, 2.0]
    """
    width = values.shape[2:]
    flat = values.reshape(-1, *width)
    return jnp.zeros((rows, *width), values.dtype).at[places.reshape(-1)].add(flat, mode="drop")


def add(cohort: Cohort) -> PyTree:
    """The sum of the cohort's values."""

    def leaf(tag: str, values: Array) -> Array:
        return sum_rows(values, cohort.places[tag], cohort.sizes[tag]) if tag else jnp.sum(values, axis=0)

    return jax.tree.map(leaf, cohort.tags, cohort.values)


def total() -> Reduce:
    """The plain sum.

    >>> total().name
    'sum'
    """
    return Reduce("sum", lambda cohort: (add(cohort), jnp.sum(cohort.weight)))
