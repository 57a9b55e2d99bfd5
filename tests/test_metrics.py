"""Figures against their definitions, counted pair by pair."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice import metrics
from fedslice.errors import InputError
from fedslice.evaluation.scores import Evaluator


def by_pairs(score: np.ndarray, label: np.ndarray) -> float:
    high, low = score[label == 1][:, None], score[label == 0]
    return float(np.mean((high > low) + 0.5 * (high == low))) if high.size * low.size else np.nan


def model() -> fs.Model:
    def score(params: fs.types.Params, batch: fs.types.Batch) -> jax.Array:
        return jnp.round(batch["x"] * 4) + 0 * params["bias"]

    return fs.Model(
        lambda key: {"bias": jnp.zeros(())},
        lambda p, b: (b["x"] - b["label"]) ** 2 + 0 * p["bias"],
        metrics={
            "auc": metrics.auc(score),
            "rmse": metrics.root(lambda p, b: (b["x"] - b["label"]) ** 2),
            "share": metrics.ratio(lambda p, b: (b["x"], b["x"] + b["label"])),
            "plain": lambda p, b: b["x"],
            "mean": metrics.mean(lambda p, b: b["x"]),
        },
    )


@pytest.fixture
def people() -> fs.Population:
    rng = np.random.default_rng(0)
    owner = np.concatenate([rng.integers(7, size=200), [7], [8, 8]])  # one example; one class
    label = (rng.random(203) < 0.4).astype(np.float32)
    label[-2:] = 1
    return fs.Population.from_arrays(owner, x=rng.random(203).astype(np.float32), label=label)


def test_pooled_and_by_client(people: fs.Population) -> None:
    scores = Evaluator(model(), people)({"bias": jnp.zeros(())})
    x, y = people.columns["x"].astype(np.float64), people.columns["label"]
    expected = {
        "auc": lambda x, y: by_pairs(np.round(x * 4), y),
        "rmse": lambda x, y: np.sqrt(np.mean((x - y) ** 2)),
        "share": lambda x, y: x.sum() / (x + y).sum(),
        "plain": lambda x, y: x.mean(),
        "mean": lambda x, y: x.mean(),
    }
    for name, rule in expected.items():
        assert scores.pooled[name] == pytest.approx(rule(x, y), rel=1e-6)
        each = [rule(x[people.owners == i], y[people.owners == i]) for i in range(len(people))]
        np.testing.assert_allclose(scores.clients[name], each, rtol=1e-5)
    assert np.isnan(scores.clients["auc"][7:]).all()


def test_auc_of_ties_and_of_nothing() -> None:
    area = metrics.auc(lambda p, b: b["x"]).figure
    assert area(np.ones(4), np.array([0, 1, 0, 1])) == 0.5
    assert area(np.arange(4), np.array([0, 0, 1, 1])) == 1.0
    assert np.isnan(area(np.arange(3), np.ones(3)))
    assert np.isnan(area(np.zeros(0), np.zeros(0)))


@pytest.mark.parametrize("kind", ["narrow", "wide", "not a number"])
def test_auc_by_client_is_counted_pair_by_pair(kind: str) -> None:
    """Of scores that are 32-bit numbers or not, ties, both zeros and both signs among them."""
    rng = np.random.default_rng(3)
    score = rng.choice([-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 7.0, np.inf], 400)
    score = np.where(rng.random(400) < 0.3, rng.normal(size=400).astype(np.float32), score)
    score = score * (1.1 if kind == "wide" else 1.0)
    label, owners = rng.integers(0, 2, 400).astype(float), rng.integers(0, 9, 400) * 2
    if kind == "not a number":
        score[::40] = np.nan
        expected = metrics.auc(lambda p, b: b["x"]).grouped(
            np.where(np.isnan(score), np.inf, score * 1.1), label, owners, 18
        )
        known = sorted(set(range(18)) - set(owners[::40].tolist()))
    else:
        finite = np.nan_to_num(score, posinf=1e300, neginf=-1e300)
        expected = np.array([by_pairs(finite[owners == c], label[owners == c]) for c in range(18)])
        known = list(range(18))
    got = metrics.auc(lambda p, b: b["x"]).grouped(score, label, owners, 18)
    np.testing.assert_array_equal(got[1::2], np.full(9, np.nan))
    np.testing.assert_allclose(got[known], expected[known], rtol=1e-12)


@pytest.mark.parametrize("values", [2, 30, 10**6])
def test_auc_over_all_examples_is_counted_pair_by_pair(values: int) -> None:
    """With almost everything tied, some of it, and nothing; of numbers that models compute, of
    longer ones, and of some that are not finite."""
    rng = np.random.default_rng(values)
    score, label = rng.integers(0, values, 500) / 7, rng.integers(0, 2, 500).astype(float)
    figure = metrics.auc(lambda p, b: b["x"]).figure
    below = np.where(rng.random(500) < 0.5, -score, score)  # -0 and 0 are equal
    narrow = below.astype(np.float32).astype(float)
    far = np.where(rng.random(500) < 0.2, rng.choice([-np.inf, np.inf], 500), narrow)
    for each in (score, below, narrow, far):
        assert figure(each, label) == pytest.approx(by_pairs(each, label), rel=1e-12)
    lost = np.where(rng.random(500) < 0.1, np.nan, score)  # NaN is above all, and equal to itself
    assert figure(lost, label) == figure(np.where(np.isnan(lost), 1e9, lost), label)


def test_chunks_do_not_change_a_figure(
    people: fs.Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Evaluator(model(), people)({"bias": jnp.zeros(())})
    monkeypatch.setattr(sys.modules["fedslice.evaluation.scores"], "CHUNK", 20)
    parts = Evaluator(model(), people)
    assert len(parts.chunks) > 5
    assert parts({"bias": jnp.zeros(())}).pooled == pytest.approx(whole.pooled, rel=1e-6)


def test_chunks_are_small_where_the_model_is_wide(people: fs.Population) -> None:
    """A loss that blows an example up to 2^20 numbers inside a loop is scored four examples at a
    time."""

    def loss(params: fs.types.Params, batch: fs.types.Batch) -> jax.Array:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return carry + jnp.sum(jnp.tile(batch["x"][:, None], (1, 1 << 20)), axis=1), None

        return jax.lax.scan(step, jnp.zeros(len(batch["x"])), length=2)[0]

    wide = fs.Model(lambda key: {"unused": jnp.zeros((3000, 3000))}, loss)
    assert len(Evaluator(wide, people).chunks) == -(-people.examples // 4)


def test_noise_is_new_in_each_step_and_absent_from_evaluation() -> None:
    """Gradient = the noise of the step; with rate 1 the update is minus the sum of the steps'
    noises."""

    def loss(params: fs.types.Params, batch: fs.types.Batch) -> jax.Array:
        key = batch.get("step_key")
        noise = 0.0 if key is None else jax.random.normal(key)
        return noise * params["w"] + 0 * batch["x"]

    noisy = fs.Model(lambda key: {"w": jnp.zeros(())}, loss, noisy=True)
    people = fs.Population.from_arrays(np.arange(3), x=np.zeros(3, np.float32))
    moves = []
    for steps in (1, 2):
        method = fs.recipes.fedavg(noisy, optax.sgd(1.0), fs.Work(steps=steps, batch=1))
        run = fs.simulate(method, people, sampler=fs.sampling.full())
        seen = [0.0]
        for _ in run.rounds(2):
            seen.append(float(run.params()["w"]))
        moves.append(np.diff(seen))
        assert fs.evaluate(run, people).pooled["loss"] == 0
    assert len({*np.round(np.abs(np.concatenate(moves)), 6)}) == 4  # by round and by step
    again = fs.simulate(
        fs.recipes.fedavg(noisy, optax.sgd(1.0), fs.Work(steps=1, batch=1)),
        people,
        sampler=fs.sampling.full(),
    )
    again.train(1, progress=False)
    assert float(again.params()["w"]) == pytest.approx(moves[0][0])


def in_all_orders(score: np.ndarray, label: np.ndarray, at: int) -> tuple[float, float]:
    """NDCG and hit rate at k of one client, the mean over all orders that its scores allow."""
    places = range(len(score))
    orders = [
        order
        for order in itertools.permutations(places)
        if all(score[one] >= score[two] for one, two in itertools.pairwise(order))
    ]
    gain = 1 / np.log2(2 + np.arange(at))
    best = gain[: int(min(label.sum(), at))].sum()
    found = [label[list(order)[:at]] for order in orders]
    ndcg = np.mean([np.sum(gain[: len(top)] * top) / best for top in found])
    return float(ndcg), float(np.mean([top.any() for top in found]))


@pytest.mark.parametrize("at", [1, 2, 4, 9])
def test_rankings_are_means_over_all_orders_of_ties(at: int) -> None:
    rng = np.random.default_rng(at)
    sizes = [1, 5, 6, 4, 6]
    owners = np.repeat(np.arange(5), sizes)
    score, label = rng.integers(3, size=22) / 4, rng.integers(2, size=22).astype(float)
    label[owners == 3] = 0  # a client without a positive
    label[0] = 1
    order = rng.permutation(22)
    kinds = metrics.ndcg(lambda p, b: b, at=at), metrics.hit_rate(lambda p, b: b, at=at)
    found = [kind.grouped(score[order], label[order], owners[order], 5) for kind in kinds]
    for client in range(5):
        mine = owners == client
        if not label[mine].any():
            assert all(np.isnan(each[client]) for each in found)
            continue
        expected = in_all_orders(score[mine], label[mine], at)
        np.testing.assert_allclose([each[client] for each in found], expected, rtol=1e-12)


def test_calibration_is_the_mean_gap_of_bins() -> None:
    rng = np.random.default_rng(0)
    chance, owners = rng.random(500), rng.integers(3, size=500)
    label = (rng.random(500) < chance**2).astype(float)
    chance[0] = 1.0  # the end of the last bin
    metric = metrics.calibration(lambda p, b: b, bins=5)
    found = metric.grouped(chance, label, owners, 4)
    for client in range(3):
        mine = owners == client
        total = 0.0
        for low in range(5):
            last = low == 4
            inside = mine & (chance >= low / 5) & ((chance < (low + 1) / 5) | last)
            total += abs(chance[inside].sum() - label[inside].sum())
        assert found[client] == pytest.approx(total / mine.sum())
    assert np.isnan(found[3])
    assert metric.figure(np.array([0.3] * 10), np.array([1.0] * 3 + [0.0] * 7)) == pytest.approx(0)


def test_what_ranks_clients_examples_is_averaged_over_clients() -> None:
    data = fs.Population.from_arrays(
        [0, 0, 1, 1, 2], x=np.array([0.1, 0.9, 0.9, 0.1, 0.5]), label=np.array([0.0, 1, 0, 1, 0])
    )
    ranked = fs.Model(
        lambda key: {"bias": jnp.zeros(())},
        lambda p, b: b["x"] + p["bias"],
        metrics={"hit_rate": metrics.hit_rate(lambda p, b: b["x"], at=1)},
    )
    scores = Evaluator(ranked, data)({"bias": jnp.zeros(())})
    assert scores.pooled["hit_rate"] == 0.5  # one of two clients; the third has no positive
    assert scores.spread("hit_rate")["worst"] == 0.0
    with pytest.raises(InputError, match="1 or more"):
        metrics.ndcg(lambda p, b: b["x"], at=0)
