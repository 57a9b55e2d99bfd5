"""Populations in folders: the same as in memory, whole or refused, and indexed once."""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optax
import pytest
from problems import ROWS, arrays, logistic, people, run_of, state_bytes

import fedslice as fs
from fedslice.data import columns as columns_module
from fedslice.data import derived, submodel
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError, WriteError
from fedslice.recipes import fedsubavg
from fedslice.simulation.checkpoint import fingerprint
from fedslice.simulation.run import Run

MODEL = logistic()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    people().write(tmp_path / "people")
    return tmp_path / "people"


def trained(population: Population, **settings: Any) -> Run:
    method = fedsubavg(
        MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3), heat=population.heat(MODEL)
    )
    return run_of(method, population, 3, sampler=fs.sampling.uniform(3), **settings)


def test_written_in_parts_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the parts are cut, also within a client; and with chunks of two examples."""
    monkeypatch.setattr(columns_module, "CHUNK", 2)
    columns = arrays()
    owner = columns.pop("client")
    whole = Population.from_arrays(owner, **columns)
    whole.write(tmp_path / "whole")
    for cuts in ([], [1], [3, 4, 9, 9, 20], list(range(len(owner)))):
        place = tmp_path / f"{len(cuts)} cuts"
        with Population.writer(place) as writer:
            for part in np.split(np.arange(len(owner)), cuts):
                writer.add(owner[part], **{name: column[part] for name, column in columns.items()})
        for other in (place, tmp_path / "whole"):
            found = Population.open(other)
            assert found.offsets.tolist() == whole.offsets.tolist()
            assert found.clients.tolist() == whole.clients.tolist()
            assert found.numbers.tolist() == whole.numbers.tolist()
            for name, column in whole.columns.items():
                assert found.columns[name].dtype == column.dtype
                assert np.array_equal(found.columns[name], column)
            assert found.digest == fingerprint(whole) == fingerprint(found)


def test_what_a_population_knows_is_kept(tmp_path: Path) -> None:
    """Names of ids and of clients, numbers that are not places, clients without examples."""
    names = {"item": np.array(["x", "yy", "z"])}
    some = Population.from_arrays(["b", "a", "c"], names, item=[2, 0, 1]).subset(np.array([1, 2]))
    some = some.select(np.array([True, False]))
    some.write(tmp_path / "a")
    found = Population.open(tmp_path / "a")
    assert found.clients.tolist() == ["b", "c"]
    assert found.numbers.tolist() == [1, 2]
    assert found.names["item"].tolist() == ["x", "yy", "z"]
    assert found.counts.tolist() == [1, 0]


@pytest.mark.parametrize("rows", [ROWS, 100, 10**9])
def test_submodels_and_heat_on_disk_are_those_in_memory(
    rows: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By lists, by counted bits and by sorting; in one piece and in many."""
    model = logistic(rows)
    expected, heat = people().submodels(("item", "history"), rows), people().heat(model)
    for chunk, listed in ((1 << 22, 1 << 24), (7, 0)):
        monkeypatch.setattr(submodel, "CHUNK", chunk)
        monkeypatch.setattr(submodel, "LISTED", listed)
        for place in folder.glob("submodels-*"):
            shutil.rmtree(place)
        opened = Population.open(folder)
        found, told = opened.submodels(("item", "history"), rows), opened.heat(model)
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert np.array_equal(one, other)
        for name, positions in expected.positions.items():
            assert np.array_equal(found.positions[name], positions)
        assert np.array_equal(told.ids["w"], heat.ids["w"])
        assert np.array_equal(told.mass["w"], heat.mass["w"])
        assert told[:2] == heat[:2]
        in_memory = people().submodels(("item", "history"), rows)
        assert np.array_equal(in_memory.slots, expected.slots)


def test_a_run_does_not_know_where_its_population_is(folder: Path, tmp_path: Path) -> None:
    """To the bit, and one goes on from the other's checkpoint."""
    one, other = trained(people()), trained(Population.open(folder))
    assert state_bytes(one) == state_bytes(other)
    one.save(tmp_path / "run")
    other.restore(tmp_path / "run")
    mapped = Population.open(folder)
    assert mapped.sample(9, seed=1).examples == 9
    assert mapped.subset(np.array([5, 2])).clients.tolist() == [20, 50]


