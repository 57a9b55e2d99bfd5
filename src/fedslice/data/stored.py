"""Populations larger than memory: a folder with one file a column, which is mapped, not read.

    population.json     what is in it: types, shapes, checksums of a sample of each file
    column-0.bin ...    the columns, offsets, clients, as raw numbers
    submodels-HASH/     S(i), positions and heat for one table, computed once, by the content

A folder is made under another name and renamed, so it is whole or not there.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.columns import check, digest, slices
from fedslice.errors import InputError, MissingDataError
from fedslice.files.arrays import Arrays, array_of, checked, sampled, save, write_json
from fedslice.files.writing import writing

ABOUT, FORMAT = "population.json", 1


class Stored(NamedTuple):
    """What a folder holds; arrays are mapped."""

    columns: Arrays
    offsets: np.ndarray
    clients: np.ndarray
    names: Arrays
    numbers: np.ndarray
    home: Path
    digest: str


class Writer:
    """Writes a population that may be larger than memory, some examples at a time, clients in
    ascending order; ``Population.open`` then maps it.

    Fractions are kept as 32-bit numbers, which models compute with, whole numbers as they are given
    first: 32 bits take half the room.

    >>> folder = Path(getfixture("tmp_path")) / "clicks"
    >>> with Writer(folder) as writer:
    ...     writer.add([7, 7, 9], item=[0, 2, 2], label=[1.0, 0.0, 1.0])
    ...     writer.add([9, 12], item=[5, 0], label=[0.0, 1.0])
    >>> opened(folder).offsets.tolist()
    [0, 2, 4, 5]
    """

    def __init__(self, folder: str | Path, names: Mapping[str, np.ndarray] | None = None) -> None:
        self.folder, self.names = Path(folder), dict(names or {})
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InputError(
                f"{folder} holds something already: write a population to a new folder"
            )
        self.columns: dict[str, tuple[Any, np.dtype[Any], tuple[int, ...]]] = {}
        self.examples = 0
        self._clients: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._numbers = np.zeros(0, np.int64)

    def __enter__(self) -> "Writer":
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder.parent))
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for handle, _, _ in self.columns.values():
                with suppress(OSError):
                    handle.close()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def add(self, client: Any, /, **columns: Any) -> None:
        """More examples: whose each is, and its values.  A client's examples follow each other,
        also from one call to the next."""
        owner = np.asarray(client)
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        check(owner, arrays)
        if not len(owner):
            return
        last = self._clients[-1][-1:] if self._clients else owner[:1]
        if np.any(owner[1:] < owner[:-1]) or owner[0] < last[0]:
            raise InputError(
                "clients must come in ascending order, all examples of one after the other: sort"
                " by client first"
            )
        first = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
        counts = np.diff(np.append(first, len(owner)))
        self.append(arrays)
        if self._clients and owner[0] == last[0]:
            self._counts[-1][-1] += counts[0]
            first, counts = first[1:], counts[1:]
        if len(first):
            self._clients.append(owner[first])
            self._counts.append(counts)

    def owned(self, clients: np.ndarray, counts: np.ndarray, numbers: np.ndarray) -> None:
        """Whose examples all those are that were appended."""
        self._clients, self._counts, self._numbers = [clients], [counts], numbers

    def append(self, arrays: Arrays) -> None:
        """Examples whose owners are told otherwise."""
        if not self.columns:
            for number, (name, array) in enumerate(arrays.items()):
                kind = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
                handle = (self.scratch / f"column-{number}.bin").open("wb")
                self.columns[name] = handle, kind, array.shape[1:]
        before = {name: shape for name, (_, _, shape) in self.columns.items()}
        if (now := {name: array.shape[1:] for name, array in arrays.items()}) != before:
            raise InputError(f"columns {now} follow other ones, {before}: give the same each time")
        for name, array in arrays.items():
            handle, kind, _ = self.columns[name]
            cast = np.ascontiguousarray(array, kind)
            if kind.kind != "f" and not np.array_equal(cast, array):
                raise InputError(
                    f"column {name!r} was {kind} at first, and has {array.dtype} values now that"
                    " this cannot hold: give them in one type"
                )
            with writing(self.folder, ". Nothing of it is left; make room and begin anew."):
                handle.write(cast.reshape(-1).view(np.uint8).data)
        self.examples += len(next(iter(arrays.values())))

    def _finish(self) -> None:
        for handle, _, _ in self.columns.values():
            with writing(self.folder, ". Nothing of it is left; make room and begin anew."):
                handle.flush()
                os.fsync(handle.fileno())
        entries = {
            name: {"file": Path(handle.name).name, "dtype": kind.str, "shape": shape}
            for name, (handle, kind, shape) in self.columns.items()
        }
        columns = {}
        for name, entry in entries.items():
            entry["shape"] = [self.examples, *entry["shape"]]
            columns[name] = array_of(self.scratch, entry)
        offsets = np.append(0, np.cumsum(np.concatenate([np.zeros(0, np.int64), *self._counts])))
        clients = np.concatenate(self._clients) if self._clients else np.zeros(0, np.int64)
        about = {
            "format": FORMAT,
            "digest": digest(columns, offsets, self.names),
            "columns": {name: sampled(self.scratch, entry) for name, entry in entries.items()},
            "offsets": save(self.scratch, "offsets", offsets.astype(np.int64)),
            "clients": save(self.scratch, "clients", clients),
            "names": {
                name: save(self.scratch, f"names-{number}", np.asarray(given))
                for number, (name, given) in enumerate(self.names.items())
            },
            "numbers": save(
                self.scratch,
                "numbers",
                self._numbers if len(self._numbers) else np.arange(len(clients)),
            ),
        }
        del columns
        with writing(self.folder):
            write_json(self.scratch / ABOUT, about)
            if self.folder.exists():
                self.folder.rmdir()
            self.scratch.rename(self.folder)


def write(
    folder: str | Path,
    columns: Arrays,
    offsets: np.ndarray,
    clients: np.ndarray,
    names: Mapping[str, np.ndarray],
    numbers: np.ndarray,
) -> None:
    """A population as it is, a part at a time."""
    with Writer(folder, names) as writer:
        for part in slices(int(offsets[-1])):
            writer.append({name: column[part] for name, column in columns.items()})
        writer.owned(clients, np.diff(offsets), numbers)


def opened(folder: str | Path) -> Stored:
    """The population of a folder; a file that is not as it was written is refused."""
    home = Path(folder)
    file = home / ABOUT
    if not file.exists():
        raise MissingDataError(
            f"{home} holds no population ({ABOUT}): write one with Population.write, or with"
            " Population.writer some examples at a time"
        )
    try:
        about = json.loads(file.read_bytes())
        if about["format"] != FORMAT:
            raise InputError(f"{file} has format {about['format']}, this version reads {FORMAT}")
        columns, names = (
            {name: checked(home, entry) for name, entry in about[kind].items()}
            for kind in ("columns", "names")
        )
        offsets, clients, numbers = (
            checked(home, about[kind]) for kind in ("offsets", "clients", "numbers")
        )
        return Stored(columns, offsets, clients, names, numbers, home, about["digest"])
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the population in {home} is damaged ({error}): restore it from a copy, or write it"
            " anew"
        ) from error
