"""Losses, one number for each element unless a mean or a sum is asked for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedslice.types import Array

NONE, MEAN, SUM = range(3)  # how torch numbers reductions
IGNORED = -100


def reduced(values: Array, reduction: int, weight: Array | None = None) -> Array:
    """The mean or sum of losses, or each of them."""
    if reduction == MEAN:
        return jnp.mean(values) if weight is None else jnp.sum(values) / jnp.sum(weight)
    return jnp.sum(values) if reduction == SUM else values


def _with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    if pos_weight is None:
        found = jax.nn.softplus(self) - target * self
    else:
        found = pos_weight * target * jax.nn.softplus(-self) + (1 - target) * jax.nn.softplus(self)
    return reduced(found if weight is None else found * weight, reduction)


def _binary(
    self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """The logarithm goes down to -100, as in torch."""
    logs = [jnp.maximum(jnp.log(each), -100.0) for each in (self, 1 - self)]
    found = -(target * logs[0] + (1 - target) * logs[1])
    return reduced(found if weight is None else found * weight, reduction)


def _squared(self: Array, target: Array, reduction: int = MEAN) -> Array:
    return reduced((self - target) ** 2, reduction)


def _absolute(self: Array, target: Array, reduction: int = MEAN) -> Array:
    return reduced(jnp.abs(self - target), reduction)


def _smooth(self: Array, target: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    far = jnp.abs(self - target)
    near = 0.5 * far**2 / beta if beta else far
    return reduced(jnp.where(far < beta, near, far - 0.5 * beta), reduction)


def _huber(self: Array, target: Array, reduction: int = MEAN, delta: float = 1.0) -> Array:
    far = jnp.abs(self - target)
    return reduced(jnp.where(far < delta, 0.5 * far**2, delta * (far - 0.5 * delta)), reduction)


def _likelihood(
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Array:
    """Minus the chosen class's log-probability; classes stand on axis 1 (0 without a batch)."""
    axis = min(1, self.ndim - 1)
    real = target != ignore_index
    places = jnp.expand_dims(jnp.where(real, target, 0), axis)
    own = jnp.where(real, 1.0 if weight is None else weight[jnp.where(real, target, 0)], 0.0)
    found = -jnp.squeeze(jnp.take_along_axis(self, places, axis), axis) * own
    if label_smoothing:
        shape = [-1 if place == axis else 1 for place in range(self.ndim)]
        each = self if weight is None else self * weight.reshape(shape)
        smooth = -jnp.where(real, jnp.sum(each, axis), 0.0) / self.shape[axis]
        found = (1 - label_smoothing) * found + label_smoothing * smooth
    return reduced(found, reduction, own)


def _cross_entropy(
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Array:
    axis = min(1, self.ndim - 1)
    logs = jax.nn.log_softmax(self, axis)
    if target.shape != self.shape:
        return _likelihood(logs, target, weight, reduction, ignore_index, label_smoothing)
    soft = target * (1 - label_smoothing) + label_smoothing / self.shape[axis]
    shape = [-1 if place == axis else 1 for place in range(self.ndim)]
    each = logs if weight is None else logs * weight.reshape(shape)
    return reduced(-jnp.sum(soft * each, axis), reduction)


def _divergence(
    self: Array, target: Array, reduction: int = MEAN, log_target: bool = False
) -> Array:
    if log_target:
        return reduced(jnp.exp(target) * (target - self), reduction)
    positive = target > 0
    logs = jnp.log(jnp.where(positive, target, 1.0))
    return reduced(jnp.where(positive, target * (logs - self), 0.0), reduction)


def _margin(
    input1: Array, input2: Array, target: Array, margin: float = 0.0, reduction: int = MEAN
) -> Array:
    return reduced(jnp.maximum(0.0, margin - target * (input1 - input2)), reduction)


OPERATORS: dict[str, Callable[..., Any]] = {
    "binary_cross_entropy_with_logits": _with_logits,
    "binary_cross_entropy": _binary,
    "mse_loss": _squared,
    "l1_loss": _absolute,
    "smooth_l1_loss": _smooth,
    "huber_loss": _huber,
    "nll_loss": _likelihood,
    "nll_loss_nd": _likelihood,
    "cross_entropy_loss": _cross_entropy,
    "kl_div": _divergence,
    "margin_ranking_loss": _margin,
}
