"""FedPer, and what clients gain from the models that they keep."""

import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import features, linear, theta_of
from problems import ROWS, people, run_of
from works import works

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import adapted
from fedslice.evaluation.kept_models import Kept, kept
from fedslice.evaluation.scores import Evaluator, Scores
from fedslice.model import Model, Table
from fedslice.simulation.run import Run

ITEMS, SIZE, RATE = 12, 3, 0.1
COUNTS = (6, 1, 9, 4, 2, 7)


def squares(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (
        jnp.sum(params["item"][batch["item"]] * params["user"], -1)
        + params["bias"]
        - batch["rating"]
    ) ** 2


def matrix_model(local: Any = "user") -> Model:
    def init(key: jax.Array) -> dict[str, Any]:
        return {"user": jax.random.uniform(key, (SIZE,)), "bias": jnp.array(0.5)}

    table = Table(rows=ITEMS, fields="item", shape=(SIZE,), init=jax.nn.initializers.normal(0.5))
    return Model(init, squares, {"item": table}, local)


def raters(counts: tuple[int, ...] = COUNTS) -> Population:
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(len(counts)) + 100, counts)
    item = np.concatenate([rng.permutation(ITEMS)[:count] for count in counts])
    return Population.from_arrays(
        owner,
        item=item,
        rating=rng.integers(1, 6, len(owner)) / 2,
        time=rng.permutation(len(owner)),
    )


def fedper(model: Model, **settings: Any) -> Any:
    return fs.recipes.fedper(model, optax.sgd(RATE), **works({"steps": 3, "batch": 2, **settings}))


# -- FedPer ----------------------------------------------------------------------------------------


def reference(run: Run, rounds: int) -> tuple[np.ndarray, float, dict[int, np.ndarray]]:
    """Table, bias, and the vectors of the users that took part, in NumPy."""
    population, columns = run.population, run.population.columns
    table, bias = run.table("item", np.arange(ITEMS)).astype(float), float(run.params()["bias"])
    users: dict[int, np.ndarray] = {}
    for r in range(rounds):
        cohort = run.cohort(r)
        counts = population.counts[cohort]
        examples, sizes, steps = run.planner._examples(0, r, cohort, counts)
        changes = []
        for k, client in enumerate(cohort):
            key = jax.random.fold_in(jax.random.fold_in(run.engine.key, r), client)
            user = users.get(client, np.asarray(run.model.fresh(key)["user"], float))
            mine, level = table.copy(), bias
            for s in range(steps[k]):
                numbers = examples[k, s, : sizes[k, s]]
                items, rows = columns["item"][numbers], mine[columns["item"][numbers]]
                residual = 2 * (rows @ user + level - columns["rating"][numbers]) / len(numbers)
                np.add.at(mine, items, -RATE * residual[:, None] * user)
                user, level = user - RATE * residual @ rows, level - RATE * residual.sum()
            users[client] = user
            changes.append((mine - table, level - bias))
        share = counts / counts.sum()
        table = table + sum(p * change for p, (change, _) in zip(share, changes, strict=True))
        bias += float(sum(p * change for p, (_, change) in zip(share, changes, strict=True)))
    return table, bias, users


@pytest.mark.parametrize(
    "work",
    [{}, pytest.param({"steps": None, "epochs": 1}, marks=pytest.mark.every)],
    ids=["steps", "epochs"],
)
def test_fedper_is_the_reference(work: dict[str, Any]) -> None:
    rounds = 4
    run = run_of(fedper(matrix_model(), **work), raters(), sampler=fs.sampling.uniform(2), seed=5)
    table, bias, users = reference(run, rounds)
    for _ in run.rounds(rounds):
        pass
    np.testing.assert_allclose(run.table("item", np.arange(ITEMS)), table, atol=2e-5)
    assert float(run.params()["bias"]) == pytest.approx(bias, abs=2e-5)
    assert set(run.params()) == {"item", "bias"}
    own = run.memory[0]
    assert 2 < len(users) < len(COUNTS)  # somebody comes twice, somebody never
    assert max(own.rounds) > 1
    for client in range(len(COUNTS)):
        assert (client in users) == (int(own.rounds[client]) > 0)
        if client in users:
            np.testing.assert_allclose(own.leaves["user"][client], users[client], atol=2e-5)
    assert np.abs(users[int(np.argmax(own.rounds))] - table.mean()).max() > 0.1


