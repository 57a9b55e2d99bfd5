"""FedRecon: its degenerate cases, the meta-learning identity, closed forms, and a transcription in
NumPy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import ROWS, assert_params_close, logistic, people, run_of, state_bytes
from works import works

import fedslice as fs
from fedslice.data import halves
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model, Table
from fedslice.simulation.run import Run

ITEMS, SIZE = 12, 3
R_RATE, RATE = 0.2, 0.3


def factorisation(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (jnp.sum(params["item"][batch["item"]] * params["user"], -1) - batch["rating"]) ** 2


def matrix_model() -> Model:
    def init(key: jax.Array) -> dict[str, Any]:
        return {"user": jax.random.uniform(key, (SIZE,), minval=-0.5, maxval=0.5)}

    table = Table(rows=ITEMS, fields="item", shape=(SIZE,), init=jax.nn.initializers.normal(0.5))
    return Model(init, factorisation, {"item": table}, local="user")


def raters(counts: tuple[int, ...] = (6, 1, 9, 4, 2)) -> Population:
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(len(counts)), counts)
    item = np.concatenate([rng.permutation(ITEMS)[:count] for count in counts])
    return Population.from_arrays(
        owner, item=item, rating=rng.integers(1, 6, len(owner)) / 2, time=rng.random(len(owner))
    )


def recon(model: Model, **settings: Any) -> Any:
    chosen = {"batch": 3} | settings
    return fs.recipes.fedrecon(
        model, optax.sgd(RATE), reconstruction=optax.sgd(R_RATE), **works(chosen)
    )


# -- without local leaves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [pytest.param({"steps": 3, "batch": 4}, marks=pytest.mark.every), {"epochs": 2, "batch": 4}],
    ids=["steps", "epochs"],
)
def test_without_local_leaves_and_split_it_is_fedavg_bit_for_bit(work: dict[str, int]) -> None:
    model, population = logistic(), people()
    assert not model.local
    one = run_of(recon(model, split="none", **work), population, 3)
    two = run_of(fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(**work)), population, 3)
    assert state_bytes(one) == state_bytes(two)


@pytest.mark.every
def test_without_local_leaves_it_is_fedavg_on_the_query_part() -> None:
    """The same clients, the same examples, the same weights: also the same batches, as those are
    hashed by client."""
    model, population = logistic(), people()
    query = halves.query(population, "half")
    assert 0 < query.examples < population.examples
    one = run_of(recon(model, steps=3), population, 3)
    fedavg = fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(steps=3, batch=3))
    two = run_of(fedavg, query, 3)
    everything = {"w": np.arange(ROWS)}
    assert_params_close(one.params(everything), two.params(everything), rtol=1e-6, atol=1e-7)
    whole = run_of(fedavg, population, 3)
    assert not np.allclose(one.params(everything)["w"], whole.params(everything)["w"], atol=1e-3)


# -- first-order meta-learning ---------------------------------------------------------------------


@pytest.mark.every
@pytest.mark.parametrize("k_r", few([1, 3], 3))
def test_one_step_of_u_is_the_first_order_meta_gradient(k_r: int) -> None:
    """g+ - g = -rate * grad_g f(g, R(g); query) with R(g) held constant; through R(g) the gradient
    is another."""
    model, population = matrix_model(), raters((11,))
    work: dict[str, Any] = {"epochs": 1, "batch": 16, "reconstruct_epochs": k_r}  # full batches
    run = run_of(recon(model, split="time", **work), population)
    items = np.arange(ITEMS)
    start = jnp.asarray(run.table("item", items))
    part = halves.assign(population, "time")
    key = jax.random.fold_in(
        jax.random.fold_in(run.engine.key, 0), 0
    )  # the engine's, for round and client
    fresh = model.fresh(key)["user"]

    def mean(user: jax.Array, table: jax.Array, which: int) -> jax.Array:
        batch = {
            name: jnp.asarray(population.columns[name][part == which])
            for name in ("item", "rating")
        }
        return jnp.mean(factorisation({"user": user, "item": table}, batch))

    def objective(table: jax.Array, through: Callable[[jax.Array], jax.Array]) -> jax.Array:
        user = fresh
        for _ in range(k_r):
            user = user - R_RATE * jax.grad(mean)(user, table, halves.SUPPORT)
        return mean(through(user), table, halves.QUERY)

    first_order = jax.grad(objective)(start, jax.lax.stop_gradient)
    complete = jax.grad(objective)(start, lambda user: user)
    for _ in run.rounds(1):
        pass
    change = run.table("item", items) - start
    np.testing.assert_allclose(change, -RATE * first_order, rtol=1e-4, atol=1e-6)
    assert np.abs(first_order - complete).max() > 0.01


# -- a quadratic whose local optimum is known ------------------------------------------------------

U_STEPS, START = 3, 2.0


def offset_model(local: float = 0.5) -> Model:
    """F_i(g, l) = mean of (g + l - a)^2 / 2: given g, the best l is mean(a) - g."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return (params["g"] + params["l"] - batch["a"]) ** 2 / 2

    return Model(lambda key: {"g": jnp.array(START), "l": jnp.array(local)}, loss, local="l")


