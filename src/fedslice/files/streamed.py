"""A safetensors file written part by part: what is larger than memory passes through a few MB.

The format is eight bytes with the length of a JSON header, the header (type, shape and place of
each array), and the arrays' bytes.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fedslice.errors import CheckpointError, WriteError
from fedslice.files.writing import replacing

BYTES = 8 << 20  # that pass through memory at a time
KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


class Stream(NamedTuple):
    """An array to be written: ``part(a, b)`` gives its rows from a to before b."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    part: Callable[[int, int], np.ndarray]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def rows(self) -> int:
        """A number by itself is one row."""
        return self.shape[0] if self.shape else 1


def of(array: np.ndarray) -> Stream:
    """An array as a stream.

    >>> of(np.arange(6)).part(2, 4).tolist()
    [2, 3]
    """
    rows = array if array.ndim else array.reshape(1)
    return Stream(array.dtype, array.shape, lambda start, stop: rows[start:stop])


def raw(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def spans(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of a few MB each."""
    step = max(1, BYTES // max(1, width))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def write(file: Path, arrays: Mapping[str, Stream], about: Mapping[str, str] | None = None) -> str:
    """Write ``file``, whole or not at all; gives what :func:`fedslice.files.packed.checksum` finds
    in it."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    place = 0
    for name, array in arrays.items():
        if array.dtype.name not in KINDS:
            raise WriteError(f"{file} cannot hold numbers of type {array.dtype}, as {name} has")
        size = array.rows * array.width
        header[name] = {
            "dtype": KINDS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    size = state = 0
    with replacing(file) as temporary, temporary.open("wb") as sink:
        for block in _blocks(text, arrays.values()):
            sink.write(block)
            size, state = size + len(block), zlib.crc32(block, state)
    return f"{size} {state:08x}"


def _blocks(header: bytes, arrays: Iterable[Stream]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little")
    yield header
    for array in arrays:
        for start, stop in spans(array.rows, array.width):
            yield raw(array.part(start, stop))


class Reader:
    """The arrays of a file that was found to be whole, a part at a time."""

    def __init__(self, file: Path) -> None:
        try:
            self._handle = safe_open(file, "np")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged ({error}); it was left as it is") from error
        self.names = set(self._handle.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """How large an array is."""
        return tuple(self._handle.get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        """The type of its numbers, as safetensors calls it."""
        return str(self._handle.get_slice(name).get_dtype())

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        """Some of its rows."""
        return np.asarray(self._handle.get_slice(name)[start:stop])
