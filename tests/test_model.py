"""Models: what is declared, what is refused, which columns are read."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import logistic, people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.model import Model, Table, lookup


def zero(key: Any) -> dict[str, Any]:
    return {"b": jnp.zeros(())}


def loss(p: Any, b: Any) -> Any:
    return p["w"][b["i"]] + p["b"]


COLUMNS = {"i": np.zeros(4, int), "j": np.zeros((4, 2), int), "x": np.zeros(4), "y": np.zeros(4)}


def test_spaces_group_tables_by_fields() -> None:
    tables = {
        "a": Table(5, ("i",)),
        "b": Table(5, "i", (2,)),
        "c": Table(5, ("j", "k")),
        "d": Table(3, "x"),
    }
    model = Model(lambda key: {}, lambda p, b: b["x"], tables)
    assert model.space_of == {"a": "a", "b": "a", "c": "c", "d": "d"}
    assert model.spaces == {"a": ("i",), "c": ("j", "k"), "d": ("x",)}
    assert (tables["a"].width, tables["b"].width, Table(1, "i", (2, 3)).width) == (1, 2, 6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Table(0, ("i",)), "at least one row"),
        (lambda: Table(3, ()), "one batch field"),
        (lambda: Table(2**63, "i"), "fewer than 2\\^63"),
        (
            lambda: Table(3, "i", (8,), jax.nn.initializers.glorot_uniform()),
            r"one row at a time.*sqrt\(6 / \(rows \+ width",
        ),
        (
            lambda: Table(3, "i", (8,), lambda key, shape: jnp.zeros(3)),
            r"a row of shape \(8,\), this one makes \(3,\)",
        ),
        (
            lambda: Model(lambda k: {"w": jnp.zeros(2)}, loss, {"w": Table(3, "i")}),
            r"'w'.*leave tables out of init",
        ),
        (lambda: Model(zero, loss, {}, local=("v",)), r"'v'.*not among the leaves of init.*'b'"),
        (
            lambda: Model(zero, loss, {"w": Table(3, "i"), "v": Table(4, "i")}),
            "equal numbers of rows",
        ),
    ],
    ids=[
        "rows",
        "fields",
        "too many",
        "glorot",
        "shape",
        "table in init",
        "unknown local",
        "sizes",
    ],
)
def test_impossible_models_are_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    "reads",
    [
        lambda b: b["x"],
        lambda b: b.get("x"),
        lambda b: {**b}["x"],
        lambda b: dict(b)["x"],
        lambda b: next(v for k, v in b.items() if k == "x"),
        lambda b: b["x"] if "x" in b else jnp.zeros(b["i"].shape),
    ],
    ids=["[]", "get", "unpacked", "copied", "items", "in"],
)
def test_columns_that_the_loss_reads_are_found_however_it_reads_them(reads: Any) -> None:
    """A column that is not found is not given to the loss, which then fails or, with ``in``,
    silently goes without."""
    model = Model(zero, lambda p, b: loss(p, b) + reads(b), {"w": Table(3, "i")})
    assert {"i", "x"} <= model.fields(COLUMNS)


def test_columns_that_nobody_reads_are_left_out() -> None:
    model = Model(
        zero,
        lambda p, b: loss(p, b) + b["x"],
        {"w": Table(3, "i")},
        metrics={"m": lambda p, b: b["y"]},
    )
    assert model.fields(COLUMNS) == {"i", "x", "y"}
    assert Model(zero, loss, {"w": Table(3, "i")}).fields(COLUMNS) == {"i"}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model(zero, lambda p, b: b["label"]), r"the loss reads 'label'.*'i', 'j', 'x', 'y'"),
        (
            Model(zero, lambda p, b: b["x"], metrics={"m": lambda p, b: b["z"]}),
            "the metric 'm' reads 'z', which is neither",
        ),
        (Model(zero, loss, {"w": Table(3, ("i", "k"))}), r"indexed by \['k'\].*no column"),
    ],
    ids=["loss", "metric", "table"],
)
def test_missing_columns_are_named(model: Model, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.fields(COLUMNS)


def test_a_loss_must_be_one_number_for_each_example() -> None:
    model = Model(zero, lambda p, b: jnp.mean(b["x"] + p["b"]))
    with pytest.raises(InputError, match=r"one number for each example, shape \[batch\]"):
        run_of(fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1)), people())


def test_rows_are_made_one_by_one_from_their_ids() -> None:
    table = Table(10**12, "i", (3,), jax.nn.initializers.normal(1.0))
    key = jax.random.key(4)
    ids = np.array([7, 2**32 + 7, 10**12 - 1, 0])
    together = np.asarray(table.make(key, ids))
    for at, row in enumerate(ids):
        np.testing.assert_array_equal(table.make(key, np.array([row]))[0], together[at])
    assert len(np.unique(together)) == 12


def test_tables_of_one_model_start_differently() -> None:
    normal = jax.nn.initializers.normal(1.0)
    model = Model(zero, loss, {"w": Table(4, "i", init=normal), "v": Table(4, "i", init=normal)})
    params = model.params(jax.random.key(0), {"w": np.arange(4)})
    assert not np.intersect1d(params["w"], params["v"]).size
    assert params["b"].shape == ()


def test_local_leaves_are_not_shared() -> None:
    model = Model(
        lambda k: {"g": jnp.zeros(2), "l": jax.random.normal(k, (2,))},
        lambda p, b: b["x"],
        local="l",
    )
    assert set(model.dense(jax.random.key(0))) == set(model.params(jax.random.key(0), {})) == {"g"}
    assert set(model.fresh(jax.random.key(0))) == {"l"}
    assert not np.array_equal(
        model.fresh(jax.random.key(0))["l"], model.fresh(jax.random.key(1))["l"]
    )
    assert logistic().fresh(jax.random.key(0)) == {}


def test_lookup_gives_zeros_and_no_gradient_for_padding() -> None:
    table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    ids = jnp.array([[1, -1], [-5, 0]])
    assert lookup(table, ids).tolist() == [[[3, 4], [0, 0]], [[0, 0], [1, 2]]]
    assert jax.grad(lambda t: lookup(t, ids).sum())(table).tolist() == [[1, 1], [1, 1]]
    assert jax.grad(lambda t: lookup(t, jnp.array([-1])).sum())(table).tolist() == [[0, 0], [0, 0]]
