"""The laws that every recipe obeys: one test for each law, over all recipes."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from laws import (
    MODEL,
    MOMENTUM,
    PEOPLE,
    RECIPES,
    WORK,
    R,
    avg,
    bias,
    built,
    method_of,
    sampler_of,
    squares,
)
from problems import ROWS, arrays, assert_params_close, people, run_of, state_bytes

import fedslice as fs
from fedslice.data.population import Population
from fedslice.model import Model
from fedslice.round import engine
from fedslice.simulation.run import Run

# Rows that no batch touches move or matter, so that touched rows are not held rows:
MOVES_IDLE_ROWS = {
    *("fedavgm", "fedadam", "fedyogi", "fedsubavg-adam", "mimelite"),  # by the server's momentum
    "scaffold-approximate",  # by d, a momentum
    "everything",  # by yogi's momentum; which random number quantises a row depends on its place
    "fedavg-topk",  # errors of earlier rounds compete with the touched rows for the largest numbers
}
# Clients that always hold all of S(i): the law would compare a run with itself.
ALWAYS_HELD = {
    "scaffold-1",
    "scaffold-2",
    "scaffold-heat",
    "mime",
    "feddane",
    "feddyn",
    "fedpd",
    "fedmid",
    "ditto",
}
TOUCHED_IS_HELD = [name for name in RECIPES if name not in MOVES_IDLE_ROWS | ALWAYS_HELD]
# Tables and dense leaves differ by definition (see the test of idle rows below):
NOT_DENSE = {
    *MOVES_IDLE_ROWS,
    *(
        "scaffold-heat",
        "mime",
        "feddane",
    ),  # c, or the mean gradient, moves rows that a client never held
    "feddyn",  # the server's dual moves idle rows
    "fedmid",  # lazy: only the rows of the round shrink
    *("fedsubavg", "fedsubavg-weighted", "fedsgd-heat", "fedexp-heat"),  # heat is for tables
    "ifca",  # the noise that sets the models apart is drawn by row for tables, by leaf for the rest
}
NO_HEAT = [name for name in RECIPES if name not in NOT_DENSE]
# One of each structure: phases, heat and weights, client memory and extras, a survey, support and
# query, models side by side, stages with a robust reduction, stages with memory, served models,
# state of a stage.
STRUCTURES = {
    *(
        "fedavg-epochs",
        "fedsubavg-weighted",
        "scaffold-1",
        "mime",
        "fedrecon",
        "ifca",
        "everything",
        "fedavg-topk",
    ),
    *("ditto", "afl"),
}


def recipes(names: Iterable[str], some: Iterable[str] | None = None) -> pytest.MarkDecorator:
    """Parametrise by recipe; beyond ``some`` only with ``make test-all``."""
    fewer = set(names if some is None else some)
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[] if name in fewer else pytest.mark.every) for name in names],
        scope="module",  # one recipe after the other: what was compiled for it is used, then let go
    )


# Of these one for the laws that trace a recipe once more: memory, extras, weights by examples.
ONE = {"scaffold-1"}
all_structures = recipes(
    RECIPES, STRUCTURES - {"fedavg-epochs", "fedsubavg-weighted", "afl", "ditto"}
)
# Each engine, and each structure (memory, a survey, stages and a robust reduction) with one of them
USUAL = {
    *((("map", 1), name) for name in ("scaffold-1", "mime", "everything")),
    *(((2, 1), "scaffold-1"), (("map", 3), "scaffold-1"), (("debug", 1), "everything")),
}


def clients_of(name: str, population: Population) -> Population:
    return population.pool() if name == "central" else population


def trained(
    name: str, rounds: int = 3, population: Population | None = None, **settings: Any
) -> Run:
    """A run of one recipe on the small population.  The algorithm is one and the same value for all
    of them, so nothing is traced and compiled twice."""
    base(name)  # the one that counts compilations is the first
    chosen = clients_of(name, PEOPLE if population is None else population)
    method = method_of(name) if population is None else RECIPES[name](MODEL, chosen)
    return run_of(method, chosen, rounds, **{"sampler": sampler_of(name)} | settings)


class Base(NamedTuple):
    """What the vectorised engine gives: the model after 3 rounds, every bit after 3 and after 10,
    compilations; and padded sizes that are larger than any of its rounds asks for."""

    params: Any
    bytes3: bytes
    bytes10: bytes
    shapes: int
    compiled: int
    wide: dict[str, int]


@lru_cache(maxsize=1)
def base(name: str) -> Base:
    run = run_of(method_of(name), clients_of(name, PEOPLE), sampler=sampler_of(name))
    shapes, plan = set(), run.planner.block

    def noting(*given: Any) -> Any:
        made = plan(*given)
        shapes.add(str(jax.tree.map(np.shape, made.plans)))
        return made

    # but for a batch: its room is the work that was asked for, as far as there are data
    exact = run.planner.capacity.items()
    wide = {key: size + 3 * (not key.startswith("batch")) for key, size in exact}
    run.planner.block = noting  # type: ignore[method-assign]
    run.train(3, progress=False)
    params, bytes3 = jax.tree.map(np.array, run.params()), state_bytes(run)
    run.train(7, progress=False)
    compiled = len(run.engine.whole.programs())
    return Base(params, bytes3, state_bytes(run), len(shapes), compiled, wide)


def padded(name: str, run: Run) -> list[Any]:
    """The reports of three rounds of the wide shape, which is compiled once for a recipe."""
    run.planner.capacity = dict(base(name).wide)
    reports = list(run.rounds(3))
    assert run.planner.capacity == base(name).wide
    return reports


@pytest.mark.parametrize(
    ("how", "name"),
    [
        pytest.param(
            how,
            name,
            marks=[] if (how, name) in USUAL else [pytest.mark.every],
            id=f"{how}-{name}",
        )
        for name in RECIPES
        for how in (("map", 1), (2, 1), ("map", 3), ("debug", 1))
    ],
    scope="module",
)
def test_vectorised_is_mapped_is_chunked_is_threaded_is_debug(
    name: str, how: tuple[Any, int]
) -> None:
    assert_params_close(trained(name, engine=how[0], threads=how[1]).params(), base(name).params)


@recipes(RECIPES, ONE)
def test_steps_on_the_rows_of_a_batch_are_steps_on_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_rows = base(name).params
    monkeypatch.setattr("fedslice.client.local.by_rows", lambda step: step)
    chosen = clients_of(name, people())
    run = run_of(RECIPES[name](MODEL, chosen), chosen, 3, sampler=sampler_of(name))
    assert_params_close(run.params(), by_rows)


@recipes(RECIPES, ONE)
def test_the_number_of_threads_is_not_in_the_bits(name: str) -> None:
    """A cohort of 4 in 3 threads has stand-ins; a run may go on with as many cores as there are."""
    assert state_bytes(trained(name, engine="map", threads=3)) == state_bytes(
        trained(name, engine="map", threads=1)
    )


@recipes(RECIPES, ONE)
def test_messages_may_be_added_as_they_come(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's message is too much, so each is added before the next client trains."""
    whole = state_bytes(trained(name, engine="map", threads=1))
    monkeypatch.setattr(engine, "PART", 1)
    run = trained(name, engine="map", threads=1)
    several = len(run.cohort(0)) > 1 and run.algorithm.reduce.plain
    assert run.engine._size(len(run.cohort(0))) == several
    assert state_bytes(run) == whole


