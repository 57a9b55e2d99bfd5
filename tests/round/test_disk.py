"""Rows on disk: what is made when, what is taken of the disk, and what a full one does."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from laws import RECIPES, bias, squares
from problems import ROWS, logistic, people, run_of, state_bytes

import fedslice as fs
from fedslice.errors import InputError
from fedslice.files import mapped as paged
from fedslice.files.mapped import Mapped
from fedslice.model import Model, Table
from fedslice.round import mapped
from fedslice.round.disk import PAST, DiskMemory, DiskStore
from fedslice.round.mapped import KEPT, Leaf, MappedRows
from fedslice.round.store import PER_CLIENT


def by_hand(folder: Path) -> DiskStore:
    """Rows 2, 5, 7, 9 of a table whose row i is first 10 i, and a dense number."""

    def make(ids: Any) -> Any:
        return {"w": 10.0 * np.asarray(ids["w"], np.float32)[:, None], "b": np.float32(0)}

    return DiskStore(make, {"w": "w", "b": ""}, {"w": np.array([2, 5, 7, 9])}, folder)


def rows_of(store: DiskStore) -> list[float]:
    """All four rows, as a look at the model sees them."""
    return np.ravel(store.rows(lambda tree: tree, {"w": store.ids["w"]})["w"]).tolist()


def train(store: DiskStore, slots: list[int], value: float) -> None:
    """A round that leaves ``value`` in these rows and in the dense number."""
    union = {"w": np.array([*slots, 4])}  # 4 is past the end: padding
    assert not store.take(union)["w"][-1].any()
    new = np.full((len(slots) + 1, 1), value, np.float32)
    store.put({"w": new, "b": jnp.float32(value)})


def test_rows_stand_as_they_were_first_touched(tmp_path: Path) -> None:
    """A look makes nothing; a round makes what it takes, and what it leaves is there at once,
    though it is written late."""
    store = by_hand(tmp_path)
    assert rows_of(store) == [20, 50, 70, 90]
    assert store.groups["w"].made == 0
    train(store, [3, 1], 4.5)
    assert rows_of(store) == [20, 4.5, 70, 4.5]
    train(store, [0, 3], 7.0)
    assert rows_of(store) == [7, 4.5, 70, 7]
    group = store.groups["w"]
    assert group.entries.array[: group.made].tolist() == [3, 1, 0]
    assert float(store.rows(lambda tree: tree, {"w": store.ids["w"]})["b"]) == 7


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
def test_rows_of_one_client_and_of_many_have_blocks_of_their_own(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row has one place, no block has both kinds, and a checkpoint has them all."""
    monkeypatch.setattr(mapped, "BLOCK", 8 * block)
    leaf = Leaf("", (), np.dtype(np.int64))
    rows = MappedRows(
        tmp_path, "w", 40, [leaf], lambda entries: [entries * 10], lambda entries: entries % 3 == 0
    )
    order = np.random.default_rng(0).permutation(40)[:33]
    for part in np.split(order, [1, 2, 9, 11, 30]):
        assert rows.take(part)[0].tolist() == (10 * part).tolist()
    assert rows.made == len(order)
    places = rows.place[order] - 1
    assert len(set(places.tolist())) == len(order)
    kinds = {(place // block, entry % 3 == 0) for place, entry in zip(places, order, strict=True)}
    assert len({number for number, _ in kinds}) == len(kinds)
    for kind in (True, False):
        assert (np.diff(places[(order % 3 == 0) == kind]) > 0).all()  # as they came
    streams = dict(rows.streams(rows.marked(KEPT)))
    entries = streams["entries of w"]
    assert entries.shape == (33,)
    assert sorted(entries.part(0, 33)) == sorted(order)
    assert streams["w"].part(5, 20).tolist() == (10 * entries.part(5, 20)).tolist()


def test_a_round_sees_what_the_last_one_left_before_it_is_written(tmp_path: Path) -> None:
    """What is written late is never read early."""
    store, left = by_hand(tmp_path), [20.0, 50.0, 70.0, 90.0]
    for value, slots in enumerate(([0, 1], [1, 2], [1], [3, 2, 1, 0], [0, 2]), 1):
        union = {"w": np.array(slots)}
        assert store.take(union)["w"][:, 0].tolist() == [left[slot] for slot in slots]
        new = np.array(left)[slots][:, None].astype(np.float32)
        new[0] = value
        left[slots[0]] = float(value)
        store.put({"w": new, "b": jnp.float32(value)})
    assert rows_of(store) == left
    store.groups["w"].forget()
    assert not store.groups["w"].late.any()


def test_rows_of_one_table_are_made_without_those_of_another(tmp_path: Path) -> None:
    """Users' rows are first touched in one round, items' in the next."""

    def make(ids: Any) -> Any:
        return {name: np.asarray(ids[name], np.float32) + 0.5 for name in ("user", "item")}

    ids = {"user": np.array([1, 2]), "item": np.array([10, 20, 30])}
    store = DiskStore(make, {"user": "user", "item": "item"}, ids, tmp_path)
    none = np.zeros(0, np.int64)
    assert store.take({"user": np.array([1]), "item": none})["user"].tolist() == [2.5]
    assert store.groups["item"].made == 0
    assert store.take({"user": none, "item": np.array([2, 0])})["item"].tolist() == [30.5, 10.5]
    assert store.take({"user": np.array([0, 1]), "item": none})["user"].tolist() == [1.5, 2.5]


def test_the_disk_is_taken_as_rows_are_touched(tmp_path: Path) -> None:
    """A table of 10^7 rows of which three were touched takes its list of places and little more."""
    leaf = Leaf("w", (64,), np.dtype(np.float32))
    rows = MappedRows(
        tmp_path, "w", 10**7, [leaf], lambda e: [np.repeat(e[:, None], 64, 1).astype(np.float32)]
    )
    assert rows.take(np.array([7, 9_999_999, 4_000]))[0][:, 5].tolist() == [7, 9_999_999, 4_000]
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir())
    assert 4 * 10**7 < taken < 5 * 10**7
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 2 * 10**9


@pytest.mark.parametrize("how", few(["said before", "found out"], "found out"))
def test_a_full_disk_is_an_error_and_nothing_changes(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not a signal that ends the process when a mapped page cannot be written.  With room
    again, the same run goes on to the bits of one that never lacked it."""

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    method = fs.recipes.ditto(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=3), pull=0.1)
    few: dict[str, Any] = {"sampler": fs.sampling.uniform(2), "seed": 2}
    run = run_of(method, people(), 1, **few, store=tmp_path)
    assert isinstance(run.memory, DiskMemory)
    for group in [*run.store.groups.values(), *run.memory.groups.values()]:
        for file in [group.entries, *group.files]:
            file.reserved = group.made  # what was taken to spare
    before = state_bytes(run)
    with monkeypatch.context() as patch:
        if how == "said before":
            patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        else:
            patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(InputError, match=r"no room for .*(free|No space).*larger disk"):
            run_of(method, people(), store=tmp_path)
        with pytest.raises(InputError, match="What was saved is intact"):
            run.train(3, progress=False)
    assert (run.round, state_bytes(run)) == (1, before)
    run.train(3, progress=False)
    assert state_bytes(run) == state_bytes(run_of(method, people(), 4, **few, store=tmp_path))


def test_a_little_room_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some is taken to spare, if it is there."""
    file = Mapped(tmp_path / "a", np.float32, (10**6,))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50))
    file.reserve(10)
    assert file.reserved == 10
    with pytest.raises(InputError, match=r"44 bytes are needed|no room for a in"):
        file.reserve(30)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux alone tells")
