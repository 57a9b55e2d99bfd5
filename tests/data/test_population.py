"""Clients' data: order, names, splits, samples, and what is refused."""

import datetime
from typing import Any

import numpy as np
import pandas
import pytest
from problems import logistic, people

from fedslice.data.population import Population, numeric
from fedslice.errors import InputError
from fedslice.model import Model, Table


def rows_of(population: Population, column: str = "x") -> dict[object, list[float]]:
    """Each client's values by its name, in order."""
    return {
        name: population.columns[column][a:b].tolist()
        for name, a, b in zip(
            population.clients.tolist(),
            population.offsets[:-1],
            population.offsets[1:],
            strict=True,
        )
    }


def test_clients_are_sorted_and_their_examples_keep_their_order() -> None:
    population = Population.from_arrays([30, 10, 30, 20, 10], x=[0.0, 1.0, 2.0, 3.0, 4.0])
    assert rows_of(population) == {10: [1, 4], 20: [3], 30: [0, 2]}
    assert population.owners.tolist() == [0, 0, 1, 2, 2]
    assert (len(population), population.examples) == (3, 5)


def test_sorted_input_gives_the_same_as_unsorted() -> None:
    owner, x = np.array([1, 1, 4, 4, 4, 9]), np.arange(6.0)
    order = np.array([5, 2, 0, 3, 1, 4])
    one, other = (
        Population.from_arrays(owner, x=x),
        Population.from_arrays(owner[order], x=x[order]),
    )
    assert rows_of(one) == rows_of(other)
    assert one.offsets.tolist() == other.offsets.tolist() == [0, 2, 5, 6]


@pytest.mark.parametrize("kind", [str, object])
def test_names_may_be_text(kind: type) -> None:
    population = Population.from_arrays(np.array(["bob", "ann", "bob"], kind), x=[1, 2, 3])
    assert rows_of(population) == {"ann": [2], "bob": [1, 3]}


def test_split_by_client() -> None:
    whole = people()
    train, test = whole.split(clients=0.3, seed=1)
    assert (len(train), len(test)) == (5, 2)
    assert sorted([*train.clients, *test.clients]) == whole.clients.tolist()
    assert rows_of(train) | rows_of(test) == rows_of(whole)
    again = whole.split(clients=0.3, seed=1)
    assert again[1].clients.tolist() == test.clients.tolist()
    others = {tuple(whole.split(clients=0.3, seed=s)[1].clients.tolist()) for s in range(8)}
    assert len(others) > 3


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_split_by_client_leaves_somebody_on_both_sides(share: float) -> None:
    train, test = Population.from_arrays([1, 2, 3], x=[1, 2, 3]).split(clients=share)
    assert len(train) >= 1
    assert len(test) >= 1


def test_split_by_example() -> None:
    whole = people()
    train, test = whole.split(examples=0.2, seed=4)
    assert test.examples == round(0.2 * whole.examples)
    assert train.clients.tolist() == test.clients.tolist() == whole.clients.tolist()
    joined = {
        name: sorted(rows_of(train)[name] + rows_of(test)[name]) for name in whole.clients.tolist()
    }
    assert joined == {name: sorted(values) for name, values in rows_of(whole).items()}
    assert whole.split(examples=0.2, seed=5)[1].columns["x"].tolist() != test.columns["x"].tolist()


def test_split_by_time_at_a_moment() -> None:
    population = Population.from_arrays([1, 1, 2, 2], t=[10, 20, 15, 21], x=[0, 1, 2, 3])
    train, test = population.split(time="t", at=20)
    assert rows_of(train) == {1: [0, 1], 2: [2]}
    assert rows_of(test) == {1: [], 2: [3]}


def test_split_by_time_takes_each_clients_latest_share() -> None:
    stamps = [5, 1, 3, 2, 4, 9, 7, 8]
    population = Population.from_arrays([1] * 5 + [2] * 3, t=stamps, x=stamps)
    train, test = population.split(time="t", examples=0.4)  # floor(0.4 * 5) = 2, floor(0.4 * 3) = 1
    assert rows_of(train) == {1: [1, 3, 2], 2: [7, 8]}
    assert rows_of(test) == {1: [5, 4], 2: [9]}


