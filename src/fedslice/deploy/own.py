"""A node's own data, written once as arrays that every later process maps into memory.

    data/about.json     the client's number and name, and the columns
    data/0.npy ...      one file a column

A node may be a new process for every letter: what takes long, reading and encoding a file, is done
once, and after that a letter costs what its batches touch.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.files.writing import atomic_write, replacing

ABOUT, FORMAT = "about.json", 1


def write(data: Population, folder: str | Path, vocabulary: str = "") -> None:
    """Keep the data of one client in ``folder``; its names of rows are left out.  ``vocabulary`` is
    the digest of the one by which values became ids."""
    if len(data) != 1:
        raise InputError(f"a node is one client, this data has {len(data)}: give it its own")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = {name: f"{number}.npy" for number, name in enumerate(data.columns)}
    for name, file in files.items():
        with replacing(place / file) as temporary, temporary.open("wb") as sink:
            np.save(sink, np.asarray(data.columns[name]), allow_pickle=False)
    about = {
        "format": FORMAT,
        "client": str(data.clients[0]),
        "number": int(data.numbers[0]),
        "columns": files,
        "vocabulary": vocabulary,
    }
    atomic_write(place / ABOUT, json.dumps(about, indent=1).encode())


def read(folder: str | Path) -> Population:
    """The data that :func:`write` kept there.

    >>> place = getfixture("tmp_path")
    >>> write(Population.from_arrays(["ana", "ana"], item=[4, 7], label=[0.0, 1.0]), place)
    >>> ana = read(place)
    >>> ana.clients.tolist(), ana.columns["item"].tolist(), type(ana.columns["item"]).__name__
    (['ana'], [4, 7], 'memmap')
    """
    place = Path(folder)
    if not (place / ABOUT).exists():
        raise MissingDataError(
            f"{place} has no node's data ({ABOUT}): write them with fedslice.deploy.own.write, or"
            " name the right folder"
        )
    try:
        about = json.loads((place / ABOUT).read_bytes())
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
        columns = _columns(place, about["columns"])
        sizes = {len(column) for column in columns.values()}
        if len(sizes) != 1:
            raise ValueError(f"columns of {sorted(sizes)} examples")
        number, client = int(about["number"]), str(about["client"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the data in {place} cannot be read ({error}): write them anew"
        ) from error
    ends = np.array([0, sizes.pop()])
    return Population(columns, ends, np.array([client]), {}, np.array([number]))


def reader(vocabulary: str) -> Callable[[Path], Population]:
    """Reads data that were written by this vocabulary, and refuses others, whose ids have other
    meanings.

    >>> place = getfixture("tmp_path")
    >>> write(Population.from_arrays(["ana"], item=[4]), place, vocabulary="one")
    >>> len(reader("one")(place))
    1
    >>> reader("another")(place)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedslice.errors.InputError: the data in ... have ids by another vocabulary than this app's: ...
    """

    def checked(place: Path) -> Population:
        data = read(place)
        if json.loads((place / ABOUT).read_bytes()).get("vocabulary", "") != vocabulary:
            raise InputError(
                f"the data in {place} have ids by another vocabulary than this app's: write them"
                " anew with it, fedslice deploy data APP FILE NODE"
            )
        return data

    return checked


def _columns(place: Path, files: Mapping[str, Any]) -> dict[str, np.ndarray]:
    mapped = {
        name: np.load(place / Path(file).name, mmap_mode="r", allow_pickle=False)
        for name, file in files.items()
    }
    if wrong := [name for name, column in mapped.items() if column.dtype.kind not in "biuf"]:
        raise ValueError(f"columns {wrong} are no numbers")
    return mapped
