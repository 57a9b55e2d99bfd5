"""MobileNetV2 with group normalisation and without dropout: the Landmarks model of the Field Guide
(Wang et al. 2021).

Sandler et al. 2018, table 2; each convolution is followed by a normalisation (2 groups, after Hsu
et al. 2020):

    stem: relu6(conv3(x)), 32 channels, stride 2
    seventeen bottlenecks: expand by 1 x 1 to t times the channels, relu6;
        3 x 3 depthwise with the stride, relu6; project by 1 x 1, linear;
        plus the input where the shape does not change
    last: relu6 of a 1 x 1 convolution to 1,280 channels
    head: softmax of a linear map of the mean over the image, which starts at zero

All channels but the last are multiplied by ``width`` and rounded to multiples of 8 (never below 90%
of the product); the last only if ``width`` is above 1.  With width 1 there are 2,223,872 parameters
and 1,281 for each class.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.model import Model, remembered
from fedslice.models.layers import (
    check_width,
    classifier,
    convolve,
    depthwise,
    norm,
    normal,
    normalise,
    pixels,
)
from fedslice.types import Array, Batch, Key, Params

STAGES = (  # expansion, channels, bottlenecks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST = 32, 1280
STRIDES = tuple(
    stride if first == 0 else 1 for _, _, count, stride in STAGES for first in range(count)
)


@remembered
def mobilenet2(classes: int, width: float = 1.0, groups: int = 2) -> Model:
    """The model; it reads the fields ``image`` [rows, columns, 3], bytes, and ``label``.

    >>> sorted(jax.eval_shape(mobilenet2(10, width=0.25).init, jax.random.key(0)))[-3:]
    ['head', 'last', 'stem']
    """
    if not width > 0:
        raise InputError(f"width={width}: give a positive multiplier of the channels")
    check_width(8, groups)
    return classifier(
        partial(_init, classes=classes, width=width), partial(_logits, groups=groups), classes
    )


def _channels(number: float) -> int:
    """The nearest multiple of 8, at least 8, not below 90% of the number."""
    rounded = max(8, int(number + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * number else rounded + 8


def _init(key: Key, classes: int, width: float) -> Params:
    keys = iter(jax.random.split(key, len(STRIDES) + 2))
    channels = _channels(STEM * width)
    leaves: Params = {
        "stem": {"kernel": normal(next(keys), 3, 3, 3, channels), "norm": norm(channels)}
    }
    number = 0
    for expansion, wanted, count, _ in STAGES:
        for _ in range(count):
            number += 1
            leaves[f"bottleneck{number}"] = _bottleneck(
                next(keys), channels, _channels(wanted * width), expansion
            )
            channels = _channels(wanted * width)
    last = _channels(LAST * max(1.0, width))
    leaves["last"] = {"kernel": normal(next(keys), 1, 1, channels, last), "norm": norm(last)}
    leaves["head"] = {"weight": jnp.zeros((last, classes)), "bias": jnp.zeros(classes)}
    return leaves


def _bottleneck(key: Key, channels: int, wanted: int, expansion: int) -> Params:
    first, second, third = jax.random.split(key, 3)
    hidden = channels * expansion
    leaves = {
        "depthwise": normal(second, 3, 3, hidden, gain=2.0),
        "norm2": norm(hidden),
        "project": normal(third, 1, 1, hidden, wanted, gain=1.0),
        "norm3": norm(wanted),
    }
    if expansion > 1:
        leaves |= {"expand": normal(first, 1, 1, channels, hidden), "norm1": norm(hidden)}
    return leaves


def _logits(params: Params, batch: Batch, groups: int) -> Array:
    stem, last = params["stem"], params["last"]
    x = jax.nn.relu6(
        normalise(stem["norm"], convolve(stem["kernel"], pixels(batch["image"]), 2), groups)
    )
    for number, stride in enumerate(STRIDES, 1):
        block = params[f"bottleneck{number}"]
        y = x
        if "expand" in block:
            y = jax.nn.relu6(normalise(block["norm1"], convolve(block["expand"], y), groups))
        y = jax.nn.relu6(
            normalise(block["norm2"], depthwise(block["depthwise"], y, stride), groups)
        )
        y = normalise(block["norm3"], convolve(block["project"], y), groups)
        x = x + y if stride == 1 and x.shape == y.shape else y
    x = jax.nn.relu6(normalise(last["norm"], convolve(last["kernel"], x), groups))
    return jnp.mean(x, (1, 2)) @ params["head"]["weight"] + params["head"]["bias"]