@recipes(RECIPES, ONE)
def test_in_one_program_or_in_parts_the_bits_are_the_same(name: str) -> None:
    """Tests compile without instructions that round once for two operations."""
    assert state_bytes(trained(name, engine="scan")) == state_bytes(trained(name, engine="map"))


@recipes(RECIPES, ONE)
def test_the_order_in_which_clients_are_given_is_nothing(name: str) -> None:
    columns = arrays()
    blocks = [
        np.flatnonzero(columns["client"] == client) for client in np.unique(columns["client"])
    ]
    order = np.concatenate([blocks[b] for b in (4, 0, 6, 2, 5, 1, 3)])
    shuffled = {key: column[order] for key, column in columns.items()}
    given = Population.from_arrays(shuffled.pop("client"), **shuffled)
    assert state_bytes(trained(name, population=given)) == base(name).bytes3


@recipes(RECIPES, ONE)
def test_a_client_without_data_is_nothing(name: str) -> None:
    """One client loses its data; drawn by force, with weight zero, it changes no parameter.  Others
    hold all of its rows, so that the state has the same shape as everywhere here."""
    whole, loser = people(), 5
    emptied = whole.select(whole.owners != loser)
    others = np.delete(np.arange(len(whole)), loser)
    assert emptied.counts.tolist() == [0 if i == loser else n for i, n in enumerate(whole.counts)]
    without = clients_of(name, whole.subset(others))
    emptied = clients_of(name, emptied)
    full = {"sampler": fs.sampling.full()}
    run = run_of(RECIPES[name](MODEL, emptied), emptied, **full)
    if len(emptied) == len(whole):
        assert run.cohort(0).tolist() == others.tolist()  # by itself it is never drawn
    run.eligible, run._counts = np.arange(len(emptied)), emptied.counts
    reports = padded(name, run)
    assert [report.clients for report in reports] == [len(emptied)] * 3
    assert [report.failed for report in reports] == [0] * 3
    other = run_of(RECIPES[name](MODEL, without), without, **full)
    assert [report.clients for report in padded(name, other)] == [len(without)] * 3
    assert_params_close(run.params(), other.params())


