"""Models for own data with random leaves, each with what it says of some examples by our own
formulas."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.cli.export import Exported, Rows
from fedslice.data.features import Column, Features, Label
from fedslice.models.own import score
from fedslice.tasks.own import layout, model_of

EXAMPLES, ABSENT = 7, 2  # a row that no client held


class Case(NamedTuple):
    """A model, its inputs, and what it predicts of them."""

    features: Features
    exported: Exported
    inputs: dict[str, np.ndarray]
    user: dict[str, np.ndarray]
    expected: np.ndarray


CASES = {
    "lr": ("lr", "binary", True),
    "lr without numbers": ("lr", "binary", False),
    "lr of classes": ("lr", "classes", True),
    "lr of numbers": ("lr", "number", True),
    "fm": ("fm", "binary", True),
    "fm without numbers": ("fm", "number", False),
    "mf": ("mf", "number", True),
    "din": ("din", "binary", True),
    "din of classes": ("din", "classes", False),
}


def columns(numbers: bool) -> tuple[Column, ...]:
    some = (
        Column("item", "category", ("a", "b", "c", "d")),
        Column("seen", "category", width=3, separator="|", shares="item"),
        Column("tags", "category", ("x", "y"), width=2, separator=";"),
        Column("price", "buckets", edges=(1.5, 4.0)),
        Column("when", "hour"),
        Column("when", "weekday"),
    )
    more = (Column("age", "standard", mean=40.0, spread=10.0), Column("height", "standard"))
    return (*some, *more) if numbers else some


def case(name: str) -> Case:
    model, kind, numbers = CASES[name]
    rng = np.random.default_rng(0)
    classes = {"binary": ("no", "yes"), "classes": ("u", "v", "w"), "number": ()}[kind]
    mean, spread = (3.5, 1.2) if kind == "number" else (0.0, 1.0)
    features = Features(
        "user",
        Label("y", kind, classes, mean, spread),
        columns(numbers),
        model={"name": model, "dimension": 4},
    ).placed()
    made = model_of(features)
    shapes = jax.eval_shape(made.dense, jax.random.key(0))
    dense = jax.tree.map(lambda x: rng.normal(0, 0.7, x.shape).astype(np.float32), shapes)
    tables = {
        each: rng.normal(0, 0.7, (table.rows, *table.shape)).astype(np.float32)
        for each, table in made.tables.items()
    }
    for table in tables.values():
        table[ABSENT] = 0
    ids = np.full((EXAMPLES, features.wide), -1)
    for column in features.ids:
        own = next((c for c in features.ids if c.column == column.shares), column)
        span = slice(column.place, column.place + column.width)
        ids[:, span] = own.start + rng.integers(0, own.rows, (EXAMPLES, column.width))
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[0] = -1  # nothing is known of it
    inputs = {"features": ids}
    if numbers:
        inputs["numbers"] = rng.normal(size=(EXAMPLES, 2)).astype(np.float32)
    user = {"user": rng.normal(size=4), "user_bias": np.array(0.3)} if model == "mf" else {}
    user = {each: value.astype(np.float32) for each, value in user.items()}
    of = score(model, 2 * numbers, len(classes) if kind == "classes" else 0, layout(features))
    params: Any = jax.tree.map(jnp.asarray, {**dense, **tables, **user})
    scores = np.asarray(of(params, {key: jnp.asarray(x) for key, x in inputs.items()}))
    return Case(
        features, exported(features, dense, tables), inputs, user, meant(scores, kind, mean, spread)
    )


def meant(scores: np.ndarray, kind: str, mean: float, spread: float) -> np.ndarray:
    """Probabilities or numbers, as fedslice predict tells them."""
    if kind == "binary":
        return 1 / (1 + np.exp(-scores))
    if kind == "classes":
        raised = np.exp(scores - scores.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)
    return mean + spread * scores


def exported(features: Features, dense: Any, tables: dict[str, np.ndarray]) -> Exported:
    """As a run folder has it: only rows that somebody held."""
    held = np.delete(np.arange(features.rows), ABSENT)
    rows = {
        name: Rows(held, features.names[held].tolist(), np.ones(len(held), np.int64), table[held])
        for name, table in tables.items()
    }
    paths = jax.tree_util.tree_leaves_with_path(dense)
    flat = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in paths}
    return Exported(flat, rows, {}, features.as_json())
