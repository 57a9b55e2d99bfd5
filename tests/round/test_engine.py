"""The compiled round: clients that fail, clients that remember, and models of every shape."""

from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import ROWS, arrays, assert_params_close, people, run_of

import fedslice as fs
from fedslice.compose import algorithm
from fedslice.data.population import Population
from fedslice.errors import DivergedError, InputError
from fedslice.model import Model, Table
from fedslice.round.mode import choose
from fedslice.round.wire import HEAD, TOLD
from fedslice.types import Client


def squares(params: Any, batch: Any) -> jax.Array:
    return (fs.lookup(params["w"], batch["history"]).sum(1) + params["bias"] - batch["x"]) ** 2


def bias(key: jax.Array) -> dict[str, Any]:
    return {"bias": jnp.zeros(())}


MODEL = Model(bias, squares, {"w": Table(ROWS, ("history",))})
AVG = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3))
EPOCHS = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(epochs=1, batch=4))


def spoiled(client: int) -> Population:
    """One client's feature is so large that its square overflows; finite, so the data are taken."""
    population = people()
    population.columns["x"][population.owners == client] = 3e38
    return population


# -- clients that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", few([0, 6], 6), ids=["first", "last"])
@pytest.mark.parametrize("method", few([AVG, EPOCHS], EPOCHS), ids=["steps", "epochs"])
def test_a_client_that_overflows_is_left_out_and_counted(bad: int, method: Any) -> None:
    """The others keep their numbers, so their batches are the same as in a run where the bad client
    has no data.

    Nor may a client's padding carry another client's data: with epochs all last batches are padded.
    """
    run = run_of(method, spoiled(bad))
    reports = list(run.rounds(3))
    assert [report.failed for report in reports] == [1, 1, 1]
    assert [report.clients for report in reports] == [7, 7, 7]
    assert "1 failed" in str(reports[0])
    population = people()
    other = run_of(method, population.select(population.owners != bad))
    expected = list(other.rounds(3))
    held = other.spaces["w"].ids
    np.testing.assert_allclose(run.table("w", held), other.table("w", held), rtol=1e-5, atol=1e-7)
    assert_params_close(run.params()["bias"], other.params()["bias"])
    assert reports[2].loss == pytest.approx(expected[2].loss, rel=1e-5)
    assert reports[2].update_norm == pytest.approx(expected[2].update_norm, rel=1e-4)


@pytest.mark.parametrize("name", few(["uniform", "examples"], "examples"))
def test_a_failing_client_has_no_weight_whatever_the_weights(name: str) -> None:
    method = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3), weights=name)
    population = people()
    one, other = (
        run_of(method, spoiled(6), 2),
        run_of(method, population.select(population.owners != 6), 2),
    )
    assert_params_close(one.params()["bias"], other.params()["bias"])


CLIPPED = optax.chain(optax.clip(1.0), optax.sgd(0.1))


@pytest.mark.parametrize(
    "reduce",
    [fs.reduce.total(), pytest.param(fs.reduce.median(), marks=pytest.mark.every)],
    ids=["sum", "median"],
)
def test_a_client_whose_loss_alone_overflows_is_left_out_too(reduce: Any) -> None:
    """Its clipped gradient is finite, so only the loss tells; the run goes on as if the client had
    no data."""
    method = fs.recipes.fedavg(MODEL, CLIPPED, fs.Work(steps=2, batch=1), reduce=reduce)
    run, population = run_of(method, spoiled(6)), people()
    reports = list(run.rounds(3))
    assert [report.failed for report in reports] == [1, 1, 1]
    assert all(np.isfinite(report.loss) for report in reports)
    other = run_of(method, population.select(population.owners != 6), 3)
    held = other.spaces["w"].ids
    np.testing.assert_allclose(run.table("w", held), other.table("w", held), rtol=1e-5, atol=1e-7)


def test_a_weight_that_overflows_costs_that_client_alone() -> None:
    """q-FFL weighs by F^q: a loss of 1e12 to the fourth power is no float32, though loss and update
    are finite."""
    population = people()
    population.columns["x"][population.owners == 6] = 1e6
    clipped = fs.client.sgd(MODEL, CLIPPED, fs.Work(steps=2, batch=1))
    method = fs.algorithm(clipped, [fs.stage.qffl(4.0, 0.1)], fs.server.optimize())
    (report,) = run_of(method, population).rounds(1)
    assert report.failed == 1
    assert 0 < report.update_norm < np.inf


