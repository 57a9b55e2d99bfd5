"""Checkpoints of rows on disk: what changed is what is written, and a kill at any moment changes
nothing."""

import errno
import os
import signal
import subprocess
import sys
import time
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from laws import RECIPES, bias, squares
from problems import ROWS, people, run_of, state_bytes

import fedslice as fs
from fedslice.errors import CheckpointError, WriteError
from fedslice.files import sealed, streamed
from fedslice.files.packed import checksum
from fedslice.model import Model, Table
from fedslice.round.mapped import KEPT, LOGGED, NEW
from fedslice.simulation import segments
from fedslice.simulation.checkpoint import NAME
from fedslice.simulation.run import Run
from fedslice.types import Algorithm

MODEL = Model(bias, squares, {"w": Table(ROWS, ("history",), (), lambda key, shape: 0.1)})
ROUNDS = 60


@cache
def method_of(name: str) -> Algorithm:
    """One and the same value for all runs, traced once."""
    return RECIPES[name](MODEL, people())


def make(folder: Path, rounds: int = 0, name: str = "scaffold-2", **settings: Any) -> Run:
    """Clients that remember, two of them a round."""
    settings = {"sampler": fs.sampling.uniform(2), "seed": 1} | settings
    method = settings.pop("method", None) or method_of(name)
    return run_of(method, people(), rounds, store=folder, **settings)


def advance(run: Run, rounds: int = 1) -> None:
    for _ in run.rounds(rounds):
        pass


class Killed(BaseException):
    """What a process does not survive."""


class Disk:
    """Everything that reaches the disk passes here, and from a chosen point on nothing does: not
    what is being written, nor what would be cleaned up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left, self.dead = -1, ""
        self.deaths: dict[str, int] = {}
        for what, owner, name in (
            ("between two blocks", zlib, "crc32"),
            ("before a sync", os, "fsync"),
            ("before a rename", Path, "replace"),
            ("before a removal", Path, "unlink"),
        ):
            patch.setattr(owner, name, self.passing(what, getattr(owner, name)))

    def passing(self, what: str, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if self.dead:
                raise Killed(self.dead)
            if self.left == 0:
                self.dead = what
                self.deaths[what] = self.deaths.get(what, 0) + 1
                raise Killed(what)
            self.left -= 1
            return real(*args, **more)

        return call


def test_a_kill_at_any_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lives follow each other: each goes on from what the last one left, trains, and is killed at a
    random point of its save.  Every state that is ever read is that of a run never stopped."""
    monkeypatch.setattr(segments, "MOST", 2)
    monkeypatch.setattr(segments, "SMALL", 6_000)
    levels: list[int] = []
    real = segments.level
    monkeypatch.setattr(segments, "level", lambda *given: levels.append(real(*given)) or levels[-1])
    lives = [make(tmp_path / "rows"), make(tmp_path / "others")]
    bits = [state_bytes(lives[0])]
    for _ in lives[0].rounds(ROUNDS):
        bits.append(state_bytes(lives[0]))
    folder, rng, life, kills = tmp_path / "run", np.random.default_rng(0), 0, 0
    make(tmp_path / "first").save(folder)
    disk = Disk(monkeypatch)
    while True:
        life += 1
        run = lives[life % 2]
        disk.left, disk.dead = -1, ""
        run.restore(folder)
        assert state_bytes(run) == bits[run.round]
        if run.round == ROUNDS:
            break
        advance(run, int(rng.integers(1, min(3, ROUNDS - run.round) + 1)))
        disk.left = int(rng.integers(0, 24))
        try:
            run.save(folder)
        except Killed:
            kills += 1
    assert kills > 30
    assert set(levels) == {KEPT, LOGGED, NEW}
    assert len(disk.deaths) == 4
    disk.left, disk.dead = -1, ""
    run.save(folder)
    files = {each["file"] for each in sealed.header(folder / NAME)["segments"]}
    left = {file.name for file in folder.iterdir() if not file.name.endswith(".tmp")}
    assert left == {NAME, *files}


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_segments import make
folder = Path(sys.argv[1])
run = make(folder / "rows")
if (folder / "checkpoint.safetensors").exists():
    run.restore(folder)
print("from", run.round, flush=True)
while run.round < 200:
    for _ in run.rounds(2):
        pass
    run.save(folder)
    print("saved", run.round, flush=True)
