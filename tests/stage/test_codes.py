"""Codes as bytes: every shape comes back, and bytes that no code packs are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedslice.stage.codes import Factors, Kept, OneOf, Steps, over, times


def kept(numbers: int, count: int) -> Kept:
    """The last ``count`` of so many numbers."""
    chosen = np.arange(numbers) >= numbers - count
    return Kept(np.where(chosen, np.arange(1.0, numbers + 1), 0).astype(np.float32), chosen)


CODES: dict[str, Any] = {
    "places": kept(33, 1),
    "as long as the mask": kept(32, 1),
    "mask": kept(31, 1),
    "nothing": kept(9, 0),
    "all": kept(9, 9),
    "steps": Steps(np.array([-3, 0, 3, 1, -1], np.int8), np.float32(2), 3),
    "bytes": Steps(np.array([-127, 0, 127], np.int8), np.float32(2), 127),
    "more than a byte": Steps(np.array([-128, 0, 128], np.int16), np.float32(2), 128),
    "factors": Factors(np.ones((3, 1), np.float32), np.full((2, 1), 2, np.float32), (3, 2)),
    "one of two": OneOf(np.array([3.0, 4.0], np.float32), np.int32(1), 2, 0),
}


@pytest.mark.parametrize("name", CODES)
def test_bytes_are_counted_and_come_back(name: str) -> None:
    """A mask of 32 numbers has four bytes, as the place of one has: both ends must choose alike."""
    code = CODES[name]
    data = code.pack(None)
    assert len(data) == int(code.size(None, int(code.items(None))))
    back = code.unpack(data, None)
    for left, right in zip(*map(jax.tree.leaves, (back, code)), strict=True):
        assert np.array_equal(left, right)
    assert np.array_equal(back.open(), code.open())


@pytest.mark.parametrize("name", ["mask", "steps", "one of two"])
def test_some_rows_travel_and_the_others_are_zero(name: str) -> None:
    """Rows 0 and 2 of three."""
    one = CODES[name]
    wide = jax.tree.map(lambda x: np.stack([x] * 3) if np.ndim(x) else x, one)
    rows = np.array([0, 2])
    back = wide.unpack(wide.pack(rows), rows)
    items = 2 * int(one.items(None))
    assert len(wide.pack(rows)) == int(wide.size(2, items))
    leaf = next(x for x in jax.tree.leaves(back) if np.ndim(x) > 1)
    first = next(x for x in jax.tree.leaves(one) if np.ndim(x))
    assert np.array_equal(leaf, np.stack([first, np.zeros_like(first), first]))


def places(*numbers: int) -> bytes:
    """Of kept numbers among 200, whose mask of 25 bytes is longer than up to six places."""
    values = np.ones(len(numbers), np.float32)
    return np.uint32(len(numbers)).tobytes() + np.array(numbers, "<u4").tobytes() + values.tobytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (places(3, 3), "places that do not fit"),
        (places(4, 3), "places that do not fit"),
        (places(3, 200), "beyond the last number"),
        (places(3, 2**32 - 1), "beyond the last number"),
    ],
    ids=["twice", "descending", "past the end", "far past the end"],
)
def test_places_that_no_code_has_are_refused(data: bytes, words: str) -> None:
    blank = Kept(np.zeros(200, np.float32), np.zeros(200, bool))
    with pytest.raises(ValueError, match=words):
        blank.unpack(data, None)
    assert np.flatnonzero(blank.unpack(places(3, 199), None).kept).tolist() == [3, 199]


def test_a_mask_of_another_number_of_ones_is_refused() -> None:
    data = bytearray(kept(9, 4).pack(None))
    data[4] ^= 1
    with pytest.raises(ValueError, match="places that do not fit"):
        kept(9, 4).unpack(bytes(data), None)


def test_steps_beyond_the_levels_and_members_beyond_the_last_are_refused() -> None:
    """Two bits for -1, 0, 1 leave one pattern over; a member is told by its number from 0."""
    one = Steps(np.array([1], np.int8), np.float32(2), 1)
    data = one.pack(None)
    assert data[4] >> 6 == 0b10
    with pytest.raises(ValueError, match="a step beyond the last level"):
        one.unpack(data[:4] + bytes([0b11 << 6]), None)
    two = CODES["one of two"]
    with pytest.raises(ValueError, match="number 2 of 2"):
        two.unpack(np.uint32(2).tobytes() + two.pack(None)[4:], None)


@pytest.mark.parametrize("name", CODES)
def test_multiples_and_parts(name: str) -> None:
    """``times`` and ``over`` act on codes as on the arrays that they stand for."""
    code = CODES[name]
    tree = {"code": code, "array": np.array([2.0, 4.0])}
    half, double = over(tree, jnp.float32(2)), times(jnp.float32(2), tree)
    np.testing.assert_allclose(half["code"].open(), code.open() / 2, rtol=1e-6)
    np.testing.assert_allclose(double["code"].open(), code.open() * 2, rtol=1e-6)
    assert (half["array"].tolist(), double["array"].tolist()) == ([1, 2], [4, 8])


def test_only_rows_that_are_there_are_counted() -> None:
    """Three rows of two numbers, all kept; the last row is padding."""
    code = Kept(jnp.ones((3, 2)), jnp.ones((3, 2), bool))
    assert int(code.items(jnp.array([True, True, False]))) == 4
    assert int(code.items(None)) == 6