def test_a_large_update_is_finite_though_its_square_is_not() -> None:
    model = Model(bias, lambda p, b: p["bias"] * b["x"] * 1e25, {})
    (report,) = run_of(
        fs.recipes.fedavg(model, optax.sgd(1.0), fs.Work(steps=1, batch=9)), people()
    ).rounds(1)
    assert report.update_norm == pytest.approx(1e25 * abs(people().columns["x"].mean()), rel=1e-3)


def test_the_debug_engine_names_a_client_whose_loss_alone_overflows() -> None:
    method = fs.recipes.fedavg(MODEL, CLIPPED, fs.Work(steps=2, batch=1))
    with pytest.raises(
        DivergedError, match=r"client 60 \(number 6, 4 examples\).*loss.*local step 1 of 2\. Look"
    ):
        run_of(method, spoiled(6), 1, engine="debug")


def test_all_clients_failing_stops_with_advice() -> None:
    population = people()
    population.columns["x"][:] = 3e38
    run = run_of(AVG, population)
    with pytest.raises(
        DivergedError, match=r"round 1: none of the 7 clients.*smaller client learning rate.*debug"
    ):
        run.train(1, progress=False)


@pytest.mark.parametrize("rate", few([30.0, 5.0], 5.0))
def test_a_diverging_rate_stops_with_advice(rate: float) -> None:
    run = run_of(fs.recipes.fedavg(MODEL, optax.sgd(rate), fs.Work(steps=5, batch=3)), people())
    with pytest.raises(
        DivergedError, match=r"training diverged in round \d+: .*clip_by_global_norm"
    ):
        run.train(200, progress=False)
    assert run.round < 60


def test_the_debug_engine_names_client_and_step() -> None:
    columns = arrays()
    population = Population.from_arrays(
        np.array(list("abcdefg"))[columns.pop("client") // 10], **columns
    )
    bad = population.offsets[4]  # client "e" has two examples; the first one overflows
    population.columns["x"][bad] = 3e38
    run = run_of(
        fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(epochs=2, batch=1)),
        population,
        engine="debug",
    )
    order = np.ravel(run.planner._examples(0, 0, np.array([4]), population.counts[[4]])[0])
    step = 1 + order.tolist().index(int(bad))
    with pytest.raises(
        DivergedError,
        match=rf"client e \(number 4, 2 examples\).*round 1: .*local step {step} of 4",
    ):
        run.train(1, progress=False)


# -- what a report says ----------------------------------------------------------------------------


def test_bytes_are_those_of_dense_leaves_and_rows(tmp_path: Path) -> None:
    """A client: 4 bytes of bias, 4 x 2 of each row of S(i) down; up the same and a 4-byte number
    for each row.  Those that take part for the first time name S(i) as well, 4 bytes a row,
    whatever number of tables it is for; a run that goes on from a checkpoint knows who did.  Heads:
    8 bytes, 4 for the number of rows, down 4 for the seed and each of 3 padded sizes, up 24 for the
    weight and the report."""
    tables = {"w": Table(ROWS, ("history",)), "v": Table(ROWS, ("history",))}
    model = Model(
        bias, lambda p, b: squares(p, b) + fs.lookup(p["v"], b["history"]).sum(1) ** 2, tables
    )
    population = people()
    method = fs.recipes.fedsgd(model, optax.sgd(0.1))
    run, again = (run_of(method, population, sampler=fs.sampling.uniform(3)) for _ in range(2))
    sizes = np.array(
        [
            len(set(np.ravel(population.columns["history"][population.owners == c])) - {-1})
            for c in range(7)
        ]
    )
    seen: set[int] = set()
    for r in range(4):
        (report,) = run.rounds(1)
        cohort = run.cohort(r)
        new = sizes[[c for c in cohort if c not in seen]]
        seen |= set(cohort)
        assert report.bytes_down == 3 * (28 + 4) + sizes[cohort].sum() * 8
        named = 12 * len(new) + 4 * new.sum()
        up = 3 * (36 + 4) + sizes[cohort].sum() * 12  # FedSGD touches all of S(i)
        assert report.bytes_up == up + named
        assert report.examples == population.counts[cohort].sum()
        if r == 1:
            run.save(tmp_path)
    again.restore(tmp_path)
    assert [each.bytes_up for each in again.rounds(2)][-1] == report.bytes_up
    assert again.totals == run.totals
    again.restore(tmp_path)  # back to round 2: a life in which rounds 3 and 4 have not been
    assert list(again.rounds(2))[-1].bytes_up == report.bytes_up