def test_equal_times_keep_the_given_order() -> None:
    population = Population.from_arrays([1] * 4, t=[0, 0, 0, 0], x=[1, 2, 3, 4])
    assert rows_of(population.split(time="t", examples=0.5)[1]) == {1: [3, 4]}


def test_split_by_time_knows_seconds_given_as_floats() -> None:
    """32-bit floats of this size are 128 apart: 1,385,000,010 and 1,385,000,020 would be the same
    moment."""
    stamps = np.array([1385000010.0, 1385000020.0])
    train, test = Population.from_arrays([1, 1], t=stamps, x=[0, 1]).split(time="t", at=1385000015)
    assert rows_of(train) == {1: [0]}
    assert rows_of(test) == {1: [1]}


def test_select_keeps_emptied_clients_and_subset_drops_the_others() -> None:
    population = Population.from_arrays([1, 2, 2, 3], x=[1, 2, 3, 4])
    assert rows_of(population.select(population.columns["x"] != 1)) == {1: [], 2: [2, 3], 3: [4]}
    assert rows_of(population.subset(np.array([2, 0]))) == {1: [1], 3: [4]}


def test_emptied_clients_do_not_count_in_heat() -> None:
    model = Model(lambda key: {}, lambda p, b: p["w"][b["x"]], {"w": Table(9, ("x",))})
    population = Population.from_arrays([1, 2, 2, 3], x=[1, 2, 3, 4])
    assert population.heat(model).clients == 3
    assert population.select(population.columns["x"] != 1).heat(model).clients == 2


def test_sample_takes_that_many_examples_of_the_clients_that_have_them() -> None:
    whole = people()
    few = whole.sample(6, seed=1)
    assert few.examples == 6
    assert (few.counts > 0).all()
    assert all(set(values) <= set(rows_of(whole)[name]) for name, values in rows_of(few).items())
    assert whole.sample(10**6).examples == whole.examples
    assert whole.sample(6, seed=2).columns["x"].tolist() != few.columns["x"].tolist()


def test_pool_is_one_client_with_everything() -> None:
    whole = people()
    pooled = whole.pool()
    assert (len(pooled), pooled.examples) == (1, whole.examples)
    assert np.array_equal(pooled.columns["item"], whole.columns["item"])


def test_summary_is_what_it_says() -> None:
    figures = people().summary(logistic())
    assert figures["clients"] == 7
    assert figures["examples"] == 29
    assert figures["examples per client"] == pytest.approx(29 / 7)
    assert figures["rows"] == 24


