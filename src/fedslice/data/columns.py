"""Columns of examples: what they may hold, and a hash of all of them, a part at a time where they
are on disk."""

import hashlib
import json
from collections.abc import Iterator, Mapping

import numpy as np

from fedslice.errors import InputError

CHUNK = 1 << 20  # examples looked at together


def slices(length: int) -> Iterator[slice]:
    """Spans of examples that fit into memory.

    >>> [part.stop - part.start for part in slices(2**20 + 3)]
    [1048576, 3]
    """
    for start in range(0, length, CHUNK):
        yield slice(start, min(length, start + CHUNK))


def check(owner: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
    """Refuse columns that do not belong to these clients' examples, or that no model can read."""
    if owner.ndim != 1:
        raise InputError(f"client must be one value for each example, got shape {owner.shape}")
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != len(owner):
            length = len(column) if column.ndim else "no"
            raise InputError(f"column {name!r} has {length} rows, client has {len(owner)}")
        if column.dtype == object or column.dtype.kind in "US":
            raise InputError(
                f"column {name!r} holds text: use fedslice.data.loading, which encodes text to ids"
            )
        if column.dtype.kind == "f" and not (np.abs(column) <= np.finfo(np.float32).max).all():
            where = int(np.argwhere(~(np.abs(column) <= np.finfo(np.float32).max))[0][0])
            raise InputError(
                f"column {name!r} has a value that is not finite, first in example {where}:"
                " clean it"
            )


def digest(
    columns: Mapping[str, np.ndarray], offsets: np.ndarray, names: Mapping[str, np.ndarray]
) -> str:
    """A short hash of all numbers, whose they are, and the names of ids."""
    state = hashlib.sha256()
    for name, column in {"": offsets, **dict(sorted(columns.items()))}.items():
        state.update(f"{name} {column.dtype} {column.shape}".encode())
        for part in slices(len(column)):
            state.update(np.ascontiguousarray(column[part]).reshape(-1).view(np.uint8).data)
    for name, given in sorted(names.items()):
        state.update(json.dumps([name, [str(each) for each in given]]).encode())
    return state.hexdigest()[:16]
