"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000),
written for speed.

    i, f, o = sigmoid(z)   g = tanh(z)    where z = x_t Wx + h_{t-1} Wh + b, in parts [i, f, o, g]
    c_t = f c_{t-1} + i g
    h_t = o tanh(c_t)                     h_0 = c_0 = 0

The backward pass is written out.  With d the gradient of the loss by the hidden states and a bar
for "gradient by",

    h'  = d_t + z'_{t+1} Wh^T             c' = c'_{t+1} f_{t+1} + h' o (1 - tanh(c_t)^2)
    z'  = [c' g i(1 - i),  c' c_{t-1} f(1 - f),  h' tanh(c_t) o(1 - o),  c' i(1 - g^2)]
    Wx' = sum_t x_t^T z'_t     Wh' = sum_t h_{t-1}^T z'_t     b' = sum_t z'_t     x'_t = z'_t Wx^T

Only h Wh and z' Wh^T depend on the step before, so only they stay in the loops; everything else is
one large product or one pass over all steps.  All that autodiff would do inside its loop, above all
a weight gradient at each step, is gone.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp

from fedslice.types import Array, Key

Layer: TypeAlias = dict[str, Array]
"""``input`` [inputs, 4 hidden], ``hidden`` [hidden, 4 hidden], ``bias`` [4 hidden]; gates in the
order i, f, o, g."""


def init(key: Key, inputs: int, hidden: int) -> Layer:
    """First values as Keras draws them: Glorot uniform, orthogonal, and zeros but ones for the
    forget gate.

    >>> layer = init(jax.random.key(0), inputs=25, hidden=100)
    >>> {name: leaf.shape for name, leaf in layer.items()}
    {'input': (25, 400), 'hidden': (100, 400), 'bias': (400,)}
    """
    first, second = jax.random.split(key)
    return {
        "input": jax.nn.initializers.glorot_uniform()(first, (inputs, 4 * hidden)),
        "hidden": jax.nn.initializers.orthogonal()(second, (hidden, 4 * hidden)),
        "bias": jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0),
    }


@jax.custom_vjp
def lstm(layer: Layer, inputs: Array) -> Array:
    """Hidden states [length, batch, hidden] of one layer for ``inputs`` [length, batch, inputs].

    >>> layer = init(jax.random.key(0), inputs=3, hidden=4)
    >>> lstm(layer, jnp.ones((7, 2, 3))).shape
    (7, 2, 4)
    """
    return _forward(layer, inputs)[0]


def stack(layers: list[Layer], inputs: Array) -> Array:
    """Layers one upon the other: the hidden states of the last one.

    >>> layers = [init(jax.random.key(0), 3, 4), init(jax.random.key(1), 4, 5)]
    >>> stack(layers, jnp.ones((7, 2, 3))).shape
    (7, 2, 5)
    """
    for layer in layers:
        inputs = lstm(layer, inputs)
    return inputs


Saved: TypeAlias = tuple[Layer, Array, Array, Array, Array, Array]


def _forward(layer: Layer, inputs: Array) -> tuple[Array, Saved]:
    length, batch, width = inputs.shape
    size = layer["hidden"].shape[0]
    driven = inputs.reshape(length * batch, width) @ layer["input"] + layer["bias"]

    def step(carry: tuple[Array, Array], z: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        hidden, cell = carry
        z = z + hidden @ layer["hidden"]
        gates, new = jax.nn.sigmoid(z[:, : 3 * size]), jnp.tanh(z[:, 3 * size :])
        into, keep, out = jnp.split(gates, 3, axis=1)
        cell = keep * cell + into * new
        hidden = out * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, gates, new)

    zero = jnp.zeros((batch, size), driven.dtype)
    _, (states, cells, gates, news) = jax.lax.scan(
        step, (zero, zero), driven.reshape(length, batch, 4 * size)
    )
    return states, (layer, inputs, states, cells, gates, news)


def _backward(saved: Saved, outer: Array) -> tuple[Layer, Array]:
    layer, inputs, hidden, cell, gates, new = saved
    length, batch, size = hidden.shape
    into, keep, out = jnp.split(gates, 3, axis=2)
    bent = jnp.tanh(cell)
    before = jnp.pad(cell[:-1], ((1, 0), (0, 0), (0, 0)))
    # z' is these factors times c', c', h', c'; side by side and flat, for the step to be one short
    # pass
    factors = (
        new * into * (1 - into),
        before * keep * (1 - keep),
        bent * out * (1 - out),
        into * (1 - new * new),
    )
    factor, leak = jnp.concatenate(factors, 2), out * (1 - bent * bent)
    # f_{t+1}, for the step that adds to c'_{t+1} f_{t+1}: as a product of its own at the end of the
    # step before, it took a kernel more
    after = jnp.pad(keep[1:], ((0, 1), (0, 0), (0, 0)))
    turned = layer["hidden"].T

    def step(
        carry: tuple[Array, Array], now: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], Array]:
        d_hidden, d_cell = carry
        outer, factor, leak, after = now
        d_hidden = d_hidden + outer
        d_cell = d_cell * after + d_hidden * leak
        d_z = factor * jnp.concatenate([d_cell, d_cell, d_hidden, d_cell], axis=1)
        return (d_z @ turned, d_cell), d_z

    zero = jnp.zeros((batch, size), hidden.dtype)
    _, d_z = jax.lax.scan(step, (zero, zero), (outer, factor, leak, after), reverse=True)
    d_z = d_z.reshape(length * batch, 4 * size)
    previous = jnp.pad(hidden[:-1], ((1, 0), (0, 0), (0, 0))).reshape(length * batch, size)
    flat = inputs.reshape(length * batch, inputs.shape[2])
    # as a product: the compiler divides large sums among its threads, and their bits with them
    ones = jnp.ones(length * batch, d_z.dtype)
    grads = {"input": flat.T @ d_z, "hidden": previous.T @ d_z, "bias": ones @ d_z}
    return grads, (d_z @ layer["input"].T).reshape(inputs.shape)


lstm.defvjp(_forward, _backward)
