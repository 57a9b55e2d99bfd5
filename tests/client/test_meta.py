"""Federated MAML and Reptile, and models between the global and the adapted one."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import features, linear, slope, theta_of
from problems import ROWS, assert_params_close, people, run_of, state_bytes
from works import works

import fedslice as fs
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.client import finetune, interpolate
from fedslice.data import halves
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import adapted
from fedslice.model import Model
from fedslice.simulation.run import Run

ALPHA, RATE = 0.3, 0.2
ORDERS = pytest.mark.parametrize("first_order", [True, False], ids=["first order", "full"])
# Where the two differ in nothing but a term that other tests check, one of them is enough.
FIRST, FULL = (
    pytest.mark.parametrize("first_order", few([True, False], kept), ids=["first order", "full"])
    for kept in (True, False)
)


def maml(model: Model, rate: float = RATE, **settings: Any) -> Any:
    return fs.recipes.maml(model, optax.sgd(rate), **works({"inner_rate": ALPHA, **settings}))


# -- one number, F_i = a_i (x - c_i)^2 / 2 ---------------------------------------------------------

CURVES, CENTRES = np.array([0.5, 1.0, 2.0]), np.array([-2.0, 1.0, 3.0])


def parabolas(start: float = 0.0) -> Model:
    return Model(
        lambda key: {"x": jnp.array(start)},
        lambda params, batch: batch["a"] * (params["x"] - batch["c"]) ** 2 / 2,
    )


def owners(times: int = 2) -> Population:
    return Population.from_arrays(
        np.repeat(np.arange(3), times), a=CURVES.repeat(times), c=CENTRES.repeat(times)
    )


@ORDERS
def test_fixed_point_on_parabolas(first_order: bool) -> None:
    """w' - c = (1 - alpha a)(w - c), so the steps rest where sum_i a_i (1 - alpha a_i)^p (w - c_i)
    = 0; p = 1 for the gradient at w', and one more for I - alpha H."""
    run = run_of(maml(parabolas(), 0.5, first_order=first_order, steps=1, batch=1), owners(), 80)
    weight = CURVES * (1 - ALPHA * CURVES) ** (1 if first_order else 2)
    assert float(run.params()["x"]) == pytest.approx(
        (weight * CENTRES).sum() / weight.sum(), abs=1e-5
    )
    other = (CURVES * CENTRES).sum() / CURVES.sum()
    assert abs(float(run.params()["x"]) - other) > 0.3  # where FedAvg rests


@pytest.mark.every
def test_full_maml_is_the_best_to_start_from() -> None:
    """It minimises the mean of F_i(w - alpha grad F_i(w)); FOMAML does not, and FedAvg minimises
    that of F_i."""
    work = fs.Work(steps=1, batch=1)
    full, first = (maml(parabolas(), 0.5, first_order=order, work=work) for order in (False, True))
    fedavg = fs.recipes.fedavg(parabolas(), optax.sgd(0.5), work)
    after = []
    for method in (full, first, fedavg):
        gain = adapted(run_of(method, owners(), 80), owners(), full.client.adapt)
        after.append(gain.after.pooled["loss"])
        assert gain.spread("loss")["share"] == 1.0
    assert after[0] < after[1] - 0.01 < after[2] - 0.01
    weight = CURVES * (1 - ALPHA * CURVES) ** 2
    best = (weight * CENTRES).sum() / weight.sum()
    assert after[0] == pytest.approx(np.mean(weight * (best - CENTRES) ** 2) / 2, rel=1e-4)


@pytest.mark.every
@ORDERS
@pytest.mark.parametrize("split", few(["half", "none"], "half"))
def test_without_an_inner_step_it_is_fedavg_on_query(first_order: bool, split: str) -> None:
    model, population = linear(), people()
    query = population if split == "none" else halves.query(population, split)
    method = maml(
        model,
        inner_rate=0.0,
        first_order=first_order,
        split=split,
        epochs=2,
        batch=16,
        weights="examples",
    )
    one = run_of(method, population, 3)
    two = run_of(fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(epochs=2, batch=16)), query, 3)
    everything = {"w": np.arange(ROWS)}
    assert_params_close(one.params(everything), two.params(everything))


# -- on a slice of the model, in NumPy -------------------------------------------------------------


