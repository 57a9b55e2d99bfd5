"""Rounds on a crew are those of one process: to the bit, whatever the crew, whoever is lost."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from laws import MODEL, PEOPLE, RECIPES, method_of, recon, sampler_of
from nodes import bits
from problems import ROWS

import fedslice as fs
from fedslice.cluster.crew import Here, Lost
from fedslice.cluster.run import ClusterRun
from fedslice.cluster.shares import Range, cuts, ranges
from fedslice.errors import InputError, RoundError

# one of each structure: plain, moments, memory, codes with memory, two models, a local leaf, and
# with the driver: a survey, a norm over all rows, a robust sum
NAMES = [
    "fedsubavg",
    "fedadam",
    "scaffold-1",
    "fedavg-topk",
    "mimelite",
    "ifca",
    "fedrecon",
    "mime",
    "fedexp",
    "everything",
]
WITH_DRIVER = {"mime": "survey", "fedexp": "all rows at once", "everything": "trimmed(0.1) needs"}


def on(crew: Any, name: str = "fedsubavg", **given: Any) -> ClusterRun:
    given = {"sampler": sampler_of(name), "engine": "map", "seed": 3} | given
    method = given.pop("method", None) or method_of(name)
    return fs.cluster.simulate(method, PEOPLE, crew=crew, **given)


def alone(name: str = "fedsubavg", **given: Any) -> Any:
    given = {"sampler": sampler_of(name), "engine": "map", "seed": 3} | given
    method = given.pop("method", None) or method_of(name)
    return fs.simulate(method, PEOPLE, **given)


def state(run: Any) -> Any:
    return bits([run.store.snapshot(), run.memory])


def reports(run: Any, rounds: int) -> list[Any]:
    """All that reports say, but for the norm."""
    return [
        (np.asarray(r.figures.values)[:3].tolist(), r.clients, r.examples, r.bytes_down, r.bytes_up)
        for r in run.rounds(rounds)
    ]


@pytest.mark.parametrize("name", few(NAMES, "scaffold-1"))
@pytest.mark.parametrize("crew", few([(1, 1), (2, 3)], (2, 3)), ids=str)
def test_as_in_one_process_to_the_bit(name: str, crew: tuple[int, int]) -> None:
    local, run = alone(name), on(Here(*crew), name)
    assert reports(run, 3) == reports(local, 3)
    assert state(run) == state(local)
    assert WITH_DRIVER.get(name, "") in run.layout.reason
    assert (run.layout.reason == "") == (name not in WITH_DRIVER)


@pytest.mark.every
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in NAMES])
def test_every_recipe_as_in_one_process(name: str) -> None:
    local = alone(name)
    expected = reports(local, 3)
    for workers in (1, 2, 4):
        run = on(Here(workers=workers), name)
        assert reports(run, 3) == expected
        assert state(run) == state(local)


def test_the_norm_of_an_update_is_that_of_all_shards() -> None:
    local, run = alone(), on(Here(workers=2, shards=3))
    pairs = zip(local.rounds(2), run.rounds(2), strict=True)
    for one, two in pairs:
        assert two.update_norm == pytest.approx(one.update_norm, rel=1e-6)
        assert two.update_norm > 0


SAMPLERS = {
    "twice in a cohort": fs.sampling.weighted(5),
    "sometimes nobody": fs.sampling.poisson(1),
}


@pytest.mark.parametrize("kind", few(SAMPLERS, "twice in a cohort"))
def test_cohorts_of_every_kind(kind: str) -> None:
    method = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=3, batch=4), weights="uniform")
    given: Any = {"sampler": SAMPLERS[kind], "method": method}
    local, run = alone(**given), on(Here(workers=3), **given)
    assert reports(run, 6) == reports(local, 6)
    assert state(run) == state(local)


@pytest.mark.parametrize("workers", few([1, 3], 3))
def test_large_dense_leaves_are_added_worker_by_worker(workers: int) -> None:
    """1,200 numbers, more than are sent one by one."""

    def dense(key: Any) -> dict[str, Any]:
        return {"a": jax.random.normal(key, (40, 30)) / 10, "bias": jnp.zeros(30)}

    def loss(params: Any, batch: Any) -> Any:
        rows = fs.lookup(params["w"], batch["history"]).sum(1)
        return jnp.sum((rows @ params["a"] + params["bias"] - batch["x"][:, None]) ** 2, axis=1)

    table = fs.Table(ROWS, ("history",), shape=(40,), init=jax.nn.initializers.normal(0.1))
    model = fs.Model(dense, loss, {"w": table})
    method = fs.recipes.fedavg(model, optax.sgd(0.01), fs.Work(steps=2, batch=3))
    local = alone(method=method)
    run = on(Here(workers=workers), method=method)
    assert any(run.layout.large)
    assert not all(run.layout.large)
    assert reports(run, 2) == reports(local, 2)
    assert state(run) == state(local)


def test_vectorised_clients_do_not_depend_on_the_workers() -> None:
    one, two = (on(Here(workers=workers), engine=2) for workers in (1, 3))
    assert reports(one, 3) == reports(two, 3)
    assert state(one) == state(two)


@pytest.mark.parametrize(
    "split", few(["time:x", lambda population: np.arange(population.examples) % 2], "time:x")
)
def test_halves_by_a_column_and_by_a_function_of_all(split: Any) -> None:
    method = recon(recover=fs.Work(steps=2, batch=4), split=split)(MODEL, PEOPLE)
    local, run = alone(method=method), on(Here(), method=method)
    assert reports(run, 2) == reports(local, 2)
    assert state(run) == state(local)


def test_workers_open_a_population_that_is_in_a_folder(tmp_path: Path) -> None:
    """Each reads its own part; nothing of it is sent."""
    PEOPLE.write(tmp_path / "people")
    mapped = fs.Population.open(tmp_path / "people")
    method = method_of("scaffold-1")
    given: Any = {"sampler": fs.sampling.uniform(4), "engine": "map", "seed": 3}
    run = fs.cluster.simulate(method, mapped, crew=Here(workers=3), **given)
    local = alone("scaffold-1")
    assert reports(run, 2) == reports(local, 2)
    assert state(run) == state(local)
    assert all(share.data == mapped.home for share in run.team.shares)


def test_noise_on_all_rows_is_drawn_by_the_driver() -> None:
    drawn = fs.sampling.poisson(4)
    private = fs.privacy.central(clip=0.5, noise=1.0, sampler=drawn)
    method = fs.recipes.fedavg(
        MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3), weights="uniform", stages=private
    )
    given: Any = {"method": method, "sampler": drawn}
    local, run = alone(**given), on(Here(), **given)
    assert reports(run, 2) == reports(local, 2)
    assert state(run) == state(local)
    assert "rows" in run.layout.reason


# -- looking, keeping ------------------------------------------------------------------------------


def test_rows_that_nobody_holds_have_their_first_value() -> None:
    local, run = alone(), on(Here(workers=2))
    local.train(2, progress=False)
    run.train(2, progress=False)
    every = np.arange(ROWS)
    np.testing.assert_array_equal(run.table("w", every), local.table("w", every))
    assert fs.evaluate(run, PEOPLE).pooled == fs.evaluate(local, PEOPLE).pooled


@pytest.mark.parametrize("name", few(["scaffold-1", "mime"], "scaffold-1"))
def test_checkpoints_go_from_a_cluster_to_one_process_and_back(name: str, tmp_path: Path) -> None:
    whole = alone(name)
    whole.train(4, progress=False)
    first = on(Here(workers=2), name)
    first.train(2, progress=False)
    first.save(tmp_path)
    local, other = alone(name), on(Here(workers=3, shards=1), name)
    for run in (local, other):
        run.restore(tmp_path)
        run.train(2, progress=False)
        assert state(run) == state(whole)
        assert run.totals == whole.totals


# -- members that are lost -------------------------------------------------------------------------


class Failing(Here):
    """Loses a member at the given call, before or after it did its work."""

    def __init__(self, at: int, after: bool, **given: Any) -> None:
        super().__init__(**given)
        self.left, self.after = at, after

    def call(self, member: Any, method: str, *given: Any, returns: int = 1) -> list[Any]:
        self.left -= 1
        if self.left == 0:
            if self.after:
                super().call(member, method, *given, returns=returns)
            self.end(member)
        return super().call(member, method, *given, returns=returns)


@pytest.mark.parametrize(
    ("name", "every", "calls"),
    [
        pytest.param("fedadam", 1e9, (9, 17), marks=pytest.mark.every),
        ("scaffold-1", 0.0, (14, 17)),
        pytest.param("scaffold-1", 1e9, (16,), marks=pytest.mark.every),
        pytest.param("mime", 0.0, (8,), marks=pytest.mark.every),
    ],
)
@pytest.mark.parametrize("after", few([False, True], False), ids=["before", "after"])
def test_whoever_is_lost_whenever_the_end_is_the_same(
    name: str, every: float, calls: tuple[int, ...], after: bool
) -> None:
    """In calls of the second round and the third: before training, in it, in steps, in the making
    of a point to go back to."""
    local = alone(name)
    expected, last = reports(local, 3), state(local)
    for at in calls:
        crew = Failing(at, after, workers=2)
        run = on(crew, name, every=every)
        assert reports(run, 3) == expected
        assert state(run) == last
        assert crew.gone


def test_a_cluster_that_loses_everything_ends_with_the_reason() -> None:
    class Hopeless(Here):
        def call(self, member: Any, method: str, *given: Any, returns: int = 1) -> list[Any]:
            raise Lost("no memory")

    with pytest.raises(RoundError, match=r"round 1 was tried 10 times.*no memory"):
        on(Hopeless()).train(1, progress=False)


# -- dividing --------------------------------------------------------------------------------------


def test_cohorts_are_cut_evenly_where_the_data_overlap() -> None:
    held = ranges(np.arange(1000), 1000, 4, remember=False)
    rng = np.random.default_rng(0)
    for _ in range(50):
        places = np.sort(rng.choice(1000, 200, replace=False))
        parts = cuts(places, 200, held)
        assert [part.stop - part.start for part in parts] == [50] * 4
        for part, own in zip(parts, held, strict=True):
            mine = places[part.start : part.stop]
            assert own.start <= mine.min()
            assert mine.max() < own.stop


def test_clients_that_remember_stay_with_one_worker() -> None:
    held = ranges(np.array([0, 1, 2, 9]), 10, 2, remember=True)
    assert held == [Range(0, 2), Range(2, 10)]
    assert cuts(np.array([0, 1, 10]), 2, held) == [Range(0, 2), Range(2, 3)]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vmap", "debug"])
def test_engines_that_need_a_whole_cohort(engine: str) -> None:
    with pytest.raises(InputError, match="no machine of a cluster has"):
        on(Here(), engine=engine)


def test_a_crew_of_nobody() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Here(workers=0)


def test_a_closed_run() -> None:
    with on(Here()) as run:
        run.train(1, progress=False)
    with pytest.raises(InputError, match="was closed"):
        run.train(1, progress=False)
