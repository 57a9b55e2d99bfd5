"""Numbers with a point as integers that a secure sum can add: fixed point, stochastic rounding.

    q = floor(x * scale + u),  u uniform in [0, 1)        E[q] = x * scale, exactly
    sum of x ~ sum of q / scale

The scale is a power of two, so that x * scale is exact in float32.  The sum x * scale + u is not:
it would be rounded, from 2^22 steps on so much that floor gives the next integer too often.  So the
whole steps are split off, and what is left is compared with u, which is exact as well: with
v = x * scale, w = trunc(v), f = v - w

    floor(v + u) = w + [f >= 1 - u] - [u < -f]

NumPy and compiled JAX give the same integers, number by number, for no operation rounds (u must be
a multiple of 2^-24, as the float32 generators of both make them).

No overflow: |x| <= bound gives |q| <= bound * scale + 1, for v - 1 < floor(v + u) < v + 1.  With
the largest power of two for which

    clients * (bound * scale + 1) <= 2^31 - 1

a sum of so many is a signed 32-bit integer, whatever the numbers; a sum modulo 2^32 is the sum.
"""

from fractions import Fraction

import jax
import numpy as np

from fedslice.arrays import Numbers
from fedslice.errors import InputError

LARGEST = 2**31 - 1
TINY = 2.0**-64
"""Steps below it are zero: processors differ about the smallest numbers of all."""
_RANGE = 100  # exponents of a scale: products with float32 numbers stay in the range


def scale_for(clients: int, bound: float) -> float:
    """The largest power of two with which the numbers of so many clients, of magnitude at most
    ``bound``, cannot overflow 32 bits.

    >>> scale_for(50, 1.0) == 2.0**25, scale_for(50, 0.01) == 2.0**31
    (True, True)
    >>> 50 * (1.0 * 2**25 + 1) <= 2**31 - 1 < 50 * (1.0 * 2**26 + 1)
    True
    """
    most = Fraction(_limit(bound))
    if clients < 1 or clients > LARGEST // 2:
        raise InputError(f"a sum of {clients} clients is not possible: give a positive number")
    room = (Fraction(LARGEST, clients) - 1) / most
    exponent = room.numerator.bit_length() - room.denominator.bit_length()
    if Fraction(2) ** exponent > room:
        exponent -= 1
    if abs(exponent) > _RANGE:
        raise InputError(f"bound={bound} is out of range: scale the numbers so that it is near 1")
    return 2.0**exponent


def bounded(x: Numbers, bound: float, beyond: str = "clip") -> Numbers:
    """The numbers within the bound: those ``beyond`` it are moved to it (``"clip"``) or an error
    (``"refuse"``; not in compiled code).

    What is no number becomes zero if it is clipped, and is refused otherwise.

    >>> bounded(np.float32([0.5, -3.0]), 1.0)
    array([ 0.5, -1. ], dtype=float32)
    >>> bounded(np.float32([0.5, -3.0]), 1.0, "refuse")
    Traceback (most recent call last):
    fedslice.errors.InputError: 1 of 2 numbers are beyond the bound of 1.0, or no numbers: clip them
    first, or give a larger bound
    """
    limit = _limit(bound)
    if beyond == "clip":
        space = x.__array_namespace__()
        return space.where(space.isnan(x), 0, space.clip(x, -limit, limit)).astype(x.dtype)
    if beyond != "refuse" or isinstance(x, jax.core.Tracer):
        raise InputError(
            f"beyond={beyond!r} is not possible here: use 'clip', or outside of compiled code"
            " 'refuse'"
        )
    found = np.asarray(x)
    if wrong := int(np.sum(~(np.abs(found) <= limit))):
        raise InputError(
            f"{wrong} of {found.size} numbers are beyond the bound of {bound}, or no numbers: clip"
            " them first, or give a larger bound"
        )
    return x


def encode(x: Numbers, uniform: Numbers, scale: float) -> Numbers:
    """Integers of 32 bits for float32 numbers within the bound of the scale; ``uniform`` has random
    numbers in [0, 1) of the same shape.

    >>> encode(np.float32([0.3, 0.3, -0.3]), np.float32([0.1, 0.9, 0.1]), 4.0).tolist()
    [1, 2, -2]
    """
    if x.dtype != np.float32 or uniform.dtype != np.float32:
        raise InputError(
            f"numbers of type {x.dtype} and {uniform.dtype} cannot be encoded: give float32 both"
        )
    _power_of_two(scale)
    space = x.__array_namespace__()
    steps = x * scale
    steps = space.where(space.abs(steps) < TINY, space.zeros_like(steps), steps)
    whole = space.trunc(steps)
    part = steps - whole
    up, down = part >= 1 - uniform, uniform < -part
    return whole.astype(np.int32) + up.astype(np.int32) - down.astype(np.int32)


def decode(total: Numbers, scale: float) -> Numbers:
    """The sum of numbers, in float32, from the sum of their integers.

    >>> decode(np.int32([3, -6]), 4.0)
    array([ 0.75, -1.5 ], dtype=float32)
    """
    if total.dtype != np.int32:
        raise InputError(
            f"a total of type {total.dtype} has no sign: give total.view(np.int32), the same bits"
        )
    _power_of_two(scale)
    return total.astype(np.float32) * (1 / scale)


def _limit(bound: float) -> float:
    """The bound as float32 has it."""
    limit = float(np.float32(bound))
    if not 0 < limit < np.inf:
        raise InputError(f"bound={bound} is not possible: give a positive number of float32")
    return limit


def _power_of_two(scale: float) -> None:
    if not scale > 0 or np.frexp(scale)[0] != 0.5 or abs(np.frexp(scale)[1] - 1) > _RANGE:
        raise InputError(f"scale={scale} is not a power of two in range: take scale_for's")
