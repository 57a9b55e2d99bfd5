"""Secret sharing: the field, round trips, and that fewer shares than the threshold say nothing."""

import itertools
import random

import numpy as np
import pytest
from people import source

from fedslice.errors import InputError
from fedslice.privacy.secure import shamir


def _composite_by(witness: int, number: int) -> bool:
    """Miller and Rabin: whether the witness shows that a number is no prime."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return False
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return False
    return True


def test_the_field_is_the_smallest_prime_above_all_secrets() -> None:
    rng = random.Random(0)
    witnesses = [rng.randrange(2, 2**256) for _ in range(64)]
    assert not any(_composite_by(witness, shamir.PRIME) for witness in witnesses)
    for number in range(2**256 + 1, shamir.PRIME):
        assert any(_composite_by(witness, number) for witness in (2, 3, 5))
    assert shamir.PRIME < 2 ** (8 * shamir.SHARE)


@pytest.mark.parametrize(
    "secret", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x01", bytes(range(32))]
)
@pytest.mark.parametrize(("threshold", "shares"), [(1, 1), (1, 3), (2, 2), (3, 5), (20, 40)])
def test_any_t_shares_give_the_secret_back(secret: bytes, threshold: int, shares: int) -> None:
    places = [3 * place + 1 for place in range(shares)]
    found = shamir.split(secret, threshold, places, source(1))
    assert all(len(share) == shamir.SHARE for share in found)
    rng = np.random.default_rng(0)
    for _ in range(10):
        chosen = rng.permutation(shares)[:threshold]
        assert shamir.join([places[i] for i in chosen], [found[i] for i in chosen]) == secret


def test_fewer_shares_fit_every_secret() -> None:
    # Two of three shares and any secret are on one polynomial: they rule nothing out.
    shares = shamir.split(b"s" * 32, 3, [1, 2, 3], source(2))
    values = [int.from_bytes(share, "little") for share in shares]
    for guess in (0, 1, 2**255):
        third = shamir.interpolate([0, 1, 2], [guess, *values[:2]], 3)
        assert shamir.interpolate([1, 2, 3], [*values[:2], third], 0) == guess
    assert shamir.join([1, 2], shares[:2]) != b"s" * 32


def test_shares_of_one_secret_differ_from_time_to_time() -> None:
    random = source(3)
    first, second = (shamir.split(b"s" * 32, 2, [1, 2], random) for _ in range(2))
    assert not set(first) & set(second)


def test_interpolation_is_exact_in_the_field() -> None:
    rng = random.Random(1)
    terms = [rng.randrange(shamir.PRIME) for _ in range(4)]

    def value(x: int) -> int:
        return sum(term * x**power for power, term in enumerate(terms)) % shamir.PRIME

    for places in itertools.combinations((1, 2, 5, 9, 1000), 4):
        assert shamir.interpolate(places, [value(x) for x in places], 77) == value(77)


@pytest.mark.parametrize(
    ("secret", "threshold", "places"),
    [
        (b"short", 1, [1]),
        (bytes(32), 3, [1, 2]),
        (bytes(32), 0, [1, 2]),
        (bytes(32), 1, [0, 1]),
        (bytes(32), 2, [1, 1]),
    ],
)
def test_impossible_sharings_are_refused(secret: bytes, threshold: int, places: list[int]) -> None:
    with pytest.raises(InputError):
        shamir.split(secret, threshold, places, source(0))
