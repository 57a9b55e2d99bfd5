"""Parsed arrays come back as they were, are parsed again when anything changed, and are never half
there."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.files.packed import checksum
from fedslice.tasks.readers.cache import LARGE, cached
from fedslice.tasks.readers.files import File

ARRAYS = {
    "large": np.arange(LARGE, dtype=np.int32).reshape(-1, 2),
    "small": np.array([1.5, np.nan, -0.0], np.float32),
    "empty": np.zeros((0, 3), np.int64),
    "scalar": np.array(7, np.int8),
    "words": np.array(["", "caf\u00e9", "\U0001f600"]),
    "flags": np.array([True, False]),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "wide words": np.array(["x" * 300] * 1000),
    "../odd name": np.arange(3),
}


class Builder:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return ARRAYS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSLICE_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def data(tmp_path: Path, home: Path) -> File:
    path = tmp_path / "data" / "a.csv"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return File(path)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert list(left) == list(right)
    for name, array in right.items():
        assert left[name].dtype == array.dtype
        np.testing.assert_array_equal(left[name], array, strict=True)


def only(folder: Path) -> Path:
    """The one cache that is there; nothing temporary may be left."""
    (found,) = folder.iterdir()
    return found


def mapped(array: np.ndarray) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def test_arrays_come_back_as_they_were_and_large_ones_are_mapped(data: File, home: Path) -> None:
    build = Builder()
    for _ in range(3):
        arrays = cached([data], "test 1", build)
        same(arrays, ARRAYS)
        assert {name for name, array in arrays.items() if mapped(array)} == {"large", "wide words"}
        assert not any(isinstance(array, np.memmap) for array in arrays.values())
    assert build.calls == 1
    assert only(home).is_dir()
    assert only(data.path.parent) == data.path  # data may be read-only or shared


def test_arrays_cannot_be_written_to(data: File) -> None:
    for _ in range(2):
        for array in cached([data], "test 1", Builder()).values():
            assert not array.flags.writeable
    assert ARRAYS["large"].flags.writeable


def test_content_recipe_and_order_of_files_decide(data: File) -> None:
    other = File(data.path.with_name("b.csv"))
    other.path.write_bytes(b"other")
    build = Builder()

    def ask(files: list[File], recipe: str, calls: int) -> None:
        cached(iter(files), recipe, build)
        assert build.calls == calls

    ask([data, other], "test 1", 1)
    ask([data, other], "test 2", 2)
    ask([other, data], "test 1", 3)
    ask([data], "test 1", 4)
    data.path.touch()
    ask([data, other], "test 1", 4)
    data.path.write_bytes(b"Content")
    ask([data, other], "test 1", 5)
    data.path.write_bytes(b"content")
    ask([data, other], "test 1", 5)  # the old cache is still there


def test_data_may_be_moved(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("inner/a.csv", "1")
    build = Builder()
    cached([File(folder / "a.zip", "inner/a.csv")], "test", build)
    folder.rename(tmp_path / "moved")
    same(cached([File(tmp_path / "moved" / "a.zip", "inner/a.csv")], "test", build), ARRAYS)
    assert build.calls == 1


def test_without_files_the_cache_is_in_the_users_folder(home: Path) -> None:
    build = Builder()
    for _ in range(2):
        same(cached([], "test", build), ARRAYS)
    assert build.calls == 1
    assert only(home).is_dir()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def number(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / "index.json").read_text())["arrays"][name][0]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "array gone": lambda folder: number(folder, "small").unlink(),
    "array empty": lambda folder: number(folder, "large").write_bytes(b""),
    "array cut off": (
        lambda folder: number(folder, "large").write_bytes(
            number(folder, "large").read_bytes()[:-1]
        )
    ),
    "array zeroed": lambda folder: number(folder, "large").write_bytes(bytes(4 * LARGE + 128)),
    "small array changed": lambda folder: flip(number(folder, "small"), -1),
    "header changed": lambda folder: flip(number(folder, "large"), 30),
    "last byte changed": lambda folder: flip(number(folder, "large"), -1),
    "index gone": lambda folder: (folder / "index.json").unlink(),
    "index cut off": lambda folder: (folder / "index.json").write_text('{"arrays": {'),
    "index of bytes": lambda folder: (folder / "index.json").write_bytes(b"\xff\xfe\x00"),
    "index of another kind": lambda folder: (folder / "index.json").write_text('{"arrays": [1]}'),
    "index of no arrays": lambda folder: (folder / "index.json").write_text("[]"),
    "index of other entries": (
        lambda folder: (folder / "index.json").write_text('{"arrays": {"small": 3}}')
    ),
    "all gone": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(data: File, home: Path, damage: str) -> None:
    build = Builder()
    cached([data], "test", build)
    DAMAGES[damage](only(home))
    for _ in range(2):
        same(cached([data], "test", build), ARRAYS)
    assert build.calls == 2
    assert only(home).is_dir()


def test_other_caches_are_left_alone(data: File, home: Path) -> None:
    for recipe in ("first", "second"):
        cached([data], recipe, Builder())
    folders = list(home.iterdir())
    assert {json.loads((folder / "index.json").read_text())["recipe"] for folder in folders} == {
        "first",
        "second",
    }


def test_another_process_may_be_faster(data: File, home: Path) -> None:
    first, second = Builder(), Builder()

    def slow() -> dict[str, np.ndarray]:
        cached([data], "test", first)  # while this one parses
        return second()

    same(cached([data], "test", slow), ARRAYS)
    assert (first.calls, second.calls) == (1, 1)
    assert only(home).is_dir()


def test_without_a_place_to_write_to_it_goes_on_in_silence(data: File, home: Path) -> None:
    home.write_text("in the way")
    build = Builder()
    for calls in (1, 2):
        arrays = cached([data], "test", build)
        same(arrays, ARRAYS)
        assert not any(array.flags.writeable for array in arrays.values())
        assert build.calls == calls


def test_the_cache_is_in_the_users_folder(
    data: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSLICE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    cached([data], "test", Builder())
    assert only(tmp_path / "me" / ".cache" / "fedslice" / "parsed").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    cached([data], "test", Builder())
    assert only(tmp_path / "other" / "fedslice" / "parsed").is_dir()


def test_every_flipped_bit_of_a_large_array_is_noticed(data: File, home: Path) -> None:
    """Of 20 bits anywhere in 9 MB, none is overlooked."""
    numbers = np.arange(9 << 20, dtype=np.uint8)
    calls = []
    cached([data], "test", lambda: {"numbers": numbers})
    path = only(home) / "0.npy"
    for place in np.random.default_rng(0).integers(path.stat().st_size, size=20).tolist():
        flip(path, place)
        found = cached(
            [data], "test", lambda place=place: calls.append(place) or {"numbers": numbers}
        )
        np.testing.assert_array_equal(found["numbers"], numbers)
    assert len(calls) == 20


def test_a_failed_build_leaves_nothing(data: File) -> None:
    def build() -> dict[str, np.ndarray]:
        raise InputError("line 3 is wrong")

    with pytest.raises(InputError, match="line 3"):
        cached([data], "test", build)
    assert list(data.path.parent.iterdir()) == [data.path]


@pytest.mark.parametrize("array", [np.array(["a", None]), np.zeros(2, [("a", "O")])])
def test_python_objects_are_refused(data: File, array: np.ndarray) -> None:
    with pytest.raises(InputError, match="'bad' holds Python objects"):
        cached([data], "test", lambda: {"good": np.zeros(2), "bad": array})
    assert list(data.path.parent.iterdir()) == [data.path]


def test_a_pickle_in_the_cache_is_not_loaded(data: File, home: Path) -> None:
    cached([data], "test", Builder())
    folder = only(home)
    forged = number(folder, "small")
    np.save(forged, np.array([{}], object), allow_pickle=True)
    index = json.loads((folder / "index.json").read_text())
    index["arrays"]["small"][1] = checksum(forged)
    (folder / "index.json").write_text(json.dumps(index))
    build = Builder()
    same(cached([data], "test", build), ARRAYS)
    assert build.calls == 1
