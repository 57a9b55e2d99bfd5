"""CIFAR-10 (Krizhevsky 2009) from its files: the Python version, NPZ, sheets of PNG, or folders of
PNG by class.

The Python version is a set of pickles, which could run any code when loaded.  Here only dicts,
lists, text, numbers and arrays of bytes are understood, the arrays by a reader of a few lines;
whatever else a file asks for is refused.
"""

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import cause, check_unpacked, reading
from fedslice.tasks.readers.cache import Arrays, cached
from fedslice.tasks.readers.files import File, locate
from fedslice.tasks.readers.images import below, picture, pictures, signature

SIDE, CLASSES = 32, 10
NEEDS = (
    "CIFAR-10 is cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html, packed or"
    " unpacked; or a file .npz with x_train, y_train, x_test, y_test; or PNG sheets"
    " data_batch_1.png to 5 and test_batch.png, an image a row, with train_labels.json and"
    " test_labels.json; or PNG files train/CLASS/*.png and test/CLASS/*.png."
)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6)) + ("test_batch",)
# also as train_lables.json
SHEETS = (*(f"{name}.png" for name in BATCHES), "train_la*.json", "test_la*.json")
ARCHIVE = "cifar-10-python.tar"  # with gzip or without
Found = Mapping[str, File]


def read(path: Path) -> Arrays:
    """Images [n, 32, 32, 3] and labels [n], bytes: x_train, y_train, x_test, y_test; kept for the
    next time."""
    path = Path(path)
    npz = "*.npz" if path.is_file() else "cifar*.npz"
    formats: tuple[tuple[tuple[str, ...], Callable[[Found], Arrays]], ...] = (
        (BATCHES, _read_batches),
        ((ARCHIVE,), _read_archive),
        ((npz,), _read_npz),
        (SHEETS, _read_sheets),
    )
    try:
        found = locate(path, *(f"?{name}" for names, _ in formats for name in names), needs=NEEDS)
    except MissingDataError:
        return _read_folders(path)
    names, reader = next(
        ((names, reader) for names, reader in formats if names[0] in found), formats[0]
    )
    if missing := [name for name in names if name not in found]:
        raise MissingDataError(f"{', '.join(missing)} not found in {path}. {NEEDS}")
    files = {name: found[name] for name in names}
    return cached(files.values(), "cifar10 1", lambda: _checked(reader(files)))


class _Kind:
    """In place of numpy.dtype: only its code is kept."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment do not matter for bytes."""


class _Array:
    """In place of numpy.ndarray: takes what an array of bytes was stored as."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, tuple[int, ...], _Kind, bool, bytes | str]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _Kind) or kind.code not in ("u1", "uint8") or columns_first:
            raise pickle.UnpicklingError("an array that is not of bytes in rows")
        raw = content.encode("latin-1") if isinstance(content, str) else content
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


def _encode(text: str, encoding: str) -> bytes:
    """In place of codecs.encode, by which Python 3 stores bytes for Python 2."""
    return text.encode("latin-1")


class _Reader(
    pickle._Unpickler
):  # the one in Python: the one in C takes 64 GB if a file asks for memo 2^32
    """Reads pickles that hold nothing but plain values and arrays of bytes."""

    KNOWN: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Kind,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Everything that a pickle may call."""
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no CIFAR-10 file needs"
            )
        return self.KNOWN[module, name]


