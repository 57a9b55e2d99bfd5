"""Fixed point: exact against rationals, the same in NumPy and in compiled JAX, no overflow."""

import math
from collections.abc import Iterator
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kinds import few

from fedslice.errors import InputError
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.parts import Parts, dense
from fedslice.privacy.secure.run import secure_sum
from fedslice.stage.fixed import LARGEST, TINY, bounded, decode, encode, scale_for

LAST = np.float32(1 - 2**-24)
UNIFORM = np.float32([0, 2**-24, 2**-23, 0.25, 0.5 - 2**-24, 0.5, 0.5 + 2**-24, 1 - 2**-23, LAST])


def _edges() -> np.ndarray:
    """Numbers of steps where float32 is coarse or fine: around zero, one, 2^22 to 2^24, 2^30."""
    edges = [0.0, 2**-40, 2**-25, 2**-24, 0.5, 1, 1.5, 2, 3, 1000.5]
    edges += [float(2**power) for power in range(20, 31)]
    found = []
    for edge in edges:
        down = up = np.float32(edge)
        for _ in range(4):
            found += [down, up]
            down, up = np.nextafter(down, np.float32(-np.inf)), np.nextafter(up, np.float32(np.inf))
    found = [each for each in found if abs(each) >= 2**-64 or each == 0]
    return np.float32([*found, *(-each for each in found)])


def _exact(x: np.ndarray, uniform: np.ndarray, scale: float) -> np.ndarray:
    pairs = zip(x.tolist(), uniform.tolist(), strict=True)
    return np.array(
        [math.floor(Fraction(a) * Fraction(scale) + Fraction(b)) for a, b in pairs], np.int64
    )


