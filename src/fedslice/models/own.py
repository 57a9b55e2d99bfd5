"""Models by name for own data: each reads ``features``, ids in one space [batch, F], and
``numbers`` [batch, D] if there are any, as :mod:`fedslice.data.features` makes them.

    lr     s = bias + sum_f weight[id_f] + numbers . slope
    fm     s = lr's + 1/2 sum_k (t_k^2 - q_k)                        pairs of features, each once
           t = sum_f factor[id_f] + numbers . number_factor,   q the same of squares
    mf     s = lr's + user_bias + user . sum_f factor[id_f]          user and user_bias are local
    din    s = lr's + tower([e_1 ... e_C, numbers])                  e_c: a column's embeddings
           summed, or of a history a mean by how much they matter for the column whose ids it shares

Rendle, Factorization Machines, ICDM 2010; Singhal et al., Federated Reconstruction, 2021; Zhou et
al., Deep Interest Network, KDD 2018.  Padding (-1) contributes nothing anywhere.

What s means depends on the label: the log odds of 1 (cross-entropy), a number in units of the
labels' spread (squared error), or with classes one log odds each (softmax).
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.metrics import Metric, PerExample, auc, calibration, root
from fedslice.model import Model, Table, lookup, remembered
from fedslice.models.din import attend
from fedslice.types import Array, Batch, Key, Params

Score: TypeAlias = Callable[[Params, Batch], Array]
NAMES = ("lr", "fm", "mf", "din")
BINARY, NUMBER, CLASSES = "binary", "number", "classes"
DIMENSION = 8
SPREAD = 0.05  # of first factors
HIDDEN, ATTENTION = (32, 16), 16


def score(
    name: str,
    numbers: int = 0,
    classes: int = 0,
    layout: tuple[tuple[int, int, int], ...] = (),
) -> Score:
    """The score s of a model by name, for each example, [batch], or with ``classes`` [batch,
    classes].  ``layout`` has, for din, each column's first place, its width, and the place of the
    column whose ids it shares as a history (-1: none).

    >>> params = {"bias": jnp.ones(()), "weight": jnp.array([2.0, 3.0])}
    >>> score("lr")(params, {"features": jnp.array([[0, 1], [1, -1]])}).tolist()
    [6.0, 4.0]
    """

    def linear(params: Params, batch: Batch) -> Array:
        total = jnp.sum(lookup(params["weight"], batch["features"]), 1) + params["bias"]
        return total + batch["numbers"] @ params["slope"] if numbers else total

    def pairs(params: Params, batch: Batch) -> Array:
        factor = lookup(params["factor"], batch["features"])
        total, squares = jnp.sum(factor, 1), jnp.sum(factor**2, 1)
        if numbers:
            total = total + batch["numbers"] @ params["number_factor"]
            squares = squares + batch["numbers"] ** 2 @ params["number_factor"] ** 2
        return linear(params, batch) + jnp.sum(total**2 - squares, -1) / 2

    def personal(params: Params, batch: Batch) -> Array:
        factor = jnp.sum(lookup(params["factor"], batch["features"]), 1)
        return linear(params, batch) + params["user_bias"] + factor @ params["user"]

    def interest(params: Params, batch: Batch) -> Array:
        x = jnp.concatenate(_columns(params, batch, layout, numbers), -1)
        *hidden, last = params["tower"]
        for layer in hidden:
            x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
        deep = x @ last["weight"] + last["bias"]
        return linear(params, batch) + (deep if classes else deep[:, 0])

    return {"lr": linear, "fm": pairs, "mf": personal, "din": interest}[name]


def _columns(
    params: Params, batch: Batch, layout: tuple[tuple[int, int, int], ...], numbers: int
) -> list[Array]:
    """What din's tower reads: of each column the sum of its embeddings, or of a history what
    matters for the column that it belongs to."""
    rows = lookup(params["embedding"], batch["features"])
    attentions = iter(params["attention"])
    found = []
    for place, width, target in layout:
        some = rows[:, place : place + width]
        if target < 0:
            found.append(jnp.sum(some, 1))
        else:
            real = batch["features"][:, place : place + width] >= 0
            found.append(attend(next(attentions), rows[:, target], some, real))
    return [*found, batch["numbers"]] if numbers else found


@remembered
def own(
    name: str,
    rows: int,
    label: str = BINARY,
    classes: int = 0,
    numbers: int = 0,
    dimension: int = DIMENSION,
    layout: tuple[tuple[int, int, int], ...] = (),
    spread: float = 1.0,
) -> Model:
    """The model ``name`` over ``rows`` rows, for a field ``label`` that is binary, a number (in
    units of ``spread``) or one of so many ``classes``.

    >>> own("fm", rows=10).tables["factor"].shape, own("mf", rows=10).local
    ((8,), ('user', 'user_bias'))
    """
    if name not in NAMES:
        raise InputError(f"there is no model {name!r} for own data; there are {', '.join(NAMES)}")
    if label == CLASSES and name in ("fm", "mf"):
        raise InputError(
            f"{name} predicts 0 or 1, or a number, not {classes} classes: use lr or din, or say"
            " label_as='number' (--label-as number) if the labels are numbers"
        )
    if dimension < 1:
        raise InputError(f"dimension={dimension} must be at least 1")
    layout = layout or ((0, 1, -1),)
    many = classes if label == CLASSES else 0
    shape = (many,) if many else ()
    tables = {"weight": Table(max(1, rows), ("features",), shape)}
    if name in ("fm", "mf"):
        tables["factor"] = Table(max(1, rows), ("features",), (dimension,), _small)
    if name == "din":
        tables["embedding"] = Table(max(1, rows), ("features",), (dimension,), _small)

    def init(key: Key) -> Params:
        first: Params = {"bias": jnp.zeros(shape)}
        keys = jax.random.split(key, 3)
        if numbers:
            first["slope"] = jnp.zeros((numbers, *shape))
        if numbers and name == "fm":
            first["number_factor"] = _small(keys[0], (numbers, dimension))
        if name == "mf":
            # of zeros: what a client says does not depend on who else is asked
            first |= {"user": jnp.zeros(dimension), "user_bias": jnp.zeros(())}
        if name == "din":
            inputs = len(layout) * dimension + numbers
            first["tower"] = _layers(keys[1], (inputs, *HIDDEN, many or 1))
            histories = sum(target >= 0 for _, _, target in layout)
            first["attention"] = [
                _layers(each, (4 * dimension, ATTENTION, 1))
                for each in jax.random.split(keys[2], histories)
            ]
        return first

    local = ("user", "user_bias") if name == "mf" else ()
    loss, figures, ranges = head(score(name, numbers, many, layout), label, many, spread)
    return Model(init, loss, tables, local, figures, ranges=ranges)


class Head(NamedTuple):
    """What a score is worth for a label of some kind: the loss, the figures, what labels may be."""

    loss: PerExample
    figures: dict[str, PerExample | Metric]
    ranges: dict[str, int]


def head(score: Score, label: str, classes: int, spread: float) -> Head:
    """The loss and the figures that a label of this kind has."""
    if label == NUMBER:
        return _number(score, spread)
    return _classes(score, classes) if label == CLASSES else _binary(score)


def _number(score: Score, spread: float) -> Head:
    def loss(params: Params, batch: Batch) -> Array:
        return (score(params, batch) - batch["label"]) ** 2

    def error(params: Params, batch: Batch) -> Array:
        return spread**2 * loss(params, batch)

    return Head(loss, {"rmse": root(error)}, {})


def _classes(score: Score, classes: int) -> Head:
    def loss(params: Params, batch: Batch) -> Array:
        z = jax.nn.log_softmax(score(params, batch))
        return -jnp.take_along_axis(z, batch["label"][:, None], 1)[:, 0]

    def accuracy(params: Params, batch: Batch) -> Array:
        best = jnp.argmax(score(params, batch), -1)
        return (best == batch["label"]).astype(jnp.float32)

    return Head(loss, {"accuracy": accuracy, "log_loss": loss}, {"label": classes})


def _binary(score: Score) -> Head:
    def loss(params: Params, batch: Batch) -> Array:
        z = score(params, batch)
        return jax.nn.softplus(z) - batch["label"] * z

    def accuracy(params: Params, batch: Batch) -> Array:
        return ((score(params, batch) > 0) == (batch["label"] > 0.5)).astype(jnp.float32)

    def chance(params: Params, batch: Batch) -> Array:
        return jax.nn.sigmoid(score(params, batch))

    figures: dict[str, PerExample | Metric] = {
        "auc": auc(score),
        "accuracy": accuracy,
        "log_loss": loss,
        "calibration": calibration(chance),
    }
    return Head(loss, figures, {"label": 2})


def _small(key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape) * SPREAD


def _layers(key: Key, sizes: tuple[int, ...]) -> list[Params]:
    """Dense layers, He's normal weights; the last begins at zero, so that a model begins as lr."""
    *keys, _ = jax.random.split(key, len(sizes) - 1)
    hidden = [
        {
            "weight": jax.random.normal(each, (wide, narrow)) * (2 / wide) ** 0.5,
            "bias": jnp.zeros(narrow),
        }
        for each, wide, narrow in zip(keys, sizes[:-2], sizes[1:-1], strict=True)
    ]
    return [*hidden, {"weight": jnp.zeros(sizes[-2:]), "bias": jnp.zeros(sizes[-1])}]
