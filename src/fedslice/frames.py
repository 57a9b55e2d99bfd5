"""Populations from data frames and files: raw values become ids, and what each id was called is kept."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.guard import cause, check_unpacked, reading
from fedslice.packed import File
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
    groups = [(group,) if isinstance(group, str) else tuple(group) for group in features]
    numeric = [*([label] if label else []), *columns]
    _check_names(table, [client, *numeric, *(name for group in groups for name in group)])
    if not groups:
        raise InputError("features= names no column: give the columns whose values have a row in the model")
    columns_of = {name: _column(arrow, table, name) for name in table.column_names}
    owner, who = _encode(columns_of[client], client)
    if (owner < 0).any():
        raise InputError(f"column {client!r}, the client, has missing values: drop or fill those rows")
    arrays: dict[str, np.ndarray] = {name: _number(arrow, columns_of[name], name) for name in numeric}
    names: dict[str, np.ndarray] = {}
    for group in groups:
        parts = [_flatten(arrow, columns_of[name]) for name in group]
        ids, known = _encode(arrow.concat_arrays([_same(flat, parts[0][0], group) for flat, _ in parts]), group[0])
        ends = np.cumsum([len(flat) for flat, _ in parts])[:-1]
        for name, own, (_, lengths) in zip(group, np.split(ids, ends), parts, strict=True):
            arrays[name], names[name] = _padded(own, lengths), known
    people = Population.from_arrays(owner, names, **arrays)
    return Population(people.columns, people.offsets, who[people.clients], people.names)


def from_file(path: str | Path, **how: Any) -> Population:
    """From a CSV (also .csv.gz), TSV or Parquet file; the rest as in :func:`from_frame`."""
    file = Path(path)
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    _arrow("from_file")
    try:
        if file.suffix in (".parquet", ".pq"):
            from pyarrow import parquet

            about = parquet.read_metadata(file)  # a run of equal values takes no room in the file
            check_unpacked(file, 8 * about.num_rows * about.num_columns, file.stat().st_size)
            table = parquet.read_table(file)
        else:
            from pyarrow import csv

            tab = ".tsv" in file.suffixes or ".tab" in file.suffixes
            with File(file).open() if file.suffix == ".gz" else nullcontext(file) as source:
                table = csv.read_csv(source, parse_options=csv.ParseOptions(delimiter="\t" if tab else ","))
    except InputError:
        raise
    except Exception as error:  # pyarrow has no common base for what a damaged file makes it raise
        raise InputError(
            f"{file} cannot be read as {'Parquet' if file.suffix == '.parquet' else 'CSV'}: {cause(error)}"
        ) from error
    with reading(file):
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


def _check_names(table: Any, wanted: Sequence[str]) -> None:
    have = table.column_names
    missing = [name for name in wanted if name not in have]
    if missing:
        raise InputError(f"the data has no column {', '.join(map(repr, missing))}; it has {', '.join(have)}")
    twice = {name for name in wanted if wanted.count(name) > 1}
    if twice:
        raise InputError(
            f"column {', '.join(map(repr, sorted(twice)))} is named for two purposes: copy it under another name"
        )
    if not table.num_rows:
        raise InputError("the data has no rows")


def _column(arrow: Any, table: Any, name: str) -> Any:
    """A column in one piece; lists of fixed size as lists."""
    chunks = table.column(name)
    column = arrow.concat_arrays(chunks.chunks) if chunks.num_chunks else arrow.array([], chunks.type)
    fixed = arrow.types.is_fixed_size_list(column.type)
    return column.cast(arrow.list_(column.type.value_type)) if fixed else column


def _number(arrow: Any, column: Any, name: str) -> np.ndarray:
    """A numeric column; moments in time become seconds since 1970."""
    kind = column.type
    if column.null_count:
        raise InputError(f"column {name!r} has {column.null_count} missing values: drop or fill those rows")
    if arrow.types.is_timestamp(kind) or arrow.types.is_date(kind):
        return column.cast(arrow.timestamp("us")).to_numpy(zero_copy_only=False).astype(np.int64) / 1e6
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
        raise InputError(f"column {name!r} must hold numbers, got {kind}")
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(np.float32) if arrow.types.is_boolean(kind) else values


def _flatten(arrow: Any, column: Any) -> tuple[Any, np.ndarray | None]:
    """All values of a column one after the other, and how many each row has (None: one each, none missing)."""
    if arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type):
        lengths = np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)
        return column.flatten(), lengths
    return column, np.ones(len(column), np.int64) if column.null_count else None


def _same(flat: Any, first: Any, group: Sequence[str]) -> Any:
    """Columns that share their ids must hold the same kind of values."""
    if flat.type == first.type:
        return flat
    try:
        return flat.cast(first.type)
    except Exception as error:  # pyarrow has no common base for what a cast may raise
        raise InputError(f"columns {', '.join(group)} share their ids but hold {first.type} and {flat.type}") from error


def _encode(column: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids in ascending order of the values, -1 for missing ones; and the values."""
    encoded = column.dictionary_encode() if not hasattr(column, "dictionary") else column
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    if values.dtype == object:
        if any(isinstance(value, bytes) for value in values[:1000]):
            raise InputError(f"column {name!r} is not UTF-8 text: save the file as UTF-8")
        values = values.astype(str)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values) + 1, np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1  # the place of missing values
    return rank[np.asarray(encoded.indices.fill_null(len(values)))], values[order]


def _padded(ids: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """One row for each example, filled up with -1."""
    if lengths is None:
        return ids
    width = max(1, int(lengths.max(initial=0)))
    out = np.full((len(lengths), width), -1, np.int32)
    out[np.arange(width) < lengths[:, None]] = ids
    return out
