"""The user's own data, wherever they are, as batches of Arrow: one door for all formats.

    .csv, .tsv, ...     separated by comma, semicolon, tab or bar, as the header tells; also gzipped
    .jsonl, .ndjson     one JSON object a line; also gzipped
    .parquet, .pq       one file, or a folder of them (with folders such as ``day=3`` as columns)
    Query               an SQL query, answered by DuckDB (``pip install 'fedslice[sql]'``)
    frames              of pandas, polars or pyarrow

Batches come one after the other, so that a file need not fit into memory.  What is *written*, CSV,
has text alone, and what its columns mean is judged when all of it was seen.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import cause, check_unpacked, reading, shown
from fedslice.files.packed import File

HEADER = 1 << 16  # bytes to look for the header in
ROWS = 1 << 17  # of a batch
BYTES = 4 << 20  # of a file of text that become one batch
DELIMITERS = ",;\t|"
ADVICE = {
    "UTF8": " It is not UTF-8 text: save it as UTF-8.",
    "straddl": (
        " A line of it is too long: look for a quote that is not closed, or a line without an end."
    ),
}
PARQUET, LINES = (".parquet", ".pq"), (".jsonl", ".ndjson", ".json")


class Query(NamedTuple):
    """An SQL query, which may read files by itself; with ``database`` one of a DuckDB file.

    >>> Query("select * from 'clicks.parquet' where country = 'DE'").database
    ''
    """

    text: str
    database: str = ""


class Source(NamedTuple):
    """Data that can be read: ``batches(columns)`` gives tables with these columns of ``names``."""

    name: str
    names: list[str]
    batches: Callable[[Sequence[str]], Iterator[Any]]
    written: bool = False
    comma: bool = False  # numbers may be written as 3,50


def pyarrow_for(what: str) -> Any:
    """The package pyarrow, or an error that says what needs it."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow: pip install 'fedslice[data]'") from error
    return pyarrow


def open_source(data: Any) -> Source:
    """What ``data`` is: a path, a :class:`Query` or a frame.

    >>> import pyarrow
    >>> source = open_source(pyarrow.table({"user": ["a"], "item": [3]}))
    >>> source.names, [batch.to_pydict() for batch in source.batches(["item"])]
    (['user', 'item'], [{'item': [3]}])
    """
    arrow = pyarrow_for("own data")
    if isinstance(data, Query):
        return _query(arrow, data)
    if not isinstance(data, str | Path):
        return _frame(arrow, data)
    path = Path(data)
    if not path.exists():
        raise MissingDataError(f"there is no file {path}: check the path")
    if path.is_dir():
        return _folder(path)
    endings = [ending.lower() for ending in path.suffixes]
    if endings[-1:] and endings[-1] in PARQUET:
        return _parquet(path)
    if any(ending in LINES for ending in endings[-2:]):
        return _lines(arrow, path)
    return _written(arrow, path)


