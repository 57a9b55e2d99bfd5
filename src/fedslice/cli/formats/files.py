"""``fedslice export RUN FILE``: all that is needed to predict, in the format that the file's name
asks for.

    .safetensors .npz   one file: leaves, ids, heat and names of rows, preprocessing
    .parquet .csv       one file for each table, one for the dense leaves
    .pt                 a PyTorch state dict, with NAME.json beside it
    .onnx               a graph that predicts, of a model for own data

The preprocessing of a model for own data (``features.json``) goes along: in ``features`` of an npz
or of the metadata of safetensors, Parquet and ONNX, beside CSV and PyTorch files as ``features`` in
NAME.json.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedslice.cli.export import Exported
from fedslice.cli.formats import onnx, pytorch, tables
from fedslice.data.features import Features
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write, replacing
from fedslice.tasks.own import model_of
from fedslice.tasks.trained import leaves
from fedslice.types import Params

ENDINGS = (".safetensors", ".npz", ".parquet", ".csv", ".pt", ".onnx")


def export(model: Exported, file: Path) -> list[Path]:
    """Write the model; returns the files that there are now."""
    if file.suffix not in ENDINGS:
        known = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise InputError(f"{file.name}: give a name ending in {known}")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        return tables.parquet(model, file)
    if file.suffix == ".csv":
        return [*tables.comma_separated(model, file), beside(model, file)]
    if file.suffix == ".pt":
        pytorch.write(_state(model), file)
        return [file, beside(model, file)]
    if file.suffix == ".onnx":
        onnx.write(*_whole(model), file)
    elif file.suffix == ".npz":
        arrays = _arrays(model)
        for name, rows in model.tables.items():
            if rows.names:
                arrays[f"{name}.names"] = np.array(rows.names)
        if model.features is not None:
            arrays["features"] = np.array(as_text(model))
        with replacing(file) as temporary, temporary.open("wb") as handle:
            np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]
    else:
        about = {f"{name}.names": json.dumps(rows.names) for name, rows in model.tables.items()}
        if model.features is not None:
            about["features"] = as_text(model)
        arrays = {name: np.asarray(x, order="C") for name, x in _arrays(model).items()}
        atomic_write(file, save(arrays, about))
    return [file]


def as_text(model: Exported) -> str:
    """The preprocessing as JSON."""
    return json.dumps(model.features, ensure_ascii=False)


def beside(model: Exported, file: Path) -> Path:
    """What a format has no place for: the preprocessing, and the names of the tables' rows."""
    path = file.with_suffix(".json")
    about = {
        "features": model.features,
        "names": {name: rows.names for name, rows in model.tables.items()},
    }
    atomic_write(path, json.dumps(about, ensure_ascii=False).encode())
    return path


def _arrays(model: Exported) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {**model.dense}
    for name, rows in model.tables.items():
        arrays |= {name: rows.values, f"{name}.ids": rows.ids, f"{name}.heat": rows.heat}
    return arrays


def _state(model: Exported) -> dict[str, np.ndarray]:
    if model.features is not None:
        return pytorch.state_of(_whole(model)[1])
    found = {name.replace("/", "."): leaf for name, leaf in model.dense.items()}
    for name, rows in model.tables.items():
        found |= {name: rows.values, f"{name}.ids": np.asarray(rows.ids, np.int64)}
    return found


def _whole(model: Exported) -> tuple[Features, Params]:
    """A model for own data with all rows of its tables, zeros for those that nobody held."""
    if model.features is None:
        raise InputError(
            "an ONNX file predicts, and this run is not on your own data, whose models and"
            " preprocessing are known (lr, fm, din, mf): export .safetensors, .npz, .parquet, .csv"
            " or .pt, which hold its leaves"
        )
    features = Features.from_json(model.features)
    made = model_of(features)
    params = leaves(made, model.dense)
    if set(made.tables) != set(model.tables):
        raise InputError(
            f"the model has the tables {', '.join(model.tables)}, its features speak of"
            f" {', '.join(made.tables)}: train again"
        )
    for name, table in made.tables.items():
        rows = model.tables[name]
        if rows.values.shape[1:] != table.shape:
            raise InputError(
                f"the table {name!r} has rows of shape {rows.values.shape[1:]} in place of"
                f" {table.shape}: algorithms with several models cannot be one file that predicts"
            )
        params[name] = np.zeros((table.rows, *table.shape), np.float32)
        params[name][rows.ids] = rows.values
    return features, params
