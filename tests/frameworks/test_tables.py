"""What is a table is seen in the trace; what would silently be read otherwise is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.frameworks.tables import rows_of, tables_of

LEAVES = {"item": np.zeros((9, 2)), "other": np.zeros((9, 2)), "place": np.zeros((3, 2))}
COLUMNS = {
    "item": np.zeros(1, np.int64),
    "seen": np.zeros((1, 3), np.int64),
    "price": np.zeros(1, np.float32),
}


def read(ids: str, table: str = "item") -> Callable[[Any, Any], Any]:
    return lambda p, b: rows_of(p[table], b[ids])


def found(*figures: Callable[[Any, Any], Any], dense: tuple[str, ...] = ()) -> Any:
    return tables_of(lambda p, b: [figure(p, b) for figure in figures], LEAVES, COLUMNS, dense)


@pytest.mark.parametrize(
    "ids",
    [
        lambda seen: seen,
        lambda seen: seen[:, 1:],
        lambda seen: seen[:, 0],
        lambda seen: seen.reshape(-1),
        lambda seen: seen.T[::-1],
        lambda seen: jnp.concatenate([seen, seen], 1),
        lambda seen: jnp.where(seen < 0, -1, seen),
        lambda seen: seen.astype(jnp.int16),
    ],
)
def test_ids_may_move_but_stay_ids(ids: Callable[[Any], Any]) -> None:
    assert found(lambda p, b: rows_of(p["item"], ids(b["seen"]))) == {"item": ("seen",)}


def test_calls_loops_and_vectorised_functions_are_looked_into() -> None:
    def looped(p: Any, b: Any) -> Any:
        add = lambda total, ids: (total + rows_of(p["item"], ids), None)  # noqa: E731
        return jax.lax.scan(add, jnp.zeros((2, 2)), b["seen"].T)[0]

    def vectorised(p: Any, b: Any) -> Any:
        return jax.vmap(lambda ids: rows_of(p["item"], ids))(b["seen"])

    assert found(looped) == found(vectorised) == {"item": ("seen",)}
    assert found(jax.jit(read("item"))) == {"item": ("item",)}
    assert found(jax.checkpoint(read("item"))) == {"item": ("item",)}


def test_what_shares_columns_holds_the_same_rows() -> None:
    figures = read("item"), read("seen"), read("item", "other")
    assert found(*figures) == {"item": ("item", "seen"), "other": ("item", "seen")}
    with pytest.raises(InputError, match="of different sizes"):
        found(read("item"), read("item", "place"))
    with pytest.raises(InputError, match=r"no table \(as dense= says"):
        found(read("item"), read("item", "other"), dense=("other",))
    assert found(read("item"), read("item", "other"), dense=("item", "other")) == {}


def test_a_weight_that_is_read_as_a_whole_is_dense() -> None:
    assert found(read("item"), lambda p, b: jnp.sum(p["item"])) == {}
    assert found(lambda p, b: rows_of(2 * p["item"], b["item"])) == {}


def test_rows_that_are_computed_are_those_of_a_dense_leaf() -> None:
    places = lambda p, b: rows_of(p["place"], jnp.arange(3))  # noqa: E731
    assert found(places, read("item")) == {"item": ("item",)}


@pytest.mark.parametrize("test", [jnp.less, jnp.greater_equal])
def test_padding_may_be_asked_for(test: Callable[[Any, int], Any]) -> None:
    assert found(read("seen"), lambda p, b: test(b["seen"], 0)) == {"item": ("seen",)}


@pytest.mark.parametrize(
    ("figure", "operation"),
    [
        (lambda p, b: b["item"] == 3, "eq"),
        (lambda p, b: b["item"] > 0, "gt"),
        (lambda p, b: b["item"] * b["price"], "convert_element_type"),
        (lambda p, b: b["item"] % 2, "jit|rem"),
        (lambda p, b: jnp.where(b["item"] < 0, 0, b["item"]), "select_n"),
        (lambda p, b: jnp.append(b["item"], 3), "concatenate"),
        (lambda p, b: p["other"][b["item"]], "add|select_n|lt|gather"),
        (lambda p, b: b["item"], "returned as it is"),
    ],
)
def test_ids_that_are_numbers_as_well_are_refused(
    figure: Callable[[Any, Any], Any], operation: str
) -> None:
    with pytest.raises(InputError, match=f"'item' names rows of 'item' and.*({operation})"):
        found(read("item"), figure)
    assert found(figure) == {}


def test_a_name_of_no_leaf_is_refused() -> None:
    with pytest.raises(InputError, match="dense='items' is no leaf"):
        found(read("item"), dense=("items",))