def test_compiled_once_even_if_first_values_are_weakly_typed() -> None:
    """jnp.full((), 0.5) has JAX's weak type, the result of a round has not: that alone must not
    compile again."""
    model = Model(
        lambda key: {"bias": jnp.full((), 0.5)}, squares, {"w": Table(ROWS, ("history",))}
    )
    run = run_of(
        fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=2, batch=3)),
        people(),
        3,
        rows="held",
    )
    assert len(run.engine.whole.programs()) == 1


def test_an_empty_round_changes_nothing() -> None:
    """Poisson sampling draws nobody now and then."""
    run = run_of(AVG, people(), sampler=fs.sampling.poisson(0.5), seed=3)
    sizes = [len(run.cohort(r)) for r in range(8)]
    assert 0 in sizes
    assert max(sizes) > 0
    for size in sizes:
        before = jax.tree.map(np.array, run.params())
        (report,) = run.rounds(1)
        assert report.clients == size
        same = jax.tree.map(np.array_equal, before, jax.tree.map(np.array, run.params()))
        assert all(jax.tree.leaves(same)) == (size == 0)


# -- clients that remember -------------------------------------------------------------------------


def rememberer(model: Model, table: str) -> Client:
    """SGD that counts its rounds in a dense leaf and sums its row updates in a leaf shaped as the
    table."""
    plain = fs.client.sgd(model, optax.sgd(0.1), fs.Work(steps=2, batch=3))

    def init(params: Any) -> Any:
        return {"rounds": jnp.zeros(()), "sum": jnp.zeros_like(params[table])}

    def run(offer: Any, memory: Any, data: Any, key: Any) -> Any:
        message, _ = plain.run(offer, (), data, key)
        return message, {
            "rounds": memory["rounds"] + 1,
            "sum": memory["sum"] + message.update[table],
        }

    return Client(model, plain.work, init, run)


@cache
def remembering(table: str) -> Any:
    """One algorithm for all engines, traced once."""
    model = Model(
        bias,
        lambda p, b: squares({"w": p[table], "bias": p["bias"]}, b),
        {table: Table(ROWS, ("history",), init=jax.nn.initializers.ones)},
    )
    return algorithm(rememberer(model, table), [fs.stage.mean("uniform")], fs.server.optimize())


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "vmap"},
        {"engine": "map", "threads": 2},
        pytest.param({"rows": "held"}, marks=pytest.mark.every),
    ],
    ids=str,
)
@pytest.mark.parametrize("table", few(["w", "client"], "client"))
def test_each_client_keeps_its_own_memory(table: str, settings: Any, tmp_path: Any) -> None:
    """Averaging one client a round: the table is its first value plus the sum of all clients'
    memories."""
    method, population = remembering(table), people()
    run = run_of(method, population, 9, sampler=fs.sampling.uniform(1), seed=1, **settings)
    drawn = np.bincount([run.cohort(r)[0] for r in range(9)], minlength=len(population))
    memory = run.memory[0]
    assert memory["rounds"].tolist() == drawn.tolist()
    assert drawn.max() > 1
    assert drawn.min() == 0
    space = run.spaces[table]
    total = np.zeros(len(space.ids))
    for c, n in enumerate(drawn):
        own = slice(space.offsets[c], space.offsets[c + 1])
        kept = np.asarray(memory["sum"])[own]
        assert kept.any() == (n > 0)
        np.add.at(total, space.slots[own], kept)
    np.testing.assert_allclose(run.table(table, space.ids), 1 + total, atol=1e-5)
    run.save(tmp_path)
    again = run_of(method, population, sampler=fs.sampling.uniform(1), seed=1, **settings)
    again.restore(tmp_path)
    assert np.array_equal(again.memory[0]["sum"], memory["sum"])
    assert np.array_equal(again.memory[0]["rounds"], memory["rounds"])


