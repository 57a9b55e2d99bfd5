"""The sum of some hundred or thousand numbers, by adding one half to the other, again and again.

XLA on a CPU adds up a few numbers within the operation that makes them, and gives many to a
library; those in between, such as the squares of a small layer's gradient, go number by number
through windows.  Halves are added side by side, in the same operation as what makes the numbers,
which is several times faster; and errors of rounding grow with the logarithm of the count."""

import jax.numpy as jnp

from fedslice.types import Array

FEW, MANY = 32, 4096  # numbers that XLA adds up at once, and that it gives to a library


def between(count: int) -> bool:
    """Whether so many numbers are best added in halves."""
    return FEW < count < MANY


def in_halves(values: Array) -> Array:
    """The sum of all of them.

    >>> in_halves(jnp.arange(101.0))
    Array(5050., dtype=float32)
    """
    flat = values.reshape(-1)
    while len(flat) > FEW:
        flat = jnp.pad(flat, (0, len(flat) % 2))
        middle = len(flat) // 2
        flat = flat[:middle] + flat[middle:]
    return jnp.sum(flat)