def means(population: Population, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each client's mean of a over support and over query, and how many its query has."""
    if split == "none":
        mean = np.bincount(population.owners, population.columns["a"]) / population.counts
        return mean, mean, population.counts
    part = halves.assign(population, split)
    found = []
    for which in (halves.SUPPORT, halves.QUERY):
        owners, values = population.owners[part == which], population.columns["a"][part == which]
        count = np.bincount(owners, minlength=len(population))
        found.append((np.bincount(owners, values, len(population)) / np.maximum(count, 1), count))
    return found[0][0], found[1][0], found[1][1]


@pytest.mark.parametrize(
    ("k_r", "split", "joint"),
    [
        pytest.param(
            k_r,
            split,
            joint,
            id=f"{k_r}-{split}-{'joint' if joint else 'alternating'}",
            marks=[] if (k_r, joint) == (4, split == "none") else [pytest.mark.every],
        )
        for k_r in (1, 4)
        for split in ("half", "none")
        for joint in (False, True)
    ],
)
def test_quadratic_closed_form(joint: bool, split: str, k_r: int) -> None:
    """Full batches.  R: l = s - g + (l_0 + g - s)(1 - r)^k_r, s the support mean.  U, with e = q -
    l - g, q the query mean: g moves by e (1 - (1 - u)^k_u); if l moves too, e shrinks by 1 - 2u a
    step and g gets half of it: e (1 - (1 - 2u)^k_u) / 2.  The server takes the mean by query
    examples."""
    rng = np.random.default_rng(0)
    counts = (5, 1, 8, 2)
    population = Population.from_arrays(np.repeat(np.arange(4), counts), a=rng.normal(size=16))
    work: dict[str, Any] = {"epochs": U_STEPS, "batch": 16, "reconstruct_epochs": k_r}
    run = run_of(recon(offset_model(), split=split, joint=joint, **work), population, 1)
    s, q, weight = means(population, split)
    rebuilt = s - START + (0.5 + START - s) * (1 - R_RATE) ** k_r
    error = q - rebuilt - START
    moved = (
        error * (1 - (1 - 2 * RATE) ** U_STEPS) / 2
        if joint
        else error * (1 - (1 - RATE) ** U_STEPS)
    )
    expected = START + (weight * moved).sum() / weight.sum()
    assert float(run.params()["g"]) == pytest.approx(expected, rel=1e-5)
    assert weight.tolist() == ([5, 1, 8, 2] if split == "none" else [2, 0, 4, 1])


@pytest.mark.every
@pytest.mark.parametrize("joint", [False, True], ids=["alternating", "joint"])
def test_at_the_local_optimum_only_a_split_teaches_the_global_leaves(joint: bool) -> None:
    """R of rate 1 gives l = s - g at once.  Without a split s = q and nothing is left to learn;
    with one e = q - s."""
    population = Population.from_arrays(
        np.zeros(6, int), a=np.array([1.0, 4.0, 2.0, 8.0, 3.0, 0.0])
    )
    work = fs.Work(epochs=1, batch=8)
    for split in ("none", "half"):
        method = fs.recipes.fedrecon(
            offset_model(),
            optax.sgd(RATE),
            work,
            reconstruction=optax.sgd(1.0),
            recover=work,
            split=split,
            joint=joint,
        )
        s, q, _ = means(population, split)
        moved = float(run_of(method, population, 1).params()["g"]) - START
        assert moved == pytest.approx(RATE * float(q[0] - s[0]), abs=1e-6)
        assert (moved == pytest.approx(0, abs=1e-6)) == (split == "none")


# -- what is sent and kept -------------------------------------------------------------------------


def test_local_leaves_are_neither_sent_nor_kept() -> None:
    model, population = matrix_model(), raters()
    run = run_of(recon(model, epochs=1, reconstruct_epochs=1), population)
    assert jax.tree.leaves(run.memory) == []
    assert set(run.params()) == {"item"}
    (report,) = run.rounds(1)
    held = population.submodels(("item",), ITEMS).sizes.sum()
    sent = halves.query(population, "half").submodels(("item",), ITEMS).sizes.sum()
    wire, clients = run.shapes.wire, len(population)
    heads = clients * wire.down({"item": 0}), clients * wire.up({"item": 0})
    assert report.bytes_down == held * SIZE * 4 + heads[0]
    # rows of query examples, their numbers, and S(i) once
    named = held * 4 + clients * wire.slice({"item": 0})
    assert report.bytes_up == sent * (SIZE * 4 + 4) + named + heads[1]
    fedavg = run_of(
        fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(epochs=1, batch=3)), population
    )
    (report,) = fedavg.rounds(1)
    assert report.bytes_up == held * (SIZE * 4 + 4) + named + heads[1]


