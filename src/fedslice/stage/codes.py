"""What compressed leaves are made of, as they travel: steps of a scale, kept numbers, two factors.

A code stands in the update in the place of an array.  ``open()`` gives the array that the server
goes on with; ``times(factor)`` is the code of a multiple; both are part of the compiled round.
``pack`` and ``unpack`` turn it into bytes and back, on the host, for the rows that are sent (None:
all of a dense leaf).  What a packed code weighs follows from its shape and, where numbers were left
out, from ``items``, how many were not: ``size`` is the length of what ``pack`` gives.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.arrays import Array, Numbers, PyTree

SCALE = 4  # bytes of a float
COUNT = 4  # bytes of a number of items


def _bits(levels: int) -> int:
    """Bits of a whole number from -levels to levels."""
    return (2 * levels).bit_length()


@partial(jax.tree_util.register_dataclass, data_fields=["steps", "scale"], meta_fields=["levels"])
@dataclass(frozen=True)
class Steps:
    """steps x scale / levels, with whole steps from -levels to levels: each takes as many bits as
    it needs, eight for 127 levels.

    >>> code = Steps(jnp.array([[127], [-1]], jnp.int8), jnp.array(2.0), 127)
    >>> code.size(2), len(code.pack(np.arange(2))), code.open()[0].tolist()
    (6, 6, [2.0])
    """

    steps: Numbers
    scale: Numbers
    levels: int

    counted = False

    def open(self) -> Array:
        """The numbers."""
        return jnp.asarray(self.steps).astype(jnp.float32) * self.scale / self.levels

    def times(self, factor: Array) -> "Steps":
        """The code of ``factor`` times the numbers."""
        return replace(self, scale=factor * self.scale)

    def items(self, real: Array | None) -> Array:
        """Nothing is left out."""
        return jnp.zeros((), jnp.int32)

    def size(self, rows: Any, items: Any = 0) -> Any:
        """Of so many rows."""
        return SCALE + -(-_numbers(self.steps, rows) * _bits(self.levels) // 8)

    def pack(self, rows: np.ndarray | None) -> bytes:
        """The scale, then the steps of the rows, bit by bit."""
        steps = _picked(self.steps, rows).astype(np.int64) + self.levels
        return np.float32(self.scale).tobytes() + _to_bits(steps, _bits(self.levels))

    def unpack(self, data: bytes, rows: np.ndarray | None) -> "Steps":
        """A code of this one's shape from its bytes."""
        count = _numbers(self.steps, None if rows is None else len(rows))
        found = _from_bits(data[SCALE:], _bits(self.levels), count) - self.levels
        if np.any(found > self.levels):
            raise ValueError("a step beyond the last level")
        scale = np.frombuffer(data, np.float32, 1)[0]
        return Steps(_placed(self.steps, rows, found), scale, self.levels)