def test_a_failing_client_keeps_its_old_memory() -> None:
    method = algorithm(rememberer(MODEL, "w"), [fs.stage.mean("uniform")], fs.server.optimize())
    run = run_of(method, spoiled(6), 2)
    memory = run.memory[0]
    assert memory["rounds"].tolist() == [2, 2, 2, 2, 2, 2, 0]
    assert np.isfinite(memory["sum"]).all()


# -- models of every shape -------------------------------------------------------------------------


def test_local_leaves_stay_at_home() -> None:
    """loss = (g + l - x)^2 with l local, fresh each round at 0: one client, one full-batch step of
    rate r.

    g and l both move by -2 r (0 - mean x); only g's move is sent.
    """
    model = Model(
        lambda key: {"g": jnp.zeros(()), "l": jnp.zeros(())},
        lambda p, b: (p["g"] + p["l"] - b["x"]) ** 2,
        local="l",
    )
    population = Population.from_arrays([1, 1, 1], x=[1.0, 2.0, 6.0])
    run = run_of(
        fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(epochs=2, batch=3)), population, 1
    )
    assert set(run.params()) == {"g"}
    assert set(run.shapes.tags.values["update"]) == {"g"}
    assert set(run.shapes.tags.invitation.offer) == {"g"}
    # step 1: residual -3, both move by 0.6; step 2: residual 1.2 - 3 = -1.8, both move by 0.36
    np.testing.assert_allclose(run.params()["g"], 0.96, rtol=1e-6)
    (report,) = run.rounds(1)
    assert report.bytes_up == HEAD.size + TOLD.size + 4


def test_a_model_without_tables_is_dense_fedavg() -> None:
    """Mean of x by one weighted full-batch step of rate 1/2 on (m - x)^2: m = the pooled mean after
    one round."""
    model = Model(lambda key: {"m": jnp.zeros(())}, lambda p, b: (p["m"] - b["x"]) ** 2)
    population = people()
    run = run_of(
        fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(epochs=1, batch=8)), population, 1
    )
    np.testing.assert_allclose(run.params()["m"], population.columns["x"].mean(), rtol=1e-5)


def several() -> tuple[Model, Population]:
    """Tables a and b share two fields, one of them padded; c has its own."""
    rng = np.random.default_rng(1)
    n = 20
    population = Population.from_arrays(
        rng.integers(0, 5, n), i=rng.integers(0, 9, n), j=rng.integers(-1, 9, (n, 2)),
        k=rng.integers(0, 4, n), x=rng.normal(size=n),
    )  # fmt: skip

    def loss(p: Any, b: Any) -> jax.Array:
        pair = p["a"][b["i"]] * p["b"][b["i"]].sum(-1) + fs.lookup(p["a"], b["j"]).sum(-1)
        return (pair + p["c"][b["k"]].sum(-1) + p["d"] - b["x"]) ** 2

    ones = jax.nn.initializers.ones
    tables = {
        "a": Table(9, ("i", "j"), init=ones),
        "b": Table(9, ("i", "j"), (3,), init=ones),
        "c": Table(4, ("k",), (2,), init=ones),
    }
    return Model(lambda key: {"d": jnp.zeros(())}, loss, tables), population


@pytest.mark.parametrize("rows", few(["touched", "held"], "touched"))
def test_several_tables_with_shared_fields(rows: str) -> None:
    """Against the same model with every table declared dense."""
    model, population = several()
    assert model.spaces == {"a": ("i", "j"), "c": ("k",)}
    dense = Model(
        lambda key: {
            "d": jnp.zeros(()),
            "a": jnp.ones(9),
            "b": jnp.ones((9, 3)),
            "c": jnp.ones((4, 2)),
        },
        model.loss,
    )
    settings = {"work": fs.Work(steps=2, batch=3)}
    one = run_of(fs.recipes.fedavg(model, optax.sgd(0.02), **settings), population, 3, rows=rows)
    two = run_of(fs.recipes.fedavg(dense, optax.sgd(0.02), **settings), population, 3)
    assert_params_close(two.params()["d"], one.params()["d"])
    for name, table in model.tables.items():
        got = one.table(name, np.arange(table.rows))
        np.testing.assert_allclose(got, two.params()[name], rtol=2e-5, atol=2e-6)
        assert np.abs(got - 1).max() > 1e-3


