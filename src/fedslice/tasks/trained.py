"""A model trained on own data, and what it says of other data: the same preprocessing, the clients'
own leaves where it has any.

Local leaves (mf) are rebuilt from a client's labelled rows, as in training, global ones frozen.  No
row's label is used for its own prediction: rows without a label are predicted from all of their
client's labelled rows, labelled rows from a half of them that they are not in.  A client without
any labelled row has local leaves of zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedslice.arrays import Params
from fedslice.client.adapt import reconstruction
from fedslice.data.features import Features
from fedslice.data.gathering import Raw
from fedslice.data.hashing import GOLDEN, splitmix
from fedslice.data.population import Population
from fedslice.data.preparing import Read, apply, population
from fedslice.errors import InputError
from fedslice.evaluation.gain import Personal
from fedslice.evaluation.scores import Evaluator
from fedslice.metrics import Metric
from fedslice.model import Model, Table
from fedslice.models.own import NUMBER, score
from fedslice.tasks.own import layout, model_of
from fedslice.types import Adaptation, Array, Batch, Work

EXAMPLE = "example"  # the column that says which example a number is of


class Predictions(NamedTuple):
    """What a model says of each row of the data, in their order: of 0 and 1 the probability of 1,
    of classes a probability each ([rows, classes]), or the number; and whose rows they are."""

    clients: np.ndarray
    values: np.ndarray
    notes: list[str]


class Trained(NamedTuple):
    """A trained model: ``dense`` leaves as the model has them, ``tables`` with their rows ``ids``,
    and the ``settings`` that it was trained with."""

    features: Features
    dense: Params
    tables: Mapping[str, np.ndarray]
    ids: np.ndarray
    settings: Mapping[str, Any]

    @property
    def model(self) -> Model:
        """The model by the name in its features."""
        return model_of(self.features)

    def params(self, ids: np.ndarray) -> Params:
        """The model with these rows; zeros for a row that no client held."""
        places = np.minimum(np.searchsorted(self.ids, ids), max(0, len(self.ids) - 1))
        here = self.ids[places] == ids if len(self.ids) else np.zeros(len(ids), bool)
        rows = {}
        for name, table in self.tables.items():
            shown = table[places] if len(table) else np.zeros((len(ids), *table.shape[1:]))
            rows[name] = np.where(here.reshape(-1, *[1] * (table.ndim - 1)), shown, 0).astype(
                np.float32
            )
        return {**self.dense, **rows}

    def predict(self, data: Any) -> Predictions:
        """What it says of data that have the columns of the training, with a label or without."""
        read, notes = apply(self.features, data)
        outputs = np.empty((len(read.order), self._outputs), np.float64)
        found = self._rebuilt(read) if self.model.local else self._scored(read)
        outputs[read.order] = found
        clients = np.empty(len(read.order), read.clients.dtype)
        clients[read.order] = read.clients[read.owners]
        return Predictions(clients, _meaning(self.features, outputs), notes)

    def evaluate(self, data: Any) -> tuple[dict[str, float], list[str]]:
        """Its figures on labelled data, beside those that need no features, and notes.  Where
        clients rebuild local leaves they do so on one half of their rows and are judged on the
        other (ReconEval)."""
        read, notes = apply(self.features, data, labelled=True)
        people = population(read, self.features)
        _refuse_missing(self.features, read.raw)
        model = self.model
        if model.local:
            judge = Personal(people, self._adaptation(model))
            figures = judge(self.params(judge.ids()["weight"])).after.pooled
        else:
            measure = Evaluator(model, people)
            figures = measure.pooled(self.params(measure.ids()["weight"]))
        return figures, notes

    # -- scores ------------------------------------------------------------------------------------

    @property
    def _outputs(self) -> int:
        label = self.features.label
        return len(label.classes) if label.kind == "classes" else 1

    def _scoring(self) -> Model:
        """The same model; in place of figures it tells the scores, with the example they are of."""
        features = self.features
        classes = self._outputs if features.label.kind == "classes" else 0
        of = score(str(features.model["name"]), len(features.measured), classes, layout(features))

        def one(place: int) -> Metric:
            def values(params: Params, batch: Batch) -> tuple[Array, Array]:
                found = of(params, batch)
                return (found[:, place] if classes else found), batch[EXAMPLE]

            return Metric(values, lambda left, right: 0.0, lambda left, right, owners, many: owners)

        outputs: dict[str, Any] = {f"output-{place}": one(place) for place in range(self._outputs)}
        return replace(self.model, metrics=outputs, ranges={})

    def _people(self, read: Read) -> tuple[Population, np.ndarray]:
        """The data with a number for each example, in the order by client, and which have a label;
        others have one that nobody looks at."""
        has = self.features.label.column in read.raw.columns
        people = population(read, self.features, labelled=has)
        kind = np.int32 if self.features.label.kind == "classes" else np.float32
        label = people.columns["label"] if has else np.full(people.examples, np.nan, np.float32)
        known = label >= 0 if label.dtype.kind == "i" else ~np.isnan(label)
        columns = {
            **people.columns,
            "label": np.where(known, label, 0).astype(kind),
            EXAMPLE: np.arange(people.examples, dtype=np.int32),
        }
        return Population(columns, people.offsets, people.clients, people.names), known

    def _scored(self, read: Read) -> np.ndarray:
        people, _ = self._people(read)
        measure = Evaluator(self._scoring(), people)
        numbers = measure.numbers(self.params(measure.ids()["weight"]), list(measure.model.metrics))
        return np.stack([numbers[name][0] for name in measure.model.metrics], 1)

    def _rebuilt(self, read: Read) -> np.ndarray:
        people, known = self._people(read)
        model = self._scoring()
        half = splitmix(np.arange(people.examples, dtype=np.uint64) * GOLDEN) % np.uint64(2) == 0
        parts = [
            np.where(known, 1, 0),
            np.where(known, np.where(half, 1, 0), -1),
            np.where(known, np.where(half, 0, 1), -1),
        ]
        outputs = np.zeros((people.examples, 1))
        for part in parts:
            if not (part == 0).any():
                continue
            judge = Personal(people, self._adaptation(model), split=lambda _, part=part: part)
            after = judge.numbers(self.params(judge.ids()["weight"]))[1]
            value, example = after["output-0"]
            outputs[example.astype(np.int64), 0] = value
        return outputs

    def _adaptation(self, model: Model) -> Adaptation:
        """How clients rebuilt their local leaves in training."""
        s = self.settings
        if "reconstruct_rate" not in s:
            raise InputError(
                "this model's clients keep their local leaves to themselves, so that it predicts"
                " for none: train it with --algorithm fedrecon, whose clients rebuild them"
            )
        work = Work(int(s["reconstruct_steps"]), int(s["reconstruct_epochs"]), int(s["batch"]))
        return reconstruction(model, optax.sgd(float(s["reconstruct_rate"])), work)


def _refuse_missing(features: Features, raw: Raw) -> None:
    label = features.labels(raw, np.arange(raw.rows))
    missing = label < 0 if features.label.kind == "classes" else np.isnan(label)
    if missing.any():
        raise InputError(
            f"column {features.label.column!r} has {int(missing.sum()):,} missing values, first in"
            f" row {int(np.argmax(missing)) + 1}: drop those rows, or predict them"
        )


def _meaning(features: Features, outputs: np.ndarray) -> np.ndarray:
    """Scores as probabilities or numbers."""
    label = features.label
    if label.kind == NUMBER:
        return np.asarray(label.mean + label.spread * outputs[:, 0])
    if label.kind == "classes":
        raised = np.exp(outputs - outputs.max(1, keepdims=True))
        return np.asarray(raised / raised.sum(1, keepdims=True))
    return np.asarray(1 / (1 + np.exp(-np.clip(outputs[:, 0], -500, 500))))


def leaves(model: Model, flat: Mapping[str, np.ndarray]) -> Params:
    """The dense leaves of ``model`` from arrays by their paths, as a run folder has them.

    >>> from fedslice.models.own import own
    >>> leaves(own("lr", 3), {"bias": np.float32(2.0)})
    {'bias': np.float32(2.0)}
    """
    shapes = jax.eval_shape(model.dense, jax.random.key(0))
    paths, tree = jax.tree_util.tree_flatten_with_path(shapes)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    if missing := [name for name in names if name not in flat]:
        raise InputError(
            f"the model lacks {', '.join(missing)}: it is another than its features say"
        )
    found: Params = jax.tree.unflatten(tree, [flat[name] for name in names])
    return found


@dataclass(frozen=True)
class _Known(Table):
    """A table whose rows begin as they were trained."""

    trained: Trained | None = field(default=None, compare=False, repr=False)
    name: str = ""

    def make(self, key: Any, ids: np.ndarray) -> Array:
        """The trained rows."""
        assert self.trained is not None
        return jnp.asarray(self.trained.params(np.asarray(ids))[self.name])


def warm(trained: Trained) -> Model:
    """The model with what was trained as its first values: to go on with other data."""
    model = trained.model
    tables = {
        name: _Known(table.rows, table.fields, table.shape, table.init, trained, name)
        for name, table in model.tables.items()
    }
    dense = {name: jax.tree.map(jnp.asarray, leaf) for name, leaf in trained.dense.items()}
    return replace(model, init=lambda key: {**model.init(key), **dense}, tables=tables)
