"""A product of matrices that is not yet computed, so that it can be turned for nothing.

Autodiff writes the gradient of x @ W as (g^T x)^T.  The compiler makes one product of that, x^T g,
but sees this too late to make the sum of its squares, which clipping by a norm asks for, the quick
way."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from fedslice.types import Array


@dataclass(frozen=True, eq=False)
class Product:
    """``dot_general(left, right, **settings)`` without batch axes.

    >>> import jax.numpy as jnp
    >>> settings = {"dimension_numbers": (((0,), (0,)), ((), ())), "precision": None}
    >>> product = Product(jnp.ones((5, 2)), jnp.ones((5, 3)), settings)
    >>> product.whole.shape, product.turned.whole.shape
    ((2, 3), (3, 2))
    """

    left: Array
    right: Array
    settings: dict[str, Any]

    @cached_property
    def whole(self) -> Array:
        """The array itself."""
        return jax.lax.dot_general(self.left, self.right, **self.settings)

    @property
    def turn(self) -> tuple[int, ...]:
        """The order of its axes in which those of ``right`` come first."""
        (own, its), _ = self.settings["dimension_numbers"]
        first, second = self.left.ndim - len(own), self.right.ndim - len(its)
        return (*range(first, first + second), *range(first))

    @property
    def turned(self) -> "Product":
        """The same with its axes in that order: right times left."""
        (own, its), batch = self.settings["dimension_numbers"]
        changed = {"dimension_numbers": ((its, own), batch)}
        if self.settings["precision"] is not None:
            changed["precision"] = self.settings["precision"][::-1]
        return Product(self.right, self.left, {**self.settings, **changed})
