"""MovieLens LR of the FedSubAvg paper: will this user rate this film 4 or better?

Features: gender, age, film, gender x film, age x film, in one table of 37,069 rows.  A random fifth of the examples is
the test set; the training loss is measured on 10,000 random training examples; target: cross-entropy 0.65 (0.325 in the
paper, which averages over two outputs and so reports half of it).
"""

from pathlib import Path

import numpy as np

from fedslice.population import Population
from fedslice.tasks import ratings as data
from fedslice.tasks.base import Target, Task
from fedslice.tasks.logistic import logistic

SETTINGS = {"cohort": 50, "steps": 10, "batch": 5, "weights": "examples"}
PUBLISHED = {
    "rounds to target, CentralSGD": "180",
    "rounds to target, FedAvg": "170",
    "rounds to target, FedProx": "170",
    "rounds to target, Scaffold": "180",
    "rounds to target, FedAdam": "170",
    "rounds to target, FedSubAvg": "100",
}


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated data of the size and shape of MovieLens-1M; nothing to download.

    >>> task = synthetic(scale=0.02)
    >>> task.name
    'movielens-lr'
    """
    return _task(data.synthetic(seed, scale), f"generated data, seed {seed}, scale {scale:g}")


def load(folder: str | Path) -> Task:
    """The task on MovieLens-1M from its official files (a folder, or ml-1m.zip)."""
    return _task(data.read_ml1m(Path(folder)), str(folder))


def _task(ratings: data.Ratings, source: str) -> Task:
    features, rows, names = data.features(ratings)
    people = Population.from_arrays(
        ratings.user, {"features": names}, features=features, label=(ratings.rating >= 4).astype(np.float32)
    )
    people = Population(people.columns, people.offsets, ratings.user_names[people.clients], people.names)
    train, test = people.split(examples=0.2, seed=0)
    target = Target("train_loss", 0.65)
    return Task("movielens-lr", logistic(rows), train, test, SETTINGS, {"": 0.1}, target, PUBLISHED, source)
