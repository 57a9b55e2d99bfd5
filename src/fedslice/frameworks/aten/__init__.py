"""Operators of PyTorch's graphs (ATen) in JAX: each a function with the arguments of its schema."""

from collections.abc import Callable
from typing import Any

from fedslice.frameworks.aten import elementwise, layers, losses, recurrent, shaping

OPERATORS: dict[str, Callable[..., Any]] = {
    **elementwise.OPERATORS,
    **shaping.OPERATORS,
    **layers.OPERATORS,
    **recurrent.OPERATORS,
    **losses.OPERATORS,
}
