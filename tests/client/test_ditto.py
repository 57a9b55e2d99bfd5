"""Ditto: the clients' own models against closed forms and NumPy; the global one is FedAvg's."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import dense, features, linear, slope, theta_of
from problems import ROWS, assert_params_close, people, run_of, state_bytes
from works import works

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import adapted
from fedslice.model import Model
from fedslice.simulation.run import Run

RATE, OWN_RATE, PULL = 0.05, 0.08, 0.6


def ditto(model: Model, **settings: Any) -> Any:
    chosen = {"personal": optax.sgd(OWN_RATE), "pull": PULL, "steps": 3, "batch": 2} | settings
    return fs.recipes.ditto(model, optax.sgd(RATE), **works(chosen))


def own_models(run: Run) -> np.ndarray:
    """v_i of every client, table and then bias; NaN where it has no row."""
    leaves, space = run.memory[0].leaves, run.spaces["w"]
    found = np.full((len(run.population), ROWS + 1), np.nan)
    owner = np.repeat(np.arange(len(run.population)), space.sizes)
    found[owner, space.ids[space.slots]] = leaves["w"]
    found[:, ROWS] = leaves["bias"]
    return found


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.every
@pytest.mark.parametrize("pull", few([0.0, 0.7, 50.0], 0.7))
def test_fixed_point_on_quadratics(pull: float) -> None:
    """v_i rests at (A_i + lambda I)^-1 (A_i c_i + lambda w) on S(i): c_i for lambda = 0, close to w
    for a large one."""
    q = fs.tasks.quadratic.random_quadratic(clients=6, rows=8, seed=2)
    method = fs.recipes.ditto(
        q.task.model,
        optax.sgd(0.2),
        fs.Work(steps=3, batch=1),
        personal=optax.sgd(0.8 / (2 + pull)),
        pull=pull,
        heat=q.task.train.heat(q.task.model),
        weights="uniform",
        personal_work=fs.Work(steps=30, batch=1),
    )
    run = run_of(method, q.task.train, 150)
    assert run.train(1, progress=False).update_norm < 1e-5  # w is at rest
    w, space = run.table("w", np.arange(8)), run.spaces["w"]
    for client in range(6):
        mine = slice(*space.offsets[client : client + 2])
        held = space.ids[space.slots[mine]]
        hessian = q.hessians[client][np.ix_(held, held)]
        right = hessian @ q.centres[client, held] + pull * w[held]
        expected = np.linalg.solve(hessian + pull * np.eye(len(held)), right)
        own = np.asarray(run.memory[0].leaves["w"])[mine]
        np.testing.assert_allclose(own, expected, atol=2e-5)
        gap, whole = (np.linalg.norm(v - w[held]) for v in (own, q.centres[client, held]))
        assert gap < 0.1 * whole if pull == 50 else gap > 0.3 * whole


def test_a_newcomer_is_pulled_too() -> None:
    """F_i = a_i (v - c_i)^2 / 2 from w = 2: v = (a c + lambda w) / (a + lambda) in the end."""
    curve, centre = np.array([0.5, 2.0]), np.array([-1.0, 4.0])
    model = Model(
        lambda key: {"x": jnp.array(2.0)}, lambda p, b: b["a"] * (p["x"] - b["c"]) ** 2 / 2
    )
    population = Population.from_arrays([0, 0, 1, 1], a=curve.repeat(2), c=centre.repeat(2))
    run = run_of(ditto(model, personal=optax.sgd(0.3), personal_steps=60, batch=1), population)
    served = (curve * centre + PULL * 2) / (curve + PULL)
    gain = adapted(run, population)
    np.testing.assert_allclose(
        gain.after.clients["loss"], curve * (served - centre) ** 2 / 2, rtol=1e-4
    )
    np.testing.assert_allclose(
        gain.before.clients["loss"], curve * (2 - centre) ** 2 / 2, rtol=1e-4
    )


# -- in NumPy --------------------------------------------------------------------------------------


def reference(run: Run, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The global model and everybody's own one; v_i has all rows here, but those outside S(i) are
    never looked at."""
    population = run.population
    inputs, x, theta = features(population), population.columns["x"], theta_of(run)
    own = np.tile(theta, (len(population), 1))
    works = run.algorithm.client.work
    for r in range(rounds):
        cohort = run.cohort(r)
        counts = population.counts[cohort]
        shared, personal = (
            run.planner._examples(p, r, cohort, counts) for p in (0, len(works) - 1)
        )
        total = np.zeros_like(theta)
        for k, client in enumerate(cohort):
            mine = theta.copy()
            for s in range(shared[2][k]):
                batch = shared[0][k, s, : shared[1][k, s]]
                mine = mine - RATE * slope(mine, inputs[batch], x[batch])
            for s in range(personal[2][k]):
                batch, v = personal[0][k, s, : personal[1][k, s]], own[client]
                own[client] = v - OWN_RATE * (
                    slope(v, inputs[batch], x[batch]) + PULL * (v - theta)
                )
            total += counts[k] * (mine - theta)
        theta = theta + total / counts.sum()
    return theta, own


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="same batches"),
        pytest.param({"epochs": 2, "steps": None}, id="epochs", marks=pytest.mark.every),
        pytest.param({"personal_steps": 5}, id="more steps of its own", marks=pytest.mark.every),
        pytest.param({"personal_epochs": 1}, id="a pass of its own"),
    ],
)
def test_engine_is_the_reference(settings: dict[str, Any]) -> None:
    run = run_of(ditto(linear(), **settings), people(), sampler=fs.sampling.uniform(3), seed=1)
    first, rounds = theta_of(run), 3
    theta, own = reference(run, rounds)
    for _ in run.rounds(rounds):
        pass
    np.testing.assert_allclose(theta_of(run), theta, atol=2e-5)
    found = own_models(run)
    held = ~np.isnan(found)
    np.testing.assert_allclose(found[held], own[held], atol=2e-5)
    taken = np.isin(np.arange(len(found)), np.concatenate([run.cohort(r) for r in range(rounds)]))
    assert 0 < taken.sum() < len(taken)
    assert run.memory[0].rounds.tolist() == [
        sum(i in run.cohort(r) for r in range(rounds)) for i in range(len(found))
    ]
    assert np.array_equal(
        found[~taken][held[~taken]], np.tile(first, (len(found), 1))[~taken][held[~taken]]
    )
    assert np.abs(own[taken] - theta).max() > 0.05


