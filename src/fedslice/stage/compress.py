"""Fewer bytes up: quantisation, sparsification, sign, low rank, each with or without error
feedback.

    error feedback (Karimireddy et al. 2019):  v = update + e,  send C(v),  e <- v - C(v)

The error stays bounded if C is a contraction, E||C(v) - v||^2 <= (1 - delta) ||v||^2 with delta >
0.  Top-k, sign and projections are.  An unbiased C with E||C(v) - v||^2 <= omega ||v||^2 need not
be: with omega > 1 errors grow without bound.  Under feedback it is therefore sent divided by 1 +
omega, which is one with delta = 1 / (1 + omega):

    E||C(v)/(1 + omega) - v||^2 = E||C(v) - v||^2 / (1 + omega)^2 + (omega / (1 + omega))^2 ||v||^2
                               <= (omega + omega^2) / (1 + omega)^2 ||v||^2 = omega / (1 + omega) ||v||^2

A bounded error is not yet a small one: the loop lags as with steps of delta, so strong compression
needs a rate to match (1,000 numbers in steps of one level diverge at server rate 1 and settle at
0.1).

Put it before the mean.  What arrives is what a real server would decode; ``cost`` counts the bytes
that would be sent."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.types import Array, Key, Message, Params, Parcel, PyTree, Stage

SLACK = 1e-4  # 0.3 of 50 numbers are 15, whatever the rounding of 0.3


class Compressor(NamedTuple):
    """``leaf(values, memory, key) -> (decoded values, memory)``, the bytes of a leaf, what each
    leaf remembers; of an unbiased one ``omega(values)``, with E||decoded - values||^2 <= omega
    ||values||^2."""

    leaf: Callable[[Array, PyTree, Key], tuple[Array, PyTree]]
    cost: Callable[[Parcel], np.ndarray]
    remember: Callable[[Array], PyTree] = lambda leaf: ()
    places: bool = False  # of numbers are sent, so those of rows need not be
    omega: Callable[[Array], Array] | None = None


def compress(compressor: Compressor, feedback: bool = False) -> Stage:
    """A stage that sends updates through ``compressor``; with ``feedback`` clients keep what was
    not sent and add it to their next update.

    >>> compress(quantise(127), feedback=True).weighs
    False
    """

    def remember(params: Params, tables: Collection[str]) -> PyTree:
        error = jax.tree.map(jnp.zeros_like, params) if feedback else ()
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return error, [
            () if path[0].key in tables else compressor.remember(leaf) for path, leaf in leaves
        ]

    def encode(state: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        error, own = memory
        wanted = jax.tree.map(jnp.add, message.update, error) if feedback else message.update
        leaves, tree = jax.tree.flatten(wanted)
        keys = [jax.random.fold_in(key, place) for place in range(len(leaves))]
        pairs = [
            compressor.leaf(leaf, kept, k) for leaf, kept, k in zip(leaves, own, keys, strict=True)
        ]
        if feedback and compressor.omega is not None:
            pairs = [
                (sent / (1 + compressor.omega(v)), kept)
                for v, (sent, kept) in zip(leaves, pairs, strict=True)
            ]
        sent = jax.tree.unflatten(tree, [leaf for leaf, _ in pairs])
        left = jax.tree.map(jnp.subtract, wanted, sent) if feedback else ()
        return message._replace(update=sent), (left, [kept for _, kept in pairs])

    def cost(wire: dict[str, Parcel]) -> dict[str, Parcel]:
        changed = {
            name: parcel._replace(bytes=compressor.cost(parcel)) for name, parcel in wire.items()
        }
        sent = {
            name: changed[name] if name.startswith("['update']") else wire[name] for name in wire
        }
        if compressor.places and "rows" in sent:  # every number that is sent tells its own place
            sent["rows"] = sent["rows"]._replace(bytes=0 * sent["rows"].bytes)
        return sent

    nothing = lambda params, rows: ()  # noqa: E731
    passed = lambda state, total: (total, state)  # noqa: E731
    return Stage(nothing, encode, passed, remember, cost, alters=True, keeps=feedback)


def quantise(levels: int = 127) -> Compressor:
    """QSGD (Alistarh et al. 2017): |v| / ||v|| rounded at random to one of ``levels`` steps;
    unbiased.

    omega = min(d / levels^2, sqrt(d) / levels) (their lemma 3.1), d the numbers of the leaf that
    are not zero. Bytes: log2(2 levels + 1) bits for each number and 4 for the norm; 127 levels are
    one byte."""
    if levels < 1 or int(levels) != levels:
        raise InputError(f"quantise({levels}): give a whole number of levels, at least one")

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        most = jnp.maximum(jnp.max(jnp.abs(values)), 1e-30)  # so that squares do not overflow
        size = most * jnp.sqrt(jnp.sum((values / most) ** 2))
        scaled = jnp.abs(values) / jnp.maximum(size, 1e-30) * levels
        steps = jnp.floor(scaled + jax.random.uniform(key, values.shape))
        return jnp.sign(values) * steps * size / levels, memory

    def omega(values: Array) -> Array:
        root = (
            jnp.sqrt(jnp.sum(values != 0)) / levels
        )  # zeros, and so padding, are sent as they are
        return jnp.minimum(root**2, root)

    bits = float(np.ceil(np.log2(2 * levels + 1)))
    return Compressor(leaf, lambda parcel: np.ceil(parcel.numbers * bits / 8) + 4, omega=omega)


def largest(share: float) -> Compressor:
    """Top-k: the largest ``share`` of the numbers that are not zero, of equal ones the first;
    bytes: 4 for each value, 4 for its place."""
    _share(share)

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        flat = jnp.abs(values.reshape(-1))
        order = -jnp.sort(-flat)
        count = jnp.ceil(share * jnp.sum(flat > 0) - SLACK).astype(jnp.int32)
        limit = order[jnp.maximum(count - 1, 0)]
        above, equal = flat > limit, flat == limit
        kept = above | (equal & (jnp.cumsum(equal) <= count - jnp.sum(above)))
        return jnp.where(kept.reshape(values.shape), values, 0), memory

    return Compressor(leaf, lambda parcel: 8 * np.ceil(share * parcel.numbers - SLACK), places=True)


def random(share: float, unbiased: bool = True) -> Compressor:
    """Random-k: every number with probability ``share``, divided by it if ``unbiased``; omega = 1 /
    share - 1, so that with error feedback numbers are sent as they are.

    Bytes: 4 for each value and 8 for the seed, from which the server knows the places.
    """
    _share(share)

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        kept = jax.random.bernoulli(key, share, values.shape)
        return jnp.where(kept, values / share if unbiased else values, 0), memory

    omega = (lambda values: jnp.asarray(1 / share - 1)) if unbiased else None
    return Compressor(
        leaf, lambda parcel: 4 * np.ceil(share * parcel.numbers - SLACK) + 8, omega=omega
    )


def sign() -> Compressor:
    """The signs and the mean size of the numbers that are not zero; bytes: one bit each, and 4."""

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        size = jnp.sum(jnp.abs(values)) / jnp.maximum(jnp.sum(values != 0), 1)
        return jnp.sign(values) * size, memory

    return Compressor(leaf, lambda parcel: np.ceil(parcel.numbers / 8) + 4)


def low_rank(rank: int = 2) -> Compressor:
    """PowerSGD (Vogels et al. 2019) for dense matrices: one step of power iteration from the last
    round's factor.

    M ~ P Q^T, P = orthonormal(M Q_old), Q = M^T P.  Vectors and rows of tables are sent as they
    are. Bytes: 4 rank (a + b) for an a x b matrix.  Meant for error feedback."""
    if rank < 1:
        raise InputError(f"low_rank({rank}): the rank must be at least 1")

    def small(shape: tuple[int, ...] | None) -> bool:
        if shape is None or len(shape) < 2:
            return False
        return rank * (shape[0] + int(np.prod(shape[1:]))) < int(np.prod(shape))

    def remember(leaf: Array) -> PyTree:
        if not small(leaf.shape):
            return ()
        return jax.random.normal(jax.random.key(rank), (int(np.prod(leaf.shape[1:])), rank))

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        if isinstance(memory, tuple):
            return values, memory
        matrix = values.reshape(values.shape[0], -1)
        left, _ = jnp.linalg.qr(matrix @ memory)
        right = matrix.T @ left
        return (left @ right.T).reshape(values.shape), right

    def cost(parcel: Parcel) -> np.ndarray:
        if parcel.shape is None or not small(parcel.shape):
            return parcel.bytes
        return np.full_like(
            parcel.bytes, 4 * rank * (parcel.shape[0] + int(np.prod(parcel.shape[1:])))
        )

    return Compressor(leaf, cost, remember)


def _share(share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(f"a share of {share} is not possible: give a number above 0, up to 1")
