"""Tasks from own data: a model by name, populations with one vocabulary, and settings that do
without tuning.

>>> import pyarrow
>>> log = {"user": list("aabbcc"), "item": list("xyxyxy"), "clicked": [0, 1, 0, 1, 0, 1]}
>>> task = from_data(pyarrow.table(log), Purposes("user", "clicked"), model="lr", test=0.5)
>>> task.name, task.model.tables["weight"].rows, task.features.columns[0].column
('lr', 2, 'item')
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.features import Features
from fedslice.data.learning import gather, learn
from fedslice.data.population import Population
from fedslice.data.preparing import TEST, Prepared, by_client, population, prepare
from fedslice.data.purposes import FEWEST, Purposes
from fedslice.data.reading import Query, open_source
from fedslice.model import Model
from fedslice.models.own import DIMENSION, own
from fedslice.tasks.base import Task
from fedslice.tasks.logistic import baseline

SAMPLE = 10_000  # examples whose features are counted
UNTESTED = "note: nothing is held out, so figures are of the training data"
ALGORITHMS = {"mf": "fedrecon"}  # of the others: fedsubavg
SUMMARIES = {
    "lr": "logistic (or linear, or softmax) regression: a weight for each value",
    "fm": "factorisation machine: weights, and a vector for each value, multiplied in pairs",
    "mf": "matrix factorisation: a vector for each value; the client's own is local (fedrecon)",
    "din": "embeddings and a small network; attention over a history (item+history)",
}
COMMON: Mapping[str, Any] = {"cohort": 200, "steps": 10, "batch": 20, "weights": "examples"}
ALONE = {"fedrecon": {"heat": True}}  # corrected by heat, local users learn faster, too
RATES = {"lr": 0.5, "fm": 0.1, "mf": 0.5, "din": 0.1}


def algorithm_of(name: str) -> str:
    """The algorithm to train a model by name with, if the user names none.

    >>> algorithm_of("lr"), algorithm_of("mf")
    ('fedsubavg', 'fedrecon')
    """
    return ALGORITHMS.get(name, "fedsubavg")


def settings_of(name: str) -> Mapping[str, Any]:
    """What a model by name is trained with."""
    return COMMON


def check_model(name: str, dimension: int = DIMENSION) -> None:
    """Refuse what is no model, before any data are read."""
    own(name, 1, dimension=dimension)


def model_of(features: Features) -> Model:
    """The model that reads what ``features`` make, by the name in them.

    >>> from fedslice.data.features import Column, Label
    >>> item = Column("item", "category", ("x", "y"))
    >>> label = Label("y", "binary", ("0", "1"))
    >>> features = Features("user", label, (item,), model={"name": "fm", "dimension": 4})
    >>> sorted(model_of(features).tables)
    ['factor', 'weight']
    """
    label = features.label
    return own(
        str(features.model["name"]),
        features.rows,
        label.kind,
        len(label.classes) if label.kind == "classes" else 0,
        len(features.measured),
        int(features.model.get("dimension", DIMENSION)),
        layout(features),
        label.spread,
    )


def layout(features: Features) -> tuple[tuple[int, int, int], ...]:
    """Of each column of ids its first place, its width, and the place of the column, with one value
    in each row, whose ids it shares (-1: none)."""
    if features.model["name"] != "din":
        return ()
    single = {c.column: c.place for c in features.ids if c.kind == "category" and c.width == 1}
    return tuple((c.place, c.width, single.get(c.shares, -1)) for c in features.ids)


def from_data(
    data: Any,
    purposes: Purposes,
    *,
    model: str = "lr",
    dimension: int = DIMENSION,
    split: str = "examples",
    test: Any = TEST,
    validation: Any = 0.0,
    folder: Path | None = None,
    seed: int = 0,
) -> Task:
    """A task from a file, a folder of Parquet files, a query or a frame; its ``notes`` tell what
    a person should know.  The rest as in :func:`fedslice.data.preparing.prepare`."""
    check_model(model, dimension)
    about: dict[str, Any] = {"name": model, **({} if model == "lr" else {"dimension": dimension})}
    found = prepare(
        data, purposes, split=split, test=test, validation=validation, model=about, folder=folder,
        seed=seed,
    )  # fmt: skip
    return assembled(found, "your query" if isinstance(data, Query) else "your file")


def assembled(prepared: Prepared, source: str) -> Task:
    """A task from prepared data; without a test set it is measured on the training data."""
    features, train = prepared.features, prepared.train
    test = train if prepared.test is None else prepared.test
    name = str(features.model["name"])
    some = int((train.counts > 0).sum())
    settings = dict(settings_of(name))
    settings["cohort"] = min(settings["cohort"], some)
    return Task(
        name,
        model_of(features),
        train,
        test,
        settings,
        {"": rate_of(features, train)},
        algorithms=ALONE,
        source=source,
        baseline=without_features(features, train, test),
        validation=prepared.validation,
        features=features,
        notes=(*prepared.notes, *([] if prepared.test is not None else [UNTESTED])),
    )


def rate_of(features: Features, train: Population) -> float:
    """The client rate of a model by name, or less where an example has many features.

    A step along F features and a bias, each 1, bends by at most (1 + F) / 4 of the cross-entropy
    and by 2 (1 + F) of the squared error; a gradient step is stable up to 2 over that.  Here it is
    half of it.
    """
    read = float(np.mean(np.sum(np.asarray(train.columns["features"][:SAMPLE]) >= 0, 1)))
    many = 1 + read + len(features.measured)
    most = (0.5 if features.label.kind == "number" else 4.0) / many
    return float(f"{min(RATES[str(features.model['name'])], most):.3g}")


def without_features(features: Features, train: Population, test: Population) -> dict[str, float]:
    """What is had on the test set without any feature: the training labels' mean or frequencies."""
    kind = features.label.kind
    if kind == "binary":
        return baseline(train, test)
    labels = [np.asarray(people.columns["label"]) for people in (train, test)]
    if kind == "number":
        error = labels[1].astype(np.float64) - labels[0].mean(dtype=np.float64)
        return {"rmse": float(features.label.spread * np.sqrt(np.mean(error**2)))}
    many = np.bincount(labels[0], minlength=len(features.label.classes)) + 1e-9
    shares = many / many.sum()
    return {
        "accuracy": float(np.mean(labels[1] == many.argmax())),
        "log_loss": float(-np.log(shares[labels[1]]).mean()),
    }


