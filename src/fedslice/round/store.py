"""Where everything row-shaped lives: tables, their optimizer moments, heat coefficients.

The state of a run is a pytree.  Some of its leaves have one entry for each row of a table; which
ones, is found by asking how their shapes follow the number of rows (:func:`row_leaves`), so
optimizers and stages need not say.  A store keeps one *slot* for each row that some client holds,
never one for each row of the table, and hands out working sets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.arrays import among
from fedslice.errors import CheckpointError, InputError
from fedslice.types import Array, PyTree

PER_CLIENT = "/client"  # tag of memory leaves with one entry for each client; no table's name

Make = Callable[[Mapping[str, np.ndarray]], PyTree]
"""Makes the first state for the row ids of each space; the same row always gets the same values."""


def row_leaves(make: Callable[[dict[str, int]], PyTree], spaces: Iterable[str]) -> PyTree:
    """For each leaf of ``make(rows of each space)`` the space whose rows it follows, or ``""``.

    >>> shapes = lambda rows: {"w": jnp.zeros((rows["item"], 2)), "b": jnp.zeros(3)}
    >>> row_leaves(shapes, ["item"])
    {'b': '', 'w': 'item'}
    """
    return row_shapes(make, spaces)[0]


def row_shapes(
    make: Callable[[dict[str, int]], PyTree],
    spaces: Iterable[str],
    again: Callable[[dict[str, int]], PyTree] | None = None,
) -> tuple[PyTree, PyTree]:
    """The same, and each leaf's shape and type with one row of each space.  ``again`` has the
    shapes of ``make`` and is cheaper to trace, for the second time."""
    small = {name: 1009 + 2 * place for place, name in enumerate(spaces)}
    large = {name: 10007 + 2 * place for place, name in enumerate(spaces)}
    first = jax.eval_shape(lambda: make(small))
    second = jax.eval_shape(lambda: (again or make)(large))

    def space(one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct) -> str:
        if one.shape == two.shape:
            return ""
        for name in spaces:
            rows = (one.shape[0], two.shape[0])
            if rows == (small[name], large[name]) and one.shape[1:] == two.shape[1:]:
                return name
        raise InputError(
            f"a leaf of shape {one.shape} depends on a table's rows, but not in its first axis"
            " alone"
        )

    def single(tag: str, one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, *one.shape[1:]), one.dtype) if tag else one

    tags = jax.tree.map(space, first, second)
    return tags, jax.tree.map(single, tags, first)


def take(tags: PyTree, tree: PyTree, places: Mapping[str, Any]) -> PyTree:
    """The rows ``places`` of all row-shaped leaves; a place past the end gives zeros."""

    def rows(tag: str, leaf: Array) -> Array:
        return jnp.asarray(leaf).at[places[tag]].get(mode="fill", fill_value=0) if tag else leaf

    return jax.tree.map(rows, tags, tree)


@jax.jit
def _at(leaf: Array, places: Array) -> Array:
    """The same of one leaf, in one program where it is asked for outside of a round."""
    return leaf.at[places].get(mode="fill", fill_value=0)


@jax.jit
def _with(leaf: Array, places: Array, rows: Array) -> Array:
    """A leaf with new rows, likewise."""
    return leaf.at[places].set(rows)


def put(tags: PyTree, tree: PyTree, places: Mapping[str, Any], rows: PyTree) -> PyTree:
    """``tree`` with new ``rows`` at ``places``; places past the end are dropped."""
    return jax.tree.map(
        lambda tag, leaf, new: leaf.at[places[tag]].set(new, mode="drop") if tag else new,
        tags,
        tree,
        rows,
    )


class RamStore:
    """All slots in device memory; take and put are part of the compiled round, in place."""

    def __init__(self, make: Make, tags: PyTree, ids: Mapping[str, np.ndarray]) -> None:
        self.make, self.tags, self.ids = make, tags, ids
        # our own, strongly typed
        self.state = jax.tree.map(lambda leaf: jax.device_put(np.array(leaf)), make(ids))

    def rows(self, select: Callable[[PyTree], PyTree], ids: Mapping[str, np.ndarray]) -> PyTree:
        """``select(state)`` with the rows ``ids``: trained where a client holds them, else as they
        were made."""
        slots = {name: find(self.ids[name], wanted) for name, wanted in ids.items()}
        known = jax.tree.map(
            lambda tag, leaf: _at(leaf, slots[tag]) if tag else jnp.copy(leaf),
            select(self.tags),
            select(self.state),
        )
        return fill(
            select, self.tags, self.make, slots, {n: len(self.ids[n]) for n in ids}, ids, known
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        """All leaves, by path."""
        return {
            jax.tree_util.keystr(p): np.asarray(x)
            for p, x in jax.tree_util.tree_leaves_with_path(self.state)
        }

    def names(self) -> set[str]:
        """What a snapshot has."""
        return {
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(self.tags)
        }

    def restore(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Back to a snapshot of the same structure."""
        self.state = jax.tree_util.tree_map_with_path(
            lambda path, old: jax.device_put(
                np.array(expect(leaves, jax.tree_util.keystr(path), old.shape, old.dtype))
            ),
            self.state,
        )


def expect(
    leaves: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    """A leaf of a snapshot, of the shape and type that this run needs."""
    if key not in leaves or leaves[key].shape != tuple(shape) or leaves[key].dtype != dtype:
        found = f"{leaves[key].dtype}{list(leaves[key].shape)}" if key in leaves else "nothing"
        raise CheckpointError(
            f"the checkpoint has {found} for {key}, this run needs {dtype}{list(shape)}: "
            "it was written with another model, algorithm or population"
        )
    return leaves[key]


def find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Slots of row ids; past the end where nobody holds the row."""
    inside, hit = among(known, wanted)
    return np.where(hit, inside, len(known)).astype(np.int32)


def fill(
    select: Callable[[PyTree], PyTree],
    tags: PyTree,
    make: Make,
    slots: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    ids: Mapping[str, np.ndarray],
    known: PyTree,
) -> PyTree:
    """``known`` with first values in the rows that have no slot."""
    absent = {name: np.flatnonzero(found >= sizes[name]) for name, found in slots.items()}
    if not any(len(rows) for rows in absent.values()):
        return known
    made = select(make({name: ids[name][rows] for name, rows in absent.items()}))
    return jax.tree.map(
        lambda tag, leaf, new: _with(leaf, absent[tag], new) if tag else leaf,
        select(tags),
        known,
        made,
    )
