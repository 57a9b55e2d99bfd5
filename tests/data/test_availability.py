"""Who can be asked: chances against their formulas, chains against their transitions, and what
uneven participation does to a model, in closed form."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.data import availability
from fedslice.errors import InputError, MissingDataError

MANY = 40_000


def close(share, expected, draws=MANY):
    """Within four standard errors of a share of independent draws."""
    assert abs(share - expected) <= 4 * np.sqrt(max(expected * (1 - expected), 1e-9) / draws) + 1e-9


@pytest.mark.parametrize("hour", [0, 5, 12, 17, 29])
def test_a_day_has_its_rhythm(hour):
    when = availability.diurnal(day=24, low=0.1, high=0.7, zones=0.0)
    wave = (1 + np.cos(2 * np.pi * hour / 24)) / 2
    close(when.there(3, hour, MANY).mean(), 0.1 + 0.6 * wave)


def test_around_the_globe_it_is_always_as_late_somewhere():
    when = availability.diurnal(day=24, zones=1.0)
    for hour in (0, 7, 12):
        close(when.there(0, hour, MANY).mean(), 0.5)
    noon, midnight = when.there(0, 0, MANY), when.there(0, 12, MANY)
    close((noon & midnight).mean(), 1 / 8)  # mean over zones of p (1 - p), p = (1 + cos) / 2


@pytest.mark.parametrize(("share", "streak"), [(0.5, 20.0), (0.2, 1.5), (0.9, 10.0)])
def test_streaks_leave_and_come_back_as_often_as_they_should(share, streak):
    when = availability.markov(share, streak)
    before, after = when.there(1, 400, MANY), when.there(1, 401, MANY)
    close(before.mean(), share)
    leave = 1 / streak
    close((~after[before]).mean(), leave, before.sum())
    close(after[~before].mean(), leave * share / (1 - share), (~before).sum())


def test_streaks_know_no_more_of_the_past_than_the_last_round():
    """Given the state of round 11, that of round 10 says nothing about round 12."""
    when = availability.markov(0.5, 4.0)
    ten, eleven, twelve = (when.there(2, number, 4 * MANY) for number in (10, 11, 12))
    for state in (True, False):
        same = eleven == state
        one, two = twelve[same & ten].mean(), twelve[same & ~ten].mean()
        assert abs(one - two) < 4 * np.sqrt(0.25 / (same & ten).sum() + 0.25 / (same & ~ten).sum())


def test_each_client_may_have_its_own_share_and_some_are_always_there():
    shares = np.repeat([0.1, 0.5, 1.0], MANY)
    found = availability.markov(shares, 10.0).there(0, 3, 3 * MANY).reshape(3, MANY).mean(1)
    close(found[0], 0.1)
    close(found[1], 0.5)
    assert found[2] == 1


def test_another_seed_is_another_population_and_the_same_one_is_the_same():
    for when in (
        availability.diurnal(),
        availability.markov(0.5, 3.0),
        availability.sometimes(0.5),
    ):
        again = when.there(0, 9, 1000)
        np.testing.assert_array_equal(again, when.there(0, 9, 1000))
        assert 0.3 < (again != when.there(1, 9, 1000)).mean() < 0.7
        assert not np.array_equal(again, when.there(0, 10, 1000))


PEOPLE = fs.Population.from_arrays(
    ["ana", "bo", "cy", "dee"], centre=np.array([1.0, 3.0, 10.0, 20.0], np.float32)
)
MODEL = fs.Model(
    init=lambda key: {"x": jnp.zeros(())},
    loss=lambda params, batch: 0.5 * (params["x"] - batch["centre"]) ** 2,
)


def trained(sampler, rounds, rate=0.5):
    method = fs.recipes.fedavg(MODEL, optax.sgd(rate), fs.Work(steps=1, batch=1))
    run = fs.simulate(method, PEOPLE, sampler=sampler)
    for _ in run.rounds(rounds):
        pass
    return float(run.params()["x"])


def test_the_model_is_that_of_those_who_come():
    """Of four quadratics, the two that are ever there have their optimum at 2, all four at 8.5."""
    here = fs.sampling.available(fs.sampling.full(), availability.sometimes([1, 1, 0, 0]))
    assert trained(here, 40) == pytest.approx(2.0, rel=1e-5)
    assert trained(fs.sampling.full(), 40) == pytest.approx(8.5, rel=1e-5)


def test_a_trace_says_who_is_there_and_begins_anew(tmp_path):
    file = tmp_path / "stays.csv"
    file.write_text("client,start,end\nana,0,2\nbo,1,3\nana,3,4\nsomebody,0,9\n")
    when = availability.trace(file, PEOPLE)
    seen = [PEOPLE.clients[when.there(0, number, 4)].tolist() for number in range(5)]
    assert seen == [["ana"], ["ana", "bo"], ["bo"], ["ana"], ["ana"]]
    longer = availability.trace(file, PEOPLE, day=10)
    assert not longer.there(0, 7, 4).any()
    # a round without anybody passes, and nothing moves
    sampler = fs.sampling.available(fs.sampling.uniform(2), longer)
    assert trained(sampler, 4) == trained(sampler, 10) != 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,start,end\nana,2,2\n", "line 2: a stay starts"),
        ("client,start,end\nana,0,1\nbo,x,2\n", "line 3.*columns client,start,end"),
        ("who,start,end\nana,0,1\n", "columns client,start,end"),
        ("client,start,end\neve,0,1\n", "none of this population's clients"),
        ("client,start,end\n", "none of this population's clients"),
    ],
)
def test_a_wrong_trace_is_named(tmp_path, text, words):
    file = tmp_path / "stays.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        availability.trace(file, PEOPLE)


def test_no_trace_is_named(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file"):
        availability.trace(tmp_path / "none.csv", PEOPLE)


def test_cohorts_are_drawn_among_those_who_are_there():
    when = availability.diurnal(zones=1.0)
    sampler = fs.sampling.available(fs.sampling.uniform(20), when)
    for number in range(5):
        cohort = sampler.cohort(4, number, np.ones(200))
        assert len(cohort) == len(set(cohort.tolist())) == 20
        assert when.there(4, number, 200)[cohort].all()
    few = fs.sampling.available(fs.sampling.uniform(150), when).cohort(4, 0, np.ones(200))
    np.testing.assert_array_equal(few, np.flatnonzero(when.there(4, 0, 200)))


def test_participation_counts_turns():
    sampler = fs.sampling.available(
        fs.sampling.uniform(10), availability.sometimes(np.repeat([0.0, 0.2, 1.0], 20))
    )
    times, told = availability.participation(
        lambda number: sampler.cohort(0, number, np.ones(60)), 60, 200
    )
    assert times.sum() == 2000
    assert times[:20].sum() == 0
    assert times[40:].mean() > 3 * times[20:40].mean()
    assert told["never"] == pytest.approx(1 / 3)
    gini = np.abs(times[:, None] - times[None]).sum() / (2 * 60 * times.sum())
    assert told["gini"] == pytest.approx(gini)


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="longer streaks"):
        availability.markov(0.9, 2.0)
    with pytest.raises(InputError, match="between 0 and 1"):
        availability.sometimes(1.5)
    with pytest.raises(InputError, match="for 4 clients"):
        availability.sometimes([0.5, 0.5]).there(0, 0, 4)
    with pytest.raises(InputError, match="at least 2"):
        availability.diurnal(day=1)
    with pytest.raises(InputError, match="would no longer draw as it promises"):
        fs.sampling.available(fs.sampling.weighted(3), availability.always())


def test_noise_needs_a_sampler_that_accountants_know():
    here = fs.sampling.available(fs.sampling.uniform(2), availability.always())
    with pytest.raises(InputError, match=r"available\(uniform"):
        fs.privacy.central(clip=1.0, noise=1.0, sampler=here)
