"""Populations from data frames and files: raw values become ids, and what each id was called is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.population import Population


def from_frame(
    frame: Any,
    *,
    client: str,
    features: Sequence[str | Sequence[str]],
    label: str | None = None,
    columns: Sequence[str] = (),
) -> Population:
    """From a pandas, polars or pyarrow frame with one example in each row.

    Values of a feature, text or numbers, become ids from 0 in ascending order of the values; columns given together in
    a tuple, such as ``("item", "history")``, share their ids.  A feature may hold lists: they are padded with -1.  A
    missing feature is padding too.  ``columns`` are numeric columns to take along as they are.

    >>> import pandas
    >>> frame = pandas.DataFrame({"user": ["b", "a", "b"], "item": ["x", "y", "y"], "clicked": [1, 0, 1]})
    >>> people = from_frame(frame, client="user", label="clicked", features=["item"])
    >>> people.clients.tolist(), people.columns["item"].tolist(), people.names["item"].tolist()
    (['a', 'b'], [1, 0, 1], ['x', 'y'])
    """
    arrow = _arrow("from_frame")
    table = _table(arrow, frame)

    def column(name: str) -> Any:
        chunks = table.column(name)
        return arrow.concat_arrays(chunks.chunks) if chunks.num_chunks else arrow.array([], chunks.type)

    groups = [(group,) if isinstance(group, str) else tuple(group) for group in features]
    numeric = [*([label] if label else []), *columns]
    _check_names(table.column_names, [client, *numeric, *(name for group in groups for name in group)])
    if not groups:
        raise InputError("features= names no column: give the columns whose values have a row in the model")
    owner = _plain(column(client))
    if column(client).null_count:
        raise InputError(f"column {client!r}, the client, has missing values: drop or fill those rows")
    arrays: dict[str, np.ndarray] = {name: _number(column(name), name) for name in numeric}
    names: dict[str, np.ndarray] = {}
    for group in groups:
        values = {name: _values(arrow, column(name)) for name in group}
        known = np.unique(np.concatenate([flat for flat, _ in values.values()]))
        for name, (flat, lengths) in values.items():
            arrays[name] = _padded(np.searchsorted(known, flat).astype(np.int32), lengths)
            names[name] = known
    return Population.from_arrays(owner, names, **arrays)


def from_file(path: str | Path, **how: Any) -> Population:
    """From a CSV (also .csv.gz), TSV or Parquet file; the rest as in :func:`from_frame`."""
    file = Path(path)
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    arrow = _arrow("from_file")
    try:
        if file.suffix in (".parquet", ".pq"):
            from pyarrow import parquet

            table = parquet.read_table(file)
        else:
            from pyarrow import csv

            tab = ".tsv" in file.suffixes or ".tab" in file.suffixes
            table = csv.read_csv(file, parse_options=csv.ParseOptions(delimiter="\t" if tab else ","))
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{file} cannot be read as {'Parquet' if file.suffix == '.parquet' else 'CSV'}: {error}"
        ) from error
    return from_frame(table, **how)


def _arrow(what: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow: pip install 'fedslice[data]'") from error
    return pyarrow


def _table(arrow: Any, frame: Any) -> Any:
    if isinstance(frame, arrow.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    if hasattr(frame, "iloc"):  # pandas
        return arrow.Table.from_pandas(frame, preserve_index=False)
    raise InputError(f"a frame must be of pandas, polars or pyarrow, got {type(frame).__name__}")


def _check_names(have: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in have]
    if missing:
        raise InputError(f"the data has no column {', '.join(map(repr, missing))}; it has {', '.join(have)}")


def _plain(column: Any) -> np.ndarray:
    """One array; text as NumPy strings."""
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(str) if values.dtype == object else values


def _number(column: Any, name: str) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == object and column.null_count == 0 and set(np.unique(values)) <= {True, False}:
        values = values.astype(bool)
    if values.dtype.kind not in "biuf":
        raise InputError(f"column {name!r} must hold numbers, got {column.type}")
    if column.null_count:
        raise InputError(f"column {name!r} has {column.null_count} missing values: drop or fill those rows")
    return values.astype(np.float32) if values.dtype.kind in "bf" else values


def _values(arrow: Any, column: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """All values of a column one after the other, and how many each row has (None: one each)."""
    nested = arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type)
    if not nested and not column.null_count:
        return _plain(column), None
    if not nested:
        return _plain(column.drop_null()), np.asarray(column.is_valid()).astype(np.int64)
    lengths = np.nan_to_num(np.asarray(column.value_lengths(), np.float64)).astype(np.int64)
    return _plain(column.flatten()), lengths


def _padded(ids: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """One row for each example, filled up with -1."""
    if lengths is None:
        return ids
    width = max(1, int(lengths.max(initial=0)))
    out = np.full((len(lengths), width), -1, np.int32)
    out[np.arange(width) < lengths[:, None]] = ids
    return out
