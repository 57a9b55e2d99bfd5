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


def places_in(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Where each of ``ids`` stands among ``rows``, both ascending, past the end if it does not;
    and one entry more, for padding.

    >>> places_in(np.array([2, 5, 9]), np.array([5, 7]))
    array([1, 3, 3])
    """
    found = np.full(len(ids) + 1, len(rows))
    place = np.searchsorted(rows, ids)
    inside = place < len(rows)
    inside[inside] = rows[place[inside]] == ids[inside]
    found[:-1][inside] = place[inside]
    return found


def spread(tags: PyTree, tree: PyTree, places: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Leaves of so many rows, zeros but for the tree's own rows at ``places``; those past the end
    are dropped.

    >>> spread({"w": "item"}, {"w": np.array([5, 7])}, {"item": np.array([2, 3])}, {"item": 3})
    {'w': array([0, 0, 5])}
    """

    def one(tag: str, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if not tag:
            return leaf
        found = np.zeros((sizes[tag], *leaf.shape[1:]), leaf.dtype)
        inside = places[tag] < sizes[tag]
        found[places[tag][inside]] = leaf[inside]
        return found

    return jax.tree.map(one, tags, tree)
