"""What a vector is made of: dense arrays, and rows of tables under their ids.

All participants of a sum have the same parts with the same ids.  Numbers are 32-bit integers, added
modulo 2^32.  The mask of a number hangs on the pair, on the part's name and on the number's
position in it, row id * width + column, and on nothing else: a row is masked alike whatever other
rows are summed with it.

A mask is a key stream (AES-256-CTR), one for each pair and part.  Position p is word p of the
stream, that is word p % 4 of the block with the counter p // 4.  Which blocks are needed, and where
in them the numbers stand, is worked out once, for all pairs.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError

MAGIC, NAME, ID = b"fsp1", 64, 8
"""How packed parts begin; bytes of a name and of a row id in them."""
_COUNT, _PART = struct.Struct("<4sI"), struct.Struct(f"<{NAME}sQq")
START, ENTRY = _COUNT.size, _PART.size
"""Bytes that packed parts take, and each of the parts, besides row ids."""
MOST = 2**30 - 64
"""Numbers of a vector: the length of a message is a 32-bit number."""
_LAST = 2**63  # positions fit into a signed 64-bit number


class Part(NamedTuple):
    """A dense array of ``width`` numbers, or (with ``ids``) so many a row of a table."""

    name: str
    width: int
    ids: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its numbers."""
        return (self.width,) if self.ids is None else (len(self.ids), self.width)


class Stream(NamedTuple):
    """The blocks of key stream that a part needs: their counters, and which of their words
    (``take``; None: all, in order) are added to the numbers from ``start`` to ``stop``."""

    name: bytes
    start: int
    stop: int
    counters: bytes
    take: NDArray[np.int64] | None


