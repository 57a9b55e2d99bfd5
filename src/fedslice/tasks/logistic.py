"""Logistic regression on categorical features: one weight for each value of each feature.

    p(label = 1) = sigmoid(bias + sum of the weights of the example's features)

The loss is the ordinary binary cross-entropy (the FedSubAvg paper's figures are half of it).
Beside accuracy, which on clicks hardly leaves the rate of the commoner label, there are the area
under the ROC curve and the log loss, the loss under the name it has elsewhere; all three are
compared with the :func:`baseline`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.files.guard import check_padded
from fedslice.metrics import Metric, PerExample, auc, calibration
from fedslice.model import Model, Table, lookup, remembered
from fedslice.tasks.base import Task
from fedslice.types import Array, Batch, Params

COHORT = 50
FEWEST = 100  # examples, to tell that a feature hardly ever repeats
SETTINGS = {"cohort": COHORT, "steps": 10, "batch": 5, "weights": "examples"}


@remembered
def logistic(rows: int) -> Model:
    """The model over one table ``weight`` indexed by the field ``features``.

    >>> logistic(10).tables["weight"].rows
    10
    """

    def logit(params: Params, batch: Batch) -> Array:
        return jnp.sum(lookup(params["weight"], batch["features"]), axis=-1) + params["bias"]

    def loss(params: Params, batch: Batch) -> Array:
        z = logit(params, batch)
        return jax.nn.softplus(z) - batch["label"] * z

    def accuracy(params: Params, batch: Batch) -> Array:
        return ((logit(params, batch) > 0) == (batch["label"] > 0.5)).astype(jnp.float32)

    table = Table(rows=rows, fields=("features",))
    figures: dict[str, PerExample | Metric] = {
        "auc": auc(logit),
        "accuracy": accuracy,
        "log_loss": loss,
        "calibration": calibration(lambda params, batch: jax.nn.sigmoid(logit(params, batch))),
    }
    return Model(
        lambda key: {"bias": jnp.zeros(())},
        loss,
        {"weight": table},
        metrics=figures,
        ranges={"label": 2},
    )


def baseline(train: Population, test: Population) -> dict[str, float]:
    """What is had on the test set without any feature: for everybody the rate of ones in the
    training data.

    >>> label = [1.0, 1.0, 1.0, 0.0]
    >>> people = Population.from_arrays([0, 0, 1, 1], features=[[0]] * 4, label=label)
    >>> {name: round(value, 4) for name, value in baseline(people, people).items()}
    {'auc': 0.5, 'accuracy': 0.75, 'log_loss': 0.5623, 'calibration': 0.0}
    """
    rate = np.clip(train.columns["label"].mean(dtype=np.float64), 1e-7, 1 - 1e-7)
    ones = float(test.columns["label"].mean(dtype=np.float64))
    loss = -ones * np.log(rate) - (1 - ones) * np.log(1 - rate)
    return {
        "auc": 0.5,
        "accuracy": ones if rate > 0.5 else 1 - ones,
        "log_loss": float(loss),
        "calibration": abs(float(rate) - ones),
    }


def one_space(
    population: Population, fields: Sequence[str], label: str | None
) -> tuple[Population, int]:
    """All fields' ids side by side in one field ``features``, rows named ``field=value``; and the
    number of rows."""
    parts, names, start = [], [], 0
    for field in fields:
        ids = population.columns[field].reshape(population.examples, -1)
        parts.append(np.where(ids < 0, -1, ids + start))
        names += [f"{field}={name}" for name in population.names[field]]
        start += len(population.names[field])
    if not start:
        raise InputError(
            f"none of the features {', '.join(fields)} has any value: there is nothing to learn"
            " from"
        )
    sizes = [len(name) for name in names]  # one long value makes the names of all features wide
    check_padded(
        f"one of the features {', '.join(fields)} has a value", max(sizes), len(sizes), sum(sizes)
    )
    columns = {"features": np.concatenate(parts, 1).astype(np.int32)}
    if label is not None:
        columns["label"] = population.columns[label].astype(np.float32)
    return (
        Population(columns, population.offsets, population.clients, {"features": np.array(names)}),
        start,
    )


def values(population: Population, fields: Sequence[str]) -> list[str]:
    """How many values, each with a weight of its own, the features have, and a note on those that
    hardly ever repeat: time stamps and numbers of orders are whole numbers, too.

    >>> stamp = np.arange(200)
    >>> names = {"item": np.array(["x", "y"]), "stamp": stamp + 10**9}
    >>> people = Population.from_arrays(stamp * 0, names, item=stamp % 2, stamp=stamp)
    >>> for line in values(people, ["item", "stamp"]):
    ...     print(line)
    features: item 2 values, stamp 200 values
    note: stamp has a value of its own in nearly every example: bucket it or leave it out
    """
    many = {field: len(population.names[field]) for field in fields}
    alone = [field for field in fields if _hardly_repeats(population.columns[field], many[field])]
    note = "note: {} has a value of its own in nearly every example: bucket it or leave it out"
    listed = ", ".join(
        f"{field} {number:,} value{'s' * (number != 1)}" for field, number in many.items()
    )
    return [f"features: {listed}", *map(note.format, alone)]


def _hardly_repeats(ids: np.ndarray, values: int) -> bool:
    return len(ids) >= FEWEST and values > 0.9 * int((ids >= 0).sum())


def from_population(
    population: Population, fields: Sequence[str], label: str, seed: int = 0
) -> Task:
    """A task from the user's own data: a random fifth of the examples is held out.

    >>> names = {"item": np.array(["x", "y"])}
    >>> people = Population.from_arrays(
    ...     [0, 0, 1, 1, 1], names, item=[0, 1, 0, 1, 1], label=[0, 1, 0, 1, 1]
    ... )
    >>> from_population(people, ["item"], "label").model.tables["weight"].rows
    2
    """
    labels = np.unique(population.columns[label])
    if not set(labels.tolist()) <= {0, 1}:
        raise InputError(
            f"the label {label!r} must be 0 or 1, but has values such as {labels[:5].tolist()}"
        )
    if population.examples < 3:
        raise InputError(
            f"a fifth of the examples is held out, and here are {population.examples}: give three"
            " or more"
        )
    stacked, rows = one_space(population, fields, label)
    train, test = stacked.split(examples=0.2, seed=seed)
    settings = {**SETTINGS, "cohort": min(COHORT, int((train.counts > 0).sum()))}
    given = baseline(train, test)
    return Task(
        "lr", logistic(rows), train, test, settings, {"": 0.1}, source="your file", baseline=given
    )


def whole(population: Population, fields: Sequence[str]) -> Task:
    """The same without labels and without a test set: enough to look at the heat."""
    stacked, rows = one_space(population, fields, None)
    return Task("lr", logistic(rows), stacked, stacked, SETTINGS, source="your file")
