"""Layers: products, embeddings, norms, convolutions, pools and attention."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.frameworks.tables import rows_of
from fedslice.types import Array

Sizes = Sequence[int]
SUM, MEAN, MAX = range(3)  # how torch numbers the modes of a bag


def _linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    found = input @ weight.T
    return found if bias is None else found + bias


def _addmm(self: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1) -> Array:
    return beta * self + alpha * (mat1 @ mat2)


def _baddbmm(self: Array, batch1: Array, batch2: Array, beta: float = 1, alpha: float = 1) -> Array:
    return beta * self + alpha * (batch1 @ batch2)


def _einsum(equation: str, tensors: Sequence[Array], path: Any = None) -> Array:
    return jnp.einsum(equation, *tensors)


def _embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    if scale_grad_by_freq:
        raise InputError("scale_grad_by_freq=True hangs on the whole batch: leave it out")
    return rows_of(weight, indices)


def _bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Array, ...]:
    """Rows of each bag put together; padding counts for nothing."""
    if scale_grad_by_freq:
        raise InputError("scale_grad_by_freq=True hangs on the whole batch: leave it out")
    rows = rows_of(weight, indices)
    bags = offsets.shape[0] - include_last_offset
    owner = jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    real = (indices >= 0)[:, None]
    if mode == MAX:
        most = jax.ops.segment_max(jnp.where(real, rows, -jnp.inf), owner, bags)
        return (jnp.where(jnp.isfinite(most), most, 0.0), owner, owner, owner)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    total = jax.ops.segment_sum(rows, owner, bags)
    if mode == MEAN:
        count = jax.ops.segment_sum(real.astype(rows.dtype), owner, bags)
        total = total / jnp.maximum(count, 1)
    return (total, owner, owner, owner)


def _layer_norm(
    input: Array,
    normalized_shape: Sizes,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    mean = jnp.mean(input, axes, keepdims=True)
    spread = jnp.mean((input - mean) ** 2, axes, keepdims=True)
    found = (input - mean) * jax.lax.rsqrt(spread + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _rms_norm(
    input: Array, normalized_shape: Sizes, weight: Array | None = None, eps: float | None = None
) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    size = jnp.mean(input**2, axes, keepdims=True)
    found = input * jax.lax.rsqrt(size + (np.finfo(np.float32).eps if eps is None else eps))
    return found if weight is None else found * weight


def _by_channel(x: Array, weight: Array | None, bias: Array | None) -> Array:
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _group_norm(
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    grouped = input.reshape(input.shape[0], num_groups, -1)
    found = _layer_norm(grouped, grouped.shape[2:], eps=eps).reshape(input.shape)
    return _by_channel(found, weight, bias)


def _batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Array:
    if training or running_mean is None or running_var is None:
        raise InputError(
            "batch normalisation mixes the examples of a batch, padding among them: use GroupNorm"
            " or LayerNorm, or call eval() on that layer to keep its statistics as they are"
        )
    shape = (1, -1, *[1] * (input.ndim - 2))
    scaled = (input - running_mean.reshape(shape)) * jax.lax.rsqrt(running_var.reshape(shape) + eps)
    return _by_channel(scaled, weight, bias)


def _old_batches(**given: Any) -> tuple[Array, ...]:
    """The same under the name that it has in a functional graph."""
    found = _batch_norm(training=False, **given)
    return found, jnp.zeros(0), jnp.zeros(0)


def _pairs(given: int | Sizes, axes: int) -> list[int]:
    each = [given] if isinstance(given, int) else list(given)
    return each * axes if len(each) == 1 else each


def _conv(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
) -> Array:
    if transposed:
        raise InputError("transposed convolutions are not converted")
    axes = weight.ndim - 2
    edges = (
        padding.upper()
        if isinstance(padding, str)
        else [(each, each) for each in _pairs(padding, axes)]
    )
    found = jax.lax.conv_general_dilated(
        input,
        weight,
        _pairs(stride, axes),
        edges,
        rhs_dilation=_pairs(dilation, axes),
        feature_group_count=groups,
    )
    return _by_channel(found, None, bias)


def _windows(
    x: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any, axes: int
) -> dict[str, Any]:
    kernel, lead = _pairs(kernel_size, axes), x.ndim - axes
    steps = _pairs(stride, axes) if stride not in (None, [], ()) else kernel
    return {
        "window_dimensions": (*[1] * lead, *kernel),
        "window_strides": (*[1] * lead, *steps),
        "padding": [(0, 0)] * lead + [(each, each) for each in _pairs(padding, axes)],
        "window_dilation": (*[1] * lead, *_pairs(dilation, axes)),
    }


def _max_pool(axes: int) -> Callable[..., Array]:
    def pool(
        self: Array,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Array:
        _no_ceil(ceil_mode)
        windows = _windows(self, kernel_size, stride, padding, dilation, axes)
        return jax.lax.reduce_window(self, -jnp.inf, jax.lax.max, **windows)

    return pool


def _avg_pool(axes: int) -> Callable[..., Array]:
    def pool(
        self: Array,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        _no_ceil(ceil_mode)
        windows = _windows(self, kernel_size, stride, padding, 1, axes)
        total = jax.lax.reduce_window(self, 0.0, jax.lax.add, **windows)
        if divisor_override or count_include_pad:
            return total / (divisor_override or math.prod(_pairs(kernel_size, axes)))
        return total / jax.lax.reduce_window(jnp.ones_like(self), 0.0, jax.lax.add, **windows)

    return pool


def _no_ceil(ceil_mode: bool) -> None:
    if ceil_mode:
        raise InputError("pools with ceil_mode=True are not converted")


def _adaptive(axes: int) -> Callable[..., Array]:
    """Means of equal parts."""

    def pool(self: Array, output_size: Any) -> Array:
        wanted, lead = _pairs(output_size, axes), self.ndim - axes
        shape = list(self.shape[:lead])
        for size, parts in zip(self.shape[lead:], wanted, strict=True):
            if size % parts:
                raise InputError(f"adaptive pooling of {size} into {parts} unequal parts")
            shape += [parts, size // parts]
        return jnp.mean(self.reshape(shape), tuple(range(lead + 1, len(shape), 2)))

    return pool


def _attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Callable[[Array, float], Array] = lambda x, share: x,
) -> Array:
    """softmax(Q K^T / sqrt(d) + mask) V."""
    if enable_gqa:
        raise InputError("attention with enable_gqa=True is not converted")
    size = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ jnp.swapaxes(key, -1, -2) * size
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == jnp.bool_
        scores = jnp.where(attn_mask, scores, -jnp.inf) if boolean else scores + attn_mask
    return drop(jax.nn.softmax(scores, -1), dropout_p) @ value


def _cosine(x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    def length(x: Array) -> Array:
        return jnp.sqrt(jnp.maximum(jnp.sum(x * x, dim), eps**2))

    return jnp.sum(x1 * x2, dim) / (length(x1) * length(x2))


OPERATORS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": lambda self, other: self @ other,
    "mm": lambda self, mat2: self @ mat2,
    "bmm": lambda self, mat2: self @ mat2,
    "mv": lambda self, vec: self @ vec,
    "dot": lambda self, tensor: self @ tensor,
    "outer": lambda self, vec2: jnp.outer(self, vec2),
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "einsum": _einsum,
    "embedding": _embedding,
    "embedding_bag": _bag,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _old_batches,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _conv,
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "adaptive_avg_pool1d": _adaptive(1),
    "adaptive_avg_pool2d": _adaptive(2),
    "scaled_dot_product_attention": _attention,
    "cosine_similarity": _cosine,
}
