"""Parse a data set once: the arrays are kept in the user's cache and memory-mapped the next time.

A cache is a folder ``<hash>`` of ``.npy`` files and an index, in FEDSLICE_CACHE or ``parsed`` in
the user's cache (:func:`fedslice.tasks.readers.files.user_cache`): the data themselves may be
read-only or shared.  The hash is of the content of the data files and of the recipe, so that
neither new data nor new code ever meets an old cache.  What is kept can be deleted at any time."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError
from fedslice.files.guard import reading
from fedslice.files.packed import File, checksum
from fedslice.tasks.readers.files import user_cache

LARGE = 1 << 20  # bytes above which an array stays on disk
_INDEX = "index.json"

Arrays = dict[str, NDArray[Any]]


def cached(
    files: Iterable[File], recipe: str, build: Callable[[], Mapping[str, NDArray[Any]]]
) -> Arrays:
    """The arrays that ``build()`` makes of the files, kept on disk for the next time; they cannot
    be written to.

    ``recipe`` names all that the arrays depend on besides the files: task, version of the code,
    options.  Where nothing can be kept, the next start parses again.

    >>> getfixture("monkeypatch").setenv("FEDSLICE_CACHE", str(getfixture("tmp_path") / "cache"))
    >>> path = Path(getfixture("tmp_path")) / "numbers.txt"
    >>> _ = path.write_text("1 2 3")
    >>> def build():
    ...     print("parsing")
    ...     return {"numbers": np.fromstring(path.read_text(), sep=" ")}
    >>> arrays = cached([File(path)], "numbers, version 1", build)
    parsing
    >>> cached([File(path)], "numbers, version 1", build)["numbers"].tolist()
    [1.0, 2.0, 3.0]
    """
    sources = list(files)
    key = json.dumps([recipe, *(file.fingerprint() for file in sources)])
    place = home() / hashed(key)
    if (arrays := load(place)) is not None:
        return arrays
    with reading(_listed(sources)):
        built = {name: _plain(name, array) for name, array in build().items()}
    return keep(place, built, recipe)


def home() -> Path:
    """The folder of all caches."""
    return Path(os.environ.get("FEDSLICE_CACHE") or user_cache() / "parsed")


def hashed(key: str) -> str:
    """A name for what is told by ``key``."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _listed(files: Sequence[File]) -> str:
    """The files in words."""
    some = " or ".join(map(str, files[:3]))
    return some + (f" or one of {len(files) - 3:,} more" if len(files) > 3 else "") or "the data"


def _plain(name: str, value: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InputError(
            f"array {name!r} holds Python objects: make it numbers or text of one width"
        )
    return array


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def load(folder: Path) -> Arrays | None:
    """The arrays, or None if they are not there or something is wrong with one of them: every byte
    is checked."""
    try:
        index = json.loads((folder / _INDEX).read_bytes())
        arrays = {}
        for name, (file, seal) in index["arrays"].items():
            path = folder / file
            if checksum(path) != seal:
                return None
            large = path.stat().st_size > LARGE
            arrays[name] = _frozen(
                np.asarray(np.load(path, mmap_mode="r" if large else None, allow_pickle=False))
            )
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(folder: Path, arrays: Arrays, recipe: str) -> Arrays:
    """The arrays as they are kept from now on, or as they are where nothing can be kept."""
    try:
        return _store(folder, arrays, recipe)
    except OSError:  # a full disk, or no right to write: no reason to stop
        return {name: _frozen(array) for name, array in arrays.items()}


def _store(folder: Path, arrays: Arrays, recipe: str) -> Arrays:
    """Write to a temporary folder and rename it, so that a cache is whole or not there."""
    folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        entries = {}
        for number, (name, array) in enumerate(arrays.items()):
            file = f"{number}.npy"
            with (new / file).open("wb") as sink:
                np.save(sink, array, allow_pickle=False)
                os.fsync(sink.fileno())
            entries[name] = file, checksum(new / file)
        with (new / _INDEX).open("w") as text:
            json.dump({"recipe": recipe, "arrays": entries}, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        try:
            new.rename(folder)
        except OSError:  # there is one: of another process that was faster, or damaged
            if (theirs := load(folder)) is not None:
                return theirs
            folder.rename(Path(scratch, "damaged"))
            new.rename(folder)
    stored = load(folder)
    if stored is None:
        raise OSError(f"what was written to {folder} cannot be read back")
    return stored