@pytest.mark.parametrize(
    ("client", "columns", "words"),
    [
        ([1, 2], {"x": [1.0]}, r"'x' has 1 rows.*client has 2"),
        ([1, 2], {"x": [1.0, np.nan]}, r"'x'.*not finite.*example 1.*clean"),
        ([1, 2], {"x": [np.inf, 0.0]}, r"'x'.*not finite.*example 0"),
        ([1, 2], {"x": [1e39, 0.0]}, r"'x'.*(finite|large|32)"),
        ([1, 2], {"x": 3.0}, "'x'"),
        ([1, 2], {"x": ["a", "b"]}, r"'x' holds text.*encodes text"),
        ([1, 2], {"x": np.array(["a", 1], object)}, r"'x' holds text"),
        ([[1], [2]], {"x": [1, 2]}, r"one value for each example"),
    ],
    ids=["length", "nan", "inf", "beyond-float32", "scalar", "text", "object", "client-shape"],
)
def test_bad_data_is_refused_with_advice(
    client: object, columns: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Population.from_arrays(client, **columns)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give one of clients=, examples=, time="),
        ({"clients": 0.1, "examples": 0.1}, "give one of"),
        ({"clients": 0.1, "time": "x", "at": 3}, "give one of"),
        ({"time": "x"}, "give one of"),
        ({"time": "x", "at": 3, "examples": 0.2}, "give one of"),
        ({"at": 3}, "give one of"),
        ({"clients": 1.5}, "share between 0 and 1"),
        ({"examples": 0.0}, "share between 0 and 1"),
        ({"time": "when", "at": 3}, r"no column 'when'.*history, item, label, x"),
    ],
    ids=str,
)
def test_bad_splits_are_refused_with_advice(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        people().split(**arguments)


def test_one_client_cannot_be_held_out() -> None:
    with pytest.raises(InputError, match="at least two"):
        Population.from_arrays([1, 1], x=[1, 2]).split(clients=0.5)


def test_an_empty_population_has_nobody() -> None:
    population = Population.from_arrays([], x=[])
    assert (len(population), population.examples, population.counts.tolist()) == (0, 0, [])


@pytest.mark.parametrize(
    "at",
    [
        pandas.Timestamp(20, unit="s"),
        pandas.Timestamp("1970-01-01 01:00:20", tz="Europe/Paris"),
        datetime.datetime(1970, 1, 1, 0, 0, 20),
        np.datetime64("1970-01-01T00:00:20"),
        "1970-01-01 00:00:20",
    ],
    ids=["pandas", "zone", "datetime", "numpy", "text"],
)
def test_a_moment_to_split_at_may_be_any_kind_of_date(at: Any) -> None:
    population = Population.from_arrays([0, 0, 1], t=[10.0, 20.0, 30.0])
    assert [part.columns["t"].tolist() for part in population.split(time="t", at=at)] == [
        [10, 20],
        [30],
    ]
    with pytest.raises(InputError, match="at='soon': give a number, a datetime"):
        population.split(time="t", at="soon")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"time": "t", "at": 5}, r"training set without examples; 't' goes from 10.0 to 30.0"),
        ({"time": "t", "at": 30}, r"test set without examples; 't' goes"),
        ({"time": "t", "examples": 0.3}, r"test set without examples"),
        ({"examples": 0.1}, r"test set without examples: split otherwise"),
    ],
)
def test_a_split_that_leaves_nothing_on_one_side_is_refused(
    how: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Population.from_arrays([0, 0, 1], t=[10.0, 20.0, 30.0]).split(**how)


def test_many_examples_keep_their_order_too() -> None:
    """Sorts that are not stable are so for a few."""
    owner = np.random.default_rng(0).integers(0, 3, 1000)
    population = Population.from_arrays(owner, x=np.arange(1000))
    assert all(values == sorted(values) for values in rows_of(population).values())


def test_clients_without_data_do_not_count_whatever_is_said_of_them() -> None:
    whole = people()
    emptied = whole.select(whole.owners != 2)
    counts = np.array([5, 1, 7, 2, 9, 1, 3])
    heat = emptied.heat(logistic(), counts)
    assert (heat.clients, heat.examples) == (6, 21)


def test_another_seed_is_another_split_and_another_sample() -> None:
    """Of 29 examples, the same 9 in five of five seeds would be no chance."""
    whole = people()
    for draw in (
        lambda seed: whole.split(clients=0.5, seed=seed)[1].clients,
        lambda seed: whole.split(examples=0.3, seed=seed)[1].columns["x"],
        lambda seed: whole.sample(9, seed=seed).columns["x"],
    ):
        assert len({tuple(np.asarray(draw(seed)).tolist()) for seed in range(5)}) > 1
        assert np.array_equal(draw(3), draw(3))


def test_names_of_rows_go_along() -> None:
    names = {"item": np.array(["a", "b", "c"])}
    whole = Population.from_arrays([0, 0, 1, 2], names, item=[0, 1, 2, 0])
    parts = [
        whole.select(whole.columns["item"] > 0),
        whole.subset(np.array([1])),
        whole.renumbered(),
        whole.sample(2),
        whole.pool(),
        *whole.split(examples=0.5),
        *whole.split(clients=0.5),
    ]
    assert all(part.names["item"] is names["item"] for part in parts)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint32])
def test_whole_numbers_up_to_31_bits_are_computed_with(kind: type) -> None:
    most = 2**31 - 1
    assert numeric("x", np.array([0, most], kind)).tolist() == [0, most]
    with pytest.raises(InputError, match="'x' has whole numbers beyond 32 bits"):
        numeric("x", np.array([0, most + 1], kind))


def test_negative_whole_numbers_too() -> None:
    assert numeric("x", np.array([-(2**31)])).tolist() == [-(2**31)]
    with pytest.raises(InputError, match="beyond 32 bits"):
        numeric("x", np.array([-(2**31) - 1]))
