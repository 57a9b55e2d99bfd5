"""What somebody liked before: histories from time-ordered events, and reading the tables of events
they come from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from csv import reader
from importlib import import_module
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.files.guard import bounded, reading
from fedslice.tasks.readers.files import File

ROWS = 1 << 18  # histories built at once: bounds the memory beside the result
BLOCK = 16 << 20  # bytes of a table read at once
LINE = 64 << 20  # bytes of a line at most


def earlier(
    owner: np.ndarray, time: np.ndarray, item: np.ndarray, positive: np.ndarray, longest: int
) -> np.ndarray:
    """int32 [n, longest]: for each event the owner's latest positive items, oldest first, then -1
    as padding.

    Only events with a strictly smaller ``time`` count: of events at the same time nobody knows
    which came first, so none is in another's history, whatever their order in the file.  Events may
    come in any order.

    >>> earlier(
    ...     owner=np.array([7, 7, 7, 7, 9]),
    ...     time=np.array([1, 2, 2, 3, 3]),
    ...     item=np.array([10, 11, 12, 13, 14]),
    ...     positive=np.array([True, True, False, True, True]),
    ...     longest=2,
    ... ).tolist()
    [[-1, -1], [10, -1], [10, -1], [10, 11], [-1, -1]]
    """
    order = np.lexsort((time, owner))
    owner, time, good = owner[order], time[order], np.asarray(positive, bool)[order]
    past = np.append(item[order][good], -1).astype(np.int32)  # all positives in order; padding last
    before = np.cumsum(good) - good  # of them, those before each event
    stop = before[_starts(owner, time)]
    begin = np.maximum(before[_starts(owner)], stop - longest)
    found = np.empty((len(order), longest), np.int32)
    for start in range(0, len(order), ROWS):
        span = slice(start, start + ROWS)
        place = begin[span, None] + np.arange(longest)
        place[place >= stop[span, None]] = len(past) - 1
        found[order[span]] = past[place]
    return found


def _starts(*keys: np.ndarray) -> np.ndarray:
    """For each entry of sorted keys the place of the first entry that equals it."""
    new = np.zeros(len(keys[0]), bool)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))


def csv_tables(file: File, columns: Mapping[str, str], header: bool) -> Iterator[Any]:
    """A table in CSV as Arrow tables, block after block; ``columns`` gives each column's kind:
    "int64", "float64" or "string".

    With a ``header`` columns are found by name, and others are skipped; without, these are all
    there are, in order.  Fields may be quoted, but not contain a line end.
    """
    csv = arrow("pyarrow.csv")
    wanted = csv.ConvertOptions(
        column_types=dict(columns),
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=True,
    )
    names = None if header else list(columns)
    for block in _blocks(file):
        reading = csv.ReadOptions(column_names=names)
        table = _checked(
            file,
            columns,
            lambda source: csv.read_csv(source, reading, convert_options=wanted),
            block,
        )
        if names is None:
            names = next(reader([block.split(b"\n", 1)[0].decode("utf-8-sig").strip()]))
        yield table


def json_tables(file: File, columns: Mapping[str, str]) -> Iterator[Any]:
    """The same from a file with one JSON object a line, whose fields ``columns`` are read."""
    json = arrow("pyarrow.json")
    schema = arrow("pyarrow").schema(dict(columns))
    parsing = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for block in _blocks(file):
        reading = json.ReadOptions(block_size=len(block))
        yield _checked(
            file, columns, lambda source: json.read_json(source, reading, parsing), block
        )


def encode(tables: Sequence[Any], column: int) -> tuple[np.ndarray, np.ndarray]:
    """A column of text as codes, and the text of each code, in the order of first appearance."""
    chunks = [chunk for table in tables for chunk in table.column(column).chunks]
    coded = arrow("pyarrow").chunked_array(chunks).dictionary_encode().combine_chunks()
    return coded.indices.to_numpy(), bounded(coded.dictionary.to_pylist(), "the data")


def _blocks(file: File) -> Iterator[bytes]:
    """Whole lines, about ``BLOCK`` bytes at a time."""
    with file.open() as stream:
        rest, empty = b"", True
        while block := stream.read(BLOCK):
            lines, end, rest = (rest + block).rpartition(b"\n")
            if lines.strip():
                yield lines + end
                empty = False
            if len(rest) > LINE:
                raise InputError(
                    f"{file} has a line of more than {LINE:,} bytes: give the file as published"
                )
        if rest.strip():
            yield rest
        elif empty:
            raise InputError(f"{file} is empty: download it again")


def _checked(
    file: File, columns: Mapping[str, str], read: Callable[[Any], Any], block: bytes
) -> Any:
    """What Arrow reads from the block; what it finds wrong as our error."""
    pa = arrow("pyarrow")
    with reading(file):
        table = read(pa.BufferReader(block))
    for name in columns:
        if missing := table[name].null_count:
            raise InputError(
                f"{file} has {missing} rows without {name}: give the file as published"
            )
    return table


def arrow(module: str) -> Any:
    """A module of pyarrow, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            "reading tables of events needs pyarrow: pip install 'fedslice[data]'"
        ) from error
