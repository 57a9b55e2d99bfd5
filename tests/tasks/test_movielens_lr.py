"""MovieLens LR: the task from official files, and what the generator shows."""

from pathlib import Path

import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.tasks.movielens_lr import features
from fedslice.tasks.readers.ratings import AGES, read

MOVIELENS = fs.tasks.movielens_lr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    ages, genders = (1, 18, 25, 35, 45, 50, 56), "FM"
    users = [f"{u}::{genders[u % 2]}::{ages[u % 7]}::3::12345" for u in range(1, 31)]
    films = [f"{m}::Film {m} (19{m + 50})::Drama" for m in range(1, 13)]
    rated = [(u, m) for u in range(1, 31) for m in range(1, 11) if rng.random() < 0.7]
    ratings = [f"{u}::{m}::{rng.integers(1, 6)}::{978300000 + k}" for k, (u, m) in enumerate(rated)]
    for name, lines in (("users", users), ("movies", films), ("ratings", ratings)):
        (tmp_path / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return tmp_path


def test_task_from_the_official_files(folder: Path) -> None:
    task = MOVIELENS.load(folder)
    lines = [line.split("::") for line in (folder / "ratings.dat").read_text().splitlines()]
    films = len({film for _, film, *_ in lines})
    assert task.model.tables["weight"].rows == 9 + 10 * films
    assert task.train.examples + task.test.examples == len(lines)
    assert task.test.examples == round(0.2 * len(lines))
    positive = sum(int(stars) >= 4 for *_, stars, _ in lines)
    assert task.train.columns["label"].sum() + task.test.columns["label"].sum() == positive
    assert set(task.train.clients.tolist()) == {user for user, *_ in lines}
    names = task.train.names["features"]
    assert names[:9].tolist() == [
        "gender=F",
        "gender=M",
        *(f"age={age}" for age in (1, 18, 25, 35, 45, 50, 56)),
    ]


def test_features_name_what_they_hold(folder: Path) -> None:
    ratings = read(folder)
    ids, rows, names = features(ratings)
    assert ids.dtype == np.int32
    assert (ids.shape, rows, len(set(names))) == ((len(ratings.user), 5), 9 + 10 * 10, 9 + 10 * 10)
    gender, age = "FM"[ratings.gender[0]], AGES[ratings.age[0]]
    film = f"movie={ratings.titles[ratings.movie[0]]}"
    crossed = [f"gender={gender} & {film}", f"age={age} & {film}"]
    assert names[ids[0]].tolist() == [f"gender={gender}", f"age={age}", film, *crossed]


def test_without_gender_and_age_the_features_are_film_and_genres(tmp_path: Path) -> None:
    (tmp_path / "movies.csv").write_text(
        "movieId,title,genres\n7,Seven,Crime|Drama\n8,Eight,(no genres listed)\n"
    )
    lines = "".join(f"{user},{7 + user % 2},{3.5 + user % 2 / 2},{user}\n" for user in range(1, 11))
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + lines)
    ids, rows, names = features(read(tmp_path))
    assert names.tolist() == ["movie=Seven", "movie=Eight", "genre=Crime", "genre=Drama"]
    assert rows == 4
    assert ids[:2].tolist() == [[1, -1, -1], [0, 2, 3]]  # users 1 and 2
    task = MOVIELENS.load(tmp_path)
    assert task.model.tables["weight"].rows == 4
    assert (
        task.train.columns["label"].sum() + task.test.columns["label"].sum() == 5
    )  # 3.5 is below 4


def test_the_workload_says_what_the_task_is_run_with() -> None:
    task, workload = MOVIELENS.synthetic(scale=0.01), MOVIELENS.WORKLOAD
    assert (task.name, task.settings, task.learning_rates) == (
        workload.name,
        workload.settings,
        workload.learning_rates,
    )
    assert (task.target, task.published) == (workload.target, workload.published)
    assert "165" in workload.statistics["samples per client"]


def test_it_trains_from_the_files(folder: Path) -> None:
    task = MOVIELENS.load(folder)
    method = fs.recipes.fedsubavg(
        task.model, optax.sgd(0.1), fs.Work(steps=10, batch=5), heat=task.train.heat(task.model)
    )
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(10))
    before = fs.evaluate(run, task.train).pooled["loss"]
    assert before == pytest.approx(np.log(2), rel=1e-6)  # zero weights
    run.train(30, progress=False)
    assert fs.evaluate(run, task.train).pooled["loss"] < before - 0.02


@pytest.mark.every
def test_fedsubavg_beats_fedavg_on_the_generator() -> None:
    task = MOVIELENS.synthetic(scale=0.1)
    losses = {}
    for name, more in (("fedavg", {}), ("fedsubavg", {"heat": task.train.heat(task.model)})):
        method = getattr(fs.recipes, name)(
            task.model, optax.sgd(0.1), fs.Work(steps=10, batch=5), **more
        )
        run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(50))
        run.train(100, progress=False)
        losses[name] = fs.evaluate(run, task.test).pooled["loss"]
    assert losses["fedsubavg"] < 0.65 < losses["fedavg"]