@contextmanager
def guarded(path: Path, kind: str) -> Iterator[None]:
    """What a damaged file makes pyarrow raise, for which it has no common base, names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        advice = next((words for sign, words in ADVICE.items() if sign in str(error)), "")
        raise InputError(f"{path} cannot be read as {kind}: {cause(error)}.{advice}") from error


# -- frames ----------------------------------------------------------------------------------------


def _frame(arrow: Any, frame: Any) -> Source:
    names = frame.column_names if isinstance(frame, arrow.Table) else list(_columns(arrow, frame))

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        yield table_of(arrow, frame, columns)

    return Source("the data", list(map(str, names)), batches)


def _columns(arrow: Any, frame: Any) -> Sequence[str]:
    if not (hasattr(frame, "to_arrow") or hasattr(frame, "iloc")) or not hasattr(frame, "columns"):
        raise InputError(
            f"a frame must be of pandas, polars or pyarrow, got {type(frame).__name__}"
        )
    return list(frame.columns)


def table_of(arrow: Any, frame: Any, columns: Sequence[str]) -> Any:
    """These columns of a frame, as a table of pyarrow."""
    if isinstance(frame, arrow.Table):
        return frame.select(list(columns))
    _columns(arrow, frame)
    some = frame[list(columns)]
    try:
        if hasattr(frame, "to_arrow"):
            return some.to_arrow()
        return arrow.Table.from_pandas(some, preserve_index=False)
    except (arrow.ArrowException, OverflowError) as error:
        raise InputError(
            f"a column holds values of several kinds, or numbers beyond 64 bits ({error}): make"
            " it text first, by astype(str) in pandas, cast(str) in polars"
        ) from error


# -- Parquet ---------------------------------------------------------------------------------------


def _parquet(path: Path) -> Source:
    from pyarrow import parquet

    with guarded(path, "Parquet"):
        about = parquet.read_metadata(path)  # a run of equal values takes no room in the file
        check_unpacked(path, 8 * about.num_rows * about.num_columns, path.stat().st_size)
        names = about.schema.to_arrow_schema().names

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow

        with guarded(path, "Parquet"), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=list(columns)):
                yield pyarrow.Table.from_batches([batch])

    return Source(str(path), names, batches)


def _folder(path: Path) -> Source:
    from pyarrow import dataset

    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in PARQUET and not file.name.startswith((".", "_"))
    )
    if not files:
        raise InputError(f"{path} has no Parquet file in it: give a file, or a folder of those")
    with guarded(path, "Parquet"):
        names = [file.as_posix() for file in files]
        whole = dataset.dataset(
            names, format="parquet", partitioning="hive", partition_base_dir=path.as_posix()
        )

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow

        with guarded(path, "Parquet"):
            found = whole.to_batches(
                columns=list(columns), batch_size=ROWS, batch_readahead=2, fragment_readahead=1
            )
            for batch in found:
                if batch.num_rows:
                    yield pyarrow.Table.from_batches([batch])

    return Source(str(path), whole.schema.names, batches)


# -- text ------------------------------------------------------------------------------------------


def delimiter_of(path: Path) -> str:
    """What separates the columns of a file of text: what its first line has most of.

    >>> file = getfixture("tmp_path") / "a.csv"
    >>> _ = file.write_text("user;item;price\\na;x;3,50\\n")
    >>> delimiter_of(file)
    ';'
    """
    with File(path).open() as stream:
        return _separated(stream.readline(HEADER))


def _separated(line: bytes) -> str:
    return max(DELIMITERS, key=line.decode("utf-8", "replace").strip().count)


def _written(arrow: Any, path: Path) -> Source:
    from pyarrow import csv

    # a pipe can be read once
    piped = None if path.is_file() else path.read_bytes()
    delimiter = delimiter_of(path) if piped is None else _separated(piped[:HEADER].split(b"\n")[0])
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=False)

    def opened() -> Any:
        if piped is not None:
            return io.BytesIO(piped)
        return File(path).open() if path.suffix == ".gz" else nullcontext(path)

    def stream(source: Any, columns: Sequence[str] | None) -> Any:
        convert = csv.ConvertOptions(
            column_types={name: arrow.string() for name in columns or ()},
            include_columns=list(columns or ()),
            null_values=[""],
            strings_can_be_null=True,
        )
        read = csv.ReadOptions(block_size=BYTES)
        return csv.open_csv(source, read, parse, convert)

    with guarded(path, "CSV"), opened() as source, stream(source, None) as first:
        names = first.schema.names

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        with guarded(path, "CSV"), opened() as source, stream(source, columns) as found:
            for batch in found:
                yield arrow.Table.from_batches([batch])

    return Source(str(path), names, batches, written=True, comma=delimiter == ";")


def _lines(arrow: Any, path: Path) -> Source:
    """JSON objects, one a line.  Columns that a batch lacks are missing in it."""
    from pyarrow import json

    def parts() -> Iterator[Any]:
        with guarded(path, "JSON lines"), File(path).open() as stream:
            while block := stream.read(BYTES):
                block += stream.readline()
                if block.strip():
                    # a line may be as long as the block, so that it is never cut
                    size = json.ReadOptions(block_size=len(block) + 1)
                    yield json.read_json(io.BytesIO(block), size)

    with reading(path):
        first = next(parts(), None)
    if first is None:
        raise InputError(f"{path} has no rows")
    if first.column_names and str(first.schema.types[0]) == "null" and first.num_columns == 1:
        raise InputError(f"{path} has no columns: write one JSON object a line")

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        for part in parts():
            found = {
                name: part.column(name) if name in part.column_names else arrow.nulls(part.num_rows)
                for name in columns
            }
            yield arrow.table(found)

    return Source(str(path), first.column_names, batches)


# -- SQL -------------------------------------------------------------------------------------------


def _query(arrow: Any, query: Query) -> Source:
    try:
        import duckdb
    except ImportError as error:
        raise InputError("an SQL query needs DuckDB: pip install 'fedslice[sql]'") from error
    if query.database and not Path(query.database).exists():
        raise MissingDataError(f"there is no database {query.database}: check the path")
    name = f"the query {shown(query.text)}"

    @contextmanager
    def answered() -> Iterator[Any]:
        try:
            with duckdb.connect(query.database or ":memory:", read_only=bool(query.database)) as db:
                found: Any = db.sql(query.text)
                if found is None:
                    raise InputError(f"{name} has no rows to learn from: it must be a select")
                # the second is the name in earlier versions
                read = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
                yield read(ROWS)
        except duckdb.Error as error:
            raise InputError(f"{name} cannot be answered: {cause(error)}") from error

    with answered() as reader:
        names = reader.schema.names

    def batches(columns: Sequence[str]) -> Iterator[Any]:
        with answered() as reader:
            for batch in reader:
                yield arrow.Table.from_batches([batch]).select(list(columns))

    return Source(name, names, batches)
