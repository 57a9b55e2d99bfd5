"""Where rows live, and what they are before anybody trained them."""

import gc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import ROWS, logistic, people, run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import CheckpointError, InputError
from fedslice.model import Model, Table
from fedslice.round.disk import DiskStore
from fedslice.round.store import RamStore, put, row_leaves, take

MODEL = logistic()


def method(model: Model = MODEL) -> Any:
    return fs.recipes.fedavg(model, optax.sgd(0.3), fs.Work(steps=2, batch=3))


METHOD = method()  # one and the same value for most runs, traced once


def few() -> Population:
    return people(counts=(2, 1), seed=9)


@pytest.mark.parametrize("folder", [None, "tables"])
def test_first_rows_depend_on_seed_table_and_row_alone(folder: str | None, tmp_path: Path) -> None:
    """Another population, another store, another order of asking: the same values."""
    ids = np.arange(ROWS)
    store = "ram" if folder is None else tmp_path / folder
    expected = run_of(METHOD, people(), seed=3).table("w", ids)
    assert len(np.unique(expected)) == ROWS
    run = run_of(METHOD, few(), seed=3, store=store)
    assert np.array_equal(run.table("w", ids), expected)
    assert np.array_equal(run.table("w", ids[::-1]), expected[::-1])
    assert np.array_equal(run.table("w", np.array([7, 7, 2])), expected[[7, 7, 2]])
    assert not np.array_equal(run_of(METHOD, few(), seed=4, store=store).table("w", ids), expected)


@pytest.mark.parametrize("folder", [None, "tables"])
def test_rows_that_nobody_holds_keep_their_first_values(folder: str | None, tmp_path: Path) -> None:
    population = few()
    held = population.submodels(("item", "history"), ROWS).ids
    run = run_of(METHOD, population, store="ram" if folder is None else tmp_path / folder)
    ids = np.arange(ROWS)
    before = run.table("w", ids)
    for _ in run.rounds(3):
        pass
    after = run.table("w", ids)
    assert 0 < len(held) < ROWS
    assert np.array_equal(np.flatnonzero(before != after), held)


def test_a_table_of_a_trillion_rows_costs_nothing() -> None:
    """Ids above 2**32 are told apart, from their low halves too."""
    rows = 10**12
    big = Model(
        lambda key: {},
        lambda p, b: (p["w"][b["item"]].sum(1) - b["x"]) ** 2,
        {"w": Table(rows, ("item",), (2,), jax.nn.initializers.normal(1.0))},
    )
    item = np.array([5, 2**32 + 5, rows - 1])
    population = Population.from_arrays([0, 0, 1], item=item, x=[1.0, 2.0, 3.0])
    run = fs.simulate(method(big), population, sampler=fs.sampling.full())
    first = run.table("w", item)
    assert len(np.unique(first)) == 6
    for _ in run.rounds(2):
        pass
    assert (run.table("w", item) != first).any(1).sum() >= 2
    assert not np.array_equal(run.table("w", np.array([6])), run.table("w", np.array([2**32 + 6])))


def test_a_disk_store_never_makes_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables larger than memory: rows are made as rounds touch them, never all at once."""
    made: list[int] = []
    make = Table.make

    def noting(self: Table, key: Any, ids: np.ndarray) -> Any:
        out = make(self, key, ids)
        if not isinstance(out, jax.core.Tracer):  # shapes are also traced, with made-up sizes
            made.append(len(ids))
        return out

    monkeypatch.setattr(Table, "make", noting)
    population = people(counts=(2,) * 30, rows=200)
    run = run_of(
        method(logistic(200)), population, 1, store=tmp_path, sampler=fs.sampling.uniform(2)
    )
    assert len(run.spaces["w"].ids) > 100
    assert max(made) <= 2 * 2 * 5  # two clients of two examples of at most five rows


def test_new_rows_are_made_in_few_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size is compiled anew: one for each round with new rows would take minutes and fill the
    memory."""
    run = run_of(METHOD, people(), sampler=fs.sampling.uniform(1), store=tmp_path)
    assert isinstance(run.store, DiskStore)
    sizes, make = [], run.store.make

    def noting(ids: Any) -> Any:
        sizes.append(len(ids["w"]))
        return make(ids)

    monkeypatch.setattr(run.store, "make", noting)
    for _ in run.rounds(12):
        pass
    assert len(sizes) > 3
    assert set(sizes) <= {1, 2, 4, 8, 16, 32}
    plain = run_of(METHOD, people(), 12, sampler=fs.sampling.uniform(1))
    assert np.array_equal(run.table("w", np.arange(ROWS)), plain.table("w", np.arange(ROWS)))


