"""Ranking all items: against a plain sort item by item, with what was seen left out, and through
clients who rebuild their vectors."""

import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.client import finetune, reconstruction
from fedslice.data.halves import QUERY, SUPPORT
from fedslice.errors import InputError
from fedslice.evaluation.gain import Personal
from fedslice.evaluation.ranking import NAMES, Pairs, Recommending, ranked
from fedslice.tasks import movielens_mf


def by_hand(scores, seen, good, at):
    """One client after the other, every item sorted."""
    hits, gains = [], []
    for client, mine in enumerate(scores):
        out = {i for c, i in zip(*seen, strict=True) if c == client}
        liked = {i for c, i in zip(*good, strict=True) if c == client} - out
        order = sorted((i for i in range(len(mine)) if i not in out), key=lambda i: -mine[i])
        places = [place for place, item in enumerate(order[:at], 1) if item in liked]
        best = sum(1 / np.log2(1 + place) for place in range(1, min(at, len(liked)) + 1))
        hits.append(float(bool(places)) if liked else np.nan)
        gains.append(sum(1 / np.log2(1 + p) for p in places) / best if liked else np.nan)
    return np.array(hits), np.array(gains)


@pytest.mark.parametrize("at", [1, 3, 50])
def test_figures_are_those_of_sorting_every_item(at):
    rng = np.random.default_rng(at)
    clients, items = 30, 40
    scores = rng.permuted(np.tile(np.arange(items, dtype=float), (clients, 1)), axis=1)
    seen = Pairs(*rng.integers((clients, items), size=(100, 2)).T)
    good = Pairs(*rng.integers((clients, items), size=(60, 2)).T)
    one, two = ranked(scores, seen, good, at), by_hand(scores, seen, good, at)
    np.testing.assert_allclose(one, two, rtol=1e-12)
    assert 0 < np.isnan(one[0]).sum() < clients


def test_of_equal_scores_every_order_is_equally_likely():
    """One good item among n of one score is among the first k with chance k / n."""
    good = Pairs(np.array([0]), np.array([3]))
    none = Pairs(np.zeros(0, int), np.zeros(0, int))
    hits, gains = ranked(np.zeros((1, 8)), none, good, at=2)
    assert hits[0] == pytest.approx(2 / 8)
    assert gains[0] == pytest.approx((1 + 1 / np.log2(3)) / 8)


def test_a_ranking_has_places():
    none = Pairs(np.zeros(0, int), np.zeros(0, int))
    with pytest.raises(InputError, match="at=0"):
        ranked(np.zeros((1, 2)), none, none, at=0)


@pytest.fixture(scope="module")
def trained():
    task = movielens_mf.synthetic(scale=0.02)
    work = fs.Work(steps=10, batch=5)
    method = fs.recipes.fedrecon(task.model, optax.sgd(0.5), work, reconstruction=optax.sgd(0.1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(20))
    run.train(3, progress=False)
    return task, run


def test_clients_rank_all_films_with_the_vectors_that_they_rebuilt(trained):
    task, run = trained
    judge = Personal(task.test, task.adaptation, split="half", leaves=True)
    gain = Recommending(judge, task.catalogue, task.train)(run)
    table = np.asarray(run.params({"item": np.arange(task.model.tables["item"].rows)})["item"])
    people = task.test
    seen, good = (
        Pairs(people.owners[which], people.columns["movie"][which])
        for which in (
            judge.part == SUPPORT,
            (judge.part == QUERY) & (people.columns["rating"] >= 4),
        )
    )
    found = by_hand(gain.local["user"] @ table.T, seen, good, 10)
    for name, each in zip(NAMES, found, strict=True):
        np.testing.assert_allclose(gain.after.clients[name], each, atol=1e-6)
        assert gain.after.pooled[name] == pytest.approx(np.nanmean(each), abs=1e-6)
        assert name in gain.after.more
    # the same judge without a catalogue says the same of ratings
    plain = Personal(task.test, task.adaptation, split="half")(run.params(judge.ids()))
    assert plain.after.pooled["rmse"] == gain.after.pooled["rmse"]


def test_what_the_same_client_rated_in_training_is_not_recommended(trained):
    task, _ = trained
    task = movielens_mf.synthetic(scale=0.02, split="time")
    judge = Personal(task.test, task.adaptation, split="half", leaves=True)
    found = Recommending(judge, task.catalogue, task.train).seen
    pairs = set(zip(task.test.clients[found.client].tolist(), found.item.tolist(), strict=True))
    owners = task.train.clients[task.train.owners].tolist()
    known = set(task.test.clients.tolist())
    rated = zip(owners, task.train.columns["movie"].tolist(), strict=True)
    assert {pair for pair in rated if pair[0] in known} <= pairs


def test_clients_that_change_the_films_are_not_ranked_with_the_common_ones(trained):
    task, run = trained
    tuned = finetune(task.model, optax.sgd(0.1), fs.Work(steps=2))
    judge = Personal(task.test, tuned, split="half", leaves=True)
    gain = Recommending(judge, task.catalogue, task.train)(run)
    assert gain.moved
    assert not set(NAMES) & set(gain.after.pooled)


def test_rebuilding_moves_nothing_but_local_leaves(trained):
    task, run = trained
    rebuilt = reconstruction(task.model, optax.sgd(0.1), fs.Work(steps=2))
    judge = Personal(task.test, rebuilt, split="half", leaves=True)
    gain = judge(run.params(judge.ids()))
    assert not gain.moved
    assert gain.local["user"].shape == (len(task.test), 50)
