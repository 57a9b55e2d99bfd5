"""Figures against NumPy."""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import ROWS, logistic, people, run_of

import fedslice as fs
from fedslice.cli import export
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.scores import Evaluator, Scores
from fedslice.model import Model, Table

METHOD = fs.recipes.fedavg(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=3))


def losses_of(run: Any, population: Population) -> np.ndarray:
    """Cross-entropy of each example with the whole table at hand."""
    columns, table = (
        population.columns,
        np.append(run.table("w", np.arange(ROWS)).astype(float), 0.0),
    )
    dense = run.params()["dense"]
    score = table[columns["item"]].sum(1) + table[columns["history"]].sum(1)
    score += float(dense["slope"]) * columns["x"] + float(dense["bias"])
    return np.logaddexp(0, score) - columns["label"] * score


@pytest.fixture(scope="module")
def run() -> Any:
    return run_of(METHOD, people(counts=(2, 1, 3)), 3)


@pytest.mark.parametrize(
    "chunk",
    [pytest.param(1 << 16, marks=pytest.mark.every), pytest.param(10, marks=pytest.mark.every), 7],
)
def test_pooled_and_by_client(run: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On held-out clients with rows that no training client holds; in one chunk, in several, with a
    partial one."""
    monkeypatch.setattr(
        sys.modules["fedslice.evaluation.scores"], "CHUNK", chunk
    )  # the name is the function's too
    test = people(seed=5)
    unseen = set(test.submodels(("item", "history"), ROWS).ids) - set(run.spaces["w"].ids)
    assert unseen
    losses = losses_of(run, test)
    scores = Evaluator(run.model, test)(run.params(Evaluator(run.model, test).ids()))
    assert scores.pooled["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    means = [losses[test.owners == c].mean() for c in range(len(test))]
    np.testing.assert_allclose(scores.clients["loss"], means, rtol=1e-5)


def test_the_short_way_is_the_long_way(run: Any) -> None:
    test = people(seed=5)
    evaluator = Evaluator(run.model, test)
    whole = evaluator(run.params(evaluator.ids())).pooled
    assert fs.evaluate(run, test).pooled == whole
    assert evaluator.pooled(run.params(evaluator.ids())) == whole
    assert evaluator.pooled(run.params(evaluator.ids()), ["loss"]) == {"loss": whole["loss"]}


def test_an_evaluator_follows_the_training() -> None:
    population = people()
    run = run_of(METHOD, population)
    evaluator = Evaluator(run.model, population)
    seen = []
    for _ in run.rounds(3):
        seen.append(evaluator(run.params(evaluator.ids())).pooled["loss"])
        assert seen[-1] == pytest.approx(losses_of(run, population).mean(), rel=1e-5)
    assert len(set(seen)) == 3


def test_metrics_clients_without_data_and_several_tables() -> None:
    tables = {"a": Table(5, "i", init=lambda k, s: jnp.full(s, 2.0)), "b": Table(7, "j", (2,))}
    model = Model(
        lambda key: {"c": jnp.ones(())},
        lambda p, b: p["a"][b["i"]] + fs.lookup(p["b"], b["j"]).sum((1, 2)) + p["c"] * b["x"],
        tables,
        metrics={"big": lambda p, b: b["x"] > 1},
    )
    population = Population.from_arrays(
        [0, 0, 1, 2], i=[0, 1, 4, 4], j=[[0, -1]] * 4, x=[1.0, 2.0, 3.0, 4.0]
    )
    run = run_of(fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1)), population)
    scores = fs.evaluate(run, population.select(np.array([True, True, False, True])))
    assert scores.pooled == {"loss": pytest.approx(2 + 7 / 3), "big": pytest.approx(2 / 3)}
    np.testing.assert_allclose(scores.clients["loss"], [3.5, np.nan, 6.0])
    np.testing.assert_allclose(scores.clients["big"], [0.5, np.nan, 1.0])


def test_local_leaves_get_first_values() -> None:
    model = Model(
        lambda key: {"g": jnp.zeros(()), "l": jnp.ones(())},
        lambda p, b: p["g"] + p["l"] * b["x"],
        local=("l",),
    )
    population = Population.from_arrays([0, 1], x=[1.0, 3.0])
    run = run_of(fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1)), population)
    assert fs.evaluate(run, population).pooled == {"loss": pytest.approx(2.0)}


def test_nothing_to_evaluate_is_refused(run: Any) -> None:
    """A loss of no examples is no number, which a reader may take for a result."""
    population = people()
    with pytest.raises(InputError, match="no examples to measure on"):
        fs.evaluate(run, population.select(population.owners < 0))


def test_spread_over_clients() -> None:
    values = np.array([3.0, np.nan, 1.0, 2.0, 5.0])
    spread = Scores({"loss": 2.75}, {"loss": values}).spread("loss")
    # percentiles of 1, 2, 3, 5 with linear interpolation: at 0.3, 1.5 and 2.7 of 3 gaps
    expected = {"mean": 2.75, "p10": 1.3, "median": 2.5, "p90": 4.4, "worst": 5.0}
    assert spread == {k: pytest.approx(v) for k, v in expected.items()}
    assert Scores({}, {"auc": values}, frozenset({"auc"})).spread("auc")["worst"] == 1.0
    assert str(Scores({"loss": 0.5, "big": 1.0}, {})) == "loss 0.5000, big 1.0000"


def test_the_worst_client_is_the_one_of_least_accuracy_and_of_largest_error() -> None:
    """A model that says x for every example: the client's share of right answers, AUC and error by
    hand."""
    metrics = {
        "accuracy": lambda p, b: (b["x"] > 0.5) == (b["label"] > 0.5),
        "right": fs.metrics.ratio(
            lambda p, b: ((b["x"] > 0.5) == (b["label"] > 0.5), b["x"] ** 0), more=True
        ),
        "auc": fs.metrics.auc(lambda p, b: b["x"]),
        "rmse": fs.metrics.root(lambda p, b: (b["x"] - b["label"]) ** 2),
    }
    model = fs.Model(
        lambda key: {"m": jnp.zeros(())},
        lambda p, b: (b["x"] - b["label"]) ** 2 + 0 * p["m"],
        {},
        (),
        metrics,
    )
    owner, x = np.repeat([0, 1], 4), np.array([0.1, 0.2, 0.8, 0.9, 0.9, 0.2, 0.8, 0.1], np.float32)
    population = fs.Population.from_arrays(
        owner, x=x, label=np.tile(np.array([0, 0, 1, 1], np.float32), 2)
    )
    scores = fs.Evaluator(model, population)({"m": jnp.zeros(())})
    assert scores.more == {"accuracy", "right", "auc"}
    worst = {name: scores.spread(name)["worst"] for name in scores.clients}
    gaps = (x - np.tile([0, 0, 1, 1], 2))[4:] ** 2
    expected = {
        "loss": gaps.mean(),
        "accuracy": 0.5,
        "right": 0.5,
        "auc": 0.25,
        "rmse": np.sqrt(gaps.mean()),
    }
    assert worst == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}


def test_a_model_that_is_traced_otherwise_for_one_example_is_sized_too() -> None:
    """Some operations vanish for a batch of one, as in the hand-written LSTM."""
    task = fs.tasks.sent140_lstm.synthetic(scale=0.01)
    assert len(fs.Evaluator(task.model, task.test).chunks) >= 1


def test_examples_of_padding_alone_train_and_are_measured() -> None:
    """Then no row is held at all: the model is its bias, whose steps are those of a model without a
    table."""
    fields = {"features": [[-1, -1]] * 3, "label": [1.0, 0.0, 1.0]}
    padding = Population.from_arrays([0, 0, 1], **fields)
    table = Model(
        lambda key: {"b": jnp.zeros(())},
        lambda p, b: (p["b"] + fs.lookup(p["w"], b["features"]).sum(1) - b["label"]) ** 2,
        {"w": Table(5, "features")},
    )
    bias = Model(table.init, lambda p, b: (p["b"] - b["label"]) ** 2)
    heat = padding.heat(table)
    assert len(heat.counts("w")) == 0
    for make in (
        lambda m: fs.recipes.fedavg(m, optax.sgd(0.1), fs.Work(steps=2, batch=1)),
        lambda m: fs.recipes.ditto(m, optax.sgd(0.1), fs.Work(steps=2, batch=1), pull=0.5),
    ):
        one, two = (run_of(make(model), padding, 3) for model in (table, bias))
        assert fs.evaluate(one, padding).pooled == pytest.approx(fs.evaluate(two, padding).pooled)
    fed = run_of(
        fs.recipes.fedsubavg(table, optax.sgd(0.1), fs.Work(steps=2, batch=1), heat=heat), padding
    )
    fed.train(1, progress=False)
    assert export.model_of(fed).tables["w"].heat.tolist() == [0]
