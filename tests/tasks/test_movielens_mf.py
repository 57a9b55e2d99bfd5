"""MovieLens MF: the model by hand, the splits, the task from files, and training it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.data.population import Population
from fedslice.evaluation.gain import adapted
from fedslice.models.factorisation import factorisation
from fedslice.tasks import movielens_mf
from fedslice.tasks.movielens_mf import at_most, divide


def test_the_model_is_the_product_of_two_vectors() -> None:
    model = factorisation(items=2, dimension=2)
    params = {"user": jnp.array([1.0, 2.0]), "item": jnp.array([[1.0, 1.0], [0.5, -1.0]])}
    batch = {"movie": jnp.array([0, 1]), "rating": jnp.array([4.0, 1.0])}
    assert model.loss(params, batch).tolist() == [1.0, 6.25]  # (3 - 4)^2, (-1.5 - 1)^2
    measured = model.measure(params, batch).values()
    figures = {
        name: figure.figure(*map(np.asarray, values))
        for (name, figure), values in zip(model.figures.items(), measured, strict=True)
    }
    assert figures["rmse"] == pytest.approx(np.sqrt(3.625))
    assert figures["accuracy"] == 0.5  # -1.5 counts as 1, the lowest rating


@pytest.mark.parametrize(
    ("stars", "guess", "rating", "right"),
    [
        (1.0, 3.4, 3.0, 1),
        (1.0, 3.6, 3.0, 0),
        (1.0, 7.0, 5.0, 1),
        (1.0, 0.2, 1.0, 1),
        (0.5, 3.4, 3.5, 1),
        (0.5, 3.2, 3.0, 1),
        (0.5, 3.3, 3.0, 0),
        (0.5, 0.1, 0.5, 1),
        (0.5, 9.0, 5.0, 1),
    ],
)
def test_accuracy_rounds_to_the_nearest_rating(
    stars: float, guess: float, rating: float, right: int
) -> None:
    model = factorisation(items=1, dimension=1, stars=stars)
    params = {"user": jnp.array([1.0]), "item": jnp.array([[guess]])}
    batch = {"movie": jnp.array([0]), "rating": jnp.array([rating])}
    assert model.metrics["accuracy"](params, batch).tolist() == [right]  # type: ignore[operator]


def test_parameters_are_as_many_and_as_large_as_published() -> None:
    model = factorisation(items=3706)
    key = jax.random.key(0)
    rows = np.asarray(model.params(key, {"item": np.arange(3706)})["item"])
    assert rows.shape == (3706, 50)
    assert 0.0499 < np.abs(rows).max() < 0.05
    assert np.abs(rows.mean()) < 0.001
    assert model.fresh(key)["user"].shape == (50,)
    assert model.dense(key) == {}  # the server holds nothing but the films
    shared = factorisation(items=3706, users=6040)
    assert shared.local == ()
    assert {name: table.rows for name, table in shared.tables.items()} == {
        "item": 3706,
        "user": 6040,
    }


def test_users_are_divided_in_tenths() -> None:
    people = Population.from_arrays(np.arange(6040), time=np.zeros(6040))
    train, test = divide(people, "users", "test")
    again, validation = divide(people, "users", "validation")
    assert (len(train), len(test), len(validation)) == (4832, 604, 604)
    assert np.array_equal(train.clients, again.clients)
    everybody = np.concatenate([train.clients, test.clients, validation.clients])
    assert np.array_equal(np.sort(everybody), np.arange(6040))


def test_each_users_ratings_are_divided_by_time() -> None:
    time = [*np.arange(20)[::-1], 5, 5, 5, 7, *[3] * 10]
    people = Population.from_arrays(
        [0] * 20 + [1] * 3 + [2] + [3] * 10, time=time, number=np.arange(34)
    )
    (train, test), (_, validation) = (
        divide(people, "time", part) for part in ("test", "validation")
    )
    assert train.counts.tolist() == [16, 2, 1, 8]  # the only rating of a user is for training
    assert validation.counts.tolist() == [2, 0, 0, 1]
    assert test.counts.tolist() == [2, 1, 0, 1]
    assert (train.columns["time"][:16].max(), test.columns["time"][:2].min()) == (15, 18)
    assert test.columns["number"][-1] == 33  # of equal times the last in the file
    kept = np.concatenate([part.columns["number"] for part in (train, validation, test)])
    assert np.array_equal(np.sort(kept), np.arange(34))


def test_wrong_splits_are_refused() -> None:
    people = Population.from_arrays([0, 1, 2], time=[0, 0, 0])
    with pytest.raises(ValueError, match=r"3 users are too few .* split='time'"):
        divide(people, "users", "test")
    for split, part in (("user", "test"), ("time", "train")):
        with pytest.raises(ValueError, match="split is users or time, part is test or validation"):
            divide(people, split, part)


def test_at_most_300_ratings_of_a_user_are_chosen_at_random() -> None:
    people = Population.from_arrays([0] * 1000 + [1] * 300 + [2], x=np.arange(1301))
    few = at_most(people, 300)
    assert few.counts.tolist() == [300, 300, 1]
    chosen = few.columns["x"][:300]
    assert len(np.unique(chosen)) == 300
    assert 400 < chosen.mean() < 600  # neither the first nor the last ones
    assert few.columns["x"][300:].tolist() == list(range(1000, 1301))
    assert np.array_equal(chosen, at_most(people, 300).columns["x"][:300])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    films = "".join(f"{film},Film {film},Drama\n" for film in range(1, 13))
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n" + films)
    lines = [
        f"{u},{f},{1 + (u * f) % 9 / 2},{1000 - f}\n" for u in range(1, 31) for f in range(1, 11)
    ]
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(lines))
    return tmp_path


def test_task_from_files_with_half_stars(folder: Path) -> None:
    task = movielens_mf.load(folder)
    assert (len(task.train), len(task.test)) == (24, 3)
    assert task.model.tables["item"].rows == 10  # rated films
    assert set(task.train.columns) == {"movie", "rating", "time"}
    assert task.train.names["movie"][9] == "Film 10"
    assert set(np.unique(task.train.columns["rating"] % 1)) == {0, 0.5}
    params = {"user": jnp.full(50, 0.1), "item": jnp.full((10, 50), 0.68)}  # 3.4
    batch = {"movie": jnp.array([0]), "rating": jnp.array([3.5])}
    assert task.model.metrics["accuracy"](params, batch).tolist() == [1]  # type: ignore[operator]
    seen = movielens_mf.load(folder, split="time")
    assert (len(seen.train), seen.train.examples, seen.test.examples) == (30, 240, 30)
    assert seen.train.columns["time"].min() > seen.test.columns["time"].max() - 10
    assert (
        seen.test.columns["movie"].tolist() == [0] * 30
    )  # film 1 was the last that everyone rated


def test_the_workload_says_what_the_task_is_run_with() -> None:
    task, workload = movielens_mf.synthetic(scale=0.01), movielens_mf.WORKLOAD
    assert (task.name, task.settings, task.learning_rates, task.published) == (
        workload.name,
        workload.settings,
        workload.learning_rates,
        workload.published,
    )


def test_the_generator_has_the_sizes_of_movielens_1m() -> None:
    task = movielens_mf.synthetic(scale=0.2)
    assert (len(task.train), len(task.test)) == (966, 121)
    assert task.train.counts.min() >= 20
    assert task.train.counts.max() == 300
    assert task.train.counts.mean() == pytest.approx(
        130, rel=0.05
    )  # of 165 all, with 13 % of users above 300
    heat = task.train.heat(task.model)
    assert heat.dispersion > 100
    other = movielens_mf.synthetic(scale=0.2)
    assert np.array_equal(task.train.columns["rating"], other.train.columns["rating"])


@pytest.mark.every
def test_reconstruction_predicts_unseen_users() -> None:
    task = movielens_mf.synthetic(scale=0.05)
    method = fs.recipes.fedrecon(
        task.model,
        optax.sgd(0.5),
        fs.Work(steps=50, epochs=1, batch=5),
        reconstruction=optax.sgd(0.1),
        recover=fs.Work(steps=50, epochs=5, batch=5),
    )
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(50))
    run.train(15, progress=False)
    gain = adapted(run, task.test)
    assert gain.before.pooled["rmse"] > 3.5  # a random vector says nothing
    assert gain.after.pooled["rmse"] < 1.05  # the ratings spread by 1.117
    assert gain.after.pooled["accuracy"] > 0.36


@pytest.mark.parametrize(
    ("split", "seen"), [("time", True), pytest.param("users", False, marks=pytest.mark.every)]
)
def test_the_server_can_hold_the_users_vectors(split: str, seen: bool) -> None:
    task = movielens_mf.synthetic(scale=0.02, split=split, local=False)
    assert task.model.local == ()
    method = fs.recipes.fedavg(task.model, optax.sgd(5.0), fs.Work(steps=100, batch=100))
    run = fs.simulate(method, task.train.pool(), sampler=fs.sampling.full())
    run.train(10, progress=False)
    error = fs.evaluate(run, task.test).pooled["rmse"]
    assert (
        error < 1.25 if seen else error > 3.5
    )  # unseen users have their first, random vectors: 3.80 in the paper
