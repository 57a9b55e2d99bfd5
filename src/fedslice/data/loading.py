"""Populations from data frames and files: raw values become ids, and what each id was called is
kept."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.categories import as_written, categories, encode, flatten, joined, padded
from fedslice.data.population import Population
from fedslice.data.reading import LINES, PARQUET, delimiter_of, guarded, open_source, pyarrow_for
from fedslice.data.reading import table_of as frame_table
from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import reading
from fedslice.files.packed import File

Groups = Sequence[str | Sequence[str]]


def from_frame(
    frame: Any,
    *,
    client: str,
    features: Groups,
    label: str | None = None,
    columns: Sequence[str] = (),
    names: Mapping[str, np.ndarray] | None = None,
    text: Sequence[str] = (),
) -> Population:
    """From a pandas, polars or pyarrow frame with one example in each row.

    Values of a feature, text or whole numbers, become ids from 0 in ascending order of the values;
    columns given together in a tuple, such as ``("item", "history")``, share their ids.  A feature
    may hold lists: they are padded with -1.  A missing feature is padding too, and so is empty
    text.  ``columns`` are numeric columns to take along as they are.

    A second population for the same model, test data say, takes its ids from the first with
    ``names=train.names``: values that are not among them are padding.  Fractions and moments in
    time are refused as features, for each value would have a row of its own; ``text`` lists columns
    where that is meant: they are read as text.

    >>> import pandas
    >>> frame = pandas.DataFrame(
    ...     {"user": ["b", "a", "b"], "item": ["x", "y", "y"], "clicked": [1, 0, 1]}
    ... )
    >>> people = from_frame(frame, client="user", label="clicked", features=["item"])
    >>> people.clients.tolist(), people.columns["item"].tolist(), people.names["item"].tolist()
    (['a', 'b'], [1, 0, 1], ['x', 'y'])
    >>> later = pandas.DataFrame({"user": ["c", "c"], "item": ["y", "z"]})
    >>> test = from_frame(later, client="user", features=["item"], names=people.names)
    >>> test.columns["item"].tolist()
    [1, -1]
    """
    arrow = pyarrow_for("from_frame")
    groups = _groups(features)
    ids = [client, *(name for group in groups for name in group)]
    numeric = [*([label] if label else []), *columns]
    table = _table(arrow, frame, [*ids, *numeric])
    _check_purposes(ids, numeric, names or {}, text)
    columns_of = {name: _column(arrow, table, name) for name in [*ids, *numeric]}
    owner, who = _clients(arrow, columns_of[client], client, client in text)
    arrays: dict[str, np.ndarray] = {
        name: _number(arrow, columns_of[name], name) for name in numeric
    }
    called: dict[str, np.ndarray] = {}
    for group in groups:
        parts = [flatten(arrow, columns_of[name]) for name in group]
        flats = [
            categories(arrow, flat, name, name in text)
            for name, (flat, _) in zip(group, parts, strict=True)
        ]
        codes, known = encode(joined(arrow, flats), group[0], _known(group, names or {}))
        ends = np.cumsum([len(flat) for flat in flats])[:-1]
        for name, own, (_, lengths) in zip(group, np.split(codes, ends), parts, strict=True):
            arrays[name], called[name] = padded(own, lengths, name), known
    people = Population.from_arrays(owner, called, **arrays)
    return Population(people.columns, people.offsets, who[people.clients], people.names)


def from_file(path: str | Path, **how: Any) -> Population:
    """From a CSV (also .csv.gz; separated by what its header tells), JSON lines, a Parquet file or
    a folder of those; the rest as in :func:`from_frame`.

    In CSV and TSV clients and features are taken as they are written: whole numbers if all of a
    column is, else text, so that ``001`` and ``1`` are two.  Nothing between two commas is a
    missing value; among numbers so is ``NA``.
    """
    file = Path(path)
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    arrow = pyarrow_for("from_file")
    endings = {ending.lower() for ending in file.suffixes[-2:]}
    if file.is_dir() or endings & {*PARQUET, *LINES}:
        source = open_source(file)
        batches = list(source.batches(source.names))
        table = arrow.concat_tables(batches, promote_options="permissive") if batches else None
        if table is None:
            raise InputError(f"{file} has no rows")
    else:
        with guarded(file, "CSV"):
            table = _read_csv(arrow, file, how)
    with reading(file):
        return from_frame(table, **how)


def _read_csv(arrow: Any, file: Path, how: Mapping[str, Any]) -> Any:
    from pyarrow import csv

    ids = {
        how.get("client"),
        *(name for group in _groups(how.get("features", ())) for name in group),
    } - {None}
    convert = csv.ConvertOptions(
        column_types={name: arrow.string() for name in ids},
        null_values=[""],
        strings_can_be_null=True,
    )
    # a pipe can be read once
    parse = csv.ParseOptions(delimiter=delimiter_of(file) if file.is_file() else ",")
    with File(file).open() if file.suffix == ".gz" else nullcontext(file) as source:
        table = csv.read_csv(source, parse_options=parse, convert_options=convert)
    missing = csv.ConvertOptions().null_values
    for place, name in enumerate(table.column_names):
        if name in ids and name not in how.get("text", ()) and table.column_names.count(name) == 1:
            table = table.set_column(
                place, name, as_written(arrow, _column(arrow, table, name), missing)
            )
    return table


def _groups(features: Groups) -> list[tuple[str, ...]]:
    if isinstance(features, str):
        raise InputError(f"features={features!r}: give a list of columns, such as [{features!r}]")
    return [(group,) if isinstance(group, str) else tuple(group) for group in features]


def _table(arrow: Any, frame: Any, wanted: Sequence[str]) -> Any:
    polars, pandas = hasattr(frame, "to_arrow"), hasattr(frame, "iloc")
    if not (isinstance(frame, arrow.Table) or polars or pandas):
        raise InputError(
            f"a frame must be of pandas, polars or pyarrow, got {type(frame).__name__}"
        )
    table = frame
    if polars or pandas:
        _check_present(list(frame.columns), wanted)
        table = frame_table(arrow, frame, list(dict.fromkeys(wanted)))
    _check_present(table.column_names, wanted)
    if not table.num_rows:
        raise InputError("the data has no rows")
    return table


def _check_present(have: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in have]
    if missing:
        raise InputError(
            f"the data has no column {', '.join(map(repr, missing))}; it has"
            f" {', '.join(map(str, have))}"
        )
    twice = sorted({name for name in wanted if have.count(name) > 1})
    if twice:
        raise InputError(
            f"the data has two columns named {', '.join(map(repr, twice))}: rename one of them"
        )


def _check_purposes(
    ids: Sequence[str], numeric: Sequence[str], names: Mapping[str, np.ndarray], text: Sequence[str]
) -> None:
    if len(ids) < 2:
        raise InputError(
            "features= names no column: give the columns whose values have a row in the model"
        )
    wanted = [*ids, *numeric]
    twice = {name for name in wanted if wanted.count(name) > 1}
    if twice:
        raise InputError(
            f"column {', '.join(map(repr, sorted(twice)))} is named for two purposes: copy it under"
            " another name"
        )
    for what, given, among in (("names", names, ids[1:]), ("text", text, ids)):
        if strange := sorted(set(given) - set(among)):
            raise InputError(
                f"{what}= speaks of {', '.join(map(repr, strange))}, not among {', '.join(among)}"
            )


def _known(group: Sequence[str], names: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The names given for a group of columns that share their ids."""
    given = [names[name] for name in group if name in names]
    if any(not np.array_equal(each, given[0]) for each in given[1:]):
        raise InputError(
            f"columns {', '.join(group)} share their ids, but names= has different ones for them"
        )
    return given[0] if given else None


