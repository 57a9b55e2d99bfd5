"""Heat by randomised response and by noisy sums, against the formulas and exact enumeration."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import optax
import pytest
from kinds import few
from problems import ROWS, logistic, people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.privacy import heat as heats
from fedslice.privacy.heat import Reports, Response, count, estimate, public, respond, symmetric

REPEATS = 400


def crowd(clients: int = 300, rows: int = 60) -> tuple[fs.Population, fs.Model]:
    """Clients of one to six examples; row m is held by ever fewer of them."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 7, clients)
    item = np.minimum(rng.geometric(0.08, (sizes.sum(), 2)) - 1, rows - 1)
    label = rng.integers(0, 2, len(item)).astype(np.float32)
    population = fs.Population.from_arrays(
        np.repeat(np.arange(clients), sizes), item=item, label=label
    )
    table = fs.Table(rows=rows, fields="item")
    return population, fs.Model(
        lambda key: {}, lambda p, b: (p["w"][b["item"]].sum(1) - b["label"]) ** 2, {"w": table}
    )


def truth(population: fs.Population, model: fs.Model) -> np.ndarray:
    """Clients and examples behind each row of the whole table."""
    exact, found = population.heat(model), np.zeros((model.tables["w"].rows, 2))
    found[exact.ids["w"]] = exact.mass["w"]
    return found


@pytest.mark.parametrize("epsilon", few([0.5, 1.0, 4.0], 1.0))
def test_bias_and_standard_error_are_those_of_the_formula(epsilon: float) -> None:
    """400 draws of 60 rows: the spread of the estimates is the formula's within 3 %, their mean is
    the truth within its error; for clients and for examples."""
    population, model = crowd()
    held, how = truth(population, model), symmetric(epsilon)
    draws = np.stack(
        [estimate(respond(population, model, epsilon, seed)).mass["w"] for seed in range(REPEATS)]
    )
    p1, p2 = how.p1, how.p2
    weights = population.counts.astype(float)
    member = np.zeros((len(population), len(held)))
    for client in range(len(population)):
        span = slice(population.offsets[client], population.offsets[client + 1])
        member[client, np.unique(population.columns["item"][span])] = 1
    for column, w in enumerate((np.ones(len(weights)), weights)):
        inside, outside = w**2 @ member, w**2 @ (1 - member)
        variance = (inside * p1 * (1 - p1) + outside * p2 * (1 - p2)) / (p1 - p2) ** 2
        ratio = draws[:, :, column].var(axis=0).mean() / variance.mean()
        assert abs(np.sqrt(ratio) - 1) < 0.03
        gap = draws[:, :, column].mean(axis=0) - held[:, column]
        assert (np.abs(gap) < 4.5 * np.sqrt(variance / REPEATS)).all()
        told = estimate(respond(population, model, epsilon)).errors["w"][:, column]
        np.testing.assert_allclose(told, np.sqrt(variance), rtol=0.12)


def test_three_clients_enumerated() -> None:
    """All answers of three clients, two of which hold the row: mean and variance by hand."""
    how, holds = Response(0.8, 0.3), (True, True, False)
    mean = square = 0.0
    for yes in product((0, 1), repeat=3):
        chance = 1.0
        for said, held in zip(yes, holds, strict=True):
            p = how.p1 if held else how.p2
            chance *= p if said else 1 - p
        n = float(how.estimate(np.array(sum(yes)), 3))
        mean, square = mean + chance * n, square + chance * n**2
    assert mean == pytest.approx(2)
    assert square - mean**2 == pytest.approx(float(how.variance(np.array(2.0), 3)))


