"""ResNet-18 for small images with group normalisation: the CIFAR-10 model of the Field Guide (Wang
et al. 2021).

He et al. 2016, with a 3 x 3 stem of stride 1 and no pooling after it, as is usual for images of 32
x 32:

    stem: relu(norm(conv3(x))), w channels
    four stages of two blocks with w, 2w, 4w, 8w channels, the last three beginning with stride 2
    block: relu(norm(conv3(relu(norm(conv3(x))))) + x),
           where x is norm(conv1(x)) if its shape changes
    head: softmax of a linear map of the mean over the image, which starts at zero

w is 64; then there are 11,173,962 parameters for 10 classes.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedslice.model import Model, remembered
from fedslice.models.layers import (
    check_width,
    classifier,
    convolve,
    norm,
    normal,
    normalise,
    pixels,
)
from fedslice.types import Array, Batch, Key, Params

STRIDES = (1, 1, 2, 1, 2, 1, 2, 1)  # of the eight blocks


@remembered
def resnet18(classes: int = 10, width: int = 64, groups: int = 2) -> Model:
    """The model; it reads the fields ``image`` [rows, columns, 3], bytes, and ``label``.

    >>> sorted(jax.eval_shape(resnet18(width=8).init, jax.random.key(0)))[-2:]
    ['head', 'stem']
    """
    check_width(width, groups)
    return classifier(
        partial(_init, classes=classes, width=width), partial(_logits, groups=groups), classes
    )


def _init(key: Key, classes: int, width: int) -> Params:
    keys = jax.random.split(key, len(STRIDES) + 1)
    leaves: Params = {"stem": {"kernel": normal(keys[0], 3, 3, 3, width), "norm": norm(width)}}
    channels = width
    for number in range(len(STRIDES)):
        wider = width * 2 ** (number // 2)
        leaves[f"block{number + 1}"] = _block(keys[number + 1], channels, wider)
        channels = wider
    leaves["head"] = {"weight": jnp.zeros((channels, classes)), "bias": jnp.zeros(classes)}
    return leaves


def _block(key: Key, channels: int, wider: int) -> Params:
    first, second, third = jax.random.split(key, 3)
    leaves = {
        "kernel1": normal(first, 3, 3, channels, wider),
        "norm1": norm(wider),
        "kernel2": normal(second, 3, 3, wider, wider),
        "norm2": norm(wider),
    }
    if wider != channels:
        leaves |= {"shortcut": normal(third, 1, 1, channels, wider), "norm3": norm(wider)}
    return leaves


def _logits(params: Params, batch: Batch, groups: int) -> Array:
    stem = params["stem"]
    x = jax.nn.relu(
        normalise(stem["norm"], convolve(stem["kernel"], pixels(batch["image"])), groups)
    )
    for number, stride in enumerate(STRIDES):
        block = params[f"block{number + 1}"]
        y = jax.nn.relu(normalise(block["norm1"], convolve(block["kernel1"], x, stride), groups))
        y = normalise(block["norm2"], convolve(block["kernel2"], y), groups)
        if "shortcut" in block:
            x = normalise(block["norm3"], convolve(block["shortcut"], x, stride), groups)
        x = jax.nn.relu(x + y)
    return jnp.mean(x, (1, 2)) @ params["head"]["weight"] + params["head"]["bias"]