def _cases(scale: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    random = rng.standard_normal(2000, np.float32) * np.float32(2.0) ** rng.integers(-30, 29, 2000)
    steps = np.concatenate([_edges(), random.astype(np.float32)])
    x = np.repeat((steps / np.float32(scale)).astype(np.float32), len(UNIFORM) + 3)
    drawn = rng.random((len(steps), 3), np.float32)
    uniform = np.concatenate([np.tile(UNIFORM, (len(steps), 1)), drawn], 1).reshape(-1)
    return x, uniform


@pytest.fixture
def _optimised() -> Iterator[None]:
    """As users compile; other tests leave optimisations out."""
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


@pytest.mark.usefixtures("_optimised")
@pytest.mark.parametrize("scale", few([1.0, 2.0**20, 2.0**-7, 2.0**60], 1.0, 2.0**60))
def test_rounding_is_exact_in_numpy_and_in_compiled_jax(scale: float) -> None:
    x, uniform = _cases(scale)
    expected = _exact(x, uniform, scale)
    assert np.array_equal(encode(x, uniform, scale), expected)
    compiled = jax.jit(encode, static_argnums=2)
    found = compiled(jnp.asarray(x), jnp.asarray(uniform), scale)
    assert found.dtype == jnp.int32
    assert np.array_equal(np.asarray(found), expected)
    # Number by number, whatever else stands in the array or is fused with it.
    fused = jax.jit(lambda a, u: encode(a * 2, u, scale).reshape(-1, 12).sum(0))
    half = (x / 2).astype(np.float32)
    assert np.array_equal(
        np.asarray(fused(half, uniform)), expected.astype(np.int32).reshape(-1, 12).sum(0, np.int32)
    )


def test_the_plain_formula_in_float32_would_be_wrong() -> None:
    # Why the fraction is compared instead: an integer of 2^23 steps must stay what it is.
    x = np.float32([2**23 + 1])
    assert np.floor(x + LAST)[0] == 2**23 + 2
    assert encode(x, np.full(1, LAST), 1.0)[0] == 2**23 + 1


def test_the_smallest_numbers_are_zero_everywhere() -> None:
    x = np.float32([1e-45, -1e-45, 1e-38, -1e-38, -TINY / 2])
    uniform = np.zeros(5, np.float32)
    assert not encode(x, uniform, 1.0).any()
    assert not np.asarray(jax.jit(encode, static_argnums=2)(x, uniform, 1.0)).any()


def test_rounding_is_unbiased() -> None:
    # Over all uniform numbers on a grid of 2^-10, the mean of x = j / 2^10 steps is x, exactly.
    grid = (np.arange(1024) / 1024).astype(np.float32)
    for steps in np.float32([0.3125, -0.3125, 5.0009765625, -1000.75, 4_000_000.25, -8_388_607.5]):
        found = encode(np.full(1024, steps), grid, 1.0)
        assert found.astype(np.int64).sum() == 1024 * float(steps)


@pytest.mark.parametrize("clients", [1, 2, 3, 50, 1000, 10**6])
@pytest.mark.parametrize("bound", [1.0, 0.1, 1 / 3, 7.5, 1e-3, 12_345.678])
def test_the_scale_is_the_largest_that_cannot_overflow(clients: int, bound: float) -> None:
    scale, limit = scale_for(clients, bound), np.float32(bound)
    assert math.frexp(scale)[0] == 0.5
    exact = Fraction(float(limit))
    assert clients * (exact * Fraction(scale) + 1) <= LARGEST
    assert clients * (exact * Fraction(scale) * 2 + 1) > LARGEST
    x = np.array([limit, limit, -limit, -limit])
    found = encode(x, np.array([0, LAST, 0, LAST], np.float32), scale)
    assert np.array_equal(found, _exact(x, np.array([0, LAST, 0, LAST]), scale))
    assert max(abs(int(each)) for each in found) * clients <= LARGEST
    assert np.array_equal(
        found, jax.jit(encode, static_argnums=2)(x, np.float32([0, LAST] * 2), scale)
    )


def test_the_sum_at_the_bound_comes_back() -> None:
    clients, bound = 5, 0.1
    scale = scale_for(clients, bound)
    limit = np.float32(bound)
    parts = Parts([dense("w", 2)])
    uniform = np.float32([LAST, 0])
    vectors = [
        {"w": encode(bounded(np.float32([9, -9]), bound), uniform, scale)} for _ in range(clients)
    ]
    found = decode(secure_sum(vectors, parts, Degree(4, 3)).total["w"], scale)
    assert np.allclose(found, [clients * limit, -clients * limit], rtol=1e-6)


def test_decoding_is_the_same_in_both() -> None:
    total = np.array([0, 1, -1, 2**24 + 1, -(2**24) - 3, LARGEST, -LARGEST], np.int32)
    found = decode(total, 2.0**20)
    assert found.dtype == np.float32
    assert found.tolist() == [float(np.float32(int(each))) / 2**20 for each in total]
    assert np.array_equal(found, jax.jit(decode, static_argnums=1)(total, 2.0**20))


def test_numbers_beyond_the_bound() -> None:
    x = np.float32([0.1, -0.5, 0.75, np.inf, -np.inf, np.nan])
    clipped = np.float32([0.1, -0.5, 0.5, 0.5, -0.5, 0])
    assert np.array_equal(bounded(x, 0.5), clipped)
    assert np.array_equal(jax.jit(bounded, static_argnums=1)(x, 0.5), clipped)
    assert np.array_equal(bounded(x[:2], 0.5, "refuse"), x[:2])
    for wrong in (x[2:3], x[3:4], x[5:]):
        with pytest.raises(InputError, match="beyond the bound"):
            bounded(wrong, 0.5, "refuse")
    with pytest.raises(InputError, match="outside of compiled code"):
        jax.jit(lambda a: bounded(a, 0.5, "refuse"))(x)
    with pytest.raises(InputError, match="beyond='wrap'"):
        bounded(x, 0.5, "wrap")


def test_wrong_types_and_scales_are_refused() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(InputError, match="float64"):
        encode(x.astype(np.float64), x, 1.0)
    with pytest.raises(InputError, match="view"):
        decode(np.zeros(2, np.uint32), 1.0)
    for scale in (3.0, 0.0, -2.0, math.inf, math.nan, 2.0**101):
        with pytest.raises(InputError, match="power of two"):
            encode(x, x, scale)
    for clients, bound in ((0, 1.0), (2**31, 1.0), (5, 0.0), (5, -1.0), (5, math.nan), (999, 3e38)):
        with pytest.raises(InputError):
            scale_for(clients, bound)
