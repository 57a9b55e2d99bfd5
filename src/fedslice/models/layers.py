"""Layers of image models: convolutions, group normalisation, and what makes a classifier of them.

Images are [batch, height, width, channels].  A convolution with an odd kernel of size k and stride
s has zero padding (k - 1) / 2 on all sides:

    y[h, w, o] = sum over i, j, c of
                 kernel[i, j, c, o] x[s h + i - (k - 1) / 2, s w + j - (k - 1) / 2, c]

It is computed as one matrix product of the k x k shifted images, a depthwise one as a sum of k x k
products.  XLA's own convolution, and above all its gradient, is far slower on a CPU inside the
loops that clients run in: measured for 20 images, forward and back, 3 times slower with 8 channels,
18 to 27 times with 16 to 512, and over 70 times depthwise.

Group normalisation (Wu and He 2018): each example's channels, in ``groups`` equal groups, are
brought to mean 0 and variance 1 over the group and the image, then scaled and shifted by channel.
Unlike batch normalisation it does not mix examples, which clients with few labels need (Hsieh et
al. 2020, who use 2 groups).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Batch, Key, Params

EPSILON = 1e-5


def convolve(kernel: Array, x: Array, stride: int = 1) -> Array:
    """Convolution with ``kernel`` [size, size, channels in, channels out].

    >>> image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    >>> convolve(jnp.ones((3, 3, 1, 1)), image)[0, :, :, 0].tolist()
    [[8.0, 15.0, 12.0], [21.0, 36.0, 27.0], [20.0, 33.0, 24.0]]
    """
    channels = kernel.shape[-1]
    return jnp.concatenate(_shifted(x, kernel.shape[0], stride), -1) @ kernel.reshape(-1, channels)


def depthwise(kernel: Array, x: Array, stride: int = 1) -> Array:
    """Convolution of each channel by itself, with ``kernel`` [size, size, channels].

    >>> depthwise(jnp.ones((3, 3, 1)), jnp.ones((1, 3, 3, 1)))[0, 1, 1, 0].item()
    9.0
    """
    size = kernel.shape[0]
    taps = kernel.reshape(size * size, -1)
    return sum(tap * part for tap, part in zip(taps, _shifted(x, size, stride), strict=True))


def _shifted(x: Array, size: int, stride: int) -> list[Array]:
    """For each tap of a kernel, row by row, the image that it meets."""
    pad = (size - 1) // 2
    rows, columns = (-(-length // stride) for length in x.shape[1:3])
    wide = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    ends = (stride * (rows - 1) + 1, stride * (columns - 1) + 1)
    return [
        wide[:, i : i + ends[0] : stride, j : j + ends[1] : stride, :]
        for i in range(size)
        for j in range(size)
    ]


def normalise(leaves: Params, x: Array, groups: int = 2) -> Array:
    """Group normalisation with ``leaves`` from :func:`norm`.

    >>> y = normalise(norm(2), jnp.array([1.0, 3.0]).reshape(1, 1, 1, 2), groups=1)
    >>> y.round(3).reshape(-1).tolist()
    [-1.0, 1.0]
    """
    batch, rows, columns, channels = x.shape
    grouped = x.reshape(batch, rows * columns, groups, channels // groups)
    mean = jnp.mean(grouped, (1, 3), keepdims=True)
    centred = grouped - mean
    variance = jnp.mean(centred**2, (1, 3), keepdims=True)
    return (centred * jax.lax.rsqrt(variance + EPSILON)).reshape(x.shape) * leaves[
        "scale"
    ] + leaves["shift"]


def norm(channels: int) -> Params:
    """First values of a normalisation: it changes nothing more.

    >>> sorted(norm(4))
    ['scale', 'shift']
    """
    return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}


def normal(key: Key, *shape: int, gain: float = 2.0) -> Array:
    """Weights ~ N(0, gain / fan in), the fan in being all axes but the last (He et al. 2015: gain 2
    before a ReLU).

    >>> normal(jax.random.key(0), 3, 3, 16, 8).shape
    (3, 3, 16, 8)
    """
    fan = 1
    for length in shape[:-1]:
        fan *= length
    return jax.random.normal(key, shape) * (gain / fan) ** 0.5


def pixels(image: Array) -> Array:
    """Bytes from 0 to 255 as numbers from -1 to 1.

    >>> pixels(jnp.array([0, 255])).tolist()
    [-1.0, 1.0]
    """
    return image.astype(jnp.float32) / 127.5 - 1


def classifier(
    init: Callable[[Key], Params], logits: Callable[[Params, Batch], Array], classes: int
) -> Model:
    """The model that predicts the field ``label`` by a softmax over ``logits(params, batch)``
    [batch, classes].

    >>> model = classifier(lambda key: {"w": jnp.zeros((4, 3))}, lambda p, b: b["x"] @ p["w"], 3)
    >>> batch = {"x": jnp.ones((1, 4)), "label": jnp.array([2])}
    >>> round(float(model.loss(model.init(jax.random.key(0)), batch)[0]), 4)  # ln 3
    1.0986
    """

    def loss(params: Params, batch: Batch) -> Array:
        chances = jax.nn.log_softmax(logits(params, batch))
        return -jnp.sum(chances * jax.nn.one_hot(batch["label"], chances.shape[-1]), axis=-1)

    def accuracy(params: Params, batch: Batch) -> Array:
        return (jnp.argmax(logits(params, batch), axis=-1) == batch["label"]).astype(jnp.float32)

    return Model(init, loss, metrics={"accuracy": accuracy}, ranges={"label": classes})


def check_width(channels: int, groups: int) -> None:
    """Refuse channels that do not divide into groups."""
    if channels < 1 or groups < 1 or channels % groups:
        raise InputError(
            f"{channels} channels cannot be normalised in {groups} groups: give a multiple of"
            f" {groups}"
        )