def test_many_answers_are_drawn_in_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many to draw one by one: sums of binomial numbers, with the same mean and spread."""
    population, model = crowd()
    held = truth(population, model)[:, 0]
    monkeypatch.setattr(heats, "EXACT", 0)
    found = [estimate(respond(population, model, 1.0, seed)) for seed in range(400)]
    draws = np.stack([heat.counts("w") for heat in found])
    error = found[0].errors["w"][:, 0]
    assert abs(np.sqrt((draws.var(axis=0) / error**2).mean()) - 1) < 0.03
    assert (np.abs(draws.mean(axis=0) - held) < 4.5 * error / 20).all()
    with pytest.raises(InputError, match="counts clients, not their examples"):
        found[0].coefficient("w", np.arange(3), "examples")


@pytest.mark.parametrize("kind", ["gaussian", "skellam"])
def test_a_noisy_sum(kind: str) -> None:
    """With a cap that nobody reaches it is the truth plus noise of z sqrt(B); with a lower one no
    client counts for more than B rows."""
    population, model = crowd()
    held = truth(population, model)[:, 0]
    most = int(population.spaces(model)["w"].sizes.max())
    draws = np.stack(
        [estimate(count(population, model, 2.0, most, kind, s)).counts("w") for s in range(300)]
    )
    error = 2.0 * np.sqrt(most)
    assert abs((draws - held).std() / error - 1) < 0.03
    assert (np.abs(draws.mean(axis=0) - held) < 4.5 * error / np.sqrt(300)).all()
    if kind == "skellam":
        np.testing.assert_array_equal(draws, np.round(draws))
    capped = count(population, model, 1e-6, 2, seed=1)
    total = np.minimum(population.spaces(model)["w"].sizes, 2).sum()
    assert capped.tally["w"][:, 0].sum() == pytest.approx(total, abs=1e-2)


def test_the_sensitivity_of_the_noisy_sum() -> None:
    """Without one client the sum of capped sets moves by at most sqrt(B), over all tables
    together."""
    population = people()
    model = logistic()
    both = replace(
        model,
        tables={
            "w": fs.Table(rows=ROWS, fields="history"),
            "v": fs.Table(rows=ROWS, fields="item"),
        },
    )
    for most in (1, 3, 5):
        whole = count(population, both, 1e-7, most)
        for client in range(len(population)):
            less = population.select(population.owners != client)
            other = count(less, both, 1e-7, most)
            moved = sum(
                ((whole.tally[name][:, 0] - other.tally[name][:, 0]) ** 2).sum() for name in "wv"
            )
            assert moved <= most + 1e-4


def test_the_coefficient_does_not_believe_noise() -> None:
    ids, mass = {"w": np.arange(4)}, np.array([[-3.0, 0], [2.0, 0], [40.0, 0], [130.0, 0]])
    errors = {"w": np.full((4, 2), 5.0)}
    heat = Heat(100, 100.0, ids, {"w": mass}, errors=errors)
    expected = [100 / 5, 100 / 5, 100 / 40, 1.0]
    np.testing.assert_allclose(heat.coefficient("w", np.arange(4), "uniform"), expected)
    twice = heat._replace(floor=2.0).coefficient("w", np.arange(4), "uniform")
    np.testing.assert_allclose(twice, [10, 10, 2.5, 1])
    precise = heat._replace(errors={"w": np.full((4, 2), 0.01)})
    np.testing.assert_allclose(precise.coefficient("w", np.arange(2), "uniform"), [100, 50])
    few = heat._replace(clients=3, examples=3.0).coefficient("w", np.arange(4), "uniform")
    np.testing.assert_allclose(few, 1)  # an error beyond N


def test_raw_estimates_are_refused() -> None:
    population, model = crowd()
    noisy = estimate(respond(population, model, 1.0))
    with pytest.raises(InputError, match="need their standard errors"):
        noisy._replace(errors={}).coefficient("w", np.arange(60), "uniform")
    with pytest.raises(InputError, match="below one standard error"):
        estimate(respond(population, model, 1.0), floor=0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p, m: respond(p, m, 0.0), "positive number"),
        (lambda p, m: respond(p, m, Response(0.3, 0.4)), "p1 must be larger"),
        (lambda p, m: count(p, m, 0.0, 5), "noise above 0"),
        (lambda p, m: count(p, m, 1.0, 0), "whole number of rows"),
        (lambda p, m: count(p, m, 1.0, 5, "laplace"), "'gaussian' or 'skellam'"),
    ],
)
def test_bad_arguments(make: Any, words: str) -> None:
    population, model = crowd(10)
    with pytest.raises(InputError, match=words):
        make(population, model)


def test_a_table_too_large_to_answer_for() -> None:
    model = fs.Model(
        lambda key: {}, lambda p, b: p["w"][b["item"]], {"w": fs.Table(rows=2**40, fields="item")}
    )
    with pytest.raises(InputError, match="every client would answer for each"):
        respond(fs.Population.from_arrays([0, 1], item=[5, 2**39]), model)


def test_it_says_that_epsilon_is_of_each_row() -> None:
    population, model = crowd(20)
    heat = estimate(respond(population, model, 1.0))
    assert heat.release is not None
    assert "of each row alone" in heat.release.text
    assert heat.release.epsilon == pytest.approx(1.0)
    assert heat.release.multiplier is None
    summed = estimate(count(population, model, 3.0, 8))
    assert summed.release is not None
    assert (summed.release.multiplier, summed.release.epsilon) == (3.0, None)
    assert public(population.heat(model)).release is not None


def test_fedsubavg_takes_it_for_exact_heat() -> None:
    """With no noise to speak of the estimate is exact, and so is the run."""
    population, model = people(), logistic()
    sure = estimate(respond(population, model, 40.0))
    exact = population.heat(model)
    runs = [
        run_of(
            fs.recipes.fedsubavg(model, optax.sgd(0.1), fs.Work(steps=2, batch=4), heat=heat),
            population,
            2,
        )
        for heat in (exact, sure)
    ]
    held = exact.ids["w"]
    for left, right in zip(*(run.table("w", held) for run in runs), strict=True):
        np.testing.assert_array_equal(left, right)
    assert isinstance(respond(population, model, 1.0), Reports)


def test_its_noise_is_not_that_of_the_first_cohort() -> None:
    """default_rng(seed) and default_rng((seed, 0)) are one generator; composing heat and training
    takes them for independent."""
    population, model = crowd()
    told = count(population, model, 1.0, 9, seed=7).tally["w"][:, 0]
    capped = count(population, model, 1e-9, 9, seed=7).tally["w"][:, 0]
    assert not np.allclose(told - capped, np.random.default_rng((7, 0)).normal(0, 3.0, len(told)))