def _column(arrow: Any, table: Any, name: str) -> Any:
    """A column in one piece."""
    chunks = table.column(name)
    return arrow.concat_arrays(chunks.chunks) if chunks.num_chunks else arrow.array([], chunks.type)


def _clients(arrow: Any, column: Any, name: str, text: bool) -> tuple[np.ndarray, np.ndarray]:
    """The number of each example's client, and the clients' names."""
    owner, who = encode(categories(arrow, column, name, text), name)
    if (owner < 0).any():
        raise InputError(
            f"column {name!r}, the client, has missing values, first in row"
            f" {int(np.argmax(owner < 0)) + 1}: drop or fill those rows"
        )
    return owner, who


def _number(arrow: Any, column: Any, name: str) -> np.ndarray:
    """A numeric column; moments in time become seconds since 1970."""
    kind = column.type
    if column.null_count:
        raise InputError(
            f"column {name!r} has {column.null_count} missing values: drop or fill those rows"
        )
    if arrow.types.is_timestamp(kind) or arrow.types.is_date(kind):
        return (
            column.cast(arrow.timestamp("us")).to_numpy(zero_copy_only=False).astype(np.int64) / 1e6
        )
    if arrow.types.is_decimal(kind):
        column, kind = column.cast(arrow.float64()), arrow.float64()
    if not (
        arrow.types.is_integer(kind)
        or arrow.types.is_floating(kind)
        or arrow.types.is_boolean(kind)
    ):
        raise InputError(
            f"column {name!r} must hold numbers, got {kind}, such as {str(column[0])[:40]!r}"
        )
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(np.float32) if arrow.types.is_boolean(kind) else values
