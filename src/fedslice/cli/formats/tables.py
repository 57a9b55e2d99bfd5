"""A trained model as tables: Parquet and CSV, one file for each table of the model, named after it
when there are several (``weights-item.parquet``), and one for the dense leaves
(``weights.dense.parquet``)."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.export import Exported, Rows
from fedslice.errors import InputError
from fedslice.files.writing import replacing


def paths(model: Exported, file: Path) -> tuple[dict[str, Path], Path]:
    """Where each table goes, and the dense leaves.

    >>> some = Rows(np.arange(1), [], np.ones(1), np.zeros(1))
    >>> paths(Exported({}, {"item": some}), Path("w.csv"))
    ({'item': PosixPath('w.csv')}, PosixPath('w.dense.csv'))
    """
    alone = len(model.tables) == 1
    places = {
        name: file if alone else file.with_stem(f"{file.stem}-{name}") for name in model.tables
    }
    return places, file.with_stem(f"{file.stem}.dense") if model.tables else file


def parquet(model: Exported, file: Path) -> list[Path]:
    """Columns name, row, heat and the table's own, a number or a list in each row; of dense leaves
    leaf, shape and values, one after the other."""
    try:
        import pyarrow
        from pyarrow import parquet as files
    except ImportError as error:
        raise InputError("Parquet needs pyarrow: pip install 'fedslice[data]'") from error
    text = json.dumps(model.features, ensure_ascii=False)
    about = {} if model.features is None else {"features": text}
    places, rest = paths(model, file)
    written: dict[Path, Any] = {}
    for name, rows in model.tables.items():
        values: Any = rows.values if rows.values.ndim == 1 else list(rows.values)
        if rows.values.ndim > 2:
            values = rows.values.tolist()
        values = pyarrow.array(values, _lists(pyarrow, rows.values))
        columns = {"row": rows.ids, "heat": rows.heat, name: values}
        if rows.names:
            columns = {"name": rows.names, **columns}
        written[places[name]] = pyarrow.table(columns)
    if model.dense:
        written[rest] = _leaves(pyarrow, model.dense)
    for path, table in written.items():
        with replacing(path) as temporary:
            files.write_table(table.replace_schema_metadata(about), temporary)
    return list(written)


def _lists(pyarrow: Any, values: np.ndarray) -> Any:
    """The type of a row: a number, or lists in lists as its shape has axes."""
    kind = pyarrow.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        kind = pyarrow.list_(kind)
    return kind


def _leaves(pyarrow: Any, dense: dict[str, np.ndarray]) -> Any:
    """One row a leaf: its path, its shape, and its numbers one after the other."""
    kind = np.result_type(*(leaf.dtype for leaf in dense.values()))
    return pyarrow.table(
        {
            "leaf": list(dense),
            "shape": pyarrow.array(
                [list(leaf.shape) for leaf in dense.values()], pyarrow.list_(pyarrow.int64())
            ),
            "values": [leaf.astype(kind).reshape(-1) for leaf in dense.values()],
        }
    )


def comma_separated(model: Exported, file: Path) -> list[Path]:
    """Columns name, row, heat and one for each number of a row (``factor.0``); of dense leaves
    leaf, place (``0.2``: first row, third column) and value."""
    places, rest = paths(model, file)
    for name, rows in model.tables.items():
        _write(places[name], _lines(name, rows))
    if model.dense:
        _write(rest, _dense_lines(model.dense))
    return [*places.values(), *([rest] if model.dense else [])]


def _lines(name: str, rows: Rows) -> Iterator[list[Any]]:
    places = [".".join(map(str, (name, *place))) for place in np.ndindex(rows.values.shape[1:])]
    yield [*(["name"] if rows.names else []), "row", "heat", *places]
    flat = rows.values.reshape(len(rows.ids), -1)
    for number, (row, heat) in enumerate(zip(rows.ids.tolist(), rows.heat.tolist(), strict=True)):
        called = [rows.names[number]] if rows.names else []
        yield [*called, row, heat, *map(_digits, flat[number])]


def _dense_lines(dense: dict[str, np.ndarray]) -> Iterator[list[Any]]:
    yield ["leaf", "place", "value"]
    for name, leaf in dense.items():
        for place in np.ndindex(leaf.shape):
            yield [name, ".".join(map(str, place)), _digits(leaf[place])]


def _digits(number: Any) -> str:
    """As many as bring the same 32 bits back."""
    return f"{number:.9g}"


def _write(path: Path, lines: Iterable[list[Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as sink:
        csv.writer(sink, lineterminator="\n").writerows(lines)
