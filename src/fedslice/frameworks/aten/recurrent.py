"""LSTM and GRU with the gates of PyTorch, in its order, layers on top of each other and in both
directions."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedslice.types import Array

Step = Callable[[Any, Array, Sequence[Array]], Any]


def _lstm_step(carry: tuple[Array, Array], gates: Array, hidden: Sequence[Array]) -> Any:
    """Gates i, f, g, o; c' = f c + i g, h' = o tanh(c')."""
    h, c = carry
    i, f, g, o = jnp.split(gates + _product(h, hidden), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_step(carry: tuple[Array], gates: Array, hidden: Sequence[Array]) -> Any:
    """Gates r, z, n; h' = (1 - z) tanh(n_x + r n_h) + z h."""
    (h,) = carry
    r, z, n = jnp.split(gates, 3, -1)
    own_r, own_z, own_n = jnp.split(_product(h, hidden), 3, -1)
    z = jax.nn.sigmoid(z + own_z)
    new = jnp.tanh(n + jax.nn.sigmoid(r + own_r) * own_n)
    return ((1 - z) * new + z * h,)


def _product(x: Array, weights: Sequence[Array]) -> Array:
    found = x @ weights[0].T
    return found + weights[1] if len(weights) > 1 else found


def _recurrent(
    step: Step,
    carries: int,
    x: Array,
    first: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    drop: Callable[[Array, float], Array] = lambda x, share: x,
) -> tuple[Array, ...]:
    x = jnp.swapaxes(x, 0, 1) if batch_first else x  # time first
    size, ends = 4 if has_biases else 2, []
    for layer in range(num_layers):
        outs = []
        for back in range(1 + bidirectional):
            place = layer * (1 + bidirectional) + back
            own = params[size * place : size * (place + 1)]
            gates = _product(x, [own[0], *own[2:3]])
            hidden = [own[1], *own[3:4]]

            def one(carry: Any, now: Array, hidden: Sequence[Array] = hidden) -> Any:
                carry = step(carry, now, hidden)
                return carry, carry[0]

            start = tuple(each[place] for each in first[:carries])
            end, out = jax.lax.scan(one, start, gates, reverse=bool(back))
            ends.append(end)
            outs.append(out)
        x = jnp.concatenate(outs, -1)
        if train and layer < num_layers - 1:
            x = drop(x, dropout)
    last = [jnp.stack([end[place] for end in ends]) for place in range(carries)]
    return (jnp.swapaxes(x, 0, 1) if batch_first else x, *last)


def _lstm(input: Array, hx: Sequence[Array], params: Sequence[Array], **options: Any) -> Any:
    return _recurrent(_lstm_step, 2, input, hx, params, **options)


def _gru(input: Array, hx: Array, params: Sequence[Array], **options: Any) -> Any:
    return _recurrent(_gru_step, 1, input, [hx], params, **options)


OPERATORS: dict[str, Callable[..., Any]] = {"lstm": _lstm, "gru": _gru}
