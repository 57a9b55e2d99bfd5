"""An estimator in scikit-learn's manners, for those who do not want recipes and samplers yet.

It does what ``fedslice run``, ``predict`` and ``evaluate`` do, by the same functions: own data
become populations and features, a named model is trained by a named algorithm, and its predictions
pass through the features that were learned.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli import export
from fedslice.cli.catalogue import settings_for
from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import SETTINGS
from fedslice.cli.predict import as_columns, assembled, load
from fedslice.cli.workloads import outline, usual_algorithm
from fedslice.data.features import Features
from fedslice.data.preparing import Prepared, apply, population
from fedslice.data.purposes import Purposes
from fedslice.data.reading import Query, open_source, pyarrow_for, table_of
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write
from fedslice.models.own import DIMENSION
from fedslice.tasks import own
from fedslice.tasks.base import Task
from fedslice.tasks.trained import Predictions, warm

ROUNDS = 300


class Federated:
    """A model by name, trained by clients on their slices of it.

    ``model`` is lr, fm, mf or din; ``algorithm`` one of ``fedslice algorithms`` (by default
    fedsubavg, for mf fedrecon).  ``client`` names the column that tells whose a row is, ``label``
    the one to predict, if it is not given apart as ``y``.  ``features``, ``numbers``, ``time``,
    ``lists``, ``separator``, ``text`` and ``label_as`` say what columns are, where they do not tell
    it themselves (:class:`fedslice.data.purposes.Purposes`).  ``settings`` are those of ``--set``:
    ``{"client_rate": 0.3}``.  ``validation`` is a share of the data that is held out by ``split``
    to measure on; the figures are in ``history_``.

    Data are a frame of pandas, polars or pyarrow, the path of a file or of a folder, or a query.

    >>> import pandas
    >>> log = pandas.DataFrame(
    ...     {"user": list("abcd") * 25, "item": list("xxyyz") * 20, "clicked": [1, 1, 0, 0, 1] * 20}
    ... )
    >>> model = Federated("lr", client="user", label="clicked", rounds=30).fit(log)
    >>> model.predict(log[:5]).tolist(), model.score(log)
    ([1, 1, 0, 0, 1], 1.0)
    >>> model
    Federated(client='user', label='clicked', rounds=30)
    """

    def __init__(
        self,
        model: str = "lr",
        algorithm: str | None = None,
        *,
        client: str = "client",
        label: str | None = None,
        features: Sequence[str | Sequence[str]] | None = None,
        numbers: Sequence[str] | Mapping[str, str | int] = (),
        time: str | None = None,
        lists: Sequence[str] = (),
        separator: str = "|",
        text: Sequence[str] = (),
        label_as: str = "auto",
        dimension: int = DIMENSION,
        rounds: int = ROUNDS,
        split: str = "examples",
        validation: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.algorithm, self.client, self.label = model, algorithm, client, label
        self.features, self.numbers, self.time, self.lists = features, numbers, time, lists
        self.separator, self.text, self.label_as = separator, text, label_as
        self.dimension, self.rounds, self.split = dimension, rounds, split
        self.validation, self.settings, self.seed = validation, settings, seed

    # -- as scikit-learn has it --------------------------------------------------------------------

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All arguments by name."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **given: Any) -> "Federated":
        """Change arguments, for the next ``fit``.

        >>> Federated().set_params(model="fm", rounds=50)
        Federated(model='fm', rounds=50)
        """
        for name, value in given.items():
            if name not in self._names():
                raise InputError(
                    f"there is no argument {name!r}; there are {', '.join(self._names())}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = inspect.signature(type(self).__init__).parameters
        given = {n: v for n, v in self.get_params().items() if v != usual[n].default}
        return f"Federated({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    # -- training ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> "Federated":
        """Learn features and train the model anew."""
        changes, algorithm = self._checked()
        data, label = self._joined(X, y)
        purposes = Purposes(
            self.client, label, self.features, self.numbers, self.time, self.lists,
            self.separator, self.text, self.label_as,
        )  # fmt: skip
        task = own.from_data(
            data, purposes, model=self.model, dimension=self.dimension, split=self.split,
            test=self.validation, seed=self.seed,
        )  # fmt: skip
        assert task.features is not None
        self.notes_ = [*own.described(task), *task.notes]
        self._train(task, algorithm, changes)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> "Federated":
        """Train on with more data, for as many rounds again; the features stay as they were learned
        first, so that values that were not there are padding."""
        if not hasattr(self, "trained_"):
            return self.fit(X, y)
        changes, algorithm = self._checked()
        features = self.trained_.features
        data, _ = self._joined(X, y, features.label.column)
        read, self.notes_ = apply(features, data, labelled=True)
        people = population(read, features)
        task = own.assembled(Prepared(features, people, None, None, []), "your data")
        going_on = replace(task, model=warm(self.trained_))
        self._train(going_on, algorithm, changes, self.exported_)
        return self

    def _checked(self) -> tuple[list[str], str]:
        """The settings as on the command line, refused before any data are read."""
        own.check_model(self.model, self.dimension)
        changes = [f"{key}={value}" for key, value in (self.settings or {}).items()]
        algorithm = self.algorithm or usual_algorithm(self.model)
        settings_for(outline(self.model), algorithm, changes)
        if self.rounds < 1:
            raise InputError(f"rounds={self.rounds} must be at least 1")
        return changes, algorithm

    def _train(
        self,
        task: Task,
        algorithm: str,
        changes: Sequence[str],
        before: export.Exported | None = None,
    ) -> None:
        settings = settings_for(task, algorithm, changes)
        every = max(1, self.rounds // 10)
        experiment = Experiment(task, algorithm, settings, self.rounds, self.seed, every)
        run = experiment.start()
        if run.algorithm.server.several or run.algorithm.client.serve is not None:
            raise InputError(
                f"{run.algorithm.name} has models that stay with the clients, so that the estimator"
                " has none to predict with: use another algorithm, or recipes"
            )
        experiment.execute(run)
        features = task.features
        assert features is not None
        self.history_ = experiment.lines
        made = export.model_of(run)._replace(settings=dict(settings.values))
        self.exported_ = made if before is None else _merged(before, made)
        self.trained_ = assembled(features, self.exported_)
        self.features_, self.classes_ = features, _classes(features)

    def _joined(self, X: Any, y: Any, name: str | None = None) -> tuple[Any, str]:
        """The data with the label among them, and its name."""
        label = name or self.label or str(getattr(y, "name", None) or "label")
        if y is None:
            if (name or self.label) is None:
                raise InputError("say which column is the label: Federated(label=...), or give y")
            return X, label
        if isinstance(X, str | Path | Query):
            raise InputError("y goes with a frame; of a file name the column, Federated(label=...)")
        arrow = pyarrow_for("an estimator")
        source = open_source(X)
        if label in source.names:
            raise InputError(
                f"the data have a column {label!r} already, and y is given: leave one out"
            )
        table = table_of(arrow, X, source.names)
        return table.append_column(label, arrow.array(np.asarray(y).tolist())), label

    # -- prediction --------------------------------------------------------------------------------

    def _predictions(self, X: Any) -> Predictions:
        if not hasattr(self, "trained_"):
            raise InputError("this estimator is not trained yet: call fit first")
        return self.trained_.predict(X)

    def predict(self, X: Any) -> Any:
        """The class, or the number, of each row: a series of the library that the frame is of."""
        found = self._predictions(X).values
        if self.features_.label.kind == "number":
            return _like(X, found, "prediction")
        best = found.argmax(1) if found.ndim == 2 else (found > 0.5).astype(int)
        return _like(X, self.classes_[best], "prediction")

    def predict_proba(self, X: Any) -> Any:
        """A probability for each class, in the order of ``classes_``: [rows, classes]."""
        if hasattr(self, "features_") and self.features_.label.kind == "number":
            raise InputError("a number has no classes: use predict")
        found = self._predictions(X).values
        both = found if found.ndim == 2 else np.stack([1 - found, found], 1)
        return _like(X, both, [str(name) for name in self.classes_])

    def predictions(self, X: Any) -> Any:
        """What ``fedslice predict`` writes, as a frame: client, prediction, probabilities."""
        return _like(X, as_columns(self.features_, self._predictions(X)), None)

    def score(self, X: Any, y: Any = None) -> float:
        """As in scikit-learn: of classes the accuracy, of numbers R^2.  :meth:`evaluate` tells
        more."""
        data = self._joined(X, y, self.features_.label.column)[0]
        read, _ = apply(self.features_, data, labelled=True)
        rows = np.arange(read.raw.rows)
        truth = self.features_.labels(read.raw, rows)
        found = self._predictions(data).values
        if self.features_.label.kind == "number":
            real = self.features_.label.mean + self.features_.label.spread * truth.astype(
                np.float64
            )
            return float(1 - np.mean((found - real) ** 2) / max(float(np.var(real)), 1e-30))
        best = found.argmax(1) if found.ndim == 2 else found > 0.5
        return float(np.mean(best == truth))

    def evaluate(self, X: Any, y: Any = None) -> dict[str, float]:
        """AUC, log loss and calibration of 0 and 1, accuracy of classes, RMSE of numbers."""
        if not hasattr(self, "trained_"):
            raise InputError("this estimator is not trained yet: call fit first")
        return self.trained_.evaluate(self._joined(X, y, self.features_.label.column)[0])[0]

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Into a folder that ``fedslice predict``, ``evaluate`` and ``export`` take, too."""
        if not hasattr(self, "trained_"):
            raise InputError("this estimator is not trained yet: call fit first")
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        export.write_model(self.exported_, place)
        self.features_.write(place)
        plain = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in self.get_params().items()
        }
        about: dict[str, Any] = {
            "task": self.model,
            "algorithm": self.algorithm or usual_algorithm(self.model),
        }
        about |= {"settings": dict(self.exported_.settings), "estimator": plain}
        atomic_write(place / SETTINGS, json.dumps(about, indent=2).encode())

    @classmethod
    def load(cls, folder: str | Path) -> "Federated":
        """What :meth:`save` wrote, or the run folder of ``fedslice run`` on own data."""
        place = Path(folder)
        trained = load(place)
        features = trained.features
        file = place / SETTINGS
        about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        given = about.get("estimator") or {
            "model": features.model["name"],
            "algorithm": about.get("algorithm"),
            "client": features.client,
            "label": features.label.column,
            "dimension": features.model.get("dimension", DIMENSION),
        }
        tuples = ("numbers", "lists", "text")  # of which JSON makes lists
        plain: dict[str, Any] = {
            k: tuple(v) if k in tuples and isinstance(v, list) else v for k, v in given.items()
        }
        found = cls(**plain)
        found.exported_ = export.read_model(place)
        found.trained_, found.features_ = trained, features
        found.classes_, found.history_, found.notes_ = _classes(features), [], []
        return found


