"""Read the federated Stack Overflow data: sentences with their user and their time.

Four forms, all without unpickling anything:

- FedJAX's SQLite, one file for each split: ``federated_data(client_id, data, num_examples)``, where
  ``data`` is a zlib-compressed msgpack map of arrays; those of text are extension 4, a shape and a
  flat list of byte strings;
- TensorFlow Federated's SQLite, one file: ``examples(split_name, client_id,
  serialized_example_proto)`` with one ``tf.train.Example`` for each sentence, and
  ``client_metadata(client_id, split_name, num_examples)``;
- TensorFlow Federated's HDF5, one file for each split: ``examples/<client>/tokens`` and
  ``/creation_date``;
- a CSV or Parquet file with the columns user, time and text.
"""

import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from html import unescape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.files.guard import bounded, check_unpacked, most_unpacked, reading
from fedslice.tasks.readers.blobs import example_texts, packed_texts
from fedslice.tasks.readers.files import File

Choose = Callable[[Sequence[Any]], Sequence[Any]]
"""Which of a file's clients to read."""
TOKENS = (  # punctuation stands alone, but for apostrophes and hyphens
    r"<url>|[a-z0-9'-]+|[^\sa-z0-9'-]"
)
_URL = re.compile(r"(?:https?://|www\.)[^\s\0]+", re.IGNORECASE)
_WANTED = (b"tokens", b"creation_date")


class Posts(NamedTuple):
    """n sentences of N users, one user after the other; a user's in the order of the file."""

    users: np.ndarray  # [N] text
    counts: np.ndarray  # [N] sentences of each
    time: np.ndarray  # [n] int64: seconds since 1970
    text: list[str]  # [n]


def read(file: File, split: str, choose: Choose) -> Posts:
    """The posts of one split (``train``, ``held_out`` or ``test``) by the users that ``choose``
    picks.

    For example ``read(File(Path("stackoverflow_train.sqlite")), "train", lambda users:
    users[:100])``.
    """
    kind = Path(file.name.removesuffix(".gz")).suffix
    with reading(file):
        if kind == ".sqlite":
            return _sqlite(file, split, choose)
        if kind == ".h5":
            return _hdf5(file, choose)
        if kind in (".csv", ".parquet"):
            return _table(file, choose, csv=kind == ".csv")
    raise InputError(
        f"{file} must end in .sqlite, .h5, .csv or .parquet, which says how to read it"
    )


@contextmanager
def _on_disk(file: File) -> Iterator[Path]:
    """The file itself, or an unpacked copy: a database cannot be read inside an archive."""
    if not file.member and not file.name.endswith(".gz"):
        yield file.path
        return
    with TemporaryDirectory() as scratch:
        copy = Path(scratch, "data")
        with file.open() as source, copy.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        yield copy


def _sqlite(file: File, split: str, choose: Choose) -> Posts:
    with (
        _on_disk(file) as path,
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base,
    ):
        tables = {
            name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "federated_data" in tables:
            return _fedjax(base, choose, path.stat().st_size)
        if {"examples", "client_metadata"} <= tables:
            return _tff(base, split, choose)
    known = "federated_data (FedJAX), or examples and client_metadata (TensorFlow Federated)"
    raise InputError(
        f"{file} has the tables {', '.join(sorted(tables)) or '(none)'}; expected {known}"
    )


def _fedjax(base: sqlite3.Connection, choose: Choose, size: int) -> Posts:
    users = choose(
        [
            user
            for (user,) in base.execute("SELECT client_id FROM federated_data ORDER BY client_id")
        ]
    )
    blobs = (
        base.execute("SELECT data FROM federated_data WHERE client_id = ?", (user,)).fetchone()[0]
        for user in users
    )
    return _posts(users, (packed_texts(content, _WANTED) for content in _inflated(blobs, size)))


def _inflated(blobs: Iterator[bytes], packed: int) -> Iterator[bytes]:
    """The content of compressed values; all together, no more than a file of this size may hold."""
    total = 0
    for blob in blobs:
        worker = zlib.decompressobj()
        content = worker.decompress(blob, most_unpacked(packed) - total + 1)
        total += len(content)
        check_unpacked("the data of its clients", total, packed)
        if not worker.eof:
            raise EOFError("the data of a client are cut off")
        yield content


def _tff(base: sqlite3.Connection, split: str, choose: Choose) -> Posts:
    name = split.replace("_", "")  # "heldout" there
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    users = choose([user for (user,) in base.execute(query, (name,))])
    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER"
        " BY rowid"
    )
    rows = (
        [example_texts(blob, _WANTED) for (blob,) in base.execute(query, (name, user))]
        for user in users
    )
    return _posts(users, ({key: [row[key] for row in some] for key in _WANTED} for some in rows))


def _hdf5(file: File, choose: Choose) -> Posts:
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        raise InputError(f"{file.name} needs h5py: pip install 'fedslice[data]'") from error
    with _on_disk(file) as path, h5py.File(path, "r") as tree:
        everyone = _inside(tree, "examples")
        users = choose(sorted(everyone.keys()))
        groups = (_inside(everyone, user) for user in users)
        columns = (
            {key: _column(_inside(group, key.decode()), path) for key in _WANTED}
            for group in groups
        )
        return _posts(users, columns)


