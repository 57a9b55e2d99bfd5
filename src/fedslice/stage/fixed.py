"""Numbers in fixed point, as a secure sum adds them: whole multiples of 1/scale, modulo 2^32.

    q = floor(x scale) + [u < frac(x scale)],    u uniform on [0, 1)

is unbiased, E[q] = x scale.  Of n clients with |x| <= bound each |q| <= bound scale + 1, so that the
sum cannot leave int32, and is known from its remainder modulo 2^32, if

    n (bound scale + 1) <= 2^31 - 1

``scale`` is the largest power of two for which that holds.  Multiplying by it is exact, so is
taking the fraction, and comparing: NumPy on a device and a compiled simulation get the same whole
numbers from the same x and u.
"""

from math import floor, log2
from typing import TypeVar

import jax
import numpy as np

from fedslice.errors import InputError

Numbers = TypeVar("Numbers", np.ndarray, jax.Array)
LARGEST = 2**31 - 1


def scale_for(bound: float, clients: int) -> float:
    """The largest power of two by which numbers up to ``bound`` of so many clients can be scaled.

    >>> scale_for(1.0, 50), 50 * (2.0**25 + 1) <= LARGEST, 50 * (2.0**26 + 1) <= LARGEST
    (33554432.0, True, False)
    """
    if not 0 < bound < float("inf") or clients < 1:
        raise InputError(
            f"bound={bound}, clients={clients}: fixed-point numbers need a positive bound, and at"
            " least one client"
        )
    room = LARGEST / clients - 1
    if room <= 0:
        raise InputError(
            f"the sum of {clients:,} clients does not fit 32 bits: make cohorts smaller"
        )
    return 2.0 ** floor(log2(room / bound))


def encode(x: Numbers, uniform: Numbers, scale: float) -> Numbers:
    """Whole numbers (int32) by stochastic rounding.

    >>> encode(np.float32([0.3, -0.3]), np.float32([0.5, 0.5]), 4.0).tolist()
    [1, -1]
    """
    space = x.__array_namespace__()
    scaled = x * np.float32(scale)
    low = space.floor(scaled)
    return low.astype(np.int32) + (uniform < scaled - low).astype(np.int32)


def decode(total: Numbers, scale: float) -> Numbers:
    """The numbers (float32) of a sum.

    >>> decode(np.int32([6, -2]), 4.0).tolist()
    [1.5, -0.5]
    """
    return total.astype(np.float32) / np.float32(scale)