@pytest.mark.every
def test_local_leaves_fit_what_a_global_model_cannot() -> None:
    """F_i = (g + l_i - a_i)^2: with an l_i of its own every client fits its a_i.  FedAvg draws l_i
    anew in each round: nothing of it stays, and the loss stays at the variance of the a_i."""
    model = Model(
        lambda key: {"g": jnp.zeros(()), "l": jnp.zeros(())},
        lambda p, b: (p["g"] + p["l"] - b["a"]) ** 2,
        local="l",
    )
    a = np.array([3.0, -1.0, 4.0])
    population = Population.from_arrays(np.arange(3), a=a)
    run = run_of(fedper(model), population, 60)
    level, own = float(run.params()["g"]), np.asarray(run.memory[0].leaves["l"])
    np.testing.assert_allclose(level + own, a, atol=1e-4)
    gain = kept(run, population)
    np.testing.assert_allclose(gain.before.clients["loss"], (level - a) ** 2, rtol=1e-4)
    assert gain.after.pooled["loss"] < 1e-6
    fedavg = run_of(
        fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(steps=3, batch=2)), population, 60
    )
    assert fs.evaluate(fedavg, population).pooled["loss"] == pytest.approx(a.var(), rel=1e-3)


def test_a_newcomer_trains_its_local_leaves_alone() -> None:
    run = run_of(fedper(matrix_model()), raters(), 3)
    same = fs.client.reconstruction(run.model, optax.sgd(RATE), fs.Work(steps=3, batch=2))
    assert adapted(run, raters()).after.pooled == adapted(run, raters(), same).after.pooled


def test_fedper_needs_local_leaves() -> None:
    with pytest.raises(
        InputError, match=r"no local leaves to keep: name them, such as Model\(\.\.\., local="
    ):
        fedper(matrix_model(local=()))


# -- what is kept, against NumPy -------------------------------------------------------------------


def assert_scores(scores: Scores, population: Population, errors: np.ndarray) -> None:
    assert scores.pooled["loss"] == pytest.approx(errors.mean(), rel=1e-4)
    sums = np.bincount(population.owners, errors, len(population))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(scores.clients["loss"], sums / population.counts, rtol=2e-4)


@pytest.mark.parametrize("engine", few(["vmap", "map"], "vmap"))
def test_ditto_serves_its_rows_and_the_global_ones_where_it_has_none(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["fedslice.evaluation.kept_models"], "TOGETHER", 3
    )  # cohorts of 3 and a rest
    monkeypatch.setattr(
        sys.modules["fedslice.evaluation.kept_models"], "SCORED", 2
    )  # clients with more examples than are scored at once
    whole = people()
    whole = whole.select(whole.owners != 4)  # a client without any data
    test_only = np.isin(whole.owners, [1])  # one without training data
    held_out = (np.arange(whole.examples) % 3 == 0) & (whole.owners != 5)  # one without test data
    train, test = whole.select(~(held_out | test_only)), whole.select(held_out | test_only)
    method = fs.recipes.ditto(linear(), optax.sgd(0.05), fs.Work(steps=3, batch=2), pull=0.3)
    run = run_of(method, train, 5, sampler=fs.sampling.uniform(2), seed=1)
    taken = np.asarray(run.memory[0].rounds) > 0
    assert 0 < taken.sum() < 5
    served = np.tile(theta_of(run), (len(train), 1))
    space = run.spaces["w"]
    owner, row = np.repeat(np.arange(len(train)), space.sizes), space.ids[space.slots]
    real = taken[owner]
    served[owner[real], row[real]] = np.asarray(run.memory[0].leaves["w"])[real]
    served[taken, ROWS] = np.asarray(run.memory[0].leaves["bias"])[taken]
    inputs, x = features(test), test.columns["x"]
    judge = Kept(run, test, engine=engine)
    assert [len(cohort) for cohort in judge.cohorts] == [3, 2]
    gain = judge()
    assert_scores(gain.before, test, (inputs @ theta_of(run) - x) ** 2)
    assert_scores(gain.after, test, (np.sum(inputs * served[test.owners], 1) - x) ** 2)
    new = (test.spaces(run.model)["w"].sizes > 0) & taken
    mentioned = {
        (i, m)
        for i, m in zip(
            *np.nonzero(np.eye(len(train))[test.owners].T @ inputs[:, :ROWS]), strict=True
        )
    }
    assert any(
        new[i] for i, _ in mentioned - set(zip(owner.tolist(), row.tolist(), strict=True))
    )  # global rows count
    gains = gain.clients("loss")
    assert np.isnan(gains).tolist() == [False, False, False, False, True, True, False]
    assert gains[~taken & ~np.isnan(gains)].tolist() == [0.0] * int(
        (~taken & ~np.isnan(gains)).sum()
    )
    assert np.all(gains[taken & ~np.isnan(gains)] != 0)