"""


@pytest.mark.every
def test_kills_of_real_processes_change_nothing(tmp_path: Path) -> None:
    begun = []
    for delay in (0.02, 0.0, None):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        process = subprocess.Popen(
            [*command, *map(str, Path(__file__).parents[:2])], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        begun.append(int(process.stdout.readline().split()[1]))
        if delay is not None:
            assert process.stdout.readline().startswith("saved")
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == (0 if delay is None else -signal.SIGKILL)
    assert (np.diff(begun) > 0).all()
    run = make(tmp_path / "more")
    run.restore(tmp_path)
    assert run.round == 200
    assert state_bytes(run) == state_bytes(make(tmp_path / "never", 200))
    assert len(list((tmp_path / "rows").iterdir())) == 0  # of all lives


def test_a_save_writes_the_rows_that_changed(tmp_path: Path) -> None:
    """Entries of a segment are those that the rounds since the last save touched, of the table with
    its optimizer's moments and of the clients' memory."""
    method = fs.recipes.ditto(
        MODEL,
        optax.sgd(0.1),
        fs.Work(steps=1, batch=1),
        pull=0.1,
        server=optax.adam(0.1),
    )
    run = make(tmp_path / "rows", 12, method=method, sampler=fs.sampling.uniform(5))
    run.save(tmp_path)
    run.sampler = fs.sampling.uniform(1)
    plan, _ = run.planner.plan(run.round, run.cohort(run.round))
    advance(run)
    run.save(tmp_path)
    listed = sealed.header(tmp_path / NAME)["segments"]
    assert len(listed) == 2
    assert all(checksum(tmp_path / each["file"]) == each["seal"] for each in listed)
    reader = streamed.Reader(tmp_path / listed[1]["file"])
    leaves = {name for name in reader.names if not name.startswith("entries")}
    rows = {name for name in leaves if name.startswith("rows of w")}
    assert len(rows) == 3  # values, two moments
    union = plan.shared.union["w"]
    wanted = {
        "rows of w": union[union < run.store.groups["w"].count],
        "memory of clients": run.cohort(run.round - 1),
        "memory of w": plan.own.held["w"][plan.own.held["w"] < len(run.spaces["w"].slots)],
    }
    for name, entries in wanted.items():
        [count] = reader.shape(f"entries of {name}")
        found = reader.part(f"entries of {name}", 0, count)
        assert sorted(found) == sorted(entries.reshape(-1))


def test_every_flipped_bit_of_a_segment_is_noticed(tmp_path: Path) -> None:
    run = make(tmp_path / "rows", 1)
    file = run.save(tmp_path).with_name(segments.NAME.format(1))
    good, before = file.read_bytes(), state_bytes(run)
    for at in [*range(0, len(good), 41), len(good) - 1]:
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointError, match=rf"{file.name} is damaged"):
            run.restore(tmp_path)
    file.write_bytes(good[:-1])
    with pytest.raises(CheckpointError, match=rf"{file.name} is damaged"):
        run.restore(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{file.name} is missing.*from a copy"):
        run.restore(tmp_path)
    assert state_bytes(run) == before
    run.save(tmp_path)  # what was lost is written anew, not only what changed
    again = make(tmp_path / "again")
    again.restore(tmp_path)
    assert state_bytes(again) == before


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    """By what the checkpoint says, and by the rows themselves where versions cannot be compared."""
    run = make(tmp_path / "rows", 1)
    run.save(tmp_path)
    other = make(tmp_path / "others", 1, name="fedadam")
    before = state_bytes(other)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        other.restore(tmp_path)
    other.identity = run.identity
    with pytest.raises(CheckpointError, match=r"written with another|leaves that this run"):
        other.restore(tmp_path)
    assert state_bytes(other) == before
    assert len(list((tmp_path / "others").iterdir())) == 1


def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "rows", 1)
    run.save(tmp_path)
    before, files = state_bytes(run), sorted(tmp_path.iterdir())
    advance(run)
    real = os.fsync
    for syncs in (0, 2):  # the segment, the checkpoint itself; each with its folder
        good = iter(range(syncs))

        def full(handle: int, good: Any = good) -> None:
            if next(good, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(WriteError, match=r"could not be written: No space.*intact"):
                run.save(tmp_path)
        assert sorted(tmp_path.iterdir()) == files
    again = make(tmp_path / "again")
    again.restore(tmp_path)
    assert state_bytes(again) == before
    run.save(tmp_path)
    again.restore(tmp_path)
    assert state_bytes(again) == state_bytes(run)


def test_two_folders_in_turn(tmp_path: Path) -> None:
    """What changed since the last save is not what changed since the last one *here*."""
    run, again = make(tmp_path / "rows"), make(tmp_path / "again")
    for place in "abaab":
        advance(run)
        run.save(tmp_path / place)
        again.restore(tmp_path / place)
        assert (again.round, state_bytes(again)) == (run.round, state_bytes(run))
    ram = run_of(RECIPES["scaffold-2"](MODEL, people()), people(), sampler=fs.sampling.uniform(2))
    ram.save(tmp_path / "a")  # over the checkpoint of a run on disk
    assert [file.name for file in (tmp_path / "a").iterdir()] == [NAME]
