"""Rows of trees on the host, in NumPy: as ``round.store`` has them, without compiling anything for
the sizes of each client."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedslice.types import PyTree


def take(tags: PyTree, tree: PyTree, places: Mapping[str, Any]) -> PyTree:
    """The rows ``places`` of all row-shaped leaves; a place past the end gives zeros.

    >>> take({"w": "item", "b": ""}, {"w": np.array([5, 7]), "b": np.array(1)}, {"item": [1, 2]})
    {'b': array(1), 'w': array([7, 0])}
    """

    def rows(tag: str, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if not tag:
            return leaf
        where = np.asarray(places[tag])
        inside = where < len(leaf)
        found = leaf[np.where(inside, where, 0)]
        empty = np.zeros((), leaf.dtype)
        return np.where(inside.reshape(inside.shape + (1,) * (leaf.ndim - 1)), found, empty)

    return jax.tree.map(rows, tags, tree)


def put(tags: PyTree, tree: PyTree, places: Mapping[str, Any], rows: PyTree) -> PyTree:
    """``tree`` with new ``rows`` at ``places``, written in place where leaves have rows; places
    past the end are dropped.

    >>> put({"w": "item"}, {"w": np.array([5, 7])}, {"item": [1, 2]}, {"w": np.array([8, 9])})
    {'w': array([5, 8])}
    """

    def write(tag: str, leaf: Any, new: Any) -> np.ndarray:
        new = np.asarray(new)
        if not tag:
            return new
        where = np.asarray(places[tag])
        inside = where < len(leaf)
        leaf[where[inside]] = new[inside]
        return leaf

    return jax.tree.map(write, tags, tree, rows)