@all_structures
def test_padding_is_nothing(name: str) -> None:
    run = trained(name, rounds=0)
    exact, wide = run.planner.capacity, base(name).wide
    assert all(wide[key] == exact[key] + 3 for key in exact if not key.startswith("batch"))
    assert padded(name, run)[-1].failed == 0
    assert_params_close(run.params(), base(name).params)


@all_structures
def test_steps_leave_shapes_alone(name: str) -> None:
    """So the second look at what grows with rows may leave them out."""
    shapes = trained(name, 0).shapes
    sizes = {space: 7 + place for place, space in enumerate(shapes.spaces)}
    moved = jax.eval_shape(lambda: shapes.trees(sizes))
    assert moved == jax.eval_shape(lambda: shapes.trees(sizes, still=True))


@all_structures
def test_saving_and_restoring_is_nothing(name: str, tmp_path: Path) -> None:
    first = trained(name, rounds=5)
    first.save(tmp_path)
    second = trained(name, rounds=0)
    second.restore(tmp_path)
    assert second.round == 5
    assert state_bytes(second) == state_bytes(first) != base(name).bytes10
    assert [report.round for report in second.rounds(5)] == [6, 7, 8, 9, 10]
    assert state_bytes(second) == base(name).bytes10


@all_structures
def test_same_seed_same_bytes_other_seed_other_bytes(name: str) -> None:
    assert state_bytes(trained(name)) == base(name).bytes3
    same, other = (trained(name, rounds=0, seed=seed) for seed in (0, 1))
    for run in (same, other):
        padded(name, run)
    assert state_bytes(same) != state_bytes(other)


@all_structures
def test_compiled_once_for_a_given_shape(name: str) -> None:
    """Shapes change only when a larger round than all before asks for more room: at most once in
    these ten."""
    assert base(name).compiled == base(name).shapes <= 2


@recipes(TOUCHED_IS_HELD, STRUCTURES - {"afl"})
def test_touched_rows_are_held_rows_without_momentum(name: str) -> None:
    assert_params_close(trained(name, rows="held").params(), base(name).params)


@recipes(["fedavgm", "fedadam", "fedyogi", "fedsubavg-adam", "everything"], ["everything"])
def test_rows_outside_the_round_keep_value_and_moments(name: str) -> None:
    """Lazy server optimizers: a row that the cohort does not touch does not move, whatever its
    momentum."""
    run = trained(name, rounds=4)
    space = run.spaces["w"]
    before = jax.tree.map(np.array, run.store.state)
    plan, _ = run.planner.plan(run.round, run.cohort(run.round))
    touched = np.isin(np.arange(len(space.ids)), plan.shared.union["w"])
    assert 0 < touched.sum() < len(touched)
    for _ in run.rounds(1):
        pass
    for tag, old, new in zip(
        jax.tree.leaves(run.shapes.tags.state),
        jax.tree.leaves(before),
        jax.tree.leaves(run.store.state),
        strict=True,
    ):
        if tag == "w":
            assert np.array_equal(old[~touched], np.asarray(new)[~touched])
    moved = np.asarray(run.store.state.server[0]["w"]) != before.server[0]["w"]
    assert moved[touched].all()


