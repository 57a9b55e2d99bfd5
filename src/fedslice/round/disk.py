"""A run whose rows are larger than memory: the server's tables and the clients' memory in
memory-mapped files.

Take and put happen on the host, around the same compiled round.  What a round gives back is written
while the device computes the next one, which is given it from memory.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.arrays import PyTree
from fedslice.files.lock import hold
from fedslice.round.engine import Engine
from fedslice.round.figures import Figures
from fedslice.round.mapped import Leaf, MappedRows, alone
from fedslice.round.plan import Plan
from fedslice.round.store import PER_CLIENT, Make, expect, fill, find

PREFIX, LOCK = "rows-", "lock"
PAST = np.int32(2**31 - 1)  # a place past every end


class DiskStore:
    """The server's state: dense leaves in memory, slots in files of a folder.  ``shared`` tells of
    each space which slots several clients hold."""

    def __init__(
        self,
        make: Make,
        tags: PyTree,
        ids: Mapping[str, np.ndarray],
        folder: Path,
        shared: Mapping[str, Callable[[np.ndarray], np.ndarray]] = MappingProxyType({}),
    ) -> None:
        self.folder, lock = _own_folder(folder)
        weakref.finalize(self, _clear, self.folder, lock)
        self.make, self.tags, self.ids = make, tags, ids
        self.token = ""  # of the checkpoint that this state goes on from
        first = make({name: rows[:0] for name, rows in ids.items()})
        self.dense = [jnp.array(leaf) for leaf in _tagged(tags, first, "")]
        self.groups = {
            name: MappedRows(
                self.folder / "first",
                f"rows of {name}",
                len(ids[name]),
                leaves_of(tags, first, name, 1),
                partial(self._first, name),
                shared.get(name, alone),
            )
            for name in ids
        }

    def _first(self, name: str, slots: np.ndarray) -> list[np.ndarray]:
        nothing = {other: np.zeros(0, np.int64) for other in self.ids}
        made = self.make({**nothing, name: self.ids[name][slots]})
        return [np.asarray(leaf) for leaf in _tagged(self.tags, made, name)]

    def take(self, union: Mapping[str, np.ndarray]) -> PyTree:
        """The working set of a round as arrays in memory; padding is zeros."""
        rows = {}
        for name, group in self.groups.items():
            real = union[name][union[name] < group.count]
            rows[name] = [_padded(leaf, len(union[name])) for leaf in group.take(real)]
        return _joined(self.tags, self.dense, rows)

    def put(self, working: PyTree) -> None:
        """What became of the rows that were taken last, which may still be computed."""
        self.dense = _tagged(self.tags, working, "")
        for name, group in self.groups.items():
            group.put(_tagged(self.tags, working, name))

    def rows(self, select: Callable[[PyTree], PyTree], ids: Mapping[str, np.ndarray]) -> PyTree:
        """As :meth:`fedslice.round.store.RamStore.rows`."""
        slots = {name: find(self.ids[name], wanted) for name, wanted in ids.items()}
        sizes = {name: self.groups[name].count for name in ids}
        looked = {
            name: self.groups[name].look(np.minimum(slots[name], max(0, sizes[name] - 1)))
            for name in ids
        }
        known = jax.tree.map(jnp.asarray, select(_joined(self.tags, self.dense, looked)))
        return fill(select, self.tags, self.make, slots, sizes, ids, known)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The dense leaves, by path; rows are in ``groups``."""
        return dict(zip(self._paths(), map(np.asarray, self.dense), strict=True))

    def names(self) -> set[str]:
        """What a snapshot has."""
        return set(self._paths())

    def restore(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Back to a snapshot of the same structure."""
        pairs = zip(self._paths(), self.dense, strict=True)
        found = [expect(leaves, path, old.shape, old.dtype) for path, old in pairs]
        self.dense = [jax.device_put(np.array(leaf)) for leaf in found]

    def _paths(self) -> list[str]:
        paths = jax.tree_util.tree_leaves_with_path(self.tags)
        return [jax.tree_util.keystr(path) for path, tag in paths if not tag]


class DiskMemory:
    """What clients keep between their rounds, in files of a folder: made for a client when it first
    takes part.

    ``counts`` says how many entries each tag may have, ``first(tag, entries)`` makes them."""

    def __init__(
        self,
        tags: PyTree,
        like: PyTree,
        counts: Mapping[str, int],
        first: Callable[[str, np.ndarray], PyTree],
        folder: Path,
    ) -> None:
        self.tags, self.first = tags, first
        self.groups = {
            tag: MappedRows(
                folder / "first",
                f"memory of {'clients' if tag == PER_CLIENT else tag}",
                counts[tag],
                leaves_of(tags, like, tag, int(tag != PER_CLIENT)),
                partial(self._first, tag),
            )
            for tag in sorted(set(jax.tree.leaves(tags)))
        }

    def _first(self, tag: str, entries: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in _tagged(self.tags, self.first(tag, entries), tag)]

    def take(self, drawers: Mapping[str, np.ndarray]) -> tuple[PyTree, dict[str, np.ndarray]]:
        """The memory of a cohort, and where its ``drawers`` stand in that."""
        return self._gathered(drawers, MappedRows.take)

    def put(self, memory: PyTree) -> None:
        """What the cohort that was taken last remembers now."""
        for tag, group in self.groups.items():
            group.put(_tagged(self.tags, memory, tag))

    def look(self, drawers: Mapping[str, np.ndarray]) -> tuple[PyTree, dict[str, np.ndarray]]:
        """As ``take``, of any clients, for a look alone."""
        return self._gathered(drawers, MappedRows.look)

    def _gathered(
        self,
        drawers: Mapping[str, np.ndarray],
        read: Callable[[MappedRows, np.ndarray], list[np.ndarray]],
    ) -> tuple[PyTree, dict[str, np.ndarray]]:
        rows = {}
        places = {tag: np.full(np.shape(wanted), PAST) for tag, wanted in drawers.items()}
        for tag, group in self.groups.items():
            real = drawers[tag] < group.count
            places[tag][real] = np.arange(np.count_nonzero(real), dtype=np.int32)
            found = read(group, drawers[tag][real])
            rows[tag] = [_padded(leaf, real.size) for leaf in found]
        return _joined(self.tags, [], rows), places


def on_disk(
    engine: Engine, store: DiskStore, memory: PyTree | DiskMemory, plan: Plan
) -> tuple[PyTree | DiskMemory, Figures]:
    """A round on rows, and memories, that are taken from files and put back."""
    given, working = memory, store.take(plan.shared.union)
    if isinstance(memory, DiskMemory):
        given, held = memory.take(plan.own.drawers)
        plan = plan._replace(own=plan.own._replace(held=held))
    working, after, figures = engine.on_working_set(working, given, plan)
    store.put(working)
    if not isinstance(memory, DiskMemory):
        return after, figures
    memory.put(after)
    return memory, figures


def leaves_of(tags: PyTree, tree: PyTree, tag: str, axes: int) -> list[Leaf]:
    """The leaves of one tag, without their first ``axes``."""
    chosen = [
        (jax.tree_util.keystr(path), leaf)
        for (path, leaf), own in zip(
            jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(tags), strict=True
        )
        if own == tag
    ]
    return [Leaf(path, tuple(leaf.shape[axes:]), np.dtype(leaf.dtype)) for path, leaf in chosen]


def _tagged(tags: PyTree, tree: PyTree, tag: str) -> list[Any]:
    pairs = zip(jax.tree.leaves(tags), jax.tree.leaves(tree), strict=True)
    return [leaf for own, leaf in pairs if own == tag]


def _joined(tags: PyTree, dense: Iterable[Any], rows: Mapping[str, Iterable[Any]]) -> PyTree:
    """The tree of the leaves of each tag."""
    parts = {"": iter(dense), **{tag: iter(leaves) for tag, leaves in rows.items()}}
    return jax.tree.map(lambda tag: next(parts[tag]), tags)


def _padded(leaf: np.ndarray, rows: int) -> np.ndarray:
    """Zeros up to so many rows."""
    if len(leaf) == rows:
        return leaf
    out = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
    out[: len(leaf)] = leaf
    return out


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
