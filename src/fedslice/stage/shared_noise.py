"""Noise of whole numbers that clients add in parts, below a secure sum (Agarwal, Kairouz, Liu 2021,
"The Skellam Mechanism for Differentially Private Federated Learning").

    client   y_i = round(s u_i) + Sk(mu / L)        u_i of norm at most 1 (stage.ball), all rows
    server   sum_i y_i modulo 2^32, over s

Sk(mu), the difference of two Poisson numbers of mean mu/2, has variance mu, and a sum of Skellam
numbers is one: any L clients together have the noise that is accounted for, n >= L have n/L of it.
So a simulation draws Sk(mu n / L) once, on the server's side: the same in law.  Clients that are
apart draw their own (``Stage.own``).  Where fewer than L clients came the sum is thrown away, as a
secure sum fails below its threshold, and the update is zero.

Rounding at random (up with the chance of the fraction) keeps the mean but lengthens: of d numbers

    l2^2 = min( s^2 + d/4 + sqrt(2 ln(1/beta)) (s + sqrt(d)/2), (s + sqrt(d))^2 )

is exceeded with chance beta at most (Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian
Mechanism", theorem 1).  A client over it rounds anew, and in the end toward zero, which never
lengthens.  So l2 bounds every client's part, *whatever d was guessed to be*; and whole numbers have
l1 <= l2^2.  mu = (z l2)^2 for a noise multiplier z.

The papers take beta = e^-1/2, for few bits.  With 32 of them s is large, and a small beta costs
little, 2/s of the noise; rounding is then unbiased but for one client in 3000.
"""

from collections.abc import Callable
from math import exp, log, pi, sqrt

import jax
import jax.flatten_util
import jax.numpy as jnp

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.stage.clipping import norm
from fedslice.stage.gaussian import came, check_multiplier, refuse_extras
from fedslice.types import Array, Key, Message, Noise, OwnNoise, PyTree, Stage

BETA = exp(-8.0)  # the chance that a client must round anew
TRIES = 4  # then toward zero
SINGLE = 2.0**-12  # what a sum of squares in single precision may be wrong by
ROOM = 2.0**31
WIDEST = 2.0**16  # standard deviation up to which 24 bits tell neighbouring whole numbers apart
FEW = 1000.0  # mean up to which jax.random.poisson is right; its logarithms are single precision


def skellam(
    multiplier: float, sampler: Sampler, least: int, scale: float = 1024.0, numbers: int = 10_000
) -> Stage:
    """Rounding to whole numbers, and noise of ``multiplier`` times their largest norm from any
    ``least`` clients, next to the wire.

    ``scale`` is s, how many whole numbers 1 is; ``numbers`` d, about how many of an update are not
    zero: a public guess.  One too low only makes more clients round toward zero.

    >>> from fedslice.data.sampling import uniform
    >>> stage = skellam(1.0, uniform(50), least=40, scale=100.0, numbers=4096)
    >>> {name: round(value) for name, value in stage.noise.details.items()}
    {'l2': 108, 'l1': 11558, 'variance': 11558, 'least': 40, 'scale': 100}
    """
    check_multiplier(multiplier)
    longest = rounded_norm(scale, numbers)
    bound = longest * (1 + SINGLE)
    variance = (multiplier * bound) ** 2
    _check(sampler, least, scale, bound, variance)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        refuse_extras(message, "without noise")
        return message._replace(update=rounded(message.update, scale, longest, key)), memory

    def shaken(update: PyTree, key: Key, shares: Array | float) -> PyTree:
        flat, back = jax.flatten_util.ravel_pytree(update)
        return back(flat + whole_noise(key, variance / least * shares, flat.shape))

    def opened(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        enough = came(total) >= least
        kept = jax.tree.map(lambda leaf: jnp.where(enough, leaf, 0), total.update)
        update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / scale, kept)
        return total._replace(update=update), state

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        noisy = shaken(total.update, key, came(total))
        return opened(state, total._replace(update=noisy), key)

    details = {
        "l2": bound,
        "l1": bound**2,
        "variance": variance,
        "least": least,
        "scale": scale,
    }
    return Stage(
        lambda params, rows: (),
        encode,
        decode,
        on_sum=True,
        bound=1.0,
        noise=Noise("skellam", multiplier, sampler.kind, sampler.clients, details),
        own=OwnNoise(lambda update, key: shaken(update, key, 1.0), opened),
        rows="all",
    )


def rounded_norm(scale: float, numbers: int) -> float:
    """l2, the norm that an update of norm 1 and so many numbers, times ``scale`` and rounded, is
    kept to.

    >>> round(rounded_norm(100.0, 4096), 1), round(rounded_norm(1.0, 4), 1)
    (107.5, 3.0)
    """
    if not (scale >= 1 and numbers >= 1):
        raise InputError(f"scale={scale}, numbers={numbers}: both are 1 or more")
    root = sqrt(numbers)
    likely = scale**2 + numbers / 4 + sqrt(2 * log(1 / BETA)) * (scale + root / 2)
    return sqrt(min(likely, (scale + root) ** 2))