def _merged(before: export.Exported, after: export.Exported) -> export.Exported:
    """A model that went on, with the rows that its last data did not have."""
    tables = {}
    for name, new in after.tables.items():
        old = before.tables[name]
        left = ~np.isin(old.ids, new.ids)
        ids = np.concatenate([old.ids[left], new.ids])
        order = np.argsort(ids)
        names = [old.names[place] for place in np.flatnonzero(left)] + new.names
        tables[name] = export.Rows(
            ids[order],
            [names[place] for place in order],
            np.concatenate([old.heat[left], new.heat])[order],
            np.concatenate([old.values[left], new.values])[order],
        )
    return after._replace(tables=tables)


def _classes(features: Features) -> np.ndarray:
    """The classes, as whole numbers where all of them are."""
    classes = features.label.classes
    whole = all(name.lstrip("-").isdigit() for name in classes)
    return np.array([int(name) for name in classes] if whole else list(classes))


def _like(X: Any, values: Any, names: Any) -> Any:
    """Values as the library of ``X`` has them; arrays where it has none."""
    if isinstance(values, Mapping):
        if hasattr(X, "iloc"):
            import pandas

            return pandas.DataFrame(dict(values), index=X.index)
        if hasattr(X, "to_arrow"):
            import polars

            return polars.DataFrame(dict(values))
        return pyarrow_for("a frame").table(dict(values))
    if hasattr(X, "iloc"):
        import pandas

        if values.ndim == 2:
            return pandas.DataFrame(values, columns=names, index=X.index)
        return pandas.Series(values, index=X.index, name=names)
    if hasattr(X, "to_arrow"):
        import polars

        if values.ndim == 2:
            return polars.DataFrame(values, schema=names)
        return polars.Series(names, values)
    return values
