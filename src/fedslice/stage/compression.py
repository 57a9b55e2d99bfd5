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

Put it before the mean.  What clients send are :mod:`codes <fedslice.stage.codes>` of the leaves,
and their bytes are those of the packed message.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.stage.codes import Factors, Kept, Steps, opened
from fedslice.types import Array, Key, Message, Params, PyTree, Stage

SLACK = 1e-4  # 0.3 of 50 numbers are 15, whatever the rounding of 0.3


class Compressor(NamedTuple):
    """``leaf(values, memory, key) -> (code, memory)``, and what each dense leaf remembers; of an
    unbiased one ``omega(values)``, with E||opened - values||^2 <= omega ||values||^2."""

    leaf: Callable[[Array, PyTree, Key], tuple[Any, PyTree]]
    remember: Callable[[Array], PyTree] = lambda leaf: ()
    omega: Callable[[Array], Array] | None = None


def compress(compressor: Compressor, feedback: bool = False) -> Stage:
    """A stage that sends updates through ``compressor``; with ``feedback`` clients keep what was
    not sent and add it to their next update.

    >>> from fedslice.types import ClientReport
    >>> stage = compress(sign(), feedback=True)
    >>> remembered = stage.remember({"w": jnp.zeros(2)}, ())
    >>> report = ClientReport(*[jnp.zeros(())] * 4)
    >>> message = Message({"w": jnp.array([3.0, -1.0])}, jnp.ones(()), report)
    >>> sent, (error, _) = stage.encode((), remembered, message, jax.random.key(0))
    >>> opened(sent.update)["w"].tolist(), error["w"].tolist()
    ([2.0, -2.0], [1.0, 1.0])
    """

    def remember(params: Params, tables: Collection[str]) -> PyTree:
        error = jax.tree.map(jnp.zeros_like, params) if feedback else ()
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return error, [
            () if path[0].key in tables else compressor.remember(leaf) for path, leaf in leaves
        ]

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        error, own = memory
        wanted = jax.tree.map(jnp.add, message.update, error) if feedback else message.update
        leaves, tree = jax.tree.flatten(wanted)
        keys = [jax.random.fold_in(key, place) for place in range(len(leaves))]
        codes, kept = [], []
        for leaf, remembered, leaf_key in zip(leaves, own, keys, strict=True):
            code, after = compressor.leaf(leaf, remembered, leaf_key)
            if feedback and compressor.omega is not None:
                code = code.times(1 / (1 + compressor.omega(leaf)))
            codes.append(code)
            kept.append(after)
        sent = jax.tree.unflatten(tree, codes)
        left = jax.tree.map(jnp.subtract, wanted, opened(sent)) if feedback else ()
        return message._replace(update=sent), (left, kept)

    return Stage(
        lambda params, rows: (),
        encode,
        lambda state, total, key: (total, state),
        remember=remember,
        alters=True,
        codes=True,
        keeps=feedback,
    )


def quantise(levels: int = 127) -> Compressor:
    """QSGD (Alistarh et al. 2017): |v| / ||v|| rounded at random to one of ``levels`` steps;
    unbiased.

    omega = min(d / levels^2, sqrt(d) / levels) (their lemma 3.1), d the numbers of the leaf that
    are not zero.  127 levels are one byte a number.
    """
    if levels < 1 or int(levels) != levels:
        raise InputError(f"quantise({levels}): give a whole number of levels, at least one")
    kind = next(kind for kind in (jnp.int8, jnp.int16, jnp.int32) if levels <= jnp.iinfo(kind).max)

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Steps, PyTree]:
        most = jnp.maximum(jnp.max(jnp.abs(values)), 1e-30)  # so that squares do not overflow
        size = most * jnp.sqrt(jnp.sum((values / most) ** 2))
        scaled = jnp.abs(values) / jnp.maximum(size, 1e-30) * levels
        steps = jnp.floor(scaled + jax.random.uniform(key, values.shape))
        steps = jnp.minimum(steps, levels)  # rounding may have gone beyond the norm
        return Steps((jnp.sign(values) * steps).astype(kind), size, levels), memory

    def omega(values: Array) -> Array:
        root = jnp.sqrt(jnp.sum(values != 0)) / levels  # zeros, and so padding, are sent as such
        return jnp.minimum(root**2, root)

    return Compressor(leaf, omega=omega)


def largest(share: float) -> Compressor:
    """Top-k: the largest ``share`` of the numbers that are not zero, of equal ones the first."""
    _share(share)

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Kept, PyTree]:
        flat = jnp.abs(values.reshape(-1))
        order = -jnp.sort(-flat)
        count = jnp.ceil(share * jnp.sum(flat > 0) - SLACK).astype(jnp.int32)
        limit = order[jnp.maximum(count - 1, 0)]
        above, equal = flat > limit, flat == limit
        kept = above | (equal & (jnp.cumsum(equal) <= count - jnp.sum(above)))
        kept = kept.reshape(values.shape)
        return Kept(jnp.where(kept, values, 0), kept), memory

    return Compressor(leaf)


def random(share: float, unbiased: bool = True) -> Compressor:
    """Random-k: every number with probability ``share``, divided by it if ``unbiased``; omega =
    1 / share - 1, so that with error feedback numbers are sent as they are."""
    _share(share)

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Kept, PyTree]:
        kept = jax.random.bernoulli(key, share, values.shape)
        return Kept(jnp.where(kept, values / share if unbiased else values, 0), kept), memory

    return Compressor(leaf, omega=(lambda values: jnp.asarray(1 / share - 1)) if unbiased else None)


def sign() -> Compressor:
    """The signs and the mean size of the numbers that are not zero: two bits each, for zeros stay
    zero."""

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Steps, PyTree]:
        size = jnp.sum(jnp.abs(values)) / jnp.maximum(jnp.sum(values != 0), 1)
        return Steps(jnp.sign(values).astype(jnp.int8), size, 1), memory

    return Compressor(leaf)


def low_rank(rank: int = 2) -> Compressor:
    """PowerSGD (Vogels et al. 2019) for dense matrices: one step of power iteration from the last
    round's factor.

    M ~ P Q^T, P = orthonormal(M Q_old), Q = M^T P.  Vectors and rows of tables are sent as they
    are.  Meant for error feedback.
    """
    if rank < 1:
        raise InputError(f"low_rank({rank}): the rank must be at least 1")

    def remember(leaf: Array) -> PyTree:
        width = int(np.prod(leaf.shape[1:]))
        if leaf.ndim < 2 or rank * (leaf.shape[0] + width) >= leaf.size:
            return ()
        return jax.random.normal(jax.random.key(rank), (width, rank))

    def leaf(values: Array, memory: PyTree, key: Key) -> tuple[Any, PyTree]:
        if isinstance(memory, tuple):
            return values, memory
        matrix = values.reshape(values.shape[0], -1)
        left, _ = jnp.linalg.qr(matrix @ memory)
        right = matrix.T @ left
        return Factors(left, right, values.shape), right

    return Compressor(leaf, remember)


def _share(share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(f"a share of {share} is not possible: give a number above 0, up to 1")
