"""MovieLens LR: the task from official files, and what the generator shows."""

from pathlib import Path

import numpy as np
import optax
import pytest

import fedslice as fs

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
    assert names[:9].tolist() == ["gender=F", "gender=M", *(f"age={age}" for age in (1, 18, 25, 35, 45, 50, 56))]


def test_it_trains_from_the_files(folder: Path) -> None:
    task = MOVIELENS.load(folder)
    method = fs.recipes.fedsubavg(task.model, optax.sgd(0.1), heat=task.train.heat(task.model), steps=10, batch=5)
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(10))
    before = fs.evaluate(run, task.train).pooled["loss"]
    assert before == pytest.approx(np.log(2), rel=1e-6)  # zero weights
    run.train(30, progress=False)
    assert fs.evaluate(run, task.train).pooled["loss"] < before - 0.02


def test_fedsubavg_beats_fedavg_on_the_generator() -> None:
    task = MOVIELENS.synthetic(scale=0.1)
    losses = {}
    for name, more in (("fedavg", {}), ("fedsubavg", {"heat": task.train.heat(task.model)})):
        method = getattr(fs.recipes, name)(task.model, optax.sgd(0.1), steps=10, batch=5, **more)
        run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(50))
        run.train(100, progress=False)
        losses[name] = fs.evaluate(run, task.test).pooled["loss"]
    assert losses["fedsubavg"] < 0.65 < losses["fedavg"]