@partial(jax.tree_util.register_dataclass, data_fields=["values", "kept"], meta_fields=[])
@dataclass(frozen=True)
class Kept:
    """Some of the numbers, zero elsewhere: four bytes for each, and their places as a mask of one
    bit for every number or four bytes for each that is kept, whichever is less.

    >>> code = Kept(jnp.array([0.0, 3.0, 0.0]), jnp.array([False, True, False]))
    >>> int(code.size(3, 1)), len(code.pack(np.arange(3))), code.open().tolist()
    (9, 9, [0.0, 3.0, 0.0])
    """

    values: Numbers
    kept: Numbers

    counted = True  # how many are kept is told first

    def open(self) -> Array:
        """The numbers."""
        return self.values

    def times(self, factor: Array) -> "Kept":
        """The code of ``factor`` times the numbers."""
        return replace(self, values=factor * self.values)

    def items(self, real: Array | None) -> Array:
        """How many are kept, of the rows that are real."""
        kept = self.kept
        if real is not None:
            kept = kept & real.reshape(real.shape + (1,) * (kept.ndim - real.ndim))
        return jnp.sum(kept).astype(jnp.int32)

    def size(self, rows: Any, items: Any = 0) -> Any:
        """Of so many rows with so many kept numbers."""
        mask = -(-_numbers(self.kept, rows) // 8)
        places = 4 * items
        return COUNT + places + np.where(mask < places, mask, places)

    def pack(self, rows: np.ndarray | None) -> bytes:
        """How many are kept, where, and the numbers."""
        kept = _picked(self.kept, rows)
        places = np.flatnonzero(kept).astype(np.uint32)
        mask = np.packbits(kept).tobytes()
        where = mask if len(mask) <= 4 * len(places) else places.tobytes()
        values = _picked(self.values, rows)[places].astype(np.float32)
        return np.uint32(len(places)).tobytes() + where + values.tobytes()

    def unpack(self, data: bytes, rows: np.ndarray | None) -> "Kept":
        """A code of this one's shape from its bytes."""
        numbers = _numbers(self.kept, None if rows is None else len(rows))
        count = int(np.frombuffer(data, np.uint32, 1)[0])
        mask = -(-numbers // 8)
        if mask <= 4 * count:
            bits = np.frombuffer(data, np.uint8, mask, COUNT)
            places = np.flatnonzero(np.unpackbits(bits, count=numbers))
        else:
            places = np.frombuffer(data, np.uint32, count, COUNT).astype(np.int64)
        if len(places) != count or (count and not (np.diff(places) > 0).all()):
            raise ValueError("places that do not fit the number of kept values")
        if count and places[-1] >= numbers:
            raise ValueError("a place beyond the last number")
        flat = np.zeros(numbers, np.float32)
        flat[places] = np.frombuffer(data, np.float32, count, COUNT + min(mask, 4 * count))
        chosen = np.zeros(numbers, bool)
        chosen[places] = True
        return Kept(_placed(self.values, rows, flat), _placed(self.kept, rows, chosen))


@partial(jax.tree_util.register_dataclass, data_fields=["left", "right"], meta_fields=["shape"])
@dataclass(frozen=True)
class Factors:
    """left @ right^T, of a dense matrix: both factors as they are.

    >>> code = Factors(jnp.ones((3, 1)), jnp.full((2, 1), 2.0), (3, 2))
    >>> code.size(3), len(code.pack(np.arange(3))), code.open()[0].tolist()
    (20, 20, [2.0, 2.0])
    """

    left: Numbers
    right: Numbers
    shape: tuple[int, ...]

    counted = False

    def open(self) -> Array:
        """The matrix."""
        return (self.left @ self.right.T).reshape(self.shape)

    def times(self, factor: Array) -> "Factors":
        """The code of ``factor`` times the matrix."""
        return replace(self, right=factor * self.right)

    def items(self, real: Array | None) -> Array:
        """Nothing is left out."""
        return jnp.zeros((), jnp.int32)

    def size(self, rows: Any, items: Any = 0) -> Any:
        """Of both factors."""
        return 4 * (int(np.prod(self.left.shape)) + int(np.prod(self.right.shape)))

    def pack(self, rows: np.ndarray | None) -> bytes:
        """One after the other."""
        return b"".join(np.asarray(x, np.float32).tobytes() for x in (self.left, self.right))

    def unpack(self, data: bytes, rows: np.ndarray | None) -> "Factors":
        """A code of this one's shape from its bytes."""
        flat = np.frombuffer(data, np.float32)
        size = int(np.prod(self.left.shape))
        left, right = flat[:size].reshape(self.left.shape), flat[size:].reshape(self.right.shape)
        return Factors(left, right, self.shape)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["values", "number"],
    meta_fields=["count", "axis"],
)
@dataclass(frozen=True)
class OneOf:
    """One of ``count`` arrays that stand side by side along ``axis``, the others zero: its numbers,
    and which one it is.

    >>> code = OneOf(jnp.array([3.0]), jnp.array(1), count=2, axis=0)
    >>> code.size(None), len(code.pack(None)), code.open().tolist()
    (8, 8, [[0.0], [3.0]])
    """

    values: Numbers
    number: Numbers
    count: int
    axis: int

    counted = False

    def open(self) -> Array:
        """All of them."""
        member = (jnp.arange(self.count) == self.number).astype(self.values.dtype)
        shape = (1,) * self.axis + (-1,) + (1,) * (self.values.ndim - self.axis)
        return jnp.expand_dims(self.values, self.axis) * member.reshape(shape)

    def times(self, factor: Array) -> "OneOf":
        """The code of ``factor`` times the numbers."""
        return replace(self, values=factor * self.values)

    def items(self, real: Array | None) -> Array:
        """Nothing is left out."""
        return jnp.zeros((), jnp.int32)

    def size(self, rows: Any, items: Any = 0) -> Any:
        """Of so many rows of the one."""
        return COUNT + 4 * _numbers(self.values, rows)

    def pack(self, rows: np.ndarray | None) -> bytes:
        """Which one, and its numbers."""
        values = _picked(self.values, rows).astype(np.float32)
        return np.uint32(self.number).tobytes() + values.tobytes()

    def unpack(self, data: bytes, rows: np.ndarray | None) -> "OneOf":
        """A code of this one's shape from its bytes."""
        number = np.frombuffer(data, np.uint32, 1)[0]
        if number >= self.count:
            raise ValueError(f"number {number} of {self.count}")
        values = _placed(self.values, rows, np.frombuffer(data, np.float32, -1, COUNT))
        return OneOf(values, np.int32(number), self.count, self.axis)


Code: TypeAlias = Steps | Kept | Factors | OneOf


def is_code(leaf: Any) -> bool:
    """Whether this stands for an array."""
    return isinstance(leaf, Steps | Kept | Factors | OneOf)


def opened(tree: PyTree) -> PyTree:
    """A tree with arrays in the place of codes."""
    return jax.tree.map(lambda leaf: leaf.open() if is_code(leaf) else leaf, tree, is_leaf=is_code)


def times(factor: Array, tree: PyTree) -> PyTree:
    """``factor`` times every leaf."""
    return jax.tree.map(
        lambda leaf: leaf.times(factor) if is_code(leaf) else factor * leaf, tree, is_leaf=is_code
    )


def over(tree: PyTree, divisor: Array) -> PyTree:
    """Every leaf divided by ``divisor``."""
    return jax.tree.map(
        lambda leaf: leaf.times(1 / divisor) if is_code(leaf) else leaf / divisor,
        tree,
        is_leaf=is_code,
    )


def _numbers(array: Any, rows: Any) -> Any:
    """How many numbers so many rows of an array have, or all of it."""
    return int(np.prod(array.shape)) if rows is None else rows * int(np.prod(array.shape[1:]))


def _picked(array: Any, rows: np.ndarray | None) -> np.ndarray:
    """The numbers of some rows, or all."""
    return (np.asarray(array) if rows is None else np.asarray(array)[rows]).reshape(-1)


def _placed(like: Any, rows: np.ndarray | None, numbers: np.ndarray) -> np.ndarray:
    """An array with these numbers in some rows, or in all."""
    if rows is None:
        return numbers.astype(like.dtype).reshape(like.shape)
    found = np.zeros(like.shape, like.dtype)
    found[rows] = numbers.reshape(len(rows), *like.shape[1:])
    return found


def _to_bits(values: np.ndarray, width: int) -> bytes:
    """Whole numbers of so many bits each, one after the other."""
    if width == 8:
        return values.astype(np.uint8).tobytes()
    return np.packbits((values[:, None] >> np.arange(width - 1, -1, -1)) & 1).tobytes()


def _from_bits(data: bytes, width: int, count: int) -> np.ndarray:
    if width == 8:
        return np.frombuffer(data, np.uint8, count).astype(np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width).reshape(count, width)
    return bits.astype(np.int64) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))
