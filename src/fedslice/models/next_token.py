"""Loss and accuracy of predicting the next token at every place; a target below 0 is none."""

import jax
import jax.numpy as jnp

from fedslice.types import Array


def surprise(logits: Array, target: Array, axis: int) -> Array:
    """The cross-entropy of each text, in the mean over its targets; ``axis`` is that of the places.

    >>> logits = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75]]]))  # a text: two places, two tokens
    >>> [round(float(x), 3) for x in jnp.exp(-surprise(logits, jnp.array([[0, -1]]), axis=1))]
    [0.5]
    """
    chosen = jnp.take_along_axis(logits, jnp.maximum(target, 0)[..., None], axis=-1)[..., 0]
    each = jax.nn.logsumexp(logits, axis=-1) - chosen
    real = target >= 0
    return jnp.sum(jnp.where(real, each, 0), axis) / jnp.maximum(jnp.sum(real, axis), 1)


def hits(logits: Array, target: Array, vocabulary: int, axis: int) -> tuple[Array, Array]:
    """Right answers of each text, and targets that count: those below ``vocabulary``.

    >>> logits = jnp.array([[[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    >>> [x.tolist() for x in hits(logits, jnp.array([[1, 0, 2]]), vocabulary=2, axis=1)]
    [[1.0], [2.0]]
    """
    counts = (target >= 0) & (target < vocabulary)
    right = counts & (jnp.argmax(logits, axis=-1) == target)
    return jnp.sum(right, axis).astype(jnp.float32), jnp.sum(counts, axis).astype(jnp.float32)