def _inside(group: Any, name: str) -> Any:
    """A member that is in the file itself: a link could lead to any other file of this machine."""
    link = group.get(name, getlink=True)
    if type(link).__name__ != "HardLink":
        raise ValueError(
            f"{name} in {group.name} is {'a link, which is not followed' if link else 'not there'}"
        )
    return group[name]


def _column(data: Any, path: Path) -> list[bytes]:
    """The texts of a dataset; one that keeps its values in other files is refused."""
    if data.external or data.is_virtual:
        raise ValueError(f"{data.name} has its values in other files, which are not read")
    check_unpacked(data.name, (data.size or 0) * data.dtype.itemsize, path.stat().st_size)
    values = data[()].tolist() if data.shape and len(data.shape) == 1 else None
    if values is None or not all(isinstance(value, bytes) for value in values):
        raise ValueError(
            f"{data.name} must be a list of texts, not {data.dtype} of shape {data.shape}"
        )
    return values


def _posts(users: Sequence[Any], columns: Iterator[dict[bytes, list[bytes]]]) -> Posts:
    texts: list[bytes] = []
    dates: list[bytes] = []
    counts = []
    for each in columns:
        some, when = (each[key] for key in _WANTED)
        if len(some) != len(when):
            raise LookupError(f"a user has {len(some)} sentences and {len(when)} dates")
        texts += some
        dates += when
        counts.append(len(some))
    names = [user.decode() if isinstance(user, bytes) else str(user) for user in users]
    # Joined, all are decoded at once; what is no UTF-8 becomes a mark of its own.
    joined = b"\0".join(text.replace(b"\0", b" ") for text in texts).decode("utf-8", "replace")
    text = joined.split("\0")[: len(texts)]
    return Posts(bounded(names, "the users"), np.array(counts, np.int64), _seconds(dates), text)


def _seconds(dates: Sequence[Any]) -> np.ndarray:
    """Seconds since 1970 of dates such as ``2018-02-28 19:06:18.34 UTC``; fractions are dropped."""
    try:
        stamps = np.array(dates, "S19").astype("U19").astype("datetime64[s]")
    except (ValueError, UnicodeEncodeError) as error:
        raise ValueError(f"a date is not like 2018-02-28 19:06:18: {error}") from error
    if np.isnat(stamps).any():
        raise ValueError(
            f"sentence {int(np.argmax(np.isnat(stamps)))} has no date: give each one, or drop it"
        )
    return stamps.astype(np.int64)


def _table(file: File, choose: Choose, csv: bool) -> Posts:
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{file.name} needs pyarrow: pip install 'fedslice[data]'") from error
    table = _read_csv(file) if csv else _read_parquet(file)
    missing = [name for name in ("user", "time", "text") if name not in table.column_names]
    if missing:
        raise InputError(
            f"{file} has no column {', '.join(missing)}; it has {', '.join(table.column_names)}"
        )
    if table["user"].null_count or table["time"].null_count:
        raise InputError(f"{file} has rows without user or time: drop them")
    encoded = table["user"].cast("string").combine_chunks().dictionary_encode()
    known = encoded.dictionary.to_pylist()
    users = list(choose(sorted(known)))
    place = {name: rank for rank, name in enumerate(users)}
    owner = np.array([place.get(name, -1) for name in known], np.int64)[np.asarray(encoded.indices)]
    rows = np.flatnonzero(owner >= 0)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    picked = table.take(rows)
    counts = np.bincount(owner[rows], minlength=len(users))
    text = _plain(picked["text"].cast("string").fill_null("").to_pylist())
    return Posts(bounded(users, file), counts, _times(pyarrow, picked["time"]), text)


def _read_csv(file: File) -> Any:
    import pyarrow
    from pyarrow import csv

    parse = csv.ParseOptions(newlines_in_values=True)
    convert = csv.ConvertOptions(column_types={"user": pyarrow.string(), "text": pyarrow.string()})
    for encoding in ("utf8", "latin-1"):  # as old dumps are; every text is valid Latin-1
        try:
            with file.open() as stream:
                return csv.read_csv(stream, csv.ReadOptions(encoding=encoding), parse, convert)
        except pyarrow.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
    raise AssertionError("Latin-1 cannot fail")


def _read_parquet(file: File) -> Any:
    import pyarrow
    from pyarrow import parquet

    content = file.read()
    source = parquet.ParquetFile(pyarrow.BufferReader(content))
    # a run of equal values takes no room in the file
    cells = source.metadata.num_rows * source.metadata.num_columns
    check_unpacked(file, 8 * cells, len(content))
    return source.read()


def _times(arrow: Any, column: Any) -> np.ndarray:
    if arrow.types.is_timestamp(column.type) or arrow.types.is_date(column.type):
        return np.asarray(column.cast(arrow.timestamp("s"), safe=False)).astype(np.int64)
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        return _seconds([date.replace("T", " ") for date in column.to_pylist()])
    return np.asarray(column).astype(np.int64)


def _plain(texts: list[str]) -> list[str]:
    """Text as TensorFlow Federated's preparation left it: entities undone, lowercase, ASCII, <url>
    for addresses."""
    joined = "\0".join(text.replace("\0", " ") for text in texts)
    joined = _URL.sub(" <url> ", unescape(joined)).lower().encode("ascii", "ignore").decode()
    return joined.split("\0")[: len(texts)]
