"""DIN, the deep interest network: will this user like this item, given what the user liked before?

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, in the layout of
the FedSubAvg paper.  With q the embedding of the target item and k_1 ... k_L those of the history
(each followed by that of its category, if there are categories), u the user's and s the sum of the
k_j:

    a_j   = w(sigmoid(V(sigmoid(U [q, k_j, q - k_j, q * k_j]))))     80 and 40 units, then one
    h     = sum_j softmax(a)_j k_j                                   over the history's real entries
    logit = C dice(B dice(A (scale * [u, q, s, q * s, h] + shift)))  200 and 80 units, then two

    dice(x) = x (p + slope (1 - p)),   p = sigmoid((x - mean x) / deviation of x)

The paper's Dice takes mean and deviation over the examples of a batch.  Here they are taken over
the units of the layer for each example alone, as in layer normalisation: so no example's score
depends on which others are scored with it, on how a client's examples fall into batches, or on
padding, and training and evaluation compute the same function.  Like the paper's it does not change
when all of x is scaled, so it works for small first embeddings as for large ones.  ``scale`` and
``shift`` are those of the paper's input normalisation, whose moving averages its code never
updates.
"""

import math

import jax
import jax.numpy as jnp

from fedslice.metrics import auc, hit_rate, ndcg
from fedslice.model import Model, RowInit, Table, lookup, remembered
from fedslice.types import Array, Batch, Key, Params

ATTENTION = (80, 40, 1)
HIDDEN = (200, 80, 2)
TINY = 1e-8  # far below the variance of a layer's units at the start, which is about 1e-4


@remembered
def din(users: int, items: int, categories: int = 0, width: int = 18) -> Model:
    """The model over the fields ``user``, ``item``, ``history`` [batch, L] and ``label`` (0 or 1);
    with ``categories`` also ``category`` and ``history_category`` [batch, L].  Histories are padded
    with -1, and may be empty.

    >>> model = din(users=10, items=100, categories=5)
    >>> model.spaces
    {'user': ('user',), 'item': ('item', 'history'), 'category': ('category', 'history_category')}
    """
    tables = {"user": (users, ("user",)), "item": (items, ("item", "history"))}
    if categories:
        tables["category"] = (categories, ("category", "history_category"))
    whole = width * (2 if categories else 1)

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 2)
        inputs = width + 4 * whole
        shape = {"scale": jnp.ones(inputs), "shift": jnp.zeros(inputs)}
        tower = _layers(keys[1], (inputs, *HIDDEN))
        for layer in tower[:-1]:
            layer["slope"] = jnp.zeros_like(layer["bias"])
        return {
            "attention": _layers(keys[0], (4 * whole, *ATTENTION)),
            "input": shape,
            "tower": tower,
        }

    def logit(params: Params, batch: Batch) -> Array:
        target = lookup(params["item"], batch["item"])
        history = lookup(params["item"], batch["history"])
        if categories:
            target = jnp.concatenate([target, lookup(params["category"], batch["category"])], -1)
            history = jnp.concatenate(
                [history, lookup(params["category"], batch["history_category"])], -1
            )
        interest = attend(params["attention"], target, history, batch["history"] >= 0)
        total = jnp.sum(history, 1)
        x = jnp.concatenate(
            [lookup(params["user"], batch["user"]), target, total, target * total, interest], -1
        )
        x = params["input"]["scale"] * x + params["input"]["shift"]
        *hidden, last = params["tower"]
        for layer in hidden:
            x = dice(_linear(layer, x), layer["slope"])
        two = _linear(last, x)
        return two[:, 1] - two[:, 0]

    def loss(params: Params, batch: Batch) -> Array:
        z = logit(params, batch)
        return jax.nn.softplus(z) - batch["label"] * z

    made = {
        name: Table(rows, fields, (width,), _spread(rows, width))
        for name, (rows, fields) in tables.items()
    }
    figures = {"auc": auc(logit), "ndcg@10": ndcg(logit), "hit_rate@10": hit_rate(logit)}
    return Model(init, loss, made, metrics=figures, ranges={"label": 2})


def attend(layers: list[Params], target: Array, history: Array, real: Array) -> Array:
    """The mean of ``history`` [batch, L, d] weighted by its relevance to ``target`` [batch, d];
    zeros if none is real.

    The first layer is applied to the four parts of its input one by one: q and q - k cost nothing
    for each entry.

    >>> layers = _layers(jax.random.key(0), (8, 3, 1))
    >>> attend(layers, jnp.ones((1, 2)), jnp.ones((1, 4, 2)), jnp.zeros((1, 4), bool)).tolist()
    [[0.0, 0.0]]
    """
    first, *middle, last = layers
    by_target, by_entry, by_gap, by_product = jnp.split(first["weight"], 4)
    x = history @ (by_entry - by_gap) + (target[:, None] * history) @ by_product
    x = x + (target @ (by_target + by_gap) + first["bias"])[:, None]
    for layer in middle:
        x = _linear(layer, jax.nn.sigmoid(x))
    score = _linear(last, jax.nn.sigmoid(x))[..., 0]
    low = jnp.finfo(score.dtype).min  # finite: an empty history has no NaN, in its gradient either
    weight = jnp.where(real, jax.nn.softmax(jnp.where(real, score, low)), 0)
    return jnp.sum(weight[..., None] * history, 1)


def dice(x: Array, slope: Array) -> Array:
    """Dice, standardised over the units of each example.

    >>> [round(float(x), 2) for x in dice(jnp.array([-2.0, 2.0]), jnp.zeros(2))]
    [-0.54, 1.46]
    """
    centred = x - jnp.mean(x, -1, keepdims=True)
    p = jax.nn.sigmoid(
        centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + TINY)
    )
    return x * (p + slope * (1 - p))


def _layers(key: Key, sizes: tuple[int, ...]) -> list[Params]:
    """Dense layers from each size to the next: Glorot's uniform weights, no bias."""
    make = jax.nn.initializers.glorot_uniform()
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [
        {"weight": make(k, (wide, narrow)), "bias": jnp.zeros(narrow)} for k, wide, narrow in pairs
    ]


def _linear(layer: Params, x: Array) -> Array:
    return x @ layer["weight"] + layer["bias"]


def _spread(rows: int, width: int) -> RowInit:
    """Glorot's uniform for the whole table, as the authors' framework does by default."""
    bound = math.sqrt(6 / (rows + width))
    return lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)
