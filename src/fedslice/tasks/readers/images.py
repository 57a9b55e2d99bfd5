"""Images: read them from files, or generate some whose class can be learned.

Columns of images are bytes, [examples, side, side, 3]; models scale them when they compute.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.files.guard import cause

SUFFIXES = (".png", ".jpg", ".jpeg")
_BLOCK = 512  # images painted at a time, to bound memory
_WAVES = 4  # highest frequency of a texture, in periods a side
_TINT = 6.0  # of its mean colour, relative to one wave
_BACKGROUNDS = 64


def picture(content: bytes, name: str, side: int | None = None) -> NDArray[np.uint8]:
    """The pixels [rows, columns, 3] of a PNG or JPEG; with ``side``, the middle square scaled to
    it.

    ``name`` is for the error if it cannot be read.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise InputError(
            "reading image files needs Pillow: pip install 'fedslice[images]'"
        ) from None
    try:
        with Image.open(io.BytesIO(content)) as image:
            if side is not None:
                image.draft("RGB", (2 * side, 2 * side))  # a JPEG is decoded no larger than needed
            colour = image.convert("RGB")
        if side is not None:
            colour = ImageOps.fit(colour, (side, side), Image.Resampling.BILINEAR)
        return np.asarray(colour, np.uint8)
    except Exception as error:  # Pillow has no common base for what a damaged file makes it raise
        why = cause(str(error).partition(" <_io")[0])
        raise InputError(
            f"{name} is not an image that can be read ({why}). If cut off, download it again"
        ) from error


def pictures(paths: Sequence[Path], side: int) -> NDArray[np.uint8]:
    """All images as one column, in order, decoded by all cores into a temporary file: they may
    exceed the memory."""
    shape = (len(paths), side, side, 3)
    if not paths:
        return np.zeros(shape, np.uint8)
    with TemporaryFile() as scratch:
        column = np.memmap(scratch, np.uint8, "w+", shape=shape)  # keeps the file open by itself

    def read(numbered: tuple[int, Path]) -> None:
        column[numbered[0]] = picture(numbered[1].read_bytes(), str(numbered[1]), side)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, enumerate(paths)):
            pass
    return column


def below(folder: Path) -> Iterator[Path]:
    """Image files in the folder and all folders below it, but not in hidden ones, in alphabetical
    order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))


def signature(paths: Sequence[Path]) -> str:
    """A text that changes with the files' names, sizes and times: for caches of many images."""
    state = hashlib.blake2b(digest_size=16)
    for path in paths:
        status = path.stat()
        state.update(f"{path.name}/{status.st_size}/{status.st_mtime_ns}\n".encode())
    return state.hexdigest()


def pooled(**columns: NDArray[Any]) -> Population:
    """A test set that belongs to nobody: one client, named "test".

    >>> pooled(label=np.zeros(5, np.int32)).counts.tolist()
    [5]
    """
    size = len(next(iter(columns.values())))
    return Population(columns, np.array([0, size]), np.array(["test"]))


def textures(rng: np.random.Generator, number: int, side: int) -> NDArray[np.float32]:
    """Random smooth periodic patterns [number, side, side, 3], each of a random tint, all with mean
    square 1.

    >>> textures(np.random.default_rng(0), 2, 16).shape
    (2, 16, 16, 3)
    """
    frequency = np.abs(np.fft.fftfreq(side, 1 / side))
    low = np.maximum.outer(frequency, frequency) <= _WAVES
    waves = rng.normal(size=(number, 3, side, side)) + 1j * rng.normal(size=(number, 3, side, side))
    waves[:, :, 0, 0] *= _TINT
    values = np.moveaxis(np.fft.ifft2(waves * low).real, 1, -1)
    return np.asarray(values / np.sqrt(np.mean(values**2, (1, 2, 3), keepdims=True)), np.float32)


def paint(
    rng: np.random.Generator, labels: NDArray[Any], classes: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """One image for each label: its class's texture, shifted by up to an eighth of the side and
    with random contrast, over another texture that says nothing of the class, and noise.

    >>> rng = np.random.default_rng(0)
    >>> paint(rng, np.array([0, 1, 1]), textures(rng, 2, 16)).shape
    (3, 16, 16, 3)
    """
    side = classes.shape[1]
    backgrounds = textures(rng, _BACKGROUNDS, side)
    images = np.empty((len(labels), side, side, 3), np.uint8)
    for start in range(0, len(labels), _BLOCK):
        part = labels[start : start + _BLOCK]
        contrast = rng.uniform(0.5, 1.5, (len(part), 1, 1, 1)).astype(np.float32)
        scene = contrast * _shift(rng, classes, part, side // 8)
        scene += 0.4 * _shift(
            rng, backgrounds, rng.integers(_BACKGROUNDS, size=len(part)), side // 2
        )
        scene += 0.3 * rng.standard_normal(scene.shape, np.float32)
        images[start : start + _BLOCK] = np.clip(128 + 40 * scene, 0, 255)
    return images


def _shift(
    rng: np.random.Generator, patterns: NDArray[np.float32], chosen: NDArray[Any], reach: int
) -> NDArray[np.float32]:
    """The chosen patterns, each moved at random around the torus."""
    side = patterns.shape[1]
    rows, columns = (rng.integers(-reach, reach + 1, (2, len(chosen), 1)) + np.arange(side)) % side
    return patterns[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
