"""What moves numbers to other places, and what makes constants."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedslice.frameworks.aten.elementwise import kind
from fedslice.types import Array

Sizes = Sequence[int]


def _expand(self: Array, size: Sizes, implicit: bool = False) -> Array:
    ahead = len(size) - self.ndim
    shape = [
        self.shape[place - ahead] if n == -1 else n for place, n in enumerate(size)
    ]  # -1: as it is
    return jnp.broadcast_to(self, shape)


def _squeeze(self: Array, dim: int | Sizes | None = None) -> Array:
    if dim is None:
        return jnp.squeeze(self)
    dims = [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(self, tuple(each for each in dims if self.shape[each] == 1))


def _slice(
    self: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    return self[(*[slice(None)] * (dim % self.ndim), slice(start, end, step))]


def _select(self: Array, dim: int, index: int) -> Array:
    return self[(*[slice(None)] * (dim % self.ndim), index)]


def _flatten(self: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    first, last = start_dim % self.ndim, end_dim % self.ndim
    return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])


def _unflatten(self: Array, dim: int, sizes: Sizes) -> Array:
    place = dim % self.ndim
    return self.reshape(*self.shape[:place], *sizes, *self.shape[place + 1 :])


def _split(self: Array, split_size: Any, dim: int = 0) -> list[Array]:
    if not isinstance(split_size, int):
        return _split_sizes(self, split_size, dim)
    return jnp.split(self, list(range(split_size, self.shape[dim], split_size)), dim)


def _split_sizes(self: Array, split_sizes: Sizes, dim: int = 0) -> list[Array]:
    ends = [sum(split_sizes[: place + 1]) for place in range(len(split_sizes) - 1)]
    return jnp.split(self, ends, dim)


def _chunk(self: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(self, -(-self.shape[dim] // chunks), dim)


def _unbind(self: Array, dim: int = 0) -> list[Array]:
    return [_select(self, dim, place) for place in range(self.shape[dim])]


def _index(self: Array, indices: Sequence[Array | None]) -> Array:
    return self[tuple(slice(None) if each is None else each for each in indices)]


def _gather(self: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if all(
        given == wanted
        for axis, (given, wanted) in enumerate(zip(self.shape, index.shape, strict=True))
        if axis != dim % self.ndim
    ):
        return jnp.take_along_axis(self, index, dim)
    places = list(jnp.indices(index.shape, sparse=True))
    places[dim] = index
    return self[tuple(places)]


def _repeat(self: Array, repeats: Sizes) -> Array:
    return jnp.tile(self, tuple(repeats))


def _permute(self: Array, dims: Sizes) -> Array:
    return jnp.transpose(self, tuple(dims))


def _where(condition: Array, self: Any, other: Any) -> Array:
    return jnp.where(condition, self, other)


def _masked_fill(self: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, jnp.asarray(value, self.dtype), self)


def _to(self: Array, dtype: Any = None, **options: Any) -> Array:
    return self if dtype is None else self.astype(kind(dtype))


def _arange(*, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None, **options: Any) -> Array:
    whole = all(isinstance(each, int) for each in (start, end, step))
    return jnp.arange(start, end, step, kind(dtype, jnp.int32 if whole else jnp.float32))


def _full(size: Sizes, fill_value: Any, dtype: Any = None, **options: Any) -> Array:
    default = {bool: jnp.bool_, int: jnp.int32}.get(type(fill_value), jnp.float32)
    return jnp.full(tuple(size), fill_value, kind(dtype, default))


def _filled(number: int) -> Callable[..., Array]:
    return lambda size, dtype=None, **options: jnp.full(
        tuple(size), number, kind(dtype, jnp.float32)
    )


def _filled_like(number: int) -> Callable[..., Array]:
    return lambda self, dtype=None, **options: jnp.full_like(self, number, kind(dtype))


def _new(number: int) -> Callable[..., Array]:
    return lambda self, size, dtype=None, **options: jnp.full(
        tuple(size), number, kind(dtype, self.dtype)
    )


def _topk(
    self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    moved = jnp.moveaxis(self if largest else -self, dim, -1)
    values, places = jax.lax.top_k(moved, k)
    found = jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)
    return (found[0] if largest else -found[0]), found[1]


def _one_hot(self: Array, num_classes: int = -1) -> Array:
    return jax.nn.one_hot(self, num_classes, dtype=jnp.int32)


def _same(self: Array, *given: Any, **options: Any) -> Array:
    return self


OPERATORS: dict[str, Callable[..., Any]] = {
    "view": lambda self, size: self.reshape(tuple(size)),
    "reshape": lambda self, shape: self.reshape(tuple(shape)),
    "_unsafe_view": lambda self, size: self.reshape(tuple(size)),
    "view_as": lambda self, other: self.reshape(other.shape),
    "unsqueeze": lambda self, dim: jnp.expand_dims(self, dim),
    "squeeze": _squeeze,
    "transpose": lambda self, dim0, dim1: jnp.swapaxes(self, dim0, dim1),
    "permute": _permute,
    "movedim": lambda self, source, destination: jnp.moveaxis(self, source, destination),
    "t": lambda self: self.T,
    "expand": _expand,
    "expand_as": lambda self, other: jnp.broadcast_to(self, other.shape),
    "repeat": _repeat,
    "cat": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "stack": lambda tensors, dim=0: jnp.stack(tensors, dim),
    "split": _split,
    "split_with_sizes": _split_sizes,
    "chunk": _chunk,
    "unbind": _unbind,
    "select": _select,
    "slice": _slice,
    "narrow": lambda self, dim, start, length: _slice(self, dim, start, start + length),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "index": _index,
    "index_select": lambda self, dim, index: jnp.take(self, index, dim),
    "gather": _gather,
    "flip": lambda self, dims: jnp.flip(self, tuple(dims)),
    "roll": lambda self, shifts, dims=(): jnp.roll(self, tuple(shifts), tuple(dims) or None),
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": lambda self, diagonal=0: jnp.tril(self, diagonal),
    "triu": lambda self, diagonal=0: jnp.triu(self, diagonal),
    "topk": _topk,
    "one_hot": _one_hot,
    "to": _to,
    "_to_copy": _to,
    "type_as": lambda self, other: self.astype(other.dtype),
    "clone": _same,
    "contiguous": _same,
    "alias": _same,
    "detach": lambda self: jax.lax.stop_gradient(self),
    "arange": _arange,
    "full": _full,
    "full_like": lambda self, fill_value, dtype=None, **options: jnp.full_like(
        self, fill_value, kind(dtype)
    ),
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "new_zeros": _new(0),
    "new_ones": _new(1),
    "new_full": lambda self, size, fill_value, dtype=None, **options: jnp.full(
        tuple(size), fill_value, kind(dtype, self.dtype)
    ),
    "eye": lambda n, m=None, dtype=None, **options: jnp.eye(n, m, dtype=kind(dtype, jnp.float32)),
}