class Parts:
    """The parts of a vector, in order.

    >>> parts = Parts([dense("bias", 2), rows("item", [3, 8], 2)])
    >>> parts.size
    6
    >>> flat = parts.flat({"bias": np.int32([1, -1]), "item": np.int32([[1, 2], [3, 4]])})
    >>> flat.tolist()
    [1, 4294967295, 1, 2, 3, 4]
    >>> parts.named(flat)["item"].tolist()
    [[1, 2], [3, 4]]
    >>> Parts.unpack(parts.pack()).digest == parts.digest
    True
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(_checked(part) for part in parts)
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise InputError(f"parts of a vector need different names, at least one: {names}")
        self.size = sum(int(np.prod(part.shape)) for part in self.parts)
        if self.size > MOST:
            raise InputError(f"{self.size:,} numbers are too many for a message: at most {MOST:,}")
        self.digest = hashlib.sha256(self.pack()).digest()
        self.streams = tuple(self._streams())

    def _streams(self) -> Iterable[Stream]:
        start = 0
        for part in self.parts:
            stop = start + int(np.prod(part.shape))
            yield Stream(part.name.encode(), start, stop, *_blocks(part))
            start = stop

    def flat(self, values: Mapping[str, np.ndarray]) -> NDArray[np.uint32]:
        """All numbers one after the other; integers of 32 bits, with or without a sign."""
        if set(values) != {part.name for part in self.parts}:
            raise InputError(
                f"a vector with {sorted(values)} was given for a sum of"
                f" {[part.name for part in self.parts]}: give these parts"
            )
        found = np.empty(self.size, np.uint32)
        for part, stream in zip(self.parts, self.streams, strict=True):
            value = np.asarray(values[part.name])
            if value.dtype not in (np.int32, np.uint32) or value.shape != part.shape:
                raise InputError(
                    f"part {part.name!r} has shape {value.shape} and type {value.dtype}: give"
                    f" 32-bit integers of shape {part.shape} (fixed.encode makes them of floats)"
                )
            found[stream.start : stream.stop] = value.reshape(-1).view(np.uint32)
        return found

    def named(self, flat: NDArray[np.uint32]) -> dict[str, NDArray[np.uint32]]:
        """The parts of a flat vector, each in its shape."""
        return {
            part.name: flat[stream.start : stream.stop].reshape(part.shape)
            for part, stream in zip(self.parts, self.streams, strict=True)
        }

    def pack(self) -> bytes:
        """Names, widths and row ids as bytes: what a participant must be told."""
        found = [_COUNT.pack(MAGIC, len(self.parts))]
        for part in self.parts:
            count = -1 if part.ids is None else len(part.ids)
            found.append(_PART.pack(part.name.encode(), part.width, count))
            found.append(b"" if part.ids is None else part.ids.astype("<i8").tobytes())
        return b"".join(found)

    @classmethod
    def unpack(cls, packed: bytes) -> "Parts":
        """Parts from their bytes; lengths are checked before anything is read."""
        if len(packed) < START or packed[:4] != MAGIC:
            raise InputError("these bytes are no packed parts of a vector: send Parts.pack()")
        parts, at = [], START
        for _ in range(_COUNT.unpack_from(packed)[1]):
            _need(packed, at, ENTRY)
            name, width, count = _PART.unpack_from(packed, at)
            at += ENTRY
            ids = None
            if count >= 0:
                _need(packed, at, count * ID)
                ids = np.frombuffer(packed, "<i8", count, at).astype(np.int64)
                at += count * ID
            parts.append(Part(_text(name), width, ids))
        if at != len(packed):
            raise InputError(f"packed parts have {len(packed) - at} bytes too many: send them anew")
        return cls(parts)


def dense(name: str, numbers: int) -> Part:
    """A part that is a plain array of so many numbers.

    >>> dense("bias", 3).shape
    (3,)
    """
    return Part(name, numbers)


def rows(name: str, ids: object, width: int) -> Part:
    """A part that is some rows of a table: ascending ids, and how many numbers a row has.

    >>> rows("item", [3, 8], 2).shape
    (2, 2)
    """
    return Part(name, width, np.asarray(ids, np.int64))


def _checked(part: Part) -> Part:
    encoded = part.name.encode()
    if not 0 < len(encoded) <= NAME or b"\0" in encoded:
        raise InputError(f"a part's name has 1 to {NAME} bytes, none of them zero: {part.name!r}")
    if not 0 < part.width < _LAST:
        raise InputError(f"part {part.name!r} has a width of {part.width}: give a positive one")
    ids = part.ids
    if ids is None:
        return part
    if ids.ndim != 1 or np.any(np.diff(ids) <= 0) or (len(ids) and ids[0] < 0):
        raise InputError(f"the row ids of part {part.name!r} must ascend from 0 or above")
    if len(ids) and (int(ids[-1]) + 1) * part.width > _LAST:
        raise InputError(f"part {part.name!r} has row ids that are too large for its width")
    return part


def _blocks(part: Part) -> tuple[bytes, NDArray[np.int64] | None]:
    """The counters of a part's blocks, and its words among theirs."""
    if part.ids is None:
        blocks = np.arange(-(-part.width // 4))
        return counters(blocks), None
    places = (part.ids[:, None] * part.width + np.arange(part.width)).reshape(-1)
    block = places >> 2
    fresh = np.concatenate([[True], block[1:] != block[:-1]])[: len(block)]
    take = ((np.cumsum(fresh) - 1) << 2) + (places & 3)
    whole = len(take) == 4 * int(fresh.sum())  # no word is left out
    return counters(block[fresh]), None if whole else take


def counters(blocks: NDArray[np.int64]) -> bytes:
    """Counter blocks of 16 bytes, the first byte the highest, as counter mode has them.

    >>> counters(np.array([258])).hex()
    '00000000000000000000000000000102'
    """
    found = np.zeros((len(blocks), 2), ">u8")
    found[:, 1] = blocks
    return found.tobytes()


def _need(packed: bytes, at: int, size: int) -> None:
    if len(packed) < at + size:
        raise InputError("packed parts of a vector are cut off: send them anew")


def _text(name: bytes) -> str:
    try:
        return name.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise InputError("a part's name is not UTF-8: send the parts anew") from error
