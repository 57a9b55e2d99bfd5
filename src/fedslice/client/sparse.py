"""An array as what it was and the rows that were added to it, so that adding a few rows need not go
over all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from fedslice.types import Array

A_ROW = 128  # numbers of an array that cost as much to go over as one more row to put somewhere


@dataclass(frozen=True, eq=False)
class Rows:
    """``values`` [n, ...] to be added at ``places`` [n] of an array; beyond its ends: nowhere."""

    places: Array
    values: Array

    def added(self, total: Array) -> Array:
        """The array with them.

        >>> Rows(jnp.array([2, 0, 2, 3]), jnp.array([1.0, 2.0, 3.0, 4.0])).added(jnp.zeros(3))
        Array([2., 0., 4.], dtype=float32)
        """
        numbers = jax.lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(1, total.ndim)),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
        )
        mode = jax.lax.GatherScatterMode.FILL_OR_DROP
        return jax.lax.scatter_add(total, self.places[:, None], self.values, numbers, mode=mode)


@dataclass(frozen=True, eq=False)
class Sparse:
    """An array of a ``shape``: its ``base``, or zeros where that is None, with ``rows`` added, of
    which there are some.

    >>> twice = Rows(jnp.array([2, 0, 2]), jnp.array([1.0, 2.0, 3.0]))
    >>> Sparse((4,), None, (twice,)).map(jnp.negative).whole
    Array([-2.,  0., -4.,  0.], dtype=float32)
    """

    shape: tuple[int, ...]
    base: Array | None
    rows: tuple[Rows, ...]
    distinct: bool = False  # no place comes twice, and what would be added nowhere is zero

    @cached_property
    def whole(self) -> Array:
        """The array itself."""
        total = jnp.zeros(self.shape, self.rows[0].values.dtype) if self.base is None else self.base
        for each in self.rows:
            total = each.added(total)
        return total

    @property
    def small(self) -> bool:
        """Whether going over the whole array is quicker than putting its rows somewhere."""
        rows = sum(len(each.places) for each in self.rows)
        return rows * A_ROW > math.prod(self.shape)

    @property
    def settled(self) -> bool:
        """Whether it had to be made whole before, and is best used so."""
        return "whole" in vars(self) and self.small

    def map(self, change: Callable[[Array], Array]) -> "Sparse":
        """With ``change``, linear in every number, applied to all of it."""
        base = None if self.base is None else change(self.base)
        rows = tuple(replace(each, values=change(each.values)) for each in self.rows)
        return replace(self, base=base, rows=rows)

    def plus(self, other: "Sparse | Array") -> "Sparse":
        """The sum with an array of the same shape."""
        base, rows = (other.base, other.rows) if isinstance(other, Sparse) else (other, ())
        known = [each for each in (self.base, base) if each is not None]
        total = known[0] + known[1] if len(known) == 2 else known[0] if known else None
        return Sparse(self.shape, total, (*self.rows, *rows))

    @cached_property
    def merged(self) -> "Sparse | None":
        """The same, distinct.  None with a base, or where the whole array is small enough to be
        the quicker way.

        >>> twice = Rows(jnp.array([2, 0, 2]), jnp.array([1.0, 2.0, 3.0]))
        >>> merged = Sparse((500,), None, (twice,)).merged.rows[0]
        >>> merged.places.tolist(), merged.values.tolist()  # place 500 is beyond the end
        ([500, 0, 2], [0.0, 2.0, 4.0])
        """
        if self.distinct or self.base is not None or self.small:
            return self if self.distinct else None
        most = self.shape[0]
        places = jnp.concatenate([each.places for each in self.rows])
        values = jnp.concatenate([each.values for each in self.rows])
        real = (places >= 0) & (places < most)
        inside, number = jnp.where(real, places, most), jnp.arange(len(places))
        # of the rows of one place the last stands for all of them
        last = jnp.zeros(most, number.dtype).at[inside].max(number, mode="drop")
        stands = jnp.where(real, last.at[inside].get(mode="clip"), len(places))
        total = Rows(stands, values).added(jnp.zeros_like(values))
        own = jnp.where(stands == number, places, most)
        return replace(self, rows=(Rows(own, total),), distinct=True)


@dataclass(frozen=True, eq=False)
class Same:
    """An array of one number, over and over.

    >>> Same(jnp.ones(()), (2,)).whole.tolist()
    [1.0, 1.0]
    """

    number: Any
    shape: tuple[int, ...]

    @cached_property
    def whole(self) -> Array:
        """The array itself."""
        return jnp.broadcast_to(self.number, self.shape)
