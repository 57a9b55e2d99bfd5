"""Functions of single numbers, and of sums, means and extremes over axes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.types import Array

Axes = int | Sequence[int] | None

# numbers of JAX for those of torch: whole numbers have 32 bits
TYPES = {
    "torch.float32": jnp.float32,
    "torch.int64": jnp.int32,
    "torch.int32": jnp.int32,
    "torch.bool": jnp.bool_,
    "torch.uint8": jnp.uint8,
    "torch.int8": jnp.int8,
    "torch.int16": jnp.int16,
}


def kind(dtype: Any, default: Any = None) -> Any:
    """The JAX type of a torch one."""
    if dtype is None:
        return default
    if str(dtype) not in TYPES:
        raise InputError(f"{dtype} has no place in a model of float32 numbers: leave it out")
    return TYPES[str(dtype)]


def cast(x: Any, dtype: Any) -> Array:
    """Numbers of another type; None leaves them."""
    return jnp.asarray(x) if dtype is None else jnp.asarray(x).astype(kind(dtype))


def real(x: Array) -> Array:
    """As torch does before a mean, a division or a root."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _axes(dim: Axes) -> Any:
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return None
    return dim if isinstance(dim, int) else tuple(dim)


def _plus(self: Any, other: Any, alpha: float = 1) -> Any:
    return self + other if alpha == 1 else self + alpha * other


def _minus(self: Any, other: Any, alpha: float = 1) -> Any:
    return self - other if alpha == 1 else self - alpha * other


