"""Arrays as files of raw numbers in a folder, each described by an entry of its index: type, shape
and a checksum of a sample, which finds files that were cut, replaced or changed at large."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.files.mapped import read_only
from fedslice.files.packed import sample
from fedslice.files.writing import writing

Arrays = dict[str, np.ndarray]


def save(folder: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    """Write an array, unless it is one of the folder's files already, and describe it.

    >>> folder = getfixture("tmp_path")
    >>> entry = save(folder, "x", np.arange(3))
    >>> entry["shape"], checked(folder, entry).tolist()
    ([3], [0, 1, 2])
    """
    file = folder / f"{name}.bin"
    if array.dtype.hasobject:
        raise InputError(f"{name} holds Python objects: make it numbers or text of one width")
    with writing(file):
        if not file.exists():
            np.ascontiguousarray(array).tofile(file)
        with file.open("rb+") as handle:
            handle.truncate(array.size * array.dtype.itemsize)
            os.fsync(handle.fileno())
    entry = {"file": file.name, "dtype": array.dtype.str, "shape": list(array.shape)}
    return sampled(folder, entry)


def sampled(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a file that is there now."""
    return {**entry, "sample": sample(folder / entry["file"])}


def checked(folder: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """An array that was described, mapped; a ``ValueError`` if it is another one now."""
    file = folder / entry["file"]
    if file.parent != folder or sample(file) != entry["sample"]:
        raise ValueError(f"{file.name} is not as it was written")
    return array_of(folder, entry)


def array_of(folder: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """The same without a look at it."""
    return read_only(folder / entry["file"], np.dtype(entry["dtype"]), tuple(entry["shape"]))


def write_json(file: Path, about: Mapping[str, Any]) -> None:
    """The index, on the disk when this returns."""
    with file.open("w", encoding="utf-8") as text:
        json.dump(about, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
