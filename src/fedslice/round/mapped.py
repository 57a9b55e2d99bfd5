"""Rows on disk, in the order in which they were first touched.

Of ``count`` entries that there may be (slots of a table, clients, rows of clients) those that some
round has touched stand in memory-mapped files, one after the other as they came, and nothing stands
for the others.  So what is taken of the disk follows what was trained, and rows that one client
alone holds, which are touched together, stand together.  Rows that several hold have blocks of
their own: they are few, so their pages stay in memory and are written back once for many rounds.
A round over 10,000 rows of 10^8 then meets a few hundred cold pages, not 10,000.

Each row has a mark: whether it changed since the last checkpoint, or since the last snapshot.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.errors import CheckpointError
from fedslice.files.mapped import Mapped
from fedslice.files.streamed import KINDS, Reader, Stream, spans

BLOCK = 1 << 18  # bytes of a leaf's rows that follow each other
KEPT, LOGGED, NEW = 0, 1, 2  # in the snapshot; changed since it, and in its log; changed since then


class Leaf(NamedTuple):
    """What one leaf has for an entry."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def alone(entries: np.ndarray) -> np.ndarray:
    """No entry is shared."""
    return np.zeros(len(entries), bool)


class Late(NamedTuple):
    """Rows of the last round: where they belong, what they were, and what they are now, which may
    have more rows for padding."""

    places: np.ndarray
    taken: list[np.ndarray]
    new: Sequence[Any]


