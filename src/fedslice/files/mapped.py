"""Arrays in memory-mapped files, whose room on the disk is taken before it is written to.

A page of a mapped file that finds no room when it is written to ends the process, in the middle of
a write to memory.  So a file first only *spans* its full size, which takes no room, and room for
its next rows is asked for when they are due: a full disk is then an error, and nothing was changed.
"""

import errno
import math
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError

STEP = 1 << 20  # bytes by which a file grows at least
SEVERAL = 16  # rows, or a page of them, close to each other: worth a call of the kernel
PAGESIZE = mmap.PAGESIZE


class Mapped:
    """A file of ``shape[0]`` rows, all zeros at first; ``array`` may be written up to the rows that
    were reserved.

    ``few``: of its many rows a few are read and written, and then others.  The kernel is told so,
    and keeps its pages one by one.  Left to itself, it reads far around a page, keeps what it read
    in large pieces, and when a number changes marks, and writes back, the whole piece.

    >>> numbers = Mapped(Path(getfixture("tmp_path")) / "numbers.bin", np.int32, (10**9, 4))
    >>> numbers.reserve(3)
    >>> numbers.array[2] = 7
    >>> numbers.array.shape, numbers.array[1:3].tolist()
    ((1000000000, 4), [[0, 0, 0, 0], [7, 7, 7, 7]])
    """

    def __init__(self, file: Path, dtype: Any, shape: tuple[int, ...], few: bool = False) -> None:
        self.file, self.rows, self.reserved = file, shape[0], 0
        self.width = math.prod(shape[1:]) * np.dtype(dtype).itemsize  # bytes of a row
        with _room(file), file.open("wb+") as handle:
            handle.truncate(max(1, self.rows) * max(1, self.width))
            self._map = mmap.mmap(handle.fileno(), 0)
        # a plain array: a memmap is slower to index
        self.array = np.ndarray((max(1, shape[0]), *shape[1:]), dtype, self._map)
        self.few = few and hasattr(mmap, "MADV_RANDOM")  # not everywhere
        if self.few:
            with suppress(OSError):  # advice alone
                self._map.madvise(mmap.MADV_RANDOM)

    def reserve(self, rows: int) -> None:
        """Take the room of the first ``rows`` rows, and of some more if there is any."""
        if rows <= self.reserved:
            return
        spare = self.reserved + max(self.reserved // 8, STEP // max(1, self.width))
        try:
            self._take(min(self.rows, max(rows, spare)))
        except InputError:
            self._take(rows)

    def ahead(self, rows: np.ndarray) -> None:
        """Have the kernel read the pages of these ascending ``rows`` that are not in memory, all at
        once: otherwise each of them is waited for when its turn comes.  Rows that stand alone are
        left to that; a call for each would cost more where they are in memory.

        >>> numbers = Mapped(Path(getfixture("tmp_path")) / "n.bin", np.int32, (10**6,), few=True)
        >>> numbers.ahead(np.arange(5_000, 9_000))
        """
        if not self.few or not len(rows) or not self.width:
            return
        begin = rows.astype(np.int64) * self.width
        end = begin + self.width
        apart = begin[1:] // PAGESIZE > (end[:-1] - 1) // PAGESIZE + 1
        cuts = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(rows)]])
        many = np.diff(cuts) * max(self.width, PAGESIZE // SEVERAL) >= PAGESIZE
        start = begin[cuts[:-1][many]] // PAGESIZE * PAGESIZE
        stop = end[cuts[1:][many] - 1]
        with suppress(OSError):  # whoever needs them waits for them, then
            for place, length in zip(start.tolist(), (stop - start).tolist(), strict=True):
                self._map.madvise(mmap.MADV_WILLNEED, place, length)

    def _take(self, rows: int) -> None:
        begin, size = self.reserved * self.width, (rows - self.reserved) * self.width
        free = shutil.disk_usage(self.file.parent).free
        with _room(self.file):
            if size > free:
                raise OSError(errno.ENOSPC, f"{size:,} bytes are needed and {free:,} are free")
            if size and hasattr(os, "posix_fallocate"):
                with self.file.open("rb+") as handle:
                    os.posix_fallocate(handle.fileno(), begin, size)
        self.reserved = rows


def whole(file: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a new file, with room for all of it."""
    made = Mapped(file, dtype, shape)
    made.reserve(shape[0])
    return made.array[: shape[0]]


def read_only(file: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array that is in a file already, and stays as it is."""
    if not math.prod(shape):  # nothing cannot be mapped
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(file, dtype, "r", shape=shape))


@contextmanager
def _room(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"no room for {file.name} in {file.parent}: {error.strerror or error}. What was saved"
            " is intact. Make room, or use a folder on a larger disk: for a table's rows, store="
            " (--store)"
        ) from error