def test_a_field_of_two_index_spaces_works_or_is_refused() -> None:
    """Field i means a position among the rows of a, and another among those of c: it cannot hold
    both."""
    population = several()[1]

    def loss(p: Any, b: Any) -> jax.Array:
        return (
            p["a"][b["i"]] + fs.lookup(p["a"], b["j"]).sum(-1) + 3 * p["c"][b["i"]] - b["x"]
        ) ** 2

    ones = jax.nn.initializers.ones
    method = fs.recipes.fedsgd(
        Model(lambda key: {"a": jnp.ones(9), "c": jnp.ones(9)}, loss), optax.sgd(0.02)
    )
    expected = run_of(method, population, 2).params()
    try:
        model = Model(
            lambda key: {},
            loss,
            {"a": Table(9, ("i", "j"), init=ones), "c": Table(9, "i", init=ones)},
        )
    except InputError as refusal:
        assert "'i'" in str(refusal)  # noqa: PT017 (either outcome is right)
        return
    run = run_of(fs.recipes.fedsgd(model, optax.sgd(0.02)), population, 2)
    for name in ("a", "c"):
        np.testing.assert_allclose(
            run.table(name, np.arange(9)), expected[name], rtol=1e-4, atol=1e-5
        )


def test_fedsubavg_corrects_each_table_by_its_own_heat() -> None:
    """One exact step: FedSubAvg's move of row m is FedAvg's times N / n_m, table by table."""
    model, population = several()
    heat = population.heat(model)
    settings = {"work": fs.Work(epochs=1, batch=20), "weights": "uniform"}
    plain = run_of(fs.recipes.fedavg(model, optax.sgd(0.02), **settings), population, 1)
    heated = run_of(
        fs.recipes.fedsubavg(model, optax.sgd(0.02), heat=heat, **settings), population, 1
    )
    assert_params_close(plain.params()["d"], heated.params()["d"])
    for name, table in model.tables.items():
        move = plain.table(name, heat.ids[name]) - 1
        factor = (len(population) / heat.counts(name)).reshape((-1,) + (1,) * len(table.shape))
        np.testing.assert_allclose(
            heated.table(name, heat.ids[name]) - 1, move * factor, rtol=1e-4, atol=1e-6
        )


class Tower(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.tanh(nn.Dense(3)(x)))[:, 0]


@pytest.mark.every
def test_flax_modules_in_the_loss() -> None:
    tower = Tower()
    model = Model(
        lambda key: {"net": tower.init(key, jnp.zeros((1, 2)))},
        lambda p, b: (tower.apply(p["net"], p["e"][b["item"]][:, 0]) - b["x"]) ** 2,
        {"e": Table(ROWS, ("item",), (2,), jax.nn.initializers.normal(0.5))},
    )
    check_learns(model)


@pytest.mark.every
def test_equinox_modules_in_the_loss() -> None:
    parts = eqx.partition(eqx.nn.MLP(2, "scalar", 3, 1, key=jax.random.key(0)), eqx.is_array)
    model = Model(
        lambda key: {"net": parts[0]},
        lambda p, b: (
            (jax.vmap(eqx.combine(p["net"], parts[1]))(p["e"][b["item"]][:, 0]) - b["x"]) ** 2
        ),
        {"e": Table(ROWS, ("item",), (2,), jax.nn.initializers.normal(0.5))},
    )
    check_learns(model)


def check_learns(model: Model) -> None:
    """FedSGD of a small rate lowers the loss it descends, every round."""
    run = run_of(fs.recipes.fedsgd(model, optax.sgd(0.02)), people())
    losses = [report.loss for report in run.rounds(8)]
    assert (np.diff(losses) < 0).all()


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [0, -2, "loop", 1.5])
def test_unknown_engines_are_refused(engine: Any) -> None:
    with pytest.raises(InputError, match=r"engine.*use .*'vmap', 'scan', 'map'"):
        run_of(AVG, people(), engine=engine)


def test_auto_vectorises_small_clients_and_maps_large_ones() -> None:
    assert choose("auto", None, numbers=100, clients=50) == ("vmap", 1)
    assert choose("auto", 3, numbers=10**6, clients=50) == ("map", 3)
    assert choose("auto", None, numbers=10**6, clients=1) == ("map", 1)
    assert choose("map", 2, numbers=10, clients=50) == ("map", 2)
    assert choose("debug", None, numbers=10**6, clients=50)[1] == 1