def reference(run: Run, rounds: int, first_order: bool) -> np.ndarray:
    inputs, x, theta = features(run.population), run.population.columns["x"], theta_of(run)
    for r in range(rounds):
        cohort, pools = run.cohort(r), run.planner.pools
        (near, near_sizes, near_steps), (far, far_sizes, far_steps) = (
            run.planner._examples(p, r, cohort, pools[p].counts[cohort]) for p in (0, 1)
        )
        changes = []
        for k in np.flatnonzero(pools[1].counts[cohort]):
            mine = theta.copy()
            for j in range(far_steps[k]):
                i = j % max(1, near_steps[k])
                s, q = near[k, i, : near_sizes[k, i]], far[k, j, : far_sizes[k, j]]
                meta = slope(mine - ALPHA * slope(mine, inputs[s], x[s]), inputs[q], x[q])
                if not first_order:
                    meta = meta - ALPHA * 2 * inputs[s].T @ (inputs[s] @ meta) / max(1, len(s))
                mine = mine - RATE / 4 * meta
            changes.append(mine - theta)
        theta = theta + np.mean(changes, axis=0)
    return theta


def lonely(population: Population) -> np.ndarray:
    """A half each, but client 3 has no support, and of client 5 some examples are in neither."""
    part = np.arange(population.examples) % 2
    part[population.owners == 3] = 0
    part[np.flatnonzero(population.owners == 5)[:2]] = -1
    return part


@pytest.mark.parametrize(
    ("settings", "first_order"),
    [
        pytest.param(
            settings,
            first_order,
            id=f"{name}-{'first order' if first_order else 'full'}",
            marks=[] if usual is first_order else [pytest.mark.every],
        )
        for name, settings, usual in (
            ("steps", {"steps": 3, "batch": 2}, False),
            # of 5 examples 3 support, 2 query: 2 batches against 1
            ("epochs", {"epochs": 2, "batch": 2}, None),
            ("none", {"steps": 3, "batch": 2, "split": "none"}, None),
            ("function", {"epochs": 2, "batch": 1, "split": lonely}, True),
        )
        for first_order in (True, False)
    ],
)
def test_engine_is_the_reference(settings: dict[str, Any], first_order: bool) -> None:
    population, rounds = people(), 3
    method = maml(linear(), RATE / 4, first_order=first_order, **settings)
    run = run_of(method, population, sampler=fs.sampling.uniform(5), seed=3)
    first = theta_of(run)
    expected = reference(run, rounds, first_order)
    assert [report.failed for report in run.rounds(rounds)] == [0] * rounds
    np.testing.assert_allclose(theta_of(run), expected, atol=2e-5)
    assert np.abs(expected - first).max() > 0.05


@ORDERS
@pytest.mark.parametrize("split", few(["time", "none"], "time"))
def test_first_order_sends_query_rows_and_full_both(first_order: bool, split: str) -> None:
    """Each client reads a row of its own for support and another for query; the Hessian couples
    them by the bias."""
    rows = np.arange(8)[:, None]
    population = Population.from_arrays(
        np.repeat(np.arange(4), 2), history=rows, x=rows[:, 0] / 4, time=rows[:, 0] % 2
    )
    run = run_of(
        maml(linear(), first_order=first_order, split=split, epochs=1, batch=2), population
    )
    before = run.table("w", np.arange(8))
    (report,) = run.rounds(1)
    moved = run.table("w", np.arange(8)) != before
    both = split == "none" or not first_order
    assert moved.tolist() == [both, True] * 4
    # values and numbers of rows, in the first round the numbers of all 8 rows of the S(i), and what
    # a message without rows has, with the bias
    wire, none = run.shapes.wire, {"w": 0}
    heads = 4 * (wire.up(none) + wire.slice(none))
    assert report.bytes_up == (4 + 4) * (8 if both else 4) + 4 * 8 + heads


# -- local leaves, noise, corrections --------------------------------------------------------------


@FULL
def test_local_leaves_take_both_steps_and_stay(first_order: bool) -> None:
    """F = (g + l - a)^2 / 2.  With e the support error, both leaves move by -alpha e.  Left of the
    query error is then r = g + l - 2 alpha e - q, and through the step (I - alpha H) r, H all ones:
    (1 - 2 alpha) r."""
    model = Model(
        lambda key: {"g": jnp.array(2.0), "l": jnp.array(0.5)},
        lambda params, batch: (params["g"] + params["l"] - batch["a"]) ** 2 / 2,
        local="l",
    )
    population = Population.from_arrays([0, 0], a=[1.0, 5.0], time=[0, 1])
    run = run_of(
        maml(model, first_order=first_order, split="time", steps=2, batch=1), population, 1
    )
    g, local = 2.0, 0.5
    for _ in range(2):
        r = g + local - 2 * ALPHA * (g + local - 1) - 5
        step = RATE * r * (1 if first_order else 1 - 2 * ALPHA)
        g, local = g - step, local - step
    assert float(run.params()["g"]) == pytest.approx(g, rel=1e-5)
    assert set(run.params()) == {"g"}
    assert jax.tree.leaves(run.memory) == []


