"""Figures against their definitions, counted pair by pair."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice import metrics
from fedslice.evaluation.scores import Evaluator


def by_pairs(score: np.ndarray, label: np.ndarray) -> float:
    gaps = score[label == 1][:, None] - score[label == 0]
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0))) if gaps.size else float("nan")


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
