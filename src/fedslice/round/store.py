"""Where everything row-shaped lives: tables, their optimizer moments, heat coefficients.

The state of a run is a pytree.  Some of its leaves have one entry for each row of a table; which
ones, is found by asking how their shapes follow the number of rows (:func:`row_leaves`), so
optimizers and stages need not say.  A store keeps one *slot* for each row that some client holds,
never one for each row of the table, and hands out working sets."""

import errno
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import CheckpointError, InputError
from fedslice.files.lock import hold
from fedslice.types import Array, PyTree

PREFIX, LOCK = "rows-", "lock"

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
    make: Callable[[dict[str, int]], PyTree], spaces: Iterable[str]
) -> tuple[PyTree, PyTree]:
    """The same, and each leaf's shape and type with one row of each space."""
    small = {name: 1009 + 2 * place for place, name in enumerate(spaces)}
    large = {name: 10007 + 2 * place for place, name in enumerate(spaces)}
    first, second = (jax.eval_shape(lambda sizes=sizes: make(sizes)) for sizes in (small, large))

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
        slots = {name: _find(self.ids[name], wanted) for name, wanted in ids.items()}
        known = jax.tree.map(
            lambda tag, leaf: _at(leaf, slots[tag]) if tag else jnp.copy(leaf),
            select(self.tags),
            select(self.state),
        )
        return _fill(
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


class DiskStore:
    """Slots in memory-mapped files of a folder: for tables larger than memory.  A row is made when
    first touched."""

    def __init__(
        self, make: Make, tags: PyTree, ids: Mapping[str, np.ndarray], folder: Path
    ) -> None:
        self.folder, lock = _own_folder(folder)
        weakref.finalize(self, _clear, self.folder, lock)
        self.make, self.tags, self.ids = make, tags, ids
        self.written = {name: np.zeros(len(rows), bool) for name, rows in ids.items()}
        first = make({name: rows[:0] for name, rows in ids.items()})
        numbers = iter(range(1 << 30))

        def open_leaf(tag: str, leaf: Array) -> Any:
            if not tag:
                return jnp.array(leaf)
            shape = (max(1, len(ids[tag])), *leaf.shape[1:])
            return _mapped(self.folder / f"leaf-{next(numbers)}.bin", leaf.dtype, shape)

        self.state = jax.tree.map(open_leaf, tags, first)

    def take(self, union: Mapping[str, np.ndarray]) -> PyTree:
        """The working set of a round as arrays in memory."""
        for name, slots in union.items():
            self._touch(name, slots[slots < len(self.ids[name])])
        kept = {
            name: np.minimum(slots, max(0, len(self.ids[name]) - 1))
            for name, slots in union.items()
        }
        return jax.tree.map(
            lambda tag, leaf: leaf[kept[tag]] if tag else leaf, self.tags, self.state
        )

    def put(self, union: Mapping[str, np.ndarray], working: PyTree) -> None:
        """Write a round's rows back."""
        real = {name: slots < len(self.ids[name]) for name, slots in union.items()}

        def write(tag: str, leaf: Any, new: Any) -> Any:
            if not tag:
                return new
            leaf[union[tag][real[tag]]] = np.asarray(new)[real[tag]]
            return leaf

        self.state = jax.tree.map(write, self.tags, self.state, working)

    def _touch(self, name: str, slots: np.ndarray) -> None:
        fresh = slots[~self.written[name][slots]]
        if not len(fresh):
            return
        nothing = {other: np.zeros(0, np.int64) for other in self.ids}
        # few sizes, so that few are compiled; the last row fills it up
        room = 1 << (len(fresh) - 1).bit_length()
        padded = fresh[np.minimum(np.arange(room), len(fresh) - 1)]
        made = self.make({**nothing, name: self.ids[name][padded]})

        def write(tag: str, leaf: Any, new: Any) -> None:
            if tag == name:
                leaf[fresh] = np.asarray(new)[: len(fresh)]

        jax.tree.map(write, self.tags, self.state, made)
        self.written[name][fresh] = True

    def rows(self, select: Callable[[PyTree], PyTree], ids: Mapping[str, np.ndarray]) -> PyTree:
        """As :meth:`RamStore.rows`."""
        slots = {name: _find(self.ids[name], wanted) for name, wanted in ids.items()}
        trained = {
            name: np.where(
                (s < len(self.ids[name])) & np.append(self.written[name], False)[s],
                s,
                len(self.ids[name]),
            )
            for name, s in slots.items()
        }
        known = jax.tree.map(
            lambda tag, leaf: (
                jnp.asarray(leaf[np.minimum(trained[tag], len(leaf) - 1)]) if tag else leaf
            ),
            select(self.tags),
            select(self.state),
        )
        return _fill(
            select, self.tags, self.make, trained, {n: len(self.ids[n]) for n in ids}, ids, known
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        """Dense leaves, and the rows written so far with their slots."""
        touched = {name: np.flatnonzero(flags) for name, flags in self.written.items()}
        out = {f"slots of {name}": slots for name, slots in touched.items()}
        for (path, tag), leaf in zip(
            jax.tree_util.tree_leaves_with_path(self.tags), jax.tree.leaves(self.state), strict=True
        ):
            out[jax.tree_util.keystr(path)] = np.asarray(leaf[touched[tag]] if tag else leaf)
        return out

    def names(self) -> set[str]:
        """As :meth:`RamStore.names`."""
        dense_and_rows = {
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(self.tags)
        }
        return dense_and_rows | {f"slots of {name}" for name in self.written}

    def restore(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Back to a snapshot; it is checked whole before anything changes."""
        touched = {name: leaves[f"slots of {name}"] for name in self.written}

        def fitting(path: Any, tag: str, leaf: Any) -> np.ndarray:
            shape = (len(touched[tag]), *leaf.shape[1:]) if tag else leaf.shape
            return expect(leaves, jax.tree_util.keystr(path), shape, leaf.dtype)

        found = jax.tree_util.tree_map_with_path(fitting, self.tags, self.state)
        for name, flags in self.written.items():
            flags[:] = False
            flags[touched[name]] = True

        def write(tag: str, leaf: Any, new: np.ndarray) -> Any:
            if not tag:
                return jax.device_put(np.array(new))
            leaf[touched[tag]] = new
            return leaf

        self.state = jax.tree.map(write, self.tags, self.state, found)


def _own_folder(folder: Path) -> tuple[Path, IO[bytes] | None]:
    """A new folder for one run's rows in ``folder``, and its lock, which goes with the process;
    folders that nobody holds are of runs that were killed, and go."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or a file system without locks
            if (held := hold(old / LOCK)) is not None:
                _clear(old, held)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))  # gets its name once it is locked
    lock = None
    with suppress(OSError):
        lock = hold(made / LOCK)
    return made.rename(folder / f"{PREFIX}{made.name.removeprefix('.new-')}"), lock


def _clear(folder: Path, lock: IO[bytes] | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        lock.close()


def _mapped(file: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A mapped file whose room on the disk is taken at once: a full disk would otherwise end the
    process later, in the middle of a write to memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(file.parent).free
    try:
        if size > free:
            raise OSError(errno.ENOSPC, f"{size:,} bytes are needed and {free:,} are free")
        if hasattr(os, "posix_fallocate"):
            with file.open("wb") as handle:
                os.posix_fallocate(handle.fileno(), 0, max(1, size))
        return np.memmap(file, dtype, "r+" if file.exists() else "w+", shape=shape)
    except OSError as error:
        raise InputError(
            f"no room for a table's rows in {file.parent}: {error.strerror or error}. Make room, or"
            " give store= (--store) a folder on a larger disk"
        ) from error


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


def _find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Slots of row ids; past the end where nobody holds the row."""
    place = np.searchsorted(known, wanted)
    inside = np.minimum(place, max(0, len(known) - 1))
    hit = known[inside] == wanted if len(known) else np.zeros(len(wanted), bool)
    return np.where(hit, inside, len(known)).astype(np.int32)


def _fill(
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
        lambda tag, leaf, new: leaf.at[absent[tag]].set(new) if tag else leaf,
        select(tags),
        known,
        made,
    )
