"""A trained model on disk, with the users' own names for its rows: what a run folder holds, and
what :mod:`fedslice.cli.formats` writes for other programs."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.arrays import Params
from fedslice.data.features import FILE as FEATURES
from fedslice.data.features import Features
from fedslice.data.population import Population
from fedslice.data.submodel import Room, Submodels, in_memory
from fedslice.errors import CheckpointError, InputError, MissingDataError
from fedslice.files.mapped import whole
from fedslice.files.sealed import load, seal
from fedslice.files.writing import atomic_write
from fedslice.model import Model
from fedslice.round.store import RamStore
from fedslice.simulation.run import Run

CHUNK = 1 << 18  # rows of a table on disk that are gathered together
MODEL, NAMES = "model.safetensors", "names.json"


class Rows(NamedTuple):
    """The rows of one table that some client held: ids, what they are called (or ""), how many held
    them, values."""

    ids: np.ndarray
    names: list[str]
    heat: np.ndarray
    values: np.ndarray


class Exported(NamedTuple):
    """A trained model: dense leaves by path, tables by name, the settings that it was trained with,
    if known, and of a model for own data its preprocessing (``features.json``)."""

    dense: dict[str, np.ndarray]
    tables: dict[str, Rows]
    settings: Mapping[str, Any] = {}
    features: Mapping[str, Any] | None = None

    def row(self, table: str, name: str) -> np.ndarray:
        """One row by the user's name for it."""
        rows = self.tables[table]
        if name not in rows.names:
            raise InputError(f"table {table!r} has no row named {name!r}")
        return np.asarray(rows.values[rows.names.index(name)])


def model_of(run: Run) -> Exported:
    """The run's model: dense leaves, and every table row that some client holds.  Rows that are on
    disk stay there: what is larger than memory is gathered in mapped files."""
    room = _room(run)
    params = _params(run, {name: space.ids[:0] for name, space in run.spaces.items()})
    rows = {name: _values(run, name, params[name], room) for name in run.model.tables}
    return assembled({**params, **rows}, run.model, run.spaces, run.population, room)


def assembled(
    params: Params,
    model: Model,
    spaces: Mapping[str, Submodels],
    population: Population,
    room: Room = in_memory,
) -> Exported:
    """A model whose tables have the rows of ``spaces``, with their names and heat if known."""
    tables = {}
    for name, table in model.tables.items():
        space = spaces[model.space_of[name]]
        known = next((population.names[f] for f in table.fields if f in population.names), None)
        names = [] if known is None or not len(known) else known[space.ids].astype(str).tolist()
        heat = room("counts", np.int64, (len(space.ids),))
        heat[:] = space.heat(population.counts, room)[:, 0]
        tables[name] = Rows(space.ids, names, heat, np.asarray(params[name]))
    rest = {name: leaf for name, leaf in params.items() if name not in tables}
    paths = jax.tree_util.tree_leaves_with_path(rest)
    return Exported(
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x)
            for path, x in paths
        },
        tables,
    )


def _values(run: Run, table: str, like: Any, room: Room) -> np.ndarray:
    """The rows of a table, some at a time where they are on disk."""
    space, none = run.model.space_of[table], {name: s.ids[:0] for name, s in run.spaces.items()}
    ids = run.spaces[space].ids if run.algorithm.server.several else run.listed(space)
    step = max(1, len(ids)) if isinstance(run.store, RamStore) else CHUNK
    values = room("values", like.dtype, (len(ids), *like.shape[1:]))
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        values[start : start + step] = _params(run, {**none, space: part})[table]
    return values


def _params(run: Run, ids: dict[str, np.ndarray]) -> Any:
    """The model with these rows; with several models each row, and each dense leaf, has all of them
    side by side."""
    if run.algorithm.server.several:
        return run.store.rows(lambda state: state.server, ids)
    return run.params(ids)


def _room(run: Run) -> Room:
    """Where a run's rows are, there is room for a copy."""
    if isinstance(run.store, RamStore):
        return in_memory
    folder = Path(tempfile.mkdtemp(dir=run.store.folder))
    numbers = count()
    return lambda name, dtype, shape: whole(folder / f"{next(numbers)}.bin", dtype, shape)


def write_model(model: Exported, folder: Path) -> None:
    """Into ``model.safetensors`` and ``names.json`` of a run folder."""
    arrays = {f"dense/{path}": leaf for path, leaf in model.dense.items()}
    for name, rows in model.tables.items():
        arrays |= {
            f"table/{name}/ids": rows.ids,
            f"table/{name}/heat": rows.heat,
            f"table/{name}/values": rows.values,
        }
    names = json.dumps(
        {name: rows.names for name, rows in model.tables.items()}, ensure_ascii=False
    ).encode()
    atomic_write(folder / NAMES, names)
    about = {"names": hashlib.sha256(names).hexdigest(), "settings": dict(model.settings)}
    seal(folder / MODEL, about, {key: np.asarray(leaf, order="C") for key, leaf in arrays.items()})


def read_model(folder: Path) -> Exported:
    """The trained model of a run folder, after checking that both files are as written."""
    if not (folder / MODEL).exists() or not (folder / NAMES).exists():
        raise MissingDataError(
            f"{folder} holds no trained model ({MODEL}): give the --out folder of a finished run"
        )
    try:
        about, arrays = load(folder / MODEL)
        text = (folder / NAMES).read_bytes()
        if about["names"] != hashlib.sha256(text).hexdigest():
            raise InputError(
                f"{NAMES} does not belong to {MODEL}, or has changed since it was written"
            )
        names = json.loads(text)
        tables = {
            name: Rows(
                *(arrays[f"table/{name}/ids"], given),
                *(arrays[f"table/{name}/{k}"] for k in ("heat", "values")),
            )
            for name, given in names.items()
        }
    except (CheckpointError, KeyError, ValueError) as error:
        raise InputError(
            f"the model in {folder} is damaged ({error}): the command that trained it writes it"
            " anew"
        ) from error
    dense = {k.removeprefix("dense/"): v for k, v in arrays.items() if k.startswith("dense/")}
    features = Features.read(folder).as_json() if (folder / FEATURES).exists() else None
    return Exported(dense, tables, about.get("settings", {}), features)
