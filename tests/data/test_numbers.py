"""A client's number: what its randomness hangs on goes with it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import logistic, people, run_of

import fedslice as fs
from fedslice.data.halves import assign
from fedslice.errors import InputError
from fedslice.round.plan import Planner
from fedslice.types import Work

WORKS = [
    Work(steps=3, batch=2),
    Work(epochs=2, batch=2),
    Work(epochs=1, batch=2, part="support"),
    Work(steps=2, batch=2, part="query", split="fresh"),
]


def drawn(population: fs.Population, place: int, round: int) -> list[set[tuple[float, int]]]:
    """The examples, by their values, in the batches of one client."""
    planner = Planner(population, population.spaces(logistic()), WORKS, seed=3)
    plan, _ = planner.plan(round, np.array([place]))
    found = []
    for phase in plan.own.phases:
        batches, steps = phase.batches["x"][0], int(phase.steps[0])
        sizes = phase.sizes[0]
        found.append({(float(x), s) for s in range(steps) for x in batches[s][: sizes[s]]})
    return found


@pytest.mark.parametrize("place", [2, 3, 5, 6])
def test_one_alone_draws_as_among_all(place: int) -> None:
    """Independent batches, shuffled passes, fixed and fresh halves."""
    population = people()
    alone, pair = population.subset(np.array([place])), population.subset(np.array([0, place]))
    assert alone.numbers.tolist() == [place]
    for round in (0, 7):
        assert drawn(population, place, round) == drawn(alone, 0, round) == drawn(pair, 1, round)
    other = drawn(alone.renumbered(), 0, 0)
    assert other[0] != drawn(alone, 0, 0)[0]


def test_halves_go_with_the_client() -> None:
    population = people()
    whole = assign(population, "half")
    for place in range(len(population)):
        alone = population.subset(np.array([place]))
        assert assign(alone, "half").tolist() == whole[population.owners == place].tolist()


def test_numbers_are_kept_by_what_selects_and_not_by_a_split_of_clients() -> None:
    population = people()
    assert population.numbers.tolist() == list(range(7))
    assert population.select(population.columns["x"] > 0).numbers.tolist() == list(range(7))
    assert population.subset(np.array([4, 2])).numbers.tolist() == [2, 4]
    assert population.split(examples=0.3)[1].numbers.tolist() == list(range(7))
    train, test = population.split(clients=0.3)
    assert train.numbers.tolist() == [0, 1, 2, 3, 4]
    assert test.numbers.tolist() == [0, 1]
    assert population.pool().numbers.tolist() == [0]


@pytest.mark.parametrize("numbers", [[0, 0], [1], [-1, 3], [0, 2**31]])
def test_numbers_that_cannot_be_are_refused(numbers: list[int]) -> None:
    people = fs.Population.from_arrays([7, 9], x=[1.0, 2.0])
    with pytest.raises(InputError, match="numbers"):
        fs.Population(people.columns, people.offsets, people.clients, {}, np.array(numbers))


def test_keys_hang_on_numbers() -> None:
    """Local leaves are drawn from a client's key: alone it draws those that it draws among all."""
    model = fs.Model(
        lambda key: {"g": jnp.zeros(()), "l": jax.random.normal(key, ())},
        lambda p, b: (p["g"] + p["l"] - b["x"]) ** 2,
        local="l",
    )
    method = fs.recipes.fedper(model, optax.sgd(0.1), fs.Work(steps=1, batch=8))
    population = people()
    whole = run_of(method, population, 1).memory[0].leaves["l"]
    alone = run_of(method, population.subset(np.array([3])), 1).memory[0].leaves["l"]
    np.testing.assert_allclose(alone[0], whole[3], rtol=1e-6)


def test_plans_tell_numbers_and_places() -> None:
    """Keys hang on the number, memory is kept by place."""
    few = people().subset(np.array([3, 5]))
    planner = Planner(few, few.spaces(logistic()), WORKS, seed=3)
    plan, _ = planner.plan(0, np.array([0, 1]))
    assert plan.own.number.tolist() == [3, 5]
    assert plan.own.place.tolist() == [0, 1]
