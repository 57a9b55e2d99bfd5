"""S(i), positions and heat of a population on disk: computed once, with room in files, and kept
beside its columns under a hash of their content."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.submodel import Submodels, index
from fedslice.errors import InputError
from fedslice.files.arrays import Arrays, checked, save, write_json
from fedslice.files.mapped import whole
from fedslice.files.writing import writing

ABOUT, FORMAT = "submodels.json", 1


def submodels(
    home: Path, content: str, columns: Arrays, offsets: np.ndarray, rows: int
) -> tuple[Submodels, np.ndarray]:
    """S(i) for a table of ``rows`` rows that ``columns`` index, and its heat, kept in ``home``
    under the hash of its ``content``."""
    key = hashlib.blake2b(
        json.dumps([FORMAT, content, list(columns), rows]).encode(), digest_size=8
    )
    place = home / f"submodels-{key.hexdigest()}"
    if (found := _kept(place, columns)) is not None:
        return found
    with _scratch(home) as folder:

        def room(name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
            return whole(folder / f"{name}.bin", dtype, shape)

        made = index(columns, offsets, rows, room)
        heat = made.heat(np.diff(offsets), room)
        arrays = {"ids": made.ids, "slots": made.slots, "offsets": made.offsets, "heat": heat}
        arrays |= {f"position-{n}": made.positions[name] for n, name in enumerate(columns)}
        about = {name: save(folder, name, array) for name, array in arrays.items()}
        for file in folder.iterdir():
            if file.stem not in about:  # what was needed on the way
                file.unlink()
        del made, heat, arrays
        with writing(place):
            write_json(folder / ABOUT, about)
            if place.exists():  # damaged
                shutil.rmtree(place)
            with suppress(FileExistsError):  # another process was faster
                folder.rename(place)
    kept = _kept(place, columns)
    if kept is None:
        raise InputError(f"what was written to {place} cannot be read back: is the disk all right?")
    return kept


def _kept(place: Path, columns: Mapping[str, np.ndarray]) -> tuple[Submodels, np.ndarray] | None:
    """What an earlier run computed, if it is there and whole."""
    try:
        about = json.loads((place / ABOUT).read_bytes())
        arrays = {name: checked(place, entry) for name, entry in about.items()}
        positions = {name: arrays[f"position-{n}"] for n, name in enumerate(columns)}
        found = Submodels(arrays["ids"], arrays["slots"], np.array(arrays["offsets"]), positions)
        return found, arrays["heat"]
    except (ValueError, KeyError, TypeError, OSError, AttributeError):
        return None


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=home))
    except OSError as error:
        raise InputError(
            f"{home} cannot be written to ({error.strerror}), and the rows that each client holds"
            " are kept beside its columns: make it writable, or copy it"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