def test_what_was_computed_is_kept_by_content(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = derived.index
    monkeypatch.setattr(derived, "index", lambda *given: calls.append(given[2]) or real(*given))
    for _ in range(3):
        Population.open(folder).heat(MODEL)
    assert calls == [ROWS]
    Population.open(folder).heat(logistic(ROWS + 1))
    assert calls == [ROWS, ROWS + 1]
    file = next(folder.glob("submodels-*")) / "slots.bin"
    file.write_bytes(bytes(len(file.read_bytes())))  # damaged: made anew
    expected = people().submodels(("item", "history"), ROWS).slots
    for rows in (ROWS, ROWS + 1):
        found = Population.open(folder).submodels(("item", "history"), rows).slots
        assert np.array_equal(found, expected)
    assert len(calls) == 3
    other = people(seed=1)
    other.write(tmp_path / "other")
    for place in folder.glob("submodels-*"):  # of other data: not looked at
        shutil.copytree(place, tmp_path / "other" / place.name)
    found = Population.open(tmp_path / "other").submodels(("item", "history"), ROWS)
    assert np.array_equal(found.slots, other.submodels(("item", "history"), ROWS).slots)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"holds no population.*Population\.write"):
        Population.open(tmp_path)


@pytest.mark.parametrize("how", ["cut", "bit", "gone", "json", "format"])
def test_damaged_folders_are_refused(how: str, folder: Path) -> None:
    file, about = folder / "column-0.bin", folder / "population.json"
    content = file.read_bytes()
    if how == "cut":
        file.write_bytes(content[:-1])
    elif how == "bit":
        file.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
    elif how == "gone":
        file.unlink()
    elif how == "json":
        about.write_text(about.read_text()[:-9])
    else:
        about.write_text(json.dumps({**json.loads(about.read_text()), "format": 9}))
    with pytest.raises(InputError, match="has format 9" if how == "format" else "is damaged"):
        Population.open(folder)


def write(folder: Path, *parts: dict[str, Any]) -> None:
    with Population.writer(folder) as writer:
        for part in parts:
            writer.add(part["client"], **{k: v for k, v in part.items() if k != "client"})


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"client": [0], "x": [1.0]}, "ascending order"),
        ({"client": [5, 4], "x": [1.0, 2.0]}, "ascending order"),
        ({"client": [5], "y": [1.0]}, "follow other ones"),
        ({"client": [5], "x": [[1.0]]}, "follow other ones"),
        ({"client": [5], "x": [np.nan]}, "not finite"),
        ({"client": [5], "x": ["a"]}, "holds text"),
        ({"client": [5], "x": [1.0, 2.0]}, "has 2 rows"),
    ],
)
def test_what_cannot_follow_is_refused_and_nothing_is_left(
    second: dict[str, Any], words: str, tmp_path: Path
) -> None:
    first = {"client": [1, 1, 3], "x": [1.0, 2.0, 3.0]}
    with pytest.raises(InputError, match=words):
        write(tmp_path / "new", first, second)
    assert list(tmp_path.iterdir()) == []


def test_larger_numbers_than_the_first_are_refused(tmp_path: Path) -> None:
    small = {"client": [1], "x": np.array([3], np.int32)}
    wide = {"client": [2], "x": np.array([7], np.int64)}  # which it can hold
    write(tmp_path / "old", small, wide)
    with pytest.raises(InputError, match=r"was int32 at first.*int64"):
        write(tmp_path / "new", small, wide, {"client": [2], "x": np.array([2**40])})


def test_a_folder_with_files_is_left_alone(folder: Path) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match="to a new folder"):
        people().write(folder)
    assert sorted(folder.iterdir()) == before


def test_a_full_disk_is_named_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(folder.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(InputError, match=r"no room for position-0\.bin.*No space"):
            Population.open(folder).heat(MODEL)
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        with pytest.raises(InputError, match=r"no room for .*bytes are needed"):
            Population.open(folder).heat(MODEL)
        patch.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match="No space"):
            people().write(tmp_path / "new")
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [folder]
    Population.open(folder).heat(MODEL)
