"""Sampling in proportion to examples: what goes with it, what is refused, and the law of unbiased
rounds for it."""

from itertools import product
from typing import Any

import numpy as np
import optax
import pytest
from kinds import few
from linear import features, slope, theta_of
from problems import ROWS, run_of
from test_unbiased import COUNTS, HEAT, MODEL, ONCE, PEOPLE, RATE, Rounds

import fedslice as fs
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.data.sampling import weighted
from fedslice.errors import InputError

R, N = fs.recipes, len(COUNTS)
SGD = optax.sgd(RATE)
PAIR: dict[str, Any] = {"weights": "uniform", "heat": HEAT, "coefficient": "examples"}
METHODS = {
    "fedavg": R.fedavg(MODEL, SGD, weights="uniform", **ONCE),
    "fedsubavg": R.fedsubavg(MODEL, SGD, **PAIR, **ONCE),
    "mime": R.mime(MODEL, SGD, **PAIR, **ONCE),
}


@pytest.mark.parametrize("name", few(METHODS, "fedsubavg"))
def test_the_mean_over_all_draws_is_the_mean_by_examples(name: str) -> None:
    """All N^K draws of K clients, each with its probability: with heat every row moves by the mean
    over its holders weighted by their examples, without by the mean over all clients.  A client
    drawn twice counts twice."""
    rounds = Rounds(METHODS[name], sampler=weighted(3))
    run, share = rounds.run, np.array(COUNTS) / sum(COUNTS)
    start = np.append(run.params()["bias"], run.table("w", np.arange(ROWS))).astype(float)
    inputs, target, owners = features(PEOPLE), PEOPLE.columns["x"], PEOPLE.owners
    inputs = np.roll(inputs, 1, axis=1)  # the bias first, as the leaves of the state are ordered
    own = [(inputs[owners == i], target[owners == i]) for i in range(N)]
    gradients = np.stack([slope(start, *one) for one in own])
    holds = np.stack([one.any(axis=0) for one, _ in own])
    mass = share @ holds if name != "fedavg" else np.ones(ROWS + 1)
    expected = start - RATE * (share @ gradients) / np.where(mass > 0, mass, 1)
    known = np.append(0, 1 + run.spaces["w"].ids)
    for clients in (1, 2):
        found = sum(
            share[list(draw)].prod() * rounds.after(sorted(draw))[: len(known)]
            for draw in product(range(N), repeat=clients)
        )
        np.testing.assert_allclose(found, expected[known], atol=1e-5)


def test_a_client_drawn_twice_is_reported_twice_and_trained_once() -> None:
    run = run_of(METHODS["fedavg"], PEOPLE, sampler=weighted(4), seed=1)
    cohort = run.cohort(0)
    different, times = np.unique(cohort, return_counts=True)
    assert len(different) < len(cohort) == 4
    before = theta_of(run)
    report = next(run.rounds(1))
    assert report.clients == len(different)
    assert report.examples == sum(COUNTS[i] for i in different)
    gaps = features(PEOPLE) @ before - PEOPLE.columns["x"]
    losses = [np.mean(gaps[PEOPLE.owners == i] ** 2) for i in different]
    assert report.loss == pytest.approx(
        np.average(losses, weights=times * np.array(COUNTS)[different]), rel=1e-5
    )


def test_small_clients_get_the_share_of_their_examples() -> None:
    """90 clients of 5 examples and 10 of 500: 450 of 5,450 is .0826.  20 draws in each of 500
    rounds: +- .0028."""
    counts = np.repeat([5, 500], [90, 10])
    drawn = np.concatenate([weighted(20).cohort(0, r, counts) for r in range(500)])
    assert np.mean(drawn < 90) == pytest.approx(450 / 5450, abs=0.01)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (R.fedavg(MODEL, SGD), "size would count twice: use weights='uniform'"),
        (R.fedsubavg(MODEL, SGD, heat=HEAT, weights="uniform"), "give coefficient='examples'"),
        (R.qffl(MODEL, RATE, heat=HEAT), "give coefficient='examples'"),
        (R.scaffold_heat(MODEL, RATE, population=HEAT), "count once a round"),
        (R.feddyn(MODEL, SGD, population=PEOPLE), "count once a round"),
        (R.afl(MODEL, SGD), "count once a round"),
        (
            R.fedavg(
                MODEL,
                SGD,
                weights="uniform",
                stages=[fs.stage.compress(fs.stage.sign(), feedback=True)],
            ),
            "count once a round",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_would_be_wrong_is_refused(method: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fs.simulate(method, PEOPLE, sampler=weighted(2))


def test_a_coefficient_unlike_the_weights_needs_the_sampler() -> None:
    with pytest.raises(InputError, match=r"fits sampling.weighted only"):
        fs.simulate(R.fedsubavg(MODEL, SGD, **PAIR), PEOPLE, sampler=fs.sampling.uniform(2))
    with pytest.raises(InputError, match="coefficient='heat' is not known"):
        fs.stage.mean("uniform", HEAT, coefficient="heat")


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "mime", "qffl", "reptile"])
def test_the_command_line_chooses_the_right_pair(name: str) -> None:
    """``--set sampler=weighted`` alone; asking for weights by examples after it is refused."""
    task = fs.tasks.quadratic.random_quadratic(clients=6, rows=5, seed=2).task
    heat = ["heat=yes"] if name != "fedavg" and "heat" in find_method(name).additions else []
    settings = settings_for(task, name, ["cohort=4", "sampler=weighted", *heat])
    assert settings.values.get("weights", "uniform") == "uniform"  # q-FFL has weights of its own
    method = find_method(name).build(task, settings)
    assert method.stages[-1].coefficient == ("" if name == "fedavg" else "examples")
    fs.simulate(method, task.train, sampler=find_method(name).sampler(settings))
    if name == "fedsubavg":
        wrong = settings.change("weights", "examples")
        with pytest.raises(InputError, match="size would count twice"):
            fs.simulate(find_method(name).build(task, wrong), task.train, sampler=weighted(4))


def test_a_run_with_repeats_goes_on_bit_for_bit(tmp_path: Any) -> None:
    """And the two ways of running clients agree."""
    run, other = (
        run_of(METHODS["fedsubavg"], PEOPLE, 2, sampler=weighted(4), engine=e)
        for e in ("vmap", "map")
    )
    np.testing.assert_allclose(theta_of(run), theta_of(other), rtol=2e-5, atol=2e-6)
    run.save(tmp_path)
    again = run_of(METHODS["fedsubavg"], PEOPLE, sampler=weighted(4))
    again.restore(tmp_path)
    for each in (run, again):
        for _ in each.rounds(2):
            pass
    assert np.array_equal(theta_of(run), theta_of(again))
