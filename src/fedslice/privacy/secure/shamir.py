"""Shamir's secret sharing: any t shares give a secret of 32 bytes, fewer say nothing about it.

    share at x = secret + a_1 x + ... + a_{t-1} x^{t-1}   modulo p = 2^256 + 297
    secret     = sum_i share_i prod_{j != i} x_j / (x_j - x_i)

(Shamir 1979, "How to share a secret").  p is the smallest prime above 2^256, so that every secret
of 32 bytes is a number of the field; a share takes 33 bytes.
"""

import math
from collections.abc import Callable, Sequence

from fedslice.errors import InputError

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33
"""Bytes of a secret and of a share."""


def split(
    secret: bytes, threshold: int, places: Sequence[int], random: Callable[[int], bytes]
) -> list[bytes]:
    """One share for each of the ``places`` x, all different and none zero; ``random(n)`` gives n
    random bytes.

    >>> import os
    >>> shares = split(b"k" * 32, 2, [1, 2, 5], os.urandom)
    >>> join([1, 5], [shares[0], shares[2]]) == join([2, 1], shares[1::-1]) == b"k" * 32
    True
    """
    if len(secret) != SECRET:
        raise InputError(f"a secret of {len(secret)} bytes cannot be shared: give {SECRET}")
    if len(set(places)) < len(places) or any(not 0 < place < PRIME for place in places):
        raise InputError("the places of shares must be different positive numbers")
    if not 1 <= threshold <= len(places):
        raise InputError(
            f"a threshold of {threshold} is not possible with {len(places)} shares: give one from"
            " 1 to the number of shares"
        )
    # 16 bytes more than the field: the remainder is uniform up to 2^-127
    drawn = random((threshold - 1) * (SECRET + 16))
    size = SECRET + 16
    terms = [
        int.from_bytes(drawn[start : start + size], "little") % PRIME
        for start in range(0, len(drawn), size)
    ]
    return [_value(terms, int.from_bytes(secret, "little"), x) for x in places]


def _value(terms: list[int], constant: int, place: int) -> bytes:
    found = 0
    for term in reversed(terms):
        found = (found + term) * place % PRIME
    return ((found + constant) % PRIME).to_bytes(SHARE, "little")


def join(places: Sequence[int], shares: Sequence[bytes]) -> bytes | None:
    """The secret behind as many shares as its threshold, or None if they are of no secret of 32
    bytes.

    >>> join([1], [(2**256).to_bytes(33, "little")]) is None
    True
    """
    found = interpolate(places, [int.from_bytes(share, "little") for share in shares], 0)
    return found.to_bytes(SECRET, "little") if found < 2**256 else None


def interpolate(places: Sequence[int], values: Sequence[int], at: int) -> int:
    """The value at ``at`` of the polynomial of lowest degree through these points (in the field).

    >>> interpolate([1, 2, 3], [1, 4, 9], 12)
    144
    """
    total = 0
    for place, value in zip(places, values, strict=True):
        others = [other for other in places if other != place]
        above = math.prod(other - at for other in others)
        below = math.prod(other - place for other in others)
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME
