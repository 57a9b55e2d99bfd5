"""Attackers against closed forms, and against messages whose content is known."""

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import optax
import pytest
from scipy.stats import norm

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation import attack, reading
from fedslice.evaluation.overheard import overheard
from fedslice.tasks import movielens_lr
from fedslice.tasks.logistic import logistic
from fedslice.types import Algorithm

RATE, WORK = 0.1, fs.Work(steps=3, batch=2)


def two_clients() -> Population:
    """Both hold row 0; rows 1 and 2 are examples of the first, row 3 one of the second."""
    features = np.array([[0, 1], [0, 2], [0, 3]], np.int32)
    label = np.array([1, 0, 1], np.float32)
    return Population.from_arrays([5, 5, 9], features=features, label=label)


def method_of(rows: int, stages: Any = ()) -> Algorithm:
    given = {"weights": "uniform", "stages": list(stages)}
    return fs.recipes.fedavg(logistic(rows), optax.sgd(RATE), WORK, **given)


plain = cache(method_of)  # one and the same value for all runs without stages, traced once


def run_of(population: Population, rows: int, stages: Any = (), **settings: Any) -> Any:
    method = method_of(rows, stages) if stages else plain(rows)
    return fs.simulate(method, population, **({"sampler": fs.sampling.full()} | settings))


def noisy(z: float) -> list[Any]:
    return fs.privacy.central(1.0, z, fs.sampling.poisson(20))


@cache
def few_films() -> fs.tasks.Task:
    return movielens_lr.synthetic(scale=0.02)


def small() -> tuple[Any, Any]:
    task = few_films()
    run = run_of(task.train, task.model.tables["weight"].rows)
    return run, overheard(run)


# -- messages --------------------------------------------------------------------------------------


def test_the_numbers_of_a_message_by_hand() -> None:
    """With one step a row moves by rate (y - 1/2) / (examples of the batch)."""
    method = fs.recipes.fedavg(logistic(4), optax.sgd(RATE), fs.Work(steps=1, batch=2))
    run = fs.simulate(method, two_clients(), sampler=fs.sampling.full())
    read = overheard(run)
    one, two = RATE / 4, RATE / 2  # of clients with two examples, of one
    weights = np.array([2, 1])[:, None]  # by examples, on the client
    expected = weights * np.array([[0, 0, one, -one, 0], [two, two, 0, 0, two]])
    assert np.allclose(read.values, expected, atol=1e-7)
    assert read.sent.tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    assert read.columns == {"bias": slice(0, 1), "weight": slice(1, 5)}


def test_labels_are_read_from_rows_of_one_example() -> None:
    run = run_of(two_clients(), 4)
    read = overheard(run)
    told = reading.telling(run, read, "features")
    assert told.column.tolist() == [2, 3, 4]  # rows 1, 2 and 3, after the bias: row 0 is warmer
    assert told.read(read.values).tolist() == [1, 0, 1]


def test_sums_of_messages_are_what_a_round_adds_up() -> None:
    run, read = small()
    before = run.params()
    run.train(1, progress=False)
    after, mean = run.params(), read.values.mean(0)
    assert np.allclose(after["bias"] - before["bias"], mean[0], atol=1e-6)
    assert np.allclose(after["weight"] - before["weight"], mean[read.columns["weight"]], atol=1e-6)


def test_reading_leaves_a_run_as_it_was() -> None:
    task = movielens_lr.synthetic(scale=0.02)
    ends = []
    for listen in (False, True):
        run = run_of(task.train, task.model.tables["weight"].rows, sampler=fs.sampling.uniform(9))
        if listen:
            overheard(run, round=3)
        run.train(2, progress=False)
        ends.append((np.asarray(run.params()["weight"]), dict(run.planner.capacity)))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_what_is_held_is_what_the_data_mention() -> None:
    run, read = small()
    people, ids = run.population, run.spaces["weight"].ids
    mentioned = np.zeros((len(people), run.model.tables["weight"].rows), bool)
    mentioned[people.owners[:, None], people.columns["features"]] = True
    assert np.array_equal(read.held[:, read.columns["weight"]], mentioned[:, ids])
    assert (read.held | ~read.sent).all()
    assert 0 < read.sent.sum() < read.held.sum()