def _over(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return jnp.true_divide(self, other)
    if rounding_mode == "floor":
        return jnp.floor_divide(self, other)
    return jnp.trunc(jnp.true_divide(self, other)).astype(jnp.result_type(self, other))


def _clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    return jnp.clip(self, min, max)


def _sum(self: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.sum(cast(self, dtype), _axes(dim), keepdims=keepdim)


def _mean(self: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.mean(cast(self, dtype), _axes(dim), keepdims=keepdim)


def _prod(self: Array, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.prod(cast(self, dtype), dim, keepdims=keepdim)


def _var(
    self: Array,
    dim: Any = None,
    unbiased: bool = True,
    correction: int | None = None,
    keepdim: bool = False,
) -> Array:
    if isinstance(dim, bool):  # the form without axes has unbiased in this place
        dim, unbiased = None, dim
    less = (1 if unbiased else 0) if correction is None else correction
    return jnp.var(self, _axes(dim), ddof=less, keepdims=keepdim)


def _extreme(of: Callable[..., Array], which: Callable[..., Array]) -> Callable[..., Any]:
    """Largest or smallest: of all, along an axis with its place, or of two arrays."""

    def found(self: Array, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
        if other is not None:
            return jnp.maximum(self, other) if of is jnp.max else jnp.minimum(self, other)
        if dim is None:
            return of(self)
        return of(self, dim, keepdims=keepdim), which(self, dim, keepdims=keepdim)

    return found


def _norm(
    self: Array, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """A vector norm whose gradient is zero where the vector is."""
    axes = _axes(dim)
    if ord == 1:
        return jnp.sum(jnp.abs(self), axes, keepdims=keepdim)
    if ord in (float("inf"), float("-inf")):
        return (jnp.max if ord > 0 else jnp.min)(jnp.abs(self), axes, keepdims=keepdim)
    if ord == 2:
        total = jnp.sum(self * self, axes, keepdims=keepdim)
        return jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1.0)), 0.0)
    return jnp.sum(jnp.abs(self) ** ord, axes, keepdims=keepdim) ** (1 / ord)


def _old_norm(self: Array, p: float = 2, dim: Axes = None, keepdim: bool = False) -> Array:
    return _norm(self, 2 if p is None else p, dim, keepdim)


def _gelu(self: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(self, approximate=approximate == "tanh")


def _softplus(self: Array, beta: float = 1, threshold: float = 20) -> Array:
    return jnp.where(self * beta > threshold, self, jax.nn.softplus(self * beta) / beta)


def _leaky(self: Array, negative_slope: float = 0.01) -> Array:
    return jnp.where(self > 0, self, self * negative_slope)


def _elu(self: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    below = alpha * jnp.expm1(jnp.minimum(self, 0) * input_scale)
    return scale * jnp.where(self > 0, self, below)


def _hardtanh(self: Array, min_val: float = -1, max_val: float = 1) -> Array:
    return jnp.clip(self, min_val, max_val)


def _prelu(self: Array, weight: Array) -> Array:
    shape = (1, -1, *[1] * (self.ndim - 2)) if weight.size > 1 and self.ndim > 1 else (-1,)
    return jnp.where(self > 0, self, weight.reshape(shape) * self)


def _softmax(self: Array, dim: int, dtype: Any = None, half_to_float: bool = False) -> Array:
    return jax.nn.softmax(cast(self, dtype), dim)


def _log_softmax(self: Array, dim: int, dtype: Any = None, half_to_float: bool = False) -> Array:
    return jax.nn.log_softmax(cast(self, dtype), dim)


def _logsumexp(self: Array, dim: Axes, keepdim: bool = False) -> Array:
    return jax.nn.logsumexp(self, _axes(dim), keepdims=keepdim)


def _argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmax(self, dim, keepdims=keepdim)


def _argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmin(self, dim, keepdims=keepdim)


def _all(self: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return jnp.all(self, _axes(dim), keepdims=keepdim)


def _any(self: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return jnp.any(self, _axes(dim), keepdims=keepdim)


def _amax(self: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return jnp.max(self, _axes(dim), keepdims=keepdim)


def _amin(self: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return jnp.min(self, _axes(dim), keepdims=keepdim)


def _cumsum(self: Array, dim: int, dtype: Any = None) -> Array:
    return jnp.cumsum(cast(self, dtype), dim)


def _unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self: function(self)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda self, other: function(self, other)


UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": jnp.abs,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "erf": jax.scipy.special.erf,
    "exp": lambda x: jnp.exp(real(x)),
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "log": lambda x: jnp.log(real(x)),
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not,
    "bitwise_not": jnp.bitwise_not,
    "mish": jax.nn.mish,
    "neg": jnp.negative,
    "reciprocal": lambda x: 1 / x,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "softsign": jax.nn.soft_sign,
    "sqrt": lambda x: jnp.sqrt(real(x)),
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "eq": lambda x, y: x == y,
    "floor_divide": jnp.floor_divide,
    "ge": lambda x, y: x >= y,
    "gt": lambda x, y: x > y,
    "le": lambda x, y: x <= y,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": lambda x, y: x < y,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mul": lambda x, y: x * y,
    "multiply": lambda x, y: x * y,
    "ne": lambda x, y: x != y,
    "remainder": jnp.remainder,
}
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "add": _plus,
    "sub": _minus,
    "rsub": lambda self, other, alpha=1: other - alpha * self,
    "div": _over,
    "pow": lambda self, exponent: self**exponent,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "sum": _sum,
    "mean": _mean,
    "prod": _prod,
    "var": _var,
    "std": lambda self, *given, **options: jnp.sqrt(_var(self, *given, **options)),
    "max": _extreme(jnp.max, jnp.argmax),
    "min": _extreme(jnp.min, jnp.argmin),
    "amax": _amax,
    "amin": _amin,
    "argmax": _argmax,
    "argmin": _argmin,
    "all": _all,
    "any": _any,
    "cumsum": _cumsum,
    "linalg_vector_norm": _norm,
    "norm": _old_norm,
    "logsumexp": _logsumexp,
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
    "gelu": _gelu,
    "softplus": _softplus,
    "leaky_relu": _leaky,
    "elu": _elu,
    "celu": lambda self, alpha=1: jax.nn.celu(self, alpha),
    "hardtanh": _hardtanh,
    "prelu": _prelu,
    "threshold": lambda self, threshold, value: jnp.where(self > threshold, self, value),
    "lerp": lambda self, end, weight: self + weight * (end - self),
    "addcmul": lambda self, tensor1, tensor2, value=1: self + value * tensor1 * tensor2,
    "nan_to_num": lambda self, nan=0.0, posinf=None, neginf=None: jnp.nan_to_num(
        self, nan=nan or 0.0, posinf=posinf, neginf=neginf
    ),
    "scalar_tensor": lambda s, dtype=None, **options: jnp.asarray(s, kind(dtype, jnp.float32)),
    "lift_fresh_copy": lambda self: jnp.asarray(np.asarray(self)),
}
