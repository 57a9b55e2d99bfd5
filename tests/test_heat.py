"""Heat and its coefficients against an independent computation."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import ROWS, logistic, people

import fedslice as fs
from fedslice.data import halves
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model, Table
from fedslice.stage import mean


def held_rows(population: Population) -> list[set[int]]:
    return [
        {
            int(i)
            for f in ("item", "history")
            for i in np.ravel(population.columns[f][a:b])
            if i >= 0
        }
        for a, b in zip(population.offsets[:-1], population.offsets[1:], strict=True)
    ]


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_coefficients(weights: str) -> None:
    population = people(counts=(3, 1, 2, 4, 2))
    w = population.counts if weights == "examples" else np.ones(5)
    sets = held_rows(population)
    unheld = set(range(ROWS)) - set().union(*sets)
    assert unheld
    ids = np.random.default_rng(0).permutation(ROWS)
    expected = [
        1.0 if i in unheld else w.sum() / sum(w[c] for c, s in enumerate(sets) if i in s)
        for i in ids.tolist()
    ]
    heat = population.heat(logistic())
    np.testing.assert_allclose(heat.coefficient("w", ids, weights), expected, rtol=1e-6)
    counts = [sum(i in s for s in sets) for i in sorted(set().union(*sets))]
    assert heat.counts("w").tolist() == counts
    assert heat.dispersion == max(counts) / min(counts)
    dense = 2  # a slope and a bias
    assert heat.sparsity == pytest.approx((sum(counts) / 5 + dense) / (len(counts) + dense))


def test_clients_without_data_do_not_count() -> None:
    whole = people()
    emptied = whole.select(whole.owners != 2).heat(logistic())
    without = whole.subset(np.array([0, 1, 3, 4, 5, 6])).heat(logistic())
    assert emptied.clients == without.clients == 6
    for weights in ("uniform", "examples"):
        np.testing.assert_array_equal(
            emptied.coefficient("w", np.arange(ROWS), weights),
            without.coefficient("w", np.arange(ROWS), weights),
        )


def test_clients_count_for_what_they_are_said_to() -> None:
    """Client 3 for nothing: its rows are as if it were not there, and rows that it alone holds are
    nobody's."""
    whole = people()
    counts = np.array([5, 1, 2, 0, 9, 1, 3])
    heat, sets = whole.heat(logistic(), counts), held_rows(whole)
    rows = sorted(set().union(*(held for i, held in enumerate(sets) if counts[i])))
    assert set().union(*sets) > set(rows)
    assert (heat.clients, heat.examples, heat.ids["w"].tolist()) == (6, 21, rows)
    expected = [21 / sum(counts[i] for i, held in enumerate(sets) if row in held) for row in rows]
    np.testing.assert_allclose(
        heat.coefficient("w", np.array(rows), "examples"), expected, rtol=1e-6
    )
    uniform = [
        6 / sum(row in held and counts[i] > 0 for i, held in enumerate(sets)) for row in rows
    ]
    np.testing.assert_allclose(heat.coefficient("w", np.array(rows), "uniform"), uniform, rtol=1e-6)


def test_several_tables_have_their_own_heat() -> None:
    tables = {"a": Table(5, ("i",)), "b": Table(5, ("i",), (2,)), "c": Table(7, ("j",))}
    model = Model(lambda key: {}, lambda p, b: jnp.zeros(len(b["i"])), tables)
    population = Population.from_arrays([0, 0, 1], i=[0, 1, 1], j=[6, 6, 6])
    heat = population.heat(model)
    assert {name: heat.counts(name).tolist() for name in tables} == {
        "a": [1, 2],
        "b": [1, 2],
        "c": [2],
    }
    assert heat.dispersion == 2
    assert heat.sparsity == pytest.approx(
        (1 + 2 + 2 * (1 + 2) + 2) / (2 + 2 * 2 + 1) / 2
    )  # rows of "b" are two numbers
    assert heat.coefficient("b", np.arange(5), "uniform").tolist() == [2, 1, 1, 1, 1]
    assert heat.coefficient("a", np.arange(5), "examples").tolist() == [1.5, 1, 1, 1, 1]


def test_every_row_is_in_the_histogram() -> None:
    heat = people().heat(logistic())
    edges, rows = heat.histogram(bins=5)
    assert rows.sum() == len(heat.counts("w"))
    assert edges[0] == 1
    assert edges[-1] > heat.counts("w").max()


def test_nobody_holds_anything() -> None:
    heat = Heat(0, 0.0, {"w": np.zeros(0, np.int64)}, {"w": np.zeros((0, 2))})
    assert heat.coefficient("w", np.arange(3), "uniform").tolist() == [1, 1, 1]
    assert (heat.dispersion, heat.sparsity) == (1.0, 1.0)