class MappedRows:
    """The row-shaped leaves of one index space.  ``make(entries)`` gives their first values, leaf
    by leaf; the same entry always gets the same.  ``shared(entries)`` tells those that are touched
    by several clients, as far as it is known.

    >>> tenfold = lambda entries: [10 * entries.astype(np.int32)]
    >>> leaf = Leaf("w", (), np.dtype(np.int32))
    >>> rows = MappedRows(getfixture("tmp_path"), "w", 10**6, [leaf], tenfold)
    >>> rows.take(np.array([70_000, 3]))[0].tolist(), rows.made
    ([700000, 30], 2)
    >>> rows.put([np.array([700000, 1], np.int32)])
    >>> rows.look(np.array([3, 4]))[0].tolist(), rows.made
    ([1, 40], 2)
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        count: int,
        leaves: Sequence[Leaf],
        make: Callable[[np.ndarray], Sequence[np.ndarray]],
        shared: Callable[[np.ndarray], np.ndarray] = alone,
    ) -> None:
        self.name, self.count, self.leaves = name, count, leaves
        self.make, self.shared, self.folder = make, shared, folder
        widest = max(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        self.block = max(1, BLOCK // max(1, widest))
        self.made = self.top = 0  # rows; places, with what is left of the last block of either kind
        self.ends = [(0, 0), (0, 0)]
        room = count + 2 * self.block
        folder.mkdir(exist_ok=True)

        def file(what: str, dtype: Any, rows: int, *shape: int, few: bool = True) -> Mapped:
            path = folder / f"{name.replace('/', '_')}-{what}.bin"
            return Mapped(path, dtype, (rows, *shape), few)

        # of each entry one past its place; zero: none.  Small, and read all over: what stands
        # around an entry is soon needed
        place = file("place", np.int32, count, few=False)
        place.reserve(count)
        self.place = place.array
        self.entries = file("entries", np.int32, room)  # the entry at each place
        self.marks = np.zeros(room, np.uint8)  # by place
        self.late = np.zeros(room, np.int32)  # one past a place's number in what is still to come
        self._taken: tuple[np.ndarray, list[np.ndarray]] = np.zeros(0, np.int32), []
        self._late: Late | None = None
        self.files = [
            file(f"leaf-{n}", leaf.dtype, room, *leaf.shape) for n, leaf in enumerate(leaves)
        ]
        self._reserve(min(count, 1))

    def anew(self, folder: Path) -> "MappedRows":
        """The same without any rows yet."""
        return MappedRows(folder, self.name, self.count, self.leaves, self.make, self.shared)

    @property
    def width(self) -> int:
        """Bytes of an entry in a checkpoint."""
        return sum(file.width for file in [self.entries, *self.files])

    # -- a round -----------------------------------------------------------------------------------

    def take(self, entries: np.ndarray) -> list[np.ndarray]:
        """The rows of these entries, which are all different; new ones are made."""
        places = self._places(entries)
        rows = self._read(places)
        if self._late is not None:
            number = self.late[places]
            hit = np.flatnonzero(number)
            for leaf, new in zip(rows, self._late.new, strict=True):
                leaf[hit] = np.asarray(new)[number[hit] - 1]
        self._taken = places, rows
        return rows

    def put(self, new: Sequence[Any]) -> None:
        """New values of the entries that were taken last, which may still be computed: they are
        written when there are newer ones, while the device computes those."""
        self.settle()
        places, rows = self._taken
        self.late[places] = np.arange(1, 1 + len(places), dtype=np.int32)
        self._late = Late(places, rows, new)

    def settle(self) -> None:
        """Write what is still to be written.  Rows that are as they were, such as heat, are not: a
        page that nobody writes to stays clean, and a log of them would say nothing."""
        if self._late is None:
            return
        places, taken, computed = self._late
        self.forget()
        for file, old, each in zip(self.files, taken, computed, strict=True):
            new = np.asarray(each)[: len(places)]
            moved = np.flatnonzero((_bits(old) != _bits(new)).any(1))
            file.array[places[moved]] = new[moved]
            self.marks[places[moved]] = NEW

    def forget(self) -> None:
        """What is still to be written is of another life."""
        if self._late is not None:
            self.late[self._late.places] = 0
            self._late = None

    def look(self, entries: np.ndarray) -> list[np.ndarray]:
        """The rows of any entries; what was never touched is as it would be made, and stays so."""
        self.settle()
        places = self.place[entries] - 1
        absent = np.flatnonzero(places < 0)
        rows = self._read(np.maximum(places, 0))
        if len(absent):
            for leaf, first in zip(rows, self._make(entries[absent]), strict=True):
                leaf[absent] = first
        return rows

    def _read(self, places: np.ndarray) -> list[np.ndarray]:
        ascending = np.sort(places)
        for file in self.files:
            file.ahead(ascending)
        return [file.array.take(places, axis=0) for file in self.files]

    def _places(self, entries: np.ndarray) -> np.ndarray:
        places = self.place[entries] - 1
        absent = np.flatnonzero(places < 0)
        if len(absent):
            places[absent] = self._append(entries[absent], self._make(entries[absent]), NEW)
        return places

    def _make(self, entries: np.ndarray) -> list[np.ndarray]:
        # few sizes, so that few are compiled; the last one fills it up
        room = 1 << (len(entries) - 1).bit_length()
        padded = entries[np.minimum(np.arange(room), len(entries) - 1)]
        return [np.asarray(leaf)[: len(entries)] for leaf in self.make(padded)]

    def _append(self, entries: np.ndarray, rows: Sequence[np.ndarray], mark: int) -> np.ndarray:
        """Rows of new entries at the next places.  The disk may be full: before anything changes,
        then."""
        places = self._next(self.shared(entries))
        for file, new in zip(self.files, rows, strict=True):
            file.array[places] = new
        self.entries.array[places], self.marks[places] = entries, mark
        self.place[entries] = places + 1
        self.made += len(entries)
        return places

    def _next(self, shared: np.ndarray) -> np.ndarray:
        """The next places for rows of either kind: in its last block, and in new ones."""
        top, ends, places = self.top, list(self.ends), np.empty(len(shared), np.int32)
        for kind, (start, stop) in enumerate(self.ends):
            which = np.flatnonzero(shared == kind)
            run, left = np.arange(start, start + len(which)), stop - start
            if (more := len(which) - left) > 0:
                run[left:] += top - stop
                size = -(-more // self.block) * self.block
                start, stop, top = top + more, top + size, top + size
            else:
                start += len(which)
            ends[kind], places[which] = (start, stop), run
        self._reserve(top)
        self.top, self.ends = top, ends
        return places

    def _reserve(self, rows: int) -> None:
        for file in [self.entries, *self.files]:
            file.reserve(rows)

    # -- checkpoints -------------------------------------------------------------------------------

    def marked(self, least: int) -> np.ndarray | None:
        """The places of the rows with this mark or a higher one; None: of all."""
        self.settle()
        if least == KEPT:
            return None
        return np.flatnonzero(self.marks[: self.top] >= least)

    def streams(self, places: np.ndarray | None) -> Iterator[tuple[str, Stream]]:
        """Entries and leaves at these places, to be written."""
        rows = self.made if places is None else len(places)

        def stream(file: Mapped) -> Stream:
            def part(start: int, stop: int) -> np.ndarray:
                some = self._all(start, stop) if places is None else places[start:stop]
                file.ahead(some)
                return file.array[some]

            return Stream(file.array.dtype, (rows, *file.array.shape[1:]), part)

        yield f"entries of {self.name}", stream(self.entries)
        for leaf, file in zip(self.leaves, self.files, strict=True):
            yield f"{self.name}{leaf.path}", stream(file)

    def _all(self, start: int, stop: int) -> np.ndarray:
        """The places of some rows when all are counted through: blocks are full but for two."""
        places = np.arange(start, stop)
        for begin, end in sorted(self.ends):
            places[places >= begin] += end - begin
        return places

    def saved(self, whole: bool) -> None:
        """All rows are in a checkpoint now; ``whole``: in its snapshot."""
        marks = self.marks[: self.top]
        if whole:
            marks[:] = KEPT
        else:
            np.minimum(marks, LOGGED, out=marks)

    def check(self, file: Path, reader: Reader) -> set[str]:
        """Refuse arrays that do not fit; gives the names of those that are these rows'."""
        head = f"entries of {self.name}"
        if head not in reader.names:
            return set()
        rows = reader.shape(head)[0]
        wanted = {head: f"{KINDS['int32']}{[rows]}"}
        for leaf in self.leaves:
            wanted[f"{self.name}{leaf.path}"] = f"{KINDS[leaf.dtype.name]}{[rows, *leaf.shape]}"
        for name, need in wanted.items():
            found = (
                f"{reader.kind(name)}{list(reader.shape(name))}"
                if name in reader.names
                else "nothing"
            )
            if found != need:
                raise CheckpointError(
                    f"{file} has {found} for {name}, this run needs {need}: it was written with"
                    " another model, algorithm or population"
                )
        return set(wanted)

    def load(self, reader: Reader, mark: int) -> None:
        """Rows of a file that was checked, over those that are there."""
        head = f"entries of {self.name}"
        names = [f"{self.name}{leaf.path}" for leaf in self.leaves]
        if head not in reader.names:
            return
        for start, stop in spans(reader.shape(head)[0], self.width):
            entries = reader.part(head, start, stop)
            rows = [reader.part(name, start, stop) for name in names]
            places = self.place[entries] - 1
            known = places >= 0
            for file, new in zip(self.files, rows, strict=True):
                file.array[places[known]] = new[known]
            self.marks[places[known]] = mark
            if not known.all():
                self._append(entries[~known], [new[~known] for new in rows], mark)


def _bits(rows: np.ndarray) -> np.ndarray:
    """Rows as whole numbers, which are the same only if all bits are."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    return flat.view(np.uint32 if flat.dtype.itemsize == 4 else np.uint8)