@recipes(NO_HEAT, ONE)
def test_working_set_is_full_table(name: str) -> None:
    """The same model with its table declared as a dense leaf, which every client then downloads
    whole.

    Without heat the mathematics is the same: rows outside S(i) have zero gradient.
    """
    sparse = trained(name, rounds=4)
    first = trained(name, rounds=0).table("w", np.arange(ROWS))
    dense = Model(lambda key: {**bias(key), "w": jnp.asarray(first)}, squares)
    chosen = clients_of(name, people())
    run = run_of(RECIPES[name](dense, chosen), chosen, 4, sampler=sampler_of(name))
    expected = {**sparse.params(), "w": sparse.table("w", np.arange(ROWS))}
    assert_params_close(dict(sorted(run.params().items())), dict(sorted(expected.items())))
    assert not np.allclose(run.params()["w"], first, atol=1e-3)


@recipes(RECIPES, {*ONE, "ditto"})
def test_disk_is_ram_and_state_round_trips_through_disk(name: str, tmp_path: Path) -> None:
    run = trained(name, store=tmp_path / "tables")
    assert_params_close(run.params(), base(name).params)
    run.save(tmp_path)
    again = trained(name, rounds=0, store=tmp_path / "other")
    again.restore(tmp_path)
    assert_params_close(again.params(), run.params(), rtol=0, atol=0)
    for one, other in zip(
        jax.tree.leaves(run.store.snapshot()), jax.tree.leaves(again.store.snapshot()), strict=True
    ):
        assert np.array_equal(one, other)
    for a, b in zip(run.rounds(2), again.rounds(2), strict=True):
        assert np.array_equal(a.figures.values, b.figures.values)
    assert state_bytes(again) == state_bytes(run)


# -- where tables and dense leaves differ by definition --------------------------------------------


class InTurn(fs.sampling.Sampler):
    """Client 0, then client 1, and so on."""

    def cohort(self, seed: int, round: int, counts: np.ndarray) -> np.ndarray:
        return np.array([round % len(counts)])


IDLE: dict[str, tuple[Callable[..., Any], Callable[[float, float], float]]] = {
    # m <- 0.5 m + d, x <- x + m
    "fedavgm": (avg(server=optax.sgd(1.0, momentum=0.5)), lambda x0, x1: x1 + 0.5 * (x1 - x0)),
    # d <- (1 - 1/2) d + 1/2 mean, x <- x + d, and the mean is 0
    "scaffold-approximate": (
        built(R.scaffold_approximate, optax.sgd(0.1), "population", sampler=fs.sampling.uniform(1)),
        lambda x0, x1: x1 + 0.5 * (x1 - x0),
    ),
    # lambda / mu is p move after round 1, x1 - x0 = (1 + p) move; in round 2 x moves by lambda / mu
    # alone
    "feddyn": (
        built(R.feddyn, optax.sgd(0.1), "population", mu=0.5),
        lambda x0, x1: x1 + (x1 - x0) / 3,
    ),
    # c = p c_0+ = p (x0 - x1) / (tau eta); the second client takes tau steps of -eta c
    "scaffold-heat": (
        built(R.scaffold_heat, 0.05, "population"),
        lambda x0, x1: x1 + 0.5 * (x1 - x0),
    ),
    # the trace is the full gradient at x0, 2 (x0 - 1); three frozen steps of 0.05 with 0.5 of it
    "mimelite": (built(R.mimelite, MOMENTUM), lambda x0, x1: x1 - 3 * 0.05 * 0.5 * 2 * (x0 - 1)),
    "mime": (built(R.mime, MOMENTUM, "heat"), lambda x0, x1: x1 - 3 * 0.05 * 0.5 * 2 * (x0 - 1)),
    # tau eta s by the client's proximal steps, and once more by the server's
    "fedmid": (
        built(R.fedmid, 0.1, regulariser=fs.prox.l1(0.2)),
        lambda x0, x1: x1 - 2 * 3 * 0.1 * 0.2,
    ),
}