def rounded(update: PyTree, scale: float, longest: float, key: Key) -> PyTree:
    """``scale`` times the update in whole numbers, int32, of norm at most ``longest``.

    >>> rounded({"w": jnp.array([0.6, 0.0, -0.8])}, 10.0, 12.0, jax.random.key(0))
    {'w': Array([ 6,  0, -8], dtype=int32)}
    """
    leaves, shape = jax.tree.flatten(jax.tree.map(lambda x: x.astype(jnp.float32) * scale, update))
    low = [jnp.floor(leaf) for leaf in leaves]

    def attempt(number: Array) -> list[Array]:
        own = jax.random.fold_in(key, number)
        keys = [jax.random.fold_in(own, place) for place in range(len(leaves))]
        return [
            floor + (jax.random.uniform(k, leaf.shape) < leaf - floor)
            for k, leaf, floor in zip(keys, leaves, low, strict=True)
        ]

    def over(state: tuple[Array, list[Array]]) -> Array:
        return (state[0] < TRIES) & (norm(state[1]) > longest)

    first = jnp.int32(1), attempt(jnp.int32(0))
    _, last = jax.lax.while_loop(over, lambda state: (state[0] + 1, attempt(state[0])), first)
    good = norm(last) <= longest
    kept = [jnp.where(good, one, jnp.trunc(leaf)) for one, leaf in zip(last, leaves, strict=True)]
    return jax.tree.unflatten(shape, [leaf.astype(jnp.int32) for leaf in kept])


def whole_noise(key: Key, variance: Array | float, shape: tuple[int, ...]) -> Array:
    """int32 Skellam numbers of this variance.

    >>> drawn = whole_noise(jax.random.key(0), 4e6, (10_000,))
    >>> drawn.dtype, round(float(drawn.std()), -2)
    (dtype('int32'), 2000.0)
    """
    mean = jnp.asarray(variance, jnp.float32) / 2

    def difference(poisson: Callable[[Key], Array]) -> Array:
        def own(number: Array) -> Array:
            return poisson(jax.random.fold_in(key, number))

        one, two = jax.lax.map(own, jnp.arange(2))  # one after the other, compiled once
        return one - two

    def few() -> Array:
        small = jnp.minimum(mean, FEW)
        return difference(lambda own: jax.random.poisson(own, small, shape))

    def many() -> Array:
        large = jnp.maximum(mean, FEW)
        return difference(lambda own: _around(own, large, shape))

    return jax.lax.cond(mean < FEW, few, many)


def _around(key: Key, mean: Array, shape: tuple[int, ...]) -> Array:
    """A Poisson number less the whole part of its mean, which is large: by transformed rejection
    (Hörmann 1993, algorithm PTRS), with everything counted from the mean, since single precision
    has no room for ln k! itself."""
    b = 0.931 + 2.53 * jnp.sqrt(mean)
    a = -0.059 + 0.02483 * b
    top, sure = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
    rest = mean - jnp.floor(mean)

    def draw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, found, done = state
        own = jax.random.split(jax.random.fold_in(key, number))
        u = jax.random.uniform(own[0], shape, minval=-0.5, maxval=0.5)
        v = jax.random.uniform(own[1], shape)
        edge = 0.5 - jnp.abs(u)
        new = jnp.floor((2 * a / edge + b) * u + rest + 0.43)
        chance = jnp.log(v * top / (a / edge**2 + b))
        good = ((edge >= 0.07) & (v <= sure)) | (
            ((edge >= 0.013) | (v <= edge)) & (chance <= _log_chance(new - rest, mean))
        )
        return number + 1, jnp.where(good & ~done, new, found), done | good

    start = jnp.int32(0), jnp.zeros(shape), jnp.zeros(shape, bool)
    _, found, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[2]), draw, start)
    return found.astype(jnp.int32)


def _log_chance(distance: Array, mean: Array) -> Array:
    """ln of the chance of mean + distance, by Stirling's series: -mean phi(x) - ln(2 pi k)/2 -
    1/(12 k), phi(x) = (1 + x) ln(1 + x) - x; not a number below zero."""
    x = distance / mean
    series = jnp.zeros_like(x)
    for n in range(9, 1, -1):
        series = series * -x + 1 / (n * (n - 1))
    phi = jnp.where(jnp.abs(x) < 0.1, series * x**2, (1 + x) * jnp.log1p(x) - x)
    k = mean + distance
    return -mean * phi - jnp.log(2 * pi * k) / 2 - 1 / (12 * k)


def _check(sampler: Sampler, least: int, scale: float, bound: float, variance: float) -> None:
    if sampler.kind != "uniform" or sampler.clients is None:
        raise InputError(
            f"{sampler.name}: every client adds its share of the noise, so the noise shows how many"
            " came, and one client more or less would be seen; use cohorts of a fixed size,"
            " sampling.uniform(K)"
        )
    if not 1 <= least <= sampler.clients or int(least) != least:
        raise InputError(
            f"least={least}: give the fewest clients whose sum counts, a whole number from 1 to"
            f" the {sampler.clients:g} of a round"
        )
    spread = sqrt(variance * sampler.clients / least)
    if sampler.clients * bound + 8 * spread >= ROOM or spread > WIDEST:
        raise InputError(
            f"scale={scale:g}: the sum of {sampler.clients:g} clients with noise of {spread:.3g}"
            " does not fit 32 bits, or its noise is drawn too coarsely: make scale smaller"
        )
