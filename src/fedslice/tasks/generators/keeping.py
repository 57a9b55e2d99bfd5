"""Generate a data set once: its arrays are kept with those of parsed files, and mapped later.

An entry is known by a hash of the code that makes the arrays, of its arguments and of the versions
of Python, NumPy and fedslice, so that other code never meets them.  Small ones are made each time,
and of the others the newest stay.  What is kept can be deleted at any time."""

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from fedslice.tasks.readers.cache import hashed, home, keep, load

PREFIX = "generated-"
WORTH = 4 << 20  # bytes from which on reading is quicker than making
MOST = 1 << 30  # bytes kept


class _Columns(Protocol):
    """A named tuple of arrays."""

    def _asdict(self) -> dict[str, Any]: ...


Made = TypeVar("Made", bound=_Columns)


def kept(generate: Callable[..., Made], kind: type[Made], *arguments: float) -> Made:
    """``generate(*arguments)``, a named tuple ``kind`` of arrays, kept on disk for the next time;
    arrays that were kept cannot be written to.

    >>> from fedslice.tasks.readers.ratings import Ratings
    >>> from fedslice.tasks.generators.ratings import generate
    >>> kept(generate, Ratings, 0, 0.01, False).titles[0]
    np.str_('Movie 1')
    """
    versions = platform.python_version(), np.__version__, version("fedslice")
    code = [_source(made.__module__) for made in (generate, kind)]
    recipe = json.dumps([generate.__qualname__, *arguments, *versions, *code])
    place = home() / f"{PREFIX}{hashed(recipe)}"
    if (arrays := load(place)) is not None:
        return kind(**arrays)
    made = generate(*arguments)
    columns = made._asdict()
    if sum(column.nbytes for column in columns.values()) < WORTH:
        return made
    found = kind(**keep(place, columns, recipe))
    _trim(home(), MOST)
    return found


def _source(module: str) -> str:
    """A hash of the code of a module."""
    file = sys.modules[module].__file__
    return hashlib.blake2b(Path(file or "").read_bytes(), digest_size=8).hexdigest()


def _trim(folder: Path, most: int) -> None:
    """Delete what was generated first, until ``most`` bytes are left."""
    with suppress(OSError):  # another process may do the same
        found = sorted(folder.glob(f"{PREFIX}*"), key=lambda entry: entry.stat().st_mtime)
        sizes = [sum(file.stat().st_size for file in os.scandir(entry)) for entry in found]
        for number, entry in enumerate(found):
            if sum(sizes[number:]) > most:
                shutil.rmtree(entry, ignore_errors=True)