def two_rows(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return jnp.sum((fs.lookup(params["w"], batch["row"]) - 1) ** 2, -1)


@pytest.mark.parametrize("name", few(IDLE, "fedavgm"))
def test_idle_rows_rest_in_tables_and_move_in_dense_leaves(name: str) -> None:
    """Client 0 holds row 0 alone, client 1 row 1; F_i = (w_i - 1)^2, exact gradients.

    Client 0 trains in round 1, client 1 in round 2.  Round 2 leaves row 0 of a table as it is; in a
    dense leaf it moves by what the server remembers, as derived above for each method from x0 = 3
    and x1.
    """
    recipe, expected = IDLE[name]
    population = Population.from_arrays(np.arange(2), row=np.arange(2)[:, None])
    table = fs.Table(rows=2, fields=("row",), init=lambda key, shape: jnp.full(shape, 3.0))
    models = {
        "table": Model(lambda key: {}, two_rows, {"w": table}),
        "dense": Model(lambda key: {"w": jnp.full(2, 3.0)}, two_rows),
    }
    path: dict[str, list[float]] = {}
    for kind, model in models.items():
        run = run_of(
            recipe(model, population),
            population,
            sampler=InTurn("in turn", fs.sampling.full().draw),
        )
        path[kind] = [float(run.params()["w"][0]) for _ in run.rounds(2)]
    assert path["table"][0] == path["table"][1]
    assert path["table"][0] < 2.9
    x0, (x1, x2) = 3.0, path["dense"]
    assert abs(x2 - x1) > 0.01
    assert x2 == pytest.approx(expected(x0, x1), rel=1e-5)  # a few float32 roundings


def test_a_correction_moves_in_tables_only_the_rows_that_a_client_holds() -> None:
    """FedDANE, both clients, one step of rate eta.  Densely the mean gradient at row 0 is (2 (x0 -
    1) + 0) / 2 and both clients step by it: x1 = x0 - eta (x0 - 1).  In a table client 0 alone
    steps, by the holders' mean 2 (x0 - 1), and heat makes the mean over both clients one over the
    holder: x1 = x0 - 2 eta (x0 - 1)."""
    population = Population.from_arrays(np.arange(2), row=np.arange(2)[:, None])
    table = fs.Table(rows=2, fields=("row",), init=lambda key, shape: jnp.full(shape, 3.0))
    for model, rate in (
        (Model(lambda key: {}, two_rows, {"w": table}), 0.2),
        (Model(lambda key: {"w": jnp.full(2, 3.0)}, two_rows), 0.1),
    ):
        heat = population.heat(model) if model.tables else None
        method = R.feddane(model, optax.sgd(0.1), fs.Work(steps=1, batch=1), mu=0.5, heat=heat)
        np.testing.assert_allclose(
            run_of(method, population, 1).params()["w"], 3 - rate * 2, rtol=1e-6
        )


# -- degenerate cases, by derivation ---------------------------------------------------------------


def every_row_at_every_client() -> Population:
    """Client i's examples mention all rows between them, so n_m = N, though batches touch only
    some."""
    rng = np.random.default_rng(3)
    clients = 4
    history = np.concatenate([rng.permutation(ROWS).reshape(-1, 3) for _ in range(clients)])
    owner = np.repeat(np.arange(clients), ROWS // 3)
    return Population.from_arrays(owner, history=history, x=rng.normal(size=len(owner)))


@pytest.mark.parametrize("weights", few(["uniform", "examples"], "examples"))
def test_fedsubavg_where_all_hold_all_is_fedavg(weights: str) -> None:
    """n_m = N and equal |D_i| make every coefficient 1, exactly."""
    population = every_row_at_every_client()
    heat = population.heat(MODEL)
    assert heat.counts("w").tolist() == [4.0] * ROWS
    one = fs.recipes.fedavg(MODEL, optax.sgd(0.3), weights=weights, **WORK)
    two = fs.recipes.fedsubavg(MODEL, optax.sgd(0.3), heat=heat, weights=weights, **WORK)
    assert_params_close(
        run_of(one, population, 3).params(),
        run_of(two, population, 3).params(),
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.every
def test_fedavg_of_one_full_batch_step_is_fedsgd() -> None:
    """One local step of rate g on all data from all clients: x - g * sum |D_i| grad f_i / sum
    |D_i|, FedSGD's step."""
    largest = max(people().counts)
    one = fs.recipes.fedavg(MODEL, optax.sgd(0.5), fs.Work(epochs=1, batch=int(largest)))
    two = fs.recipes.fedsgd(MODEL, optax.sgd(0.5))
    assert_params_close(run_of(one, people(), 4).params(), run_of(two, people(), 4).params())


def test_fedsgd_weighted_is_central_gradient_descent() -> None:
    """sum |D_i| grad f_i / sum |D_i| is the gradient of the pooled mean loss."""
    method = fs.recipes.fedsgd(MODEL, optax.sgd(0.5))
    federated = run_of(method, people(), 4)
    central = run_of(method, people().pool(), 4)
    assert_params_close(federated.params(), central.params())