def test_all_labels_of_real_messages_are_read() -> None:
    run, read = small()
    told = reading.telling(run, read, "features").trained(read)
    found = attack.share(told.read(read.values), told.label)
    assert found.right == 1.0
    assert 0.5 < found.base < 0.8
    assert found.trials > 500


def test_compressed_messages_are_refused() -> None:
    with pytest.raises(InputError, match="without compression"):
        overheard(run_of(two_clients(), 4, [fs.stage.compress(fs.stage.quantise())]))


# -- figures ---------------------------------------------------------------------------------------


def test_the_bound_is_the_best_point_of_its_curve() -> None:
    false = np.linspace(0, 1, 20_001)
    for z in (0.3, 1.0, 2.0):
        power = attack.largest_power(false, z)
        inside = slice(1, -1)
        assert np.allclose(power[inside], norm.cdf(norm.ppf(false[inside]) + 1 / z))
        assert np.max(power - false) == pytest.approx(attack.largest_advantage(z), abs=1e-4)


def test_errors_are_the_spread_of_what_is_measured() -> None:
    """A guess has no advantage on average; over many repetitions figures spread as they say."""
    for shift, gain in ((0.0, 0.0), (1.0, 2 * norm.cdf(0.5) - 1)):
        found = []
        for seed in range(300):
            rng = np.random.default_rng(seed)
            present = rng.random(400) < 0.5
            found.append(attack.measure(rng.normal(shift * present), present, threshold=shift / 2))
        gains, errors, areas, spreads, _ = np.array(found).T
        assert abs(gains.mean() - gain) < 3 * gains.std() / sqrt(300)
        assert gains.std() == pytest.approx(errors.mean(), rel=0.15)
        assert abs(areas.mean() - norm.cdf(shift / sqrt(2))) < 3 * areas.std() / sqrt(300)
        assert areas.std() == pytest.approx(spreads.mean(), rel=0.15)


def test_a_guess_has_no_advantage_when_the_threshold_is_sought() -> None:
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found.append(attack.measure(rng.normal(size=400), rng.random(400) < 0.5).advantage)
    assert abs(np.mean(found)) < 3 * np.std(found) / sqrt(300)


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        attack.measure(np.arange(3.0), np.array([True, False, True]))


# -- membership ------------------------------------------------------------------------------------


def test_a_row_that_only_the_target_holds_is_proof() -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 5))
    values = np.concatenate([shared, np.diag(rng.normal(1, 0.1, 40))], axis=1).astype(np.float32)
    scores, present = attack.membership(values, values != 0, cohort=15, count=400)
    for knowing in attack.KNOWING:
        assert attack.measure(scores[knowing], present).advantage == 1.0


def test_one_row_that_all_hold_hides_who_took_part() -> None:
    """Of 200 equal numbers, about half are added up: one more or less is hardly seen."""
    values = np.ones((200, 1), np.float32)
    scores, present = attack.membership(values, values > 0, cohort=100, count=4000)
    found = attack.measure(scores["data"], present)
    # a normal sum of standard deviation sqrt(199) / 2 moves by 1
    assert found.advantage < 2 * norm.cdf(1 / sqrt(199)) - 1 + 3 * found.error