@pytest.mark.every
def test_rows_of_a_slice_are_those_of_the_whole() -> None:
    """With the table as a dense leaf every client keeps all rows; those that it holds are the same.
    The rest is pulled to a global row that it never trained."""
    population = people()
    sparse = run_of(ditto(linear()), population)
    whole = run_of(ditto(dense(sparse.table("w", np.arange(ROWS)))), population)
    for run in (sparse, whole):
        for _ in run.rounds(4):
            pass
    found, other = own_models(sparse), np.asarray(whole.memory[0].leaves["w"])
    held = ~np.isnan(found[:, :ROWS])
    np.testing.assert_allclose(found[:, :ROWS][held], other[held], rtol=2e-5, atol=2e-6)
    sizes = [leaf.size for leaf in jax.tree.leaves(sparse.memory)]
    assert sum(sizes) == held.sum() + 2 * len(population) < other.size  # rows, biases, rounds


@pytest.mark.parametrize(
    "local", [pytest.param((), marks=pytest.mark.every), ("bias",)], ids=["no local", "local bias"]
)
def test_the_global_model_is_fedavgs(local: tuple[str, ...]) -> None:
    model, population, work = replace(linear(), local=local), people(), fs.Work(steps=3, batch=2)
    one = run_of(ditto(model), population, 3)
    two = run_of(fs.recipes.fedavg(model, optax.sgd(RATE), work), population, 3, rows="held")
    assert_params_close(one.params(), two.params(), rtol=0, atol=0)
    assert state_bytes(one) != state_bytes(two)  # the memory


# -- local leaves, failures, refusals --------------------------------------------------------------


def test_local_leaves_are_kept_without_a_pull() -> None:
    """F = (g + l - a)^2 / 2; w stays where it is, at 2, because its rate is 0."""
    model = Model(
        lambda key: {"g": jnp.array(2.0), "l": jax.random.normal(key)},
        lambda params, batch: (params["g"] + params["l"] - batch["a"]) ** 2 / 2,
        local="l",
    )
    method = fs.recipes.ditto(
        model, optax.sgd(0.0), fs.Work(steps=2, batch=1), personal=optax.sgd(OWN_RATE), pull=PULL
    )
    run = run_of(method, Population.from_arrays([0, 1], a=[5.0, -3.0]), 3)
    for client, a in enumerate((5.0, -3.0)):
        key = jax.random.fold_in(
            jax.random.fold_in(run.engine.key, 0), client
        )  # of its first round
        g, local = 2.0, float(model.fresh(key)["l"])
        for _ in range(3 * 2):
            error = g + local - a
            g, local = g - OWN_RATE * (error + PULL * (g - 2)), local - OWN_RATE * error
        own = run.memory[0].leaves
        assert (float(own["g"][client]), float(own["l"][client])) == pytest.approx(
            (g, local), rel=1e-5
        )
    assert set(run.params()) == {"g"}


def test_a_client_whose_own_model_fails_is_counted_and_keeps_what_it_had() -> None:
    population = people()
    run = run_of(ditto(linear(), personal=optax.sgd(1e30), steps=8), population)
    before = jax.tree.map(np.array, run.memory)
    with pytest.raises(fs.errors.DivergedError, match="none of the 7 clients sent a finite update"):
        run.train(1, progress=False)
    assert_params_close(run.memory, before, rtol=0, atol=0)


def test_refused() -> None:
    with pytest.raises(InputError, match=r"pull=-1.0 must not be negative"):
        ditto(linear(), pull=-1.0)
    with pytest.raises(InputError, match="an optax optimizer is needed"):
        ditto(linear(), personal=0.1)
    with pytest.raises(InputError, match="steps=0 must be at least 1"):
        ditto(linear(), personal_steps=0)