def test_clients_without_query_change_nothing() -> None:
    """One example is support.  Next to others they send nothing; alone they cannot train."""
    model = matrix_model()
    with pytest.raises(InputError, match="no client has a query example with split='half'"):
        run_of(recon(model, steps=2, reconstruct_steps=2), raters((1,) * 5))
    for name in ("steps", "epochs"):
        with pytest.raises(InputError, match=f"{name}=0 must be at least 1"):
            recon(model, steps=2, recover=fs.Work(**{name: 0}))
    population = raters((6, 1, 4))
    others = population.select(population.owners != 1)
    method = recon(model, steps=2, reconstruct_steps=2)
    one, two = (run_of(method, given, 3) for given in (population, others))
    everything = {"item": np.arange(ITEMS)}
    assert_params_close(one.params(everything), two.params(everything))


def test_clients_without_support_train_at_fresh_local_leaves() -> None:
    """All examples are query: R does nothing, l stays l_0, so g moves towards q - l_0."""
    population = Population.from_arrays([0, 0, 1], a=[1.0, 3.0, 5.0])
    method = recon(
        offset_model(), split=lambda given: np.zeros(given.examples), epochs=1, reconstruct_epochs=2
    )
    expected = START + RATE * (2 * (2 - 0.5 - START) + 1 * (5 - 0.5 - START)) / 3
    assert float(run_of(method, population, 1).params()["g"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "reduce",
    [
        pytest.param(None, marks=pytest.mark.every),
        fs.reduce.median(quorum=0),
        pytest.param(fs.reduce.trimmed(0.4, quorum=0), marks=pytest.mark.every),
    ],
    ids=["sum", "median", "trimmed"],
)
def test_a_row_that_is_only_read_does_not_count_as_sent(reduce: Any) -> None:
    """Clients 0 to 4 train row 0 on their query.  That 5 to 9 read it for support, or row 1
    instead, must not matter to it: their zeros would pull a median or a trimmed mean towards zero.
    """
    found = []
    for read in (0, 1):
        owner = np.repeat(np.arange(10), 2)
        item = np.stack(
            [np.repeat([2, read], 5), np.repeat([0, 3], 5)], 1
        ).ravel()  # support, query
        time, rating = np.tile([0.0, 1.0], 10), np.linspace(1, 5, 20)
        population = Population.from_arrays(owner, item=item, rating=rating, time=time)
        work = {
            "work": fs.Work(epochs=1),
            "reconstruct_epochs": 1,
            "split": "time",
            "reduce": reduce,
        }
        model = replace(matrix_model(), init=lambda key: {"user": jnp.array([0.1, 0.2, 0.3])})
        run = run_of(recon(model, **work), population)
        before = run.table("item", np.arange(4))
        for _ in run.rounds(1):
            pass
        found.append(run.table("item", np.arange(4)) - before)
    assert np.abs(found[0][0]).min() > 1e-3
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert np.abs(found[0][2]).max() == np.abs(found[1][1]).max() == 0  # read by support alone


# -- Algorithm 1 in NumPy --------------------------------------------------------------------------


def gradient(item: np.ndarray, user: np.ndarray, items: np.ndarray, ratings: np.ndarray) -> Any:
    """Of the mean squared error, for the table and the user."""
    rows = item[items]
    residual = 2 * (rows @ user - ratings) / len(items)
    table = np.zeros_like(item)
    np.add.at(table, items, residual[:, None] * user)
    return table, residual @ rows


def reference(run: Run, rounds: int, joint: bool, query_heat: bool) -> np.ndarray:
    population, columns = run.population, run.population.columns
    works = run.algorithm.client.work
    table = run.table("item", np.arange(ITEMS)).astype(float)
    part = halves.assign(population, works[0].split)
    query = np.bincount(population.owners[part == halves.QUERY], minlength=len(population))
    counts = [population.counts - query, query]
    scale = np.ones(ITEMS)
    if query_heat:
        for row in range(ITEMS):
            holders = set(
                population.owners[(part == halves.QUERY) & (columns["item"] == row)].tolist()
            )
            scale[row] = query.sum() / sum(query[i] for i in holders) if holders else 1.0
    for r in range(rounds):
        cohort = run.cohort(r)
        drawn = [run.planner._examples(p, r, cohort, counts[p][cohort]) for p in range(2)]
        total, mass = np.zeros_like(table), 0.0
        for k, client in enumerate(cohort):
            key = jax.random.fold_in(jax.random.fold_in(run.engine.key, r), client)
            user = np.asarray(run.model.fresh(key)["user"], float)
            mine = table.copy()
            for phase, (examples, sizes, steps) in enumerate(drawn):
                for s in range(steps[k]):
                    numbers = examples[k, s, : sizes[k, s]]
                    d_item, d_user = gradient(
                        mine, user, columns["item"][numbers], columns["rating"][numbers]
                    )
                    if phase == 0:
                        user = user - R_RATE * d_user
                    else:
                        mine = mine - RATE * d_item
                        user = user - RATE * d_user * joint
            total, mass = total + query[client] * (mine - table), mass + query[client]
        table = table + scale[:, None] * total / mass
    return table


@pytest.mark.parametrize(
    ("settings", "heat"),
    [
        pytest.param({"steps": 4, "reconstruct_steps": 3}, False, id="steps"),
        pytest.param(
            {"epochs": 1, "reconstruct_epochs": 5, "reconstruct_steps": 4},
            False,
            id="up to",
            marks=pytest.mark.every,
        ),
        pytest.param(
            {"epochs": 2, "reconstruct_epochs": 2, "split": "time", "joint": True},
            False,
            id="joint time",
        ),
        pytest.param(
            {"epochs": 1, "reconstruct_epochs": 1}, True, id="heat", marks=pytest.mark.every
        ),
    ],
)
def test_engine_is_the_reference(settings: dict[str, Any], heat: bool) -> None:
    model, population, rounds = matrix_model(), raters(), 3
    split = settings.get("split", "half")
    more = {"heat": halves.query(population, split).heat(model)} if heat else {}
    run = run_of(
        recon(model, **settings, **more), population, sampler=fs.sampling.uniform(4), seed=2
    )
    first = run.table("item", np.arange(ITEMS))
    expected = reference(run, rounds, settings.get("joint", False), heat)
    for _ in run.rounds(rounds):
        pass
    np.testing.assert_allclose(run.table("item", np.arange(ITEMS)), expected, atol=2e-5)
    assert np.abs(expected - first).max() > 0.05


def test_refused() -> None:
    model = matrix_model()
    with pytest.raises(InputError, match="split='thirds' is not known"):
        recon(model, steps=1, split="thirds")
    with pytest.raises(InputError, match="an optax optimizer is needed"):
        fs.recipes.fedrecon(model, optax.sgd(0.1), fs.Work(steps=1), reconstruction=0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="steps=0 must be at least 1"):
        recon(model, steps=0)
    with pytest.raises(InputError, match="epochs=0 must be at least 1"):
        recon(model, steps=2, epochs=0)