@pytest.mark.parametrize(("z", "size"), [(0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_the_best_attacker_reaches_the_closed_form(z: float, size: float) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(60, 12)).astype(np.float32)
    values *= size / np.linalg.norm(values, axis=1, keepdims=True)
    held = np.ones(values.shape, bool)
    scores, present = attack.membership(values, held, 20, 6000, noisy(z), seed=3)
    found = attack.measure(scores["everyone"], present, threshold=0.0)
    gain, mu = 2 * norm.cdf(size / z / 2) - 1, size / z
    assert abs(found.advantage - gain) < 3 * found.error
    assert abs(found.auc - norm.cdf(mu / sqrt(2))) < 3 * found.auc_error
    for knowing in ("data", "rows"):
        less = attack.measure(scores[knowing], present)
        assert less.advantage < attack.largest_advantage(z) + 3 * less.error


def test_no_roc_curve_exceeds_the_bound() -> None:
    """At each false positive rate within three standard errors of both rates; and the best attacker
    comes near."""
    z, count = 0.5, 6000
    values = np.eye(50, dtype=np.float32)  # all fill the ball
    scores, present = attack.membership(values, values > 0, 20, count, noisy(z), seed=2)
    for knowing in attack.KNOWING:
        false, true = attack.curve(scores[knowing], present)
        grid = np.arange(0.05, 1, 0.05)
        at = np.searchsorted(false, grid, side="right") - 1
        slack = 3 * np.sqrt(false[at] * (1 - false[at]) / (~present).sum())
        limit = attack.largest_power(np.minimum(false[at] + slack, 1 - 1e-9), z)
        assert (true[at] <= limit + 3 * np.sqrt(limit * (1 - limit) / present.sum())).all()
        if knowing == "everyone":
            assert (attack.largest_power(false[at], z) - true[at] < 0.05).all()


def test_real_messages_under_noise_give_what_their_sizes_say() -> None:
    """|v_i| differs from client to client: the mean of 2 Phi(|v_i| / 2z) - 1."""
    run, _ = small()
    z, drawn = 0.5, fs.sampling.poisson(20)
    stages = fs.privacy.central(0.15, z, drawn)
    rows = run.model.tables["weight"].rows
    read = overheard(run_of(run.population, rows, stages, sampler=drawn))
    sizes = np.linalg.norm(read.values, axis=1)
    assert sizes.max() <= 1 + 1e-5
    assert sizes.min() < 0.99 < sizes.max()
    scores, present = attack.membership(read.values, read.held, 20, 4000, stages, seed=1)
    found = attack.measure(scores["everyone"], present, threshold=0.0)
    assert abs(found.advantage - np.mean(2 * norm.cdf(sizes / z / 2) - 1)) < 3 * found.error


def test_impossible_cohorts_are_refused() -> None:
    values = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match="part of them"):
        attack.membership(values, values > 0, 4, 100)
    with pytest.raises(InputError, match="nothing to look for"):
        attack.membership(0 * values, values > 0, 2, 100)


# -- rows and labels in sums -----------------------------------------------------------------------


def test_a_moved_row_that_one_client_sends_names_it() -> None:
    """Wrong only when that client is among the others of somebody else: cohort / clients."""
    sent = np.eye(50, dtype=bool)
    scores, truth = reading.training(0.1 * sent, sent, np.arange(50), cohort=10, count=4000)
    assert (scores[truth] > 0).all()
    false = np.mean(scores[~truth] > 0)
    assert abs(false - 0.2) < 3 * sqrt(0.2 * 0.8 / (~truth).sum())


def test_rows_that_everyone_sends_cannot_be_asked_about() -> None:
    sent = np.array([[True, True, False], [True, False, False]])
    scores, truth = reading.training(1.0 * sent, sent, np.arange(3), cohort=1, count=200)
    assert (scores[truth] >= 1).all()  # always column 1
    with pytest.raises(InputError, match="by all clients or by none"):
        reading.training(1.0 * sent, sent, np.array([0, 2]), cohort=1, count=200)


def test_labels_in_sums_are_outweighed_as_often_as_chance_says() -> None:
    """One goes up by 1; any of 9 others, each there with probability 1/5, takes it down by 2."""
    values = np.full((10, 1), -2.0, np.float32)
    values[0] = 1
    one = reading.Telling(np.array([0]), np.array([0]), np.array([1]))
    said, truth = reading.from_sums(values, one, cohort=2, count=4000)
    alone = 0.8**9
    assert (truth == 1).all()
    assert abs(said.mean() - alone) < 3 * sqrt(alone * (1 - alone) / 4000)


def test_examples_need_not_come_in_order() -> None:
    values = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
    mixed = reading.Telling(np.array([1, 0, 1]), np.array([1, 0, 1]), np.array([0, 1, 0]))
    said, truth = reading.from_sums(values, mixed, cohort=1, count=300)
    assert (said == truth).all()
    assert abs(truth.mean() - 0.5) < 0.1