def test_fedper_serves_its_own_leaves() -> None:
    train, test = raters().split(time="time", examples=0.4)
    run = run_of(fedper(matrix_model()), train, 3, sampler=fs.sampling.uniform(2), seed=5)
    own = run.memory[0]
    gain = kept(run, test)
    table, bias = run.table("item", np.arange(ITEMS)), float(run.params()["bias"])
    fresh = np.stack(
        [
            run.model.fresh(jax.random.fold_in(jax.random.key(0), client))["user"]
            for client in range(len(test))
        ]
    )
    users = np.where(np.asarray(own.rounds)[:, None] > 0, own.leaves["user"], fresh)
    items, ratings = test.columns["item"], test.columns["rating"]
    for scores, vectors in ((gain.before, fresh), (gain.after, users)):
        assert_scores(
            scores, test, (np.sum(table[items] * vectors[test.owners], 1) + bias - ratings) ** 2
        )
    assert np.isnan(gain.clients("loss")).tolist() == (test.counts == 0).tolist()


@pytest.mark.every
def test_before_is_evaluation_of_the_global_model() -> None:
    train, test = people().split(examples=0.3)
    run = run_of(fs.recipes.ditto(linear(), optax.sgd(0.05), fs.Work(steps=3, batch=2)), train)
    judge = Kept(run, test)
    for rounds in (0, 2, 2):  # prepared once, and it follows the run
        if rounds:
            run.train(rounds, progress=False)
        gain, evaluator = judge(), Evaluator(run.model, test)
        assert gain.before.pooled == pytest.approx(
            evaluator(run.params(evaluator.ids())).pooled, rel=1e-5
        )
        assert (gain.after.pooled == gain.before.pooled) == (run.round == 0)


# -- who gains -------------------------------------------------------------------------------------


@pytest.mark.every
def test_the_gain_over_clients_follows_the_pull() -> None:
    """Each client has a slope of its own: alone it learns it, pulled hard it gets the mean of all,
    which suits few."""
    rng = np.random.default_rng(0)
    slopes, owner = rng.normal(size=40), np.repeat(np.arange(40), 12)
    z = rng.normal(size=480)
    population = Population.from_arrays(owner, z=z, y=slopes[owner] * z)
    model = Model(lambda key: {"s": jnp.zeros(())}, lambda p, b: (p["s"] * b["z"] - b["y"]) ** 2)
    train, test = population.split(examples=0.3, seed=1)
    gains = []
    for pull in (0.0, 1.0, 9.0):
        method = fs.recipes.ditto(model, optax.sgd(0.1), fs.Work(steps=5, batch=4), pull=pull)
        gains.append(kept(run_of(method, train, 20), test).spread("loss"))
    assert gains[0]["mean"] > gains[1]["mean"] > gains[2]["mean"] > 0
    assert gains[0]["share"] > 0.9
    assert gains[0]["worst"] < gains[0]["p10"] < gains[0]["median"] < gains[0]["p90"]


# -- refused ---------------------------------------------------------------------------------------


def test_refused() -> None:
    population = people()
    run = run_of(fs.recipes.ditto(linear(), optax.sgd(0.05), fs.Work(steps=1)), population)
    for other in (
        population.split(clients=0.3)[1],
        population.pool(),
        population.subset(np.arange(6)),
    ):
        with pytest.raises(
            InputError, match="not the 7 of the training, in the same order: split examples"
        ):
            kept(run, other)
    renamed = replace(population, clients=population.clients[::-1])
    with pytest.raises(InputError, match="the 7 clients are not the 7 of the training"):
        kept(run, renamed)
    plain = run_of(fs.recipes.fedavg(linear(), optax.sgd(0.05), fs.Work(steps=1)), population)
    with pytest.raises(
        InputError, match=r"clients of fedavg keep no model of their own: use ditto or fedper"
    ):
        kept(plain, population)


def test_nobody_to_judge() -> None:
    population = people()
    run = run_of(fs.recipes.ditto(linear(), optax.sgd(0.05), fs.Work(steps=1)), population)
    gain = kept(run, population.select(np.zeros(population.examples, bool)))
    assert np.isnan(gain.clients("loss")).all()


def test_the_vector_of_who_never_took_part_is_its_own_wherever_it_is() -> None:
    """Drawn by the client's number, not by its place."""
    population, model = raters(), matrix_model()
    together, alone = (
        Kept(run_of(fedper(model), each, sampler=fs.sampling.full()), each)()
        for each in (population, population.subset(np.array([2])))
    )
    losses = together.before.clients["loss"]
    np.testing.assert_allclose(alone.before.clients["loss"], losses[[2]], rtol=1e-6)
    assert len(np.unique(losses)) == len(losses)