def test_refusals_say_what_to_do() -> None:
    heat = people().heat(logistic())
    with pytest.raises(InputError, match=r"no table 'v'.*'w'.*compute it for this model"):
        heat.coefficient("v", np.arange(3), "uniform")
    with pytest.raises(InputError, match="weights='examples' or 'uniform'"):
        mean(lambda message: message.weight, heat)
    with pytest.raises(InputError, match=r"'size' is not known.*examples.*uniform"):
        mean("size")


def test_heat_of_a_larger_table_is_refused() -> None:
    """Row 9 is the last of ten rows; a table of nine has none.  Where it says how many rows it is
    of, they must be as many."""
    ids, mass = {"w": np.array([3, 9])}, {"w": np.ones((2, 2))}
    heat = Heat(4, 10.0, ids, mass)
    for rows in (10, 11):
        heat.check({"w": rows})
    heat._replace(rows={"w": 10}).check({"w": 10})
    for wrong, rows in ((heat, 9), (heat, 8), (heat._replace(rows={"w": 10}), 11)):
        with pytest.raises(InputError, match=f"another table 'w' than the model's of {rows} rows"):
            wrong.check({"w": rows})
    for tables in ({"v": 10}, {"w": 10, "v": 10}):
        with pytest.raises(InputError, match="the heat is of tables"):
            heat.check(tables)
    with pytest.raises(InputError, match="the model has no tables"):
        heat.check({})


def test_rows_between_and_beyond_the_known_have_no_coefficient() -> None:
    heat = Heat(4, 10.0, {"w": np.array([3, 8])}, {"w": np.array([[2.0, 5.0], [1.0, 2.0]])})
    ids = np.array([9, 8, 7, 3, 2, 0])
    assert heat.coefficient("w", ids, "uniform").tolist() == [1, 4, 1, 2, 1, 1]
    assert heat.coefficient("w", ids, "examples").tolist() == [1, 5, 1, 2, 1, 1]


def test_the_hottest_row_is_in_the_last_bin() -> None:
    """Edges are whole numbers from 1 to one above the largest heat, 21 of them by default if there
    is room."""
    counts = np.array([1.0, 1.0, 2.0, 1000.0])
    heat = Heat(1000, 1e4, {"w": np.arange(4)}, {"w": np.stack([counts, counts], 1)})
    edges, rows = heat.histogram()
    assert (edges[0], edges[-1], rows[0], rows[-1], rows.sum()) == (1, 1001, 2, 1, 4)
    assert np.array_equal(edges, np.unique(np.round(1001 ** (np.arange(21) / 20))))
    assert len(heat.histogram(bins=3)[1]) == 3


def test_heat_of_other_columns_or_another_population_is_refused_where_they_meet() -> None:
    """Rows that it does not know would get coefficient 1 without a word."""

    def model(field: str) -> Model:
        return Model(
            lambda key: {}, lambda p, b: (p["w"][b[field]] - 1) ** 2, {"w": Table(10, field)}
        )

    people = Population.from_arrays([0, 0, 1, 2], item=[0, 1, 2, 0], other=[0, 1, 2, 0])
    ids = Population.from_arrays([0, 1, 2, 3], item=[0, 1, 1, 1])
    few = Population.from_arrays([0, 0, 1], item=[0, 1, 2])

    def start(heat: Heat, fair: bool = False) -> None:
        how: dict[str, Any] = {"work": fs.Work(steps=1, batch=1), "heat": heat}
        own = model("item")
        method = (
            fs.recipes.qffl(own, 0.1, **how)
            if fair
            else fs.recipes.fedsubavg(own, optax.sgd(0.1), **how)
        )
        fs.simulate(method, people, sampler=fs.sampling.full())

    start(people.heat(model("item")))
    for heat, told in (
        (people.heat(model("other")), "counts the ids in other, the model reads it by item"),
        (ids.heat(model("item")), "does not know 1 of the 3 rows of table 'w'.*row 2"),
        (few.heat(model("item")), "with 2 clients, where here 3 have examples"),
    ):
        with pytest.raises(InputError, match=told):
            start(heat)
        with pytest.raises(InputError, match=told):
            start(heat, fair=True)


def test_heat_of_query_examples_may_know_less() -> None:
    model = Model(
        lambda key: {}, lambda p, b: (p["w"][b["item"]] - 1) ** 2, {"w": Table(10, "item")}
    )
    people = Population.from_arrays([0, 0, 1], item=[0, 1, 2], time=[1, 2, 3])
    heat = halves.heat(people, "time", model)
    assert (heat.clients, heat.ids["w"].tolist()) == (1, [1])
    how: dict[str, Any] = {"work": fs.Work(steps=1, batch=1), "inner_rate": 0.1, "split": "time"}
    method = fs.recipes.maml(model, optax.sgd(0.1), heat=heat, first_order=True, **how)
    fs.simulate(method, people, sampler=fs.sampling.full())