@pytest.mark.parametrize(
    ("numbers", "clients", "uneven", "mode"),
    [
        (1 << 9, 511, True, "vmap"),
        (1 << 9, 512, True, "scan"),
        (1 << 9, 1023, False, "vmap"),
        (1 << 9, 1024, False, "scan"),
        (1 << 9, 2047, True, "scan"),
        (1 << 9, 2048, True, "map"),
        (16384, 20, True, "map"),
    ],
)
def test_cohorts_between_run_one_after_the_other_in_one_program(
    numbers: int, clients: int, uneven: bool, mode: str
) -> None:
    """As measured (docs/design.md): unless the user wants threads, or rounds in parts."""
    given = {"numbers": numbers, "clients": clients, "uneven": uneven}
    assert choose("auto", None, **given, whole=True)[0] == mode
    parts = "map" if mode == "scan" and clients * numbers >= 1 << 19 else mode
    parts = "vmap" if parts == "scan" else parts
    assert choose("auto", None, **given)[0] == parts
    assert choose("auto", 2, **given, whole=True)[0] == parts
    assert choose("scan", None, **given) == choose("map", None, **given)


def test_in_one_program_there_is_one_thread() -> None:
    with pytest.raises(InputError, match=r"leave out threads=2, or use 'map'"):
        run_of(AVG, people(), engine="scan", threads=2)


def test_clients_are_large_from_16384_numbers_on_and_cohorts_from_a_half_million() -> None:
    """As measured (docs/design.md)."""
    for numbers, clients, mode in (
        (16383, 1, "vmap"),
        (16384, 1, "map"),
        (1023, 512, "vmap"),
        (1024, 512, "map"),
    ):
        assert choose("auto", 1, numbers=numbers, clients=clients) == (mode, 1)


def test_as_many_threads_as_cores_or_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedslice.round.mode._cores", lambda: 4)
    assert [choose("map", None, 10, clients)[1] for clients in (0, 1, 3, 9)] == [1, 1, 3, 4]
    assert choose(2, None, 10, 9) == (2, 4)
    assert choose("vmap", None, 10, 9) == ("vmap", 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rows": "some"}, "use 'touched', 'held' or 'all'"),
        ({"sampler": fs.sampling.uniform(8)}, "8 was asked of 7"),
        ({"seed": -1}, "seed"),
    ],
    ids=["rows", "sampler", "seed"],
)
def test_bad_settings_are_refused_with_advice(settings: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run_of(AVG, people(), **settings)


def test_a_population_without_data_is_refused() -> None:
    population = people()
    with pytest.raises(InputError, match=r"no client has any data.*split"):
        run_of(AVG, population.select(population.owners < 0))


def test_train_needs_a_round_and_returns_the_last_report() -> None:
    run = run_of(AVG, people())
    with pytest.raises(InputError, match="at least one round"):
        run.train(0, progress=False)
    assert run.train(3, progress=False).round == run.round == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0, "epochs": 1}, "at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"epochs": 1, "batch": 0}, "at least 1"),
    ],
    ids=str,
)
def test_bad_work_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(**settings))


@pytest.mark.parametrize("stages", [[], [fs.stage.mean(), fs.stage.mean()]], ids=["none", "two"])
def test_an_algorithm_needs_exactly_one_mean(stages: Any) -> None:
    with pytest.raises(InputError, match=r"exactly one stage.*stage.mean"):
        algorithm(fs.client.sgd(MODEL, optax.sgd(0.1)), stages, fs.server.optimize())


def test_integers_beyond_32_bits_are_refused_if_the_loss_reads_them() -> None:
    """They would wrap around silently: 2**33 + 5 becomes 5."""
    model = Model(lambda key: {"m": jnp.zeros(())}, lambda p, b: (p["m"] - b["t"]) ** 2)
    population = Population.from_arrays([0, 1], t=np.array([2**33 + 5, 2**33 + 7]))
    with pytest.raises(InputError, match="'t'"):
        run_of(fs.recipes.fedsgd(model, optax.sgd(0.1)), population)