@pytest.mark.every
def test_noise_differs_between_support_and_query() -> None:
    """F = n x + x^2 / 2, n drawn anew: x' = x - alpha (n_s + x), the step is rate (n_q + x')."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        noise = jax.random.normal(batch["step_key"]) if "step_key" in batch else 0.0
        return noise * params["x"] + params["x"] ** 2 / 2 + 0 * batch["a"]

    model = Model(lambda key: {"x": jnp.array(1.0)}, loss, noisy=True)
    run = run_of(maml(model, steps=1, batch=1), Population.from_arrays([0, 0], a=[1.0, 1.0]), 1)
    client = jax.random.fold_in(jax.random.fold_in(run.engine.key, 0), 0)
    key = jax.random.fold_in(
        jax.random.fold_in(jax.random.fold_in(client, 0), 1), 0
    )  # noise, phase 1, step 0
    near, far = (float(jax.random.normal(k)) for k in (jax.random.fold_in(key, 1), key))
    assert float(run.params()["x"]) == pytest.approx(
        1 - RATE * (far + 1 - ALPHA * (near + 1)), rel=1e-5
    )


def test_it_composes() -> None:
    """A proximal term pulls to the offer, a schedule scales the step, weights by examples count
    query examples."""
    population = Population.from_arrays(
        [0, 0, 1, 1, 1, 1], a=np.ones(6), c=np.array([2.0, 2.0, -1.0, -1.0, -1.0, -1.0])
    )
    rule = optax.chain(
        fs.client.proximal(0.5), optax.sgd(RATE), fs.client.by_round(lambda done: 1 / (1 + done))
    )
    work = fs.Work(steps=2, batch=1)
    method = fs.recipes.maml(parabolas(), rule, work, inner_rate=ALPHA, weights="examples")
    run = run_of(method, population, 2)
    x = 0.0
    for r in range(2):
        ends = []
        for c in (2.0, -1.0):
            mine = x
            for _ in range(2):
                mine -= RATE / (1 + r) * ((1 - ALPHA) * (mine - c) + 0.5 * (mine - x))
            ends.append(mine)
        x = (1 * ends[0] + 2 * ends[1]) / 3
    assert float(run.params()["x"]) == pytest.approx(x, rel=1e-5)


def test_to_adapt_is_one_inner_step() -> None:
    run = run_of(maml(parabolas(), steps=1, batch=8, split="none"), owners(4), 1)
    x = float(run.params()["x"])
    gain = adapted(run, owners(4))
    np.testing.assert_allclose(
        gain.after.clients["loss"],
        CURVES * ((1 - ALPHA * CURVES) * (x - CENTRES)) ** 2 / 2,
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        gain.before.clients["loss"], CURVES * (x - CENTRES) ** 2 / 2, rtol=1e-4
    )


def test_refused() -> None:
    with pytest.raises(InputError, match=r"inner_rate=-0.1 must not be negative"):
        maml(linear(), inner_rate=-0.1)
    with pytest.raises(InputError, match="split='thirds' is not known"):
        maml(linear(), split="thirds")
    with pytest.raises(InputError, match="its halves must be fixed"):
        maml(linear(), split="fresh", first_order=False)
    with pytest.raises(InputError, match="an optax optimizer is needed"):
        fs.recipes.maml(linear(), 0.1, inner_rate=0.1)  # type: ignore[arg-type]


# -- Reptile ---------------------------------------------------------------------------------------


def test_reptile_is_fedavg_with_uniform_weights_and_a_server_rate() -> None:
    model, population, work = linear(), people(), fs.Work(steps=3, batch=2)
    one = run_of(fs.recipes.reptile(model, optax.sgd(RATE), work, server_rate=0.4), population, 3)
    two = run_of(
        fs.recipes.fedavg(model, optax.sgd(RATE), work, server=optax.sgd(0.4), weights="uniform"),
        population,
        3,
    )
    assert state_bytes(one) == state_bytes(two)
    gains = [
        adapted(run, population, how)
        for run, how in ((one, None), (two, finetune(model, optax.sgd(RATE), work)))
    ]
    assert gains[0].after.pooled == gains[1].after.pooled != gains[0].before.pooled


def test_reptile_with_a_falling_rate() -> None:
    """One step of rate 1 is at c_i; the server goes 1 / 2 of the way to their mean, then 1 / 4 of
    it."""
    rate = optax.linear_schedule(0.5, 0.0, 2)
    method = fs.recipes.reptile(
        parabolas(5.0), optax.sgd(1.0), fs.Work(steps=1, batch=1), server_rate=rate
    )
    population = owners().select(owners().owners == 1)
    assert float(run_of(method, population, 1).params()["x"]) == pytest.approx(3.0)
    assert float(run_of(method, population, 2).params()["x"]) == pytest.approx(2.5)


# -- between the global and the adapted model ------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_interpolation_on_parabolas(share: float) -> None:
    """The adapted model is (1 - alpha a) of the way from c to x."""
    run = run_of(fs.recipes.fedavg(parabolas(0.7), optax.sgd(RATE)), owners())
    tuned = finetune(parabolas(), optax.sgd(ALPHA), fs.Work(steps=1, batch=1))
    gain = adapted(run, owners(), interpolate(tuned, share))
    served = share * ((1 - ALPHA * CURVES) * (0.7 - CENTRES) + CENTRES) + (1 - share) * 0.7
    np.testing.assert_allclose(
        gain.after.clients["loss"], CURVES * (served - CENTRES) ** 2 / 2, rtol=1e-4
    )
    if share in (0, 1):
        plain = adapted(run, owners(), tuned)
        assert gain.after.pooled == (plain.after if share else plain.before).pooled


def test_interpolation_leaves_local_leaves_as_adapted() -> None:
    model, population = replace(linear(), local=("bias",)), people()
    run = run_of(fs.recipes.fedavg(model, optax.sgd(RATE)), population)
    params = run.params()
    batches, one = {"history": jnp.array([[[0, 1]]]), "x": jnp.ones((1, 1))}, jnp.array(1)
    phase = fs.types.Phase(batches, one[None], one, one, jnp.ones(()))
    tuned = finetune(model, optax.sgd(RATE), fs.Work(steps=1, batch=1))
    whole = tuned.apply(params, phase, jax.random.key(0))
    mixed = interpolate(tuned, 0.25).apply(params, phase, jax.random.key(0))
    assert float(mixed["bias"]) == float(whole["bias"]) != pytest.approx(0.3)
    np.testing.assert_allclose(mixed["w"], 0.25 * whole["w"] + 0.75 * params["w"], rtol=1e-6)
    assert not np.allclose(whole["w"], params["w"])
    for share in (-0.1, 1.5):
        with pytest.raises(
            InputError, match=f"share={share} of the adapted model must be between 0"
        ):
            interpolate(tuned, share)


# -- heat ------------------------------------------------------------------------------------------


@FIRST
def test_with_heat_a_row_moves_by_its_holders_mean_weighted_by_query(first_order: bool) -> None:
    """All clients, one step each, weights by query examples: sum_{holders} |q_i| change_i /
    sum_{holders} |q_i|. Holders are the clients with a query that send the row: of query, and in
    full MAML of support too."""
    model, population = linear(), people()
    query = halves.query(population, "half")
    heat = query.heat(model) if first_order else population.heat(model, query.counts)
    method = maml(
        model, RATE / 4, first_order=first_order, heat=heat, weights="examples", epochs=1, batch=16
    )
    run = run_of(method, population)
    before, is_query = theta_of(run), halves.assign(population, "half") == halves.QUERY
    inputs, x, owners = features(population), population.columns["x"], population.owners
    total, mass = np.zeros(ROWS + 1), np.zeros(ROWS + 1)
    for i in np.flatnonzero(query.counts):
        s, q = ((owners == i) & part for part in (~is_query, is_query))
        meta = slope(before - ALPHA * slope(before, inputs[s], x[s]), inputs[q], x[q])
        if not first_order:
            meta = meta - ALPHA * 2 * inputs[s].T @ (inputs[s] @ meta) / s.sum()
        held = inputs[q if first_order else s | q].any(axis=0)
        total += query.counts[i] * np.where(held, -RATE / 4 * meta, 0)
        mass += query.counts[i] * held
    for _ in run.rounds(1):
        pass
    np.testing.assert_allclose(
        theta_of(run), before + total / np.where(mass > 0, mass, 1), atol=1e-5
    )
    assert (query.counts == 0).sum() > 0  # who has no query counts for nothing


@pytest.mark.parametrize("sampler", ["uniform", "weighted"])
@ORDERS
def test_the_command_line_corrects_by_the_same_counts(first_order: bool, sampler: str) -> None:
    """c_m = sum_all w / sum_{holders} w: w the query examples; drawn in proportion to all, all of
    who has a query."""
    task = fs.tasks.movielens_lr.synthetic(scale=0.02)
    changes = [
        "heat=yes",
        f"first_order={'yes' if first_order else 'no'}",
        "weights=examples",
        f"sampler={sampler}",
    ]
    method = find_method("maml").build(task, settings_for(task, "maml", changes))
    query = halves.query(task.train, "half")
    w = np.where(query.counts > 0, task.train.counts if sampler == "weighted" else query.counts, 0)
    space = (query if first_order else task.train).spaces(task.model)["weight"]
    mass = np.bincount(space.slots, np.repeat(w, space.sizes))
    found = method.stages[-1].init({}, {"weight": space.ids})["weight"]
    np.testing.assert_allclose(found[mass > 0], w.sum() / mass[mass > 0], rtol=1e-6)