def test_pages_of_rows_are_kept_one_by_one(tmp_path: Path) -> None:
    """A number that changes must not make the kernel write back all that it had read around it.
    The list of places is small and read all over: there the kernel does as it likes."""
    store, found, name = by_hand(tmp_path), {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if "-" in words[0]:  # the next mapping, of a file or of none
            name = "".join(words[5:])
        elif line.startswith("VmFlags:") and name.startswith(str(store.folder)):
            found[Path(name).stem.rpartition("rows of w-")[2]] = "rr" in line.split()
    assert found == {"place": False, "entries": True, "leaf-0": True}


@pytest.mark.parametrize(
    ("width", "rows", "asked"),
    [
        (16, range(300, 700), [(4, 10)]),  # 64 rows a page
        (16, [5, 700, *range(1000, 1100), 3000], [(15, 17)]),  # those that stand alone are not
        (16, [*range(20), *range(64, 70), *range(192, 212)], [(0, 1), (3, 3)]),
        (1, [0, 1023, *range(4096, 4112)], [(4, 4)]),  # 16 rows on a page
        (1, range(4096, 4111), []),
        (2048, [7, 9], [(14, 15), (18, 19)]),  # a row is two pages
        (2048, [7, 8], [(14, 17)]),
        (0, range(100), []),
        (16, [], []),
    ],
)
def test_rows_that_stand_together_are_read_at_once(
    width: int,
    rows: Any,
    asked: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From which page to which the kernel is asked for."""
    monkeypatch.setattr(paged, "PAGESIZE", 4096)
    file = Mapped(tmp_path / "a", np.float32, (5000, width), few=True)
    pages = []

    def note(_: int, start: int, length: int) -> None:
        assert start % 4096 == 0
        pages.append((start // 4096, (start + length - 1) // 4096))

    file._map = SimpleNamespace(madvise=note)  # type: ignore[assignment]
    file.ahead(np.array(rows, np.int32))
    assert pages == asked


DRAWN = Table(rows=ROWS, fields=("history",), init=jax.nn.initializers.normal(0.3))


@pytest.mark.parametrize(
    "name", few(["scaffold-2", "ditto", "fedper", "fedavg-topk"], "scaffold-2")
)
def test_clients_remember_on_disk_what_they_do_in_memory(name: str, tmp_path: Path) -> None:
    """The same numbers as with all of it in device memory, of clients that took part and of those
    that never did; and nothing was made for the latter."""
    method = RECIPES[name](Model(bias, squares, {"w": DRAWN}), people())
    sampler = fs.sampling.uniform(2)
    ram, disk = (
        run_of(method, people(), 2, sampler=sampler, store=store) for store in ("ram", tmp_path)
    )
    assert isinstance(disk.memory, DiskMemory)
    counts = disk.shapes.memory_counts()
    looked, places = disk.remembered({tag: np.arange(count) for tag, count in counts.items()})
    assert jax.tree.structure(ram.memory) == jax.tree.structure(looked)
    for one, other in zip(jax.tree.leaves(ram.memory), jax.tree.leaves(looked), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    met = np.unique(np.concatenate([disk.cohort(number) for number in range(disk.round)]))
    assert 0 < len(met) < len(people())
    most = {PER_CLIENT: len(met), **{n: s.sizes_of(met).sum() for n, s in disk.spaces.items()}}
    for tag, group in disk.memory.groups.items():
        assert places[tag].tolist() == list(range(counts[tag]))
        assert 0 < group.made <= most[tag] < counts[tag]
    _, past = disk.remembered({tag: np.array([count, 0]) for tag, count in counts.items()})
    assert all(past[tag].tolist() == [PAST, 0] for tag in disk.memory.groups)
