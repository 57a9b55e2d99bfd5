"""``fedslice predict RUN FILE`` and ``fedslice evaluate RUN FILE``: a trained model on other data.

The preprocessing is that of the training, from the run folder.  Columns that the training had and
the file has not are refused; values that the training did not have contribute nothing, and are
counted.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.export import Exported, read_model
from fedslice.cli.own import tell
from fedslice.data.features import Features
from fedslice.data.reading import Query, pyarrow_for
from fedslice.errors import InputError
from fedslice.files.strict import as_json
from fedslice.files.writing import replacing, writing
from fedslice.report.records import SETTINGS
from fedslice.simulation.progress import show
from fedslice.tasks.own import model_of
from fedslice.tasks.trained import Predictions, Trained, leaves

ALONE = {
    "ifca": "has several models, of which each client has one",
    "ditto": "has a model for each client, which stays there",
}


def load(folder: Path) -> Trained:
    """The trained model of a run folder, or of what ``Federated.save`` wrote."""
    features = Features.read(folder)
    found = read_model(folder)
    model = model_of(features)
    algorithm = _algorithm(folder)
    if algorithm in ALONE:
        raise InputError(
            f"{folder}: {algorithm} {ALONE[algorithm]}, so that a run folder cannot predict; use"
            " another algorithm, or a run in Python"
        )
    if set(found.tables) != set(model.tables):
        raise InputError(
            f"{folder}: the model has the tables {', '.join(found.tables)}, its features speak of"
            f" {', '.join(model.tables)}: train again"
        )
    return assembled(features, found)


def assembled(features: Features, found: Exported) -> Trained:
    """What predicts, from a model's arrays and its features."""
    tables = {name: rows.values for name, rows in found.tables.items()}
    ids = next(iter(found.tables.values())).ids
    dense = leaves(model_of(features), found.dense)
    return Trained(features, dense, tables, ids, found.settings)


def _algorithm(folder: Path) -> str:
    for place in (folder, folder.parent):  # best/ is inside a run folder
        if (place / SETTINGS).exists():
            return str(json.loads((place / SETTINGS).read_text(encoding="utf-8")).get("algorithm"))
    return ""


def predict(options: argparse.Namespace) -> None:
    """Write what the model says of each row."""
    if options.out is not None and options.out.suffix not in (".csv", ".parquet"):
        raise InputError(f"-o {options.out}: give a name ending in .csv or .parquet")
    trained = load(options.run)
    found = trained.predict(_data(options))
    tell([f"note: {note}" for note in found.notes])
    columns = as_columns(trained.features, found)
    if options.out is None:
        _write_csv(columns, sys.stdout)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with writing(options.out), replacing(options.out) as temporary:
        if options.out.suffix == ".parquet":
            arrow = pyarrow_for("Parquet")
            from pyarrow import parquet

            parquet.write_table(arrow.table(dict(columns)), temporary)
        else:
            with temporary.open("w", newline="", encoding="utf-8") as sink:
                _write_csv(columns, sink)
    rows = len(found.values)
    print(f"written: {options.out}, {rows:,} predictions in the order of the rows")


def as_columns(features: Features, found: Predictions) -> dict[str, np.ndarray]:
    """The predictions by name: of 0 and 1 ``probability``, of classes ``prediction`` and a
    ``probability`` for each, else ``prediction``; with the client before them.

    >>> from fedslice.data.features import Label
    >>> features = Features("user", Label("clicked", "binary", ("no", "yes")), ())
    >>> list(as_columns(features, Predictions(np.array(["a"]), np.array([0.3]), [])))
    ['user', 'prediction', 'probability']
    """
    label, values = features.label, found.values
    columns: dict[str, np.ndarray] = {features.client: found.clients}
    if label.kind == "number":
        return {**columns, "prediction": values}
    classes = np.array(label.classes)
    if label.kind == "binary":
        chosen = classes[(values > 0.5).astype(int)]
        return {**columns, "prediction": chosen, "probability": values}
    each = {f"probability_{name}": values[:, place] for place, name in enumerate(label.classes)}
    return {**columns, "prediction": classes[values.argmax(1)], **each}


def _write_csv(columns: Mapping[str, np.ndarray], sink: Any) -> None:
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    texts = [
        [f"{value:.7g}" for value in column] if column.dtype.kind == "f" else column.tolist()
        for column in columns.values()
    ]
    writer.writerows(zip(*texts, strict=True))


def evaluate(options: argparse.Namespace) -> None:
    """Figures of the model on labelled data."""
    trained = load(options.run)
    figures, notes = trained.evaluate(_data(options))
    tell([f"note: {note}" for note in notes])
    if options.json:
        show(as_json(figures), sys.stdout)
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' ')} {value:.4f}")


def _data(options: argparse.Namespace) -> Path | Query:
    if options.sql:
        return Query(options.sql, str(options.file or ""))
    if options.file is None:
        raise InputError("give the file to look at, or a query: --sql")
    found: Path = options.file
    return found


def add_to(commands: Any) -> None:
    """The subcommands ``predict`` and ``evaluate``."""
    first = commands.add_parser(
        "predict", help="what the model of a run on your own data says of the rows of a file"
    )
    second = commands.add_parser(
        "evaluate", help="figures of the model of a run on your own data on a labelled file"
    )
    for parser in (first, second):
        parser.add_argument(
            "run", type=Path, metavar="RUN", help="the run folder, or best/ in it, with its model"
        )
        parser.add_argument(
            "file", type=Path, nargs="?", metavar="FILE", help="as for fedslice run --data"
        )
        parser.add_argument("--sql", metavar="QUERY", help="a query in place of a file (DuckDB)")
    first.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="to write, .csv or .parquet (default: CSV on standard output)",
    )
    first.set_defaults(act=predict)
    second.add_argument(
        "--json", action="store_true", help="figures as one JSON object on standard output"
    )
    second.set_defaults(act=evaluate)
