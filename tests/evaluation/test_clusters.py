"""IFCA / HypCluster: k models side by side, every client trains the one that suits it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, logistic, people, run_of

import fedslice as fs
import fedslice.evaluation.clusters
from fedslice.data.halves import query, support
from fedslice.errors import InputError
from fedslice.metrics import auc, root
from fedslice.model import Model, Table

GROUP = np.array([0, 1, 1, 0, 1, 0, 0, 1])  # of each client
OPTIMA = np.array([[2.0, -1.0], [-2.0, 1.5]])


def two_groups(examples: int = 6, seed: int = 0) -> fs.Population:
    """Every example is a noisy look at the optimum of its client's group."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(GROUP)), examples)
    noise = 0.1 * rng.normal(size=(len(owner), 2))
    item = np.tile(np.arange(examples) % 3, len(GROUP))
    target = (OPTIMA[GROUP[owner]] + noise).astype(np.float32)
    return fs.Population.from_arrays(owner, item=item, target=target)


def dense_model() -> Model:
    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return 0.5 * jnp.sum((params["w"] - batch["target"]) ** 2, axis=-1)

    return Model(lambda key: {"w": jnp.zeros(2)}, loss)


def table_model() -> Model:
    """Three rows that all clients hold, the same optimum in each."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return 0.5 * jnp.sum((params["w"][batch["item"]] - batch["target"]) ** 2, axis=-1)

    return Model(lambda key: {}, loss, {"w": Table(rows=5, shape=(2,), fields=("item",))})


@pytest.mark.every
@pytest.mark.parametrize("weights", few(["examples", "uniform"], "examples"))
def test_one_model_is_fedavg(weights: str) -> None:
    """Everyone chooses the only model, and the mean over its clients is the mean over all; it
    starts without noise."""
    settings: dict[str, Any] = {"work": fs.Work(steps=2, batch=4), "weights": weights}
    one = run_of(
        fs.recipes.fedavg(logistic(), optax.sgd(0.3), **settings), people(), 3, rows="held"
    )
    two = run_of(
        fs.recipes.ifca(logistic(), optax.sgd(0.3), models=1, **settings), people(), 3, rows="held"
    )
    assert_params_close(two.params(), one.params())


def test_assign_for_a_model_with_a_tree_of_dense_leaves() -> None:
    run = run_of(
        fs.recipes.ifca(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4), models=2), people()
    )
    losses = [
        scores.clients["loss"] for scores in fedslice.evaluation.clusters.scores(run, people())
    ]
    assert len(losses) == 2
    assert (
        fedslice.evaluation.clusters.assign(run, people()).tolist()
        == np.argmin(losses, axis=0).tolist()
    )


@pytest.mark.parametrize(
    "model",
    [pytest.param(dense_model(), marks=pytest.mark.every), table_model()],
    ids=["dense", "table"],
)
def test_two_planted_groups_are_found(model: Model) -> None:
    """Full local steps of F = 1/2 |x - c|^2: each model goes to its group's optimum, FedAvg's to
    the middle.

    The mean of the eight clients is (OPTIMA[0] + OPTIMA[1]) / 2, at distance |OPTIMA[0] -
    OPTIMA[1]| / 2 from either, so FedAvg's loss is about 1/8 |difference|^2 = 2.8 for everyone,
    IFCA's only the noise: 1/2 * 2 * 0.1^2 = 0.01."""
    train, test = two_groups(seed=0), two_groups(seed=1)
    run = run_of(
        fs.recipes.ifca(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=2), train, 24
    )
    found = fedslice.evaluation.clusters.assign(run, train)
    assert found.tolist() in (GROUP.tolist(), (1 - GROUP).tolist())
    own = fedslice.evaluation.clusters.evaluate(run, train, test)
    average = run_of(
        fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6)), train, 24
    )
    other = fs.evaluate(average, test)
    assert np.all(own.clients["loss"] < 0.05)
    assert np.all(other.clients["loss"] > 1.5)
    assert own.pooled["loss"] == pytest.approx(
        np.average(own.clients["loss"], weights=test.counts), rel=1e-6
    )
    every = run.store.rows(
        lambda state: state.server, {name: space.ids for name, space in run.spaces.items()}
    )["w"]
    models = np.asarray(every if not model.tables else np.swapaxes(every, 0, 1))
    for number in range(2):
        centre = OPTIMA[GROUP[np.flatnonzero(found == number)[0]]]
        np.testing.assert_allclose(
            models[number], np.broadcast_to(centre, models[number].shape), atol=0.15
        )