def test_rows_of_killed_runs_are_cleared_away_and_others_are_not(tmp_path: Path) -> None:
    """A process that ends, however it does, lets go of its lock."""
    left = tmp_path / "rows-killed"
    left.mkdir()
    (left / "leaf-0.bin").write_bytes(bytes(100))
    (left / "lock").touch()
    (tmp_path / "rows.csv").touch()
    first = run_of(METHOD, few(), store=tmp_path)
    second = run_of(METHOD, few(), store=tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(
        [tmp_path / "rows.csv", first.store.folder, second.store.folder]
    )
    del first, second
    gc.collect()
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.csv"]


def test_models_from_two_stores_are_the_same_object_shape(tmp_path: Path) -> None:
    ram, disk = run_of(METHOD, few(), 2), run_of(METHOD, few(), 2, store=tmp_path)
    assert jax.tree.map(jnp.shape, ram.params()) == jax.tree.map(jnp.shape, disk.params())
    np.testing.assert_allclose(
        ram.table("w", np.arange(ROWS)), disk.table("w", np.arange(ROWS)), rtol=1e-6
    )


@pytest.mark.parametrize("folder", [None, "tables"])
def test_a_model_handed_out_stays_as_it_was(folder: str | None, tmp_path: Path) -> None:
    """params() is a picture of the model; training on must neither change nor delete it."""
    run = run_of(METHOD, few(), 1, store="ram" if folder is None else tmp_path / folder)
    params = run.params()
    copy = jax.tree.map(np.array, params)
    for _ in run.rounds(2):
        pass
    for old, now in zip(jax.tree.leaves(copy), jax.tree.leaves(params), strict=True):
        assert np.array_equal(old, now)


def test_asking_for_rows_outside_the_table_is_refused() -> None:
    run = run_of(METHOD, few())
    for ids in ([-1], [ROWS]):
        with pytest.raises(InputError, match=f"rows 0 to {ROWS - 1}, asked for"):
            run.table("w", np.array(ids))


def test_take_and_put_are_inverse_and_past_the_end_is_nothing() -> None:
    tags = {"w": "item", "b": ""}
    tree = {"w": jnp.arange(8.0).reshape(4, 2), "b": jnp.ones(3)}
    places = {"item": jnp.array([2, 0, 4])}
    rows = take(tags, tree, places)
    assert rows["w"].tolist() == [[4, 5], [0, 1], [0, 0]]
    back = put(tags, tree, places, {"w": rows["w"] + 10, "b": jnp.zeros(3)})
    assert back["w"].tolist() == [[10, 11], [2, 3], [14, 15], [6, 7]]
    assert back["b"].tolist() == [0, 0, 0]


def test_row_leaves_tells_spaces_apart() -> None:
    def shapes(rows: dict[str, int]) -> Any:
        return {
            "a": jnp.zeros((rows["user"], 3)),
            "b": (jnp.zeros(rows["item"]), jnp.zeros((5, 5))),
            "c": jnp.zeros(()),
        }

    assert row_leaves(shapes, ["user", "item"]) == {"a": "user", "b": ("item", ""), "c": ""}


@pytest.mark.parametrize(
    "shape",
    [lambda n: (3, n), lambda n: (n, n), lambda n: (2 * n,), lambda n: (n - 1,)],
    ids=["second axis", "both axes", "twice", "one less"],
)
def test_row_leaves_refuses_other_dependence(shape: Any) -> None:
    with pytest.raises(
        InputError, match="depends on a table's rows, but not in its first axis alone"
    ):
        row_leaves(lambda rows: jnp.zeros(shape(rows["item"])), ["item"])


def test_a_store_in_memory_refuses_what_does_not_fit_as_well() -> None:
    store = RamStore(lambda ids: {"b": np.zeros(3, np.float32)}, {"b": ""}, {})
    for wrong in (np.zeros(4, np.float32), np.zeros(3, np.int32)):
        with pytest.raises(CheckpointError, match=r"for \['b'\], this run needs float32\[3\]"):
            store.restore({"['b']": wrong})
    store.restore({"['b']": np.ones(3, np.float32)})
    assert store.snapshot()["['b']"].tolist() == [1, 1, 1]
