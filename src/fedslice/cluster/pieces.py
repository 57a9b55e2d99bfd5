"""Pytrees in two lists, rows and dense leaves, and how rows find their places elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedslice.round.plan import bucket
from fedslice.types import PyTree

Slots = Mapping[str, np.ndarray]
"""Numbers of rows, by space."""


def split(tags: PyTree, tree: PyTree) -> tuple[list[Any], list[Any]]:
    """The row-shaped leaves of a tree, and the others.

    >>> split({"b": "", "w": "item"}, {"b": 1, "w": [2]})
    ([[2]], [1])
    """
    pairs: list[tuple[str, Any]] = []
    jax.tree.map(lambda tag, leaf: pairs.append((tag, leaf)), tags, tree)
    return [leaf for tag, leaf in pairs if tag], [leaf for tag, leaf in pairs if not tag]


def join(tags: PyTree, rows: Sequence[Any], dense: Sequence[Any]) -> PyTree:
    """The tree again.

    >>> join({"b": "", "w": "item"}, [2], [1])
    {'b': 1, 'w': 2}
    """
    each, other = iter(rows), iter(dense)
    return jax.tree.map(lambda tag: next(each) if tag else next(other), tags)


def spaces_of(tags: PyTree) -> list[str]:
    """The space of each row-shaped leaf."""
    return [tag for tag in jax.tree.leaves(tags) if tag]


def home(slots: np.ndarray, shards: int) -> np.ndarray:
    """The shard of each slot: neighbours apart, for ids that stand together are often hot alike."""
    return slots % shards


def sorted_by_home(slots: np.ndarray, shards: int) -> np.ndarray:
    """Distinct slots, those of the first shard first, each shard's ascending.

    >>> sorted_by_home(np.array([4, 1, 3, 2, 1]), 2).tolist()
    [2, 4, 1, 3]
    """
    distinct = np.unique(slots)
    return distinct[np.argsort(home(distinct, shards), kind="stable")]


def spread(slots: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``rows``, which belong to ``slots``, at the places of ``wanted`` slots; zeros where there is
    none.

    >>> spread(np.array([7, 3]), np.array([1.0, 2.0]), np.array([3, 5, 7])).tolist()
    [2.0, 0.0, 1.0]
    """
    found = np.zeros((len(wanted), *rows.shape[1:]), rows.dtype)
    if len(slots):
        place = lookup(slots, wanted)
        hit = place >= 0
        found[hit] = rows[place[hit]]
    return found


def lookup(slots: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted slot stands among ``slots``, which are distinct; -1: nowhere."""
    if not len(slots):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(slots, kind="stable")
    place = np.minimum(np.searchsorted(slots, wanted, sorter=order), len(slots) - 1)
    where = order[place]
    return np.where(slots[where] == wanted, where, -1)


class Room:
    """Padded sizes that only grow, so that few programs are compiled."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def of(self, name: str, need: int) -> int:
        """The size to pad to."""
        if need > self.sizes.get(name, 0):
            self.sizes[name] = bucket(need + need // 8)
        return self.sizes[name]


def padded(values: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """``values`` with more of ``fill`` at the end, ``size`` of them in all."""
    if len(values) == size:
        return values
    end = np.full((size - len(values), *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, end])
