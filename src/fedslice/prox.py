"""Regularisers psi by their prox maps:  prox_{t psi}(v) = argmin_x t psi(x) + 1/2 ||x - v||^2."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.types import Array, Params


class Regulariser(NamedTuple):
    """``prox(params, t)``, and a name."""

    name: str
    prox: Callable[[Params, Array], Params]


def l1(strength: float) -> Regulariser:
    """strength * sum |x|: soft thresholding, sparse weights.

    >>> l1(1.0).prox({"w": jnp.array([3.0, -0.5])}, jnp.array(1.0))["w"].tolist()
    [2.0, -0.0]
    """
    _positive(strength)

    def leaf(v: Array, t: Array) -> Array:
        return jnp.sign(v) * jnp.maximum(jnp.abs(v) - t * strength, 0)

    return Regulariser(
        f"l1({strength:g})", lambda params, t: jax.tree.map(lambda v: leaf(v, t), params)
    )


def group(strength: float) -> Regulariser:
    """strength * sum of the L2 norms of rows (leading axis): whole rows become zero.

    >>> params = {"w": jnp.array([[3.0, 4.0], [0.1, 0.0]])}
    >>> group(1.0).prox(params, jnp.array(1.0))["w"].round(1).tolist()
    [[2.4000000953674316, 3.200000047683716], [0.0, 0.0]]
    """
    _positive(strength)

    def leaf(v: Array, t: Array) -> Array:
        axes = tuple(range(1, v.ndim))
        norm = jnp.sqrt(jnp.sum(v**2, axis=axes, keepdims=True)) if axes else jnp.abs(v)
        return v * jnp.maximum(1 - t * strength / jnp.maximum(norm, 1e-30), 0)

    return Regulariser(
        f"group({strength:g})", lambda params, t: jax.tree.map(lambda v: leaf(v, t), params)
    )


def box(low: float, high: float) -> Regulariser:
    """The constraint low <= x <= high: clipping.

    >>> box(-1.0, 1.0).prox({"w": jnp.array([3.0, 0.5])}, jnp.array(1.0))["w"].tolist()
    [1.0, 0.5]
    """
    if not low <= high:
        raise InputError(f"box({low}, {high}): the lower bound must not be above the upper one")
    return Regulariser(
        f"box({low:g},{high:g})",
        lambda params, t: jax.tree.map(lambda v: jnp.clip(v, low, high), params),
    )


def _positive(strength: float) -> None:
    if strength < 0:
        raise InputError(f"a strength of {strength} is not possible: give zero or more")