def whole(data: Any, purposes: Purposes) -> Task:
    """The same without labels and without a test set: enough to look at the heat."""
    raw, purposes, notes = gather(open_source(data), replace(purposes, label=None))
    read = by_client(raw, purposes.client)
    features = replace(learn(raw, purposes, read.order), model={"name": "lr"})
    people = population(read, features, labelled=False)
    return Task(
        "lr", model_of(features), people, people, COMMON, source="your file", features=features,
        notes=tuple(notes),
    )  # fmt: skip


def described(task: Task) -> list[str]:
    """What each column of own data was taken for, in a few words, and a note on those whose values
    hardly ever repeat: numbers of orders are whole numbers, too."""
    features = task.features
    assert features is not None
    words, alone = [], []
    ids = task.train.columns["features"]
    for column in features.columns:
        many = column.rows
        kind = {
            "category": f"{len(column.values):,} value{'s' * (len(column.values) != 1)}",
            "buckets": f"a number in {many} buckets",
            "standard": "a number, standardised",
        }.get(column.kind, f"the {column.kind} of a moment")
        if column.shares:
            kind = f"with the ids of {column.shares}"
        lists = f", lists of up to {column.width}" if column.width > 1 else ""
        words.append(f"{column.column} {kind}{lists}")
        if column.kind == "category" and len(ids) >= FEWEST:
            present = int((ids[:, column.place : column.place + column.width] >= 0).sum())
            alone += [column.column] if column.rows > 0.9 * present else []
    label = features.label
    meaning = {
        "binary": f"1 is {label.classes[1]!r}" if label.classes[1:] else "",
        "classes": f"{len(label.classes)} classes",
        "number": f"a number, mean {label.mean:.4g}, spread {label.spread:.4g}",
    }[label.kind]
    told = [f"features: {', '.join(words)}"]
    if label.column and label.classes != ("0", "1"):
        told.append(f"label: {label.column}, {meaning}")
    note = "note: {} has a value of its own in nearly every example: bucket it or leave it out"
    return [*told, *map(note.format, alone)]
