"""The transformer language model of the Field Guide's Stack Overflow task: 3 layers, d 96, FFN
1536, 8 heads of 12.

Wang et al., "A Field Guide to Federated Optimization" (2021), appendix B.2; Vaswani et al.,
"Attention Is All You Need" (2017).  With x the word vectors times sqrt(d) plus sinusoids of the
position, every layer is

    x <- norm(x + drop(attention(x)))
    x <- norm(x + drop(W2 relu(W1 x + b1) + b2))
    attention: softmax(q k^T / sqrt(12)) v, each place sees itself and before

and the next word is softmax(W x + b).  The paper does not say where the norms stand nor what tells
positions apart: both are as in Vaswani et al. and in the authors' public code.  That code shares
the output weights with the word vectors, with a linear map before and after the layers.  Here the
output has weights of its own, because a client that holds the rows of its own words could not score
all the others; the two maps would then add nothing and are left out.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice import metrics
from fedslice.errors import InputError
from fedslice.model import Model, Table, lookup, remembered
from fedslice.models import next_token
from fedslice.types import Array, Batch, Key, Params

_glorot = jax.nn.initializers.glorot_uniform()


@remembered
def transformer(
    words: int,
    special: int = 2,
    layers: int = 3,
    width: int = 96,
    hidden: int = 1536,
    heads: int = 8,
    dropout: float = 0.1,
) -> Model:
    """Predicts the field ``next`` [L] from ``tokens`` [L], which indexes the table ``embedding``.

    Ids below ``words`` are words; the ``special`` ones after them (where a sentence begins and
    ends, the unknown word) are learned too but do not count in the accuracy; -1 is padding.

    >>> transformer(10_000).tables["embedding"].rows
    10002
    """
    if width % heads or width % 2:
        raise InputError(f"width={width} must be even and a multiple of heads={heads}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout={dropout} must be at least 0 and below 1")
    classes = words + special

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 1)
        stack: dict[str, Any] = {f"layer{n}": _layer(keys[n], width, hidden) for n in range(layers)}
        return {**stack, "output": _affine(keys[-1], width, classes)}

    def logits(params: Params, batch: Batch) -> Array:
        drop = _Dropout(batch.get("step_key"), dropout)
        tokens = batch["tokens"]
        sees = jnp.tri(tokens.shape[1], dtype=bool) & (tokens >= 0)[:, None, None, :]
        x = lookup(params["embedding"], tokens) * np.sqrt(width) + _positions(
            tokens.shape[1], width
        )
        x = drop(x)
        for n in range(layers):
            layer = params[f"layer{n}"]
            x = _norm(layer["norm1"], x + drop(_attention(layer, x, sees, heads)))
            inner = jax.nn.relu(_apply(layer["in"], x))
            x = _norm(layer["norm2"], x + drop(_apply(layer["out"], inner)))
        return _apply(params["output"], x)

    def loss(params: Params, batch: Batch) -> Array:
        return next_token.surprise(logits(params, batch), batch["next"], axis=1)

    def hits(params: Params, batch: Batch) -> tuple[Array, Array]:
        return next_token.hits(logits(params, batch), batch["next"], words, axis=1)

    table = Table(rows=classes, fields=("tokens",), shape=(width,), init=_small)
    figures, ranges = {"accuracy": metrics.ratio(hits, more=True)}, {"next": range(-1, classes)}
    return Model(
        init, loss, {"embedding": table}, metrics=figures, noisy=dropout > 0, ranges=ranges
    )


class _Dropout:
    """Zeroes a share of the numbers and scales up the rest, by another mask at each call; nothing
    without a key."""

    def __init__(self, key: Key | None, share: float) -> None:
        self.key, self.share, self.calls = key, share, 0

    def __call__(self, x: Array) -> Array:
        if self.key is None or not self.share:
            return x
        self.calls += 1
        keep = jax.random.bernoulli(
            jax.random.fold_in(self.key, self.calls), 1 - self.share, x.shape
        )
        return jnp.where(keep, x / (1 - self.share), 0)


def _layer(key: Key, width: int, hidden: int) -> dict[str, Any]:
    keys = jax.random.split(key, 6)
    names = ("query", "key", "value", "mix")
    attention = {
        name: _affine(each, width, width) for name, each in zip(names, keys[:4], strict=True)
    }
    norms = {
        name: {"scale": jnp.ones(width), "shift": jnp.zeros(width)} for name in ("norm1", "norm2")
    }
    return {
        **attention,
        **norms,
        "in": _affine(keys[4], width, hidden),
        "out": _affine(keys[5], hidden, width),
    }


def _attention(layer: dict[str, Any], x: Array, sees: Array, heads: int) -> Array:
    """``sees`` [batch, 1, L, L]: which places (last) each place may look at."""
    split = (*x.shape[:2], heads, x.shape[2] // heads)
    query, key, value = (
        _apply(layer[name], x).reshape(split) for name in ("query", "key", "value")
    )
    score = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(split[-1])
    weight = jax.nn.softmax(jnp.where(sees, score, -1e9))
    return _apply(layer["mix"], jnp.einsum("bhqk,bkhd->bqhd", weight, value).reshape(x.shape))


def _positions(length: int, width: int) -> np.ndarray:
    """Sines in the even columns, cosines in the odd ones, of wavelengths from 2 pi to 10,000 times
    that."""
    angle = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return (
        np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, width).astype(np.float32)
    )


def _norm(part: dict[str, Array], x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return part["scale"] * centred * jax.lax.rsqrt(variance + 1e-6) + part["shift"]


def _affine(key: Key, before: int, after: int) -> dict[str, Array]:
    return {"weight": _glorot(key, (before, after)), "bias": jnp.zeros(after)}


def _apply(part: dict[str, Array], x: Array) -> Array:
    return x @ part["weight"] + part["bias"]


def _small(key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)