def unpickle(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Rows of pixels [n, 3072] and labels of one batch of the Python version."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="latin-1").load()
        return batch["data"].values.reshape(-1, 3 * SIDE * SIDE), np.asarray(batch["labels"])
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{name} is not a CIFAR-10 batch ({cause(error)}). {NEEDS}") from error


def _read_batches(found: Found) -> Arrays:
    return _join({name: found[name].read() for name in BATCHES})


def _read_archive(found: Found) -> Arrays:
    file = found[ARCHIVE]
    contents = {}
    with reading(file), file.open() as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if Path(member.name).name in BATCHES else None
            if content is not None:
                # holes take no room in the archive
                check_unpacked(member.name, member.size, file.path.stat().st_size)
                contents[Path(member.name).name] = content.read()
    if missing := [name for name in BATCHES if name not in contents]:
        raise InputError(
            f"{file} has no {', '.join(missing)}: it is not CIFAR-10, or cut off. {NEEDS}"
        )
    return _join(contents)


def _join(contents: Mapping[str, bytes]) -> Arrays:
    """Colour by colour, as the batches have them, to colours last."""
    arrays: Arrays = {}
    for part, names in (("train", BATCHES[:-1]), ("test", BATCHES[-1:])):
        pixels, labels = zip(*(unpickle(contents[name], name) for name in names), strict=True)
        arrays[f"x_{part}"] = (
            np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        )
        arrays[f"y_{part}"] = np.concatenate(labels)
    return arrays


def _read_npz(found: Found) -> Arrays:
    (file,) = found.values()
    wanted = ("x_train", "y_train", "x_test", "y_test")
    content = io.BytesIO(file.read())
    try:
        with zipfile.ZipFile(content) as members:
            size = sum(member.file_size for member in members.infolist())
        check_unpacked(file, size, len(content.getbuffer()))
        with np.load(content, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in wanted}
    except InputError:
        raise
    except (
        Exception
    ) as error:  # NumPy and zipfile have no common base for what a damaged file makes them raise
        raise InputError(
            f"{file} does not hold {', '.join(wanted)} ({cause(error)}). {NEEDS}"
        ) from error
    for part in ("train", "test"):
        images = arrays[f"x_{part}"]
        arrays[f"x_{part}"] = (
            images.transpose(0, 2, 3, 1) if images.shape[1:] == (3, SIDE, SIDE) else images
        )
        arrays[f"y_{part}"] = arrays[f"y_{part}"].reshape(-1)
    return arrays


def _read_sheets(found: Found) -> Arrays:
    """Each row of a sheet is an image, pixel after pixel."""
    arrays: Arrays = {}
    for part, names, labels in (("train", SHEETS[:5], SHEETS[6]), ("test", SHEETS[5:6], SHEETS[7])):
        sheets = [picture(found[name].read(), str(found[name])) for name in names]
        if wrong := [
            name for name, sheet in zip(names, sheets, strict=True) if sheet.shape[1] != SIDE * SIDE
        ]:
            raise InputError(
                f"{wrong[0]} is not {SIDE * SIDE} pixels wide, an image a row. {NEEDS}"
            )
        arrays[f"x_{part}"] = np.concatenate(sheets).reshape(-1, SIDE, SIDE, 3)
        with reading(found[labels]):
            arrays[f"y_{part}"] = np.array(json.loads(found[labels].text()))
    return arrays


def _read_folders(path: Path) -> Arrays:
    """``train/CLASS/*.png``; labels are numbered by the classes' names in alphabetical order."""
    root = next(
        (place for place in (path, *sorted(path.glob("*"))) if (place / "train").is_dir()), None
    )
    if root is None or not (root / "test").is_dir():
        raise MissingDataError(f"no CIFAR-10 in {path}. {NEEDS}")
    files = {part: list(below(root / part)) for part in ("train", "test")}
    names = sorted({file.parent.name for group in files.values() for file in group})
    if len(names) != CLASSES:
        raise InputError(
            f"{root} has images of {len(names)} classes ({', '.join(names[:12])}), expected"
            f" {CLASSES}"
        )

    def build() -> Arrays:
        arrays: Arrays = {}
        for part, group in files.items():
            arrays[f"x_{part}"] = pictures(group, SIDE)
            arrays[f"y_{part}"] = np.array([names.index(file.parent.name) for file in group])
        return _checked(arrays)

    everything = [*files["train"], *files["test"]]
    return cached([File(everything[0])], f"cifar10 folders 1 {signature(everything)}", build)


def _checked(arrays: Arrays) -> Arrays:
    for part in ("train", "test"):
        images, labels = len(arrays[f"x_{part}"]), len(arrays[f"y_{part}"])
        if not images or images != labels:
            raise InputError(f"CIFAR-10 has {images} {part} images but {labels} labels. {NEEDS}")
    return {name: check(array) for name, array in arrays.items()}


def check(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Images of 32 x 32 x 3 bytes, or labels from 0 to 9; anything else is refused.

    >>> check(np.array([0, 9])).dtype
    dtype('uint8')
    """
    whole = array.dtype.kind in "iu" and (
        not array.size or (array.min() >= 0 and array.max() <= 255)
    )
    if array.ndim == 1 and whole and array.max() < CLASSES:
        return array.astype(np.uint8)
    if array.shape[1:] == (SIDE, SIDE, 3) and whole:
        return np.ascontiguousarray(array, np.uint8)
    raise InputError(
        f"expected images [n, {SIDE}, {SIDE}, 3] of bytes and labels from 0 to {CLASSES - 1}, got"
        f" an array of {array.dtype} with shape {array.shape}. {NEEDS}"
    )