def test_unseen_clients_choose_by_one_half_and_are_judged_by_the_other() -> None:
    train = two_groups()
    run = run_of(
        fs.recipes.ifca(dense_model(), optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=2),
        train,
        8,
    )
    emptied = train.select(train.owners != 3)
    assert fedslice.evaluation.clusters.assign(run, emptied)[3] == -1
    scored = fedslice.evaluation.clusters.evaluate(run, train.subset(np.arange(4)), train)
    every = [each.clients["loss"] for each in fedslice.evaluation.clusters.scores(run, train)]
    np.testing.assert_allclose(scored.clients["loss"][:4], np.minimum(*every)[:4])
    assert not np.allclose(np.minimum(*every), every[0])
    halves = [query(train, "half"), support(train, "half")]
    judged, chosen_by = (
        [x.clients["loss"] for x in fedslice.evaluation.clusters.scores(run, half)]
        for half in halves
    )
    wanted = np.choose(np.argmin(chosen_by, axis=0), judged)
    np.testing.assert_allclose(scored.clients["loss"][4:], wanted[4:], rtol=1e-6)
    alone = fs.Population.from_arrays(
        [99], target=[[2.0, -1.0]], item=[0]
    )  # no second half to judge it by
    assert np.isnan(fedslice.evaluation.clusters.evaluate(run, train, alone).clients["loss"]).all()


def test_pooled_figures_are_of_examples_not_means_over_clients() -> None:
    """With one model they are those of ``fs.evaluate``: root of the mean square, AUC over all, not
    by client."""
    model, data = table_model(), two_groups()
    label = (data.columns["target"][:, 0] > 0).astype(np.float32)
    data = fs.Population({**data.columns, "label": label}, data.offsets, data.clients)

    def score(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return params["w"][batch["item"]][:, 0] * batch["target"][:, 1]

    both = {"rmse": root(model.loss), "auc": auc(score)}
    model = Model(model.init, model.loss, model.tables, metrics=both)
    run = run_of(
        fs.recipes.ifca(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=1), data, 2
    )
    wanted = fs.evaluate(
        run_of(fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6)), data, 2), data
    )
    found = fedslice.evaluation.clusters.evaluate(run, data, data)
    assert found.pooled == pytest.approx(wanted.pooled, rel=1e-6)
    assert np.isnan(found.clients["auc"]).any()  # clients of one class have none of their own


def test_what_choosing_gains_each_client() -> None:
    """Against the one model that is best for all: those whose model it is gain nothing, the others
    all there is."""
    data = two_groups().subset(
        np.arange(5)
    )  # clients 1, 2 and 4 are of one group, 0 and 3 of the other
    run = run_of(
        fs.recipes.ifca(
            table_model(), optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=2, spread=0.5
        ),
        data,
        24,
    )
    first, second = fedslice.evaluation.clusters.scores(run, data)
    common = first if first.pooled["loss"] < second.pooled["loss"] else second
    gain = fedslice.evaluation.clusters.gain(run, data, data)
    assert gain.before.pooled == pytest.approx(common.pooled, rel=1e-6)
    best = np.minimum(first.clients["loss"], second.clients["loss"])
    np.testing.assert_allclose(
        gain.clients("loss"), common.clients["loss"] - best, rtol=1e-5, atol=1e-7
    )
    assert gain.spread("loss")["share"] == 0.4


def test_local_leaves_are_refused() -> None:
    model = Model(
        lambda key: {"w": jnp.zeros(2), "l": jnp.zeros(())}, dense_model().loss, local="l"
    )
    with pytest.raises(InputError, match="IFCA cannot train a model with local leaves"):
        fs.recipes.ifca(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=2)


@pytest.mark.parametrize(
    "model",
    [pytest.param(dense_model(), marks=pytest.mark.every), table_model()],
    ids=["dense", "table"],
)
def test_a_model_that_nobody_chose_does_not_move(model: Model) -> None:
    """All clients of one group: the nearer model takes all of them, the other keeps its first value
    to the last bit."""
    everyone = two_groups()
    train = everyone.subset(np.flatnonzero(GROUP == 0))
    run = run_of(
        fs.recipes.ifca(model, optax.sgd(0.5), fs.Work(epochs=1, batch=6), models=2, spread=0.5),
        train,
    )
    before = np.asarray(run.store.state.server["w"])
    chosen = np.unique(fedslice.evaluation.clusters.assign(run, train))
    assert len(chosen) == 1
    run.train(3, progress=False)
    after = np.asarray(run.store.state.server["w"])
    axis = 1 if model.tables else 0
    left, right = (np.take(x, 1 - chosen[0], axis=axis) for x in (before, after))
    assert np.array_equal(left, right)
    assert not np.allclose(
        np.take(before, chosen[0], axis=axis), np.take(after, chosen[0], axis=axis), atol=0.1
    )
