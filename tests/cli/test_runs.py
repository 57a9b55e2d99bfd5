"""Run folders and the end of a run: kills, signals, damaged files, full disks, two processes,
readers that leave."""

import errno
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kinds import few
from safetensors.numpy import load_file

from fedslice.cli import experiment, printing, wanted
from fedslice.cli import train as training
from fedslice.cli.catalogue import settings_for
from fedslice.cli.experiment import Experiment, Scorer
from fedslice.cli.export import Exported, Rows, read_model, write_model
from fedslice.cli.folder import Folder
from fedslice.cli.main import main
from fedslice.cli.stopping import Stopping
from fedslice.cli.workloads import TASKS
from fedslice.errors import InputError
from fedslice.files import sealed, streamed, writing
from fedslice.simulation.ahead import Ahead
from fedslice.simulation.run import Run

RUN = ["run", "example1", "--set", "cohort=10", "--set", "client_rate=0.02", "--json"]
NAMES = [
    "about.json",
    "checkpoint.safetensors",
    "done.json",
    "evaluation.json",
    "metrics.jsonl",
    "model.safetensors",
    "names.json",
    "settings.json",
]


def train(out: Path, rounds: int, *more: str) -> int:
    return main([*RUN, "--eval-every", "2", "--rounds", str(rounds), "--out", str(out), *more])


def rounds_in(text: str) -> list[int]:
    return [line["round"] for line in map(json.loads, text.splitlines()) if "round" in line]


def visible(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != ".lock")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rounds without any trouble."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out, 8) == 0
    return out


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four of them."""
    out = tmp_path_factory.mktemp("half") / "run"
    assert train(out, 4) == 0
    return out


def assert_same(first: Path, second: Path) -> None:
    for name in ("metrics.jsonl", "names.json", "settings.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert all(np.array_equal(one[key], other[key]) for key in one)


# -- a reader that leaves --------------------------------------------------------------------------


@contextmanager
def nobody_reads() -> Iterator[None]:
    """Standard output into a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


@pytest.mark.parametrize("arguments", [["tasks"], ["algorithms", "fedavg"], ["--help"]])
def test_a_listing_nobody_reads_ends_quietly(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with nobody_reads():
        assert main(arguments) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


def test_a_run_nobody_reads_is_saved(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nobody_reads():
        assert train(tmp_path / "r", 8) == 128 + signal.SIGPIPE
    # whose line is the first to be written
    assert "stopped after round 0" in capsys.readouterr().err
    assert train(tmp_path / "r", 8) == 0
    assert rounds_in(capsys.readouterr().out) == [2, 4, 6, 8]
    assert_same(whole, tmp_path / "r")


# -- signals ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """Also where tests run in the background: shells have some ignored there, and so would we."""
    numbers = signal.SIGINT, signal.SIGHUP
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(monkeypatch: pytest.MonkeyPatch, number: int, round: int, times: int = 1) -> None:
    """Send ourselves a signal in the midst of a round."""
    ask = Ahead.ask

    def sending(ahead: Ahead) -> Any:
        for _ in range(times if ahead.first + ahead.asked + 1 == round else 0):
            os.kill(os.getpid(), number)
        return ask(ahead)

    monkeypatch.setattr(Ahead, "ask", sending)


@pytest.mark.parametrize("name", few(["SIGINT", "SIGTERM", "SIGHUP"], "SIGINT", "SIGTERM"))
def test_a_signal_ends_the_round_and_saves(
    name: str,
    tmp_path: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number, out = signal.Signals[name], tmp_path / "r"
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        # the terminal and the shell both send it
        signalled(patch, number, 5, times=2 if name == "SIGHUP" else 1)
        assert train(out, 8) == 128 + number
    caught = capsys.readouterr()
    assert f"stopped after round 5; the same command with --out {out} goes on" in caught.err
    assert rounds_in(caught.out) == [0, 2, 4]
    assert signal.getsignal(number) is before
    assert train(out, 8) == 0
    caught = capsys.readouterr()
    assert "going on from round 5" in caught.err
    assert rounds_in(caught.out) == [6, 8]
    assert_same(whole, out)


def test_a_signal_during_an_evaluation_does_not_wait_for_it(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The round is saved without its line, which the resumed run writes."""
    score, calls = experiment.Scorer.__call__, iter(range(9))

    def slow(self: experiment.Scorer, run: Run) -> dict[str, float]:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return score(self, run)

    monkeypatch.setattr(experiment.Scorer, "__call__", slow)
    assert train(tmp_path / "r", 8) == 143
    caught = capsys.readouterr()
    assert "stopped after round 4" in caught.err
    assert rounds_in(caught.out) == [0, 2]
    assert train(tmp_path / "r", 8) == 0
    assert rounds_in(capsys.readouterr().out) == [4, 6, 8]
    assert_same(whole, tmp_path / "r")


def test_a_second_interrupt_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signalled(monkeypatch, signal.SIGINT, 2, times=2)
    assert train(tmp_path / "r", 8) == 130
    assert "stopped at once" in capsys.readouterr().err
    left = ["about.json", "checkpoint.safetensors", "metrics.jsonl", "settings.json"]
    assert visible(tmp_path / "r") == left
    assert rounds_in((tmp_path / "r" / "metrics.jsonl").read_text()) == [0]


def test_a_signal_before_training_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "task_of", lambda options: os.kill(os.getpid(), signal.SIGTERM))
    assert main(RUN) == 143
    assert "no round was under way" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_compare_that_is_stopped_names_its_own_folder(
    jobs: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Side by side, the signal is heard some rounds later."""
    signalled(monkeypatch, signal.SIGINT, 3)
    given = ["compare", "example1", "fedavg", "fedsubavg", "--rounds", "2000", "--jobs", jobs]
    assert main([*given, "--out", str(tmp_path / "c")]) == 130
    assert f"with --out {tmp_path / 'c'} goes on" in capsys.readouterr().err
    assert (tmp_path / "c" / "fedavg-seed0" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "c" / "table.txt").exists()


def test_an_ignored_signal_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopping() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.asked is None
    finally:
        signal.signal(signal.SIGHUP, before)


# -- the log ---------------------------------------------------------------------------------------


def flipped(log: bytes) -> bytes:
    return log[:3] + bytes([log[3] ^ 0x80]) + log[4:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bad byte": flipped,
    "an edited figure": lambda log: log.replace(b'"round": 2', b'"round": 1'),
    "swapped lines": lambda log: b"".join(reversed(log.splitlines(keepends=True))),
    "another log": lambda log: b'{"round": 2, "train_loss": 0.1}\n',
    "a line more inside": lambda log: log + b'{"round": 3, "train_loss": 0.1}\n',
    "cut in the first line": lambda log: log[:9],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_kept_aside_and_written_anew(
    damage: str, tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = pretended(half, tmp_path), (half / "metrics.jsonl").read_bytes()
    said: list[str] = []
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").write_bytes(DAMAGE[damage](log))
        with Folder(tmp_path, {"settings": {}}, said.append) as folder:
            lines = folder.resume(run, 8)
        assert (tmp_path / "metrics.jsonl").read_bytes() == log
        assert (tmp_path / f"metrics.jsonl.damaged-{number}").read_bytes() == DAMAGE[damage](log)
        assert f"kept as metrics.jsonl.damaged-{number}" in said[-1]
        assert [line["round"] for line in lines] == [0, 2, 4]


def pretended(half: Path, folder: Path) -> Any:
    """A run that needs no compilation, and its folder."""
    (folder / "settings.json").write_text('{"settings": {}}')
    shutil.copy(half / "checkpoint.safetensors", folder)
    log = (half / "metrics.jsonl").read_bytes()
    return SimpleNamespace(round=4, log=log, restore=lambda path: None)


@pytest.mark.parametrize(("left", "said"), [(b"", True), (None, True), (-1, False), (-20, False)])
def test_a_log_that_lacks_lines_is_completed(
    left: Any, said: bool, tmp_path: Path, half: Path
) -> None:
    """The last line may be missing after a kill, which is nothing to talk about."""
    run, log = pretended(half, tmp_path), (half / "metrics.jsonl").read_bytes()
    if left is not None:
        (tmp_path / "metrics.jsonl").write_bytes(left if isinstance(left, bytes) else log[:left])
    told: list[str] = []
    with Folder(tmp_path, {"settings": {}}, told.append) as folder:
        folder.resume(run, 8)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
    assert any("missing or empty" in text for text in told) is said
    assert not list(tmp_path.glob("*.damaged*"))


def test_lines_after_the_checkpoint_are_computed_again(
    tmp_path: Path, half: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    log = (whole / "metrics.jsonl").read_bytes()
    (out / "metrics.jsonl").write_bytes(log[:-30])  # killed while the line of round 8 was written
    assert train(out, 8) == 0
    assert rounds_in(capsys.readouterr().out) == [6, 8]
    assert_same(whole, out)
    assert visible(out) == NAMES


def test_a_missing_checkpoint_is_noticed(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    (out / "checkpoint.safetensors").unlink()
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert train(out, 8) == 2
    assert "checkpoint.safetensors is missing: put it back" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_a_kill_around_the_first_line_leaves_a_folder_that_goes_on(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line has a checkpoint before it is written, however seldom one is saved."""
    record = Folder.record
    for moment in ("before", "after"):

        def killed(self: Folder, run: Run, line: dict[str, Any], moment: str = moment) -> None:
            if moment == "after":
                record(self, run, line)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "record", killed)
            assert train(tmp_path / "r", 8) == 130
    assert train(tmp_path / "r", 8) == 0
    assert_same(whole, tmp_path / "r")


def test_every_line_is_strict_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = TASKS["example1"].synthetic()
    odd = iter([0.75, math.nan, math.inf, -math.inf, 0.5])

    class Odd(Scorer):
        def __call__(self, run: Run) -> dict[str, float]:
            return {"train_loss": next(odd)}

    def strict(text: str) -> dict[str, Any]:
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    settings = settings_for(task, "fedavg", ["cohort=10"])
    for rounds in (2, 4):
        one = Experiment(
            *(task, "fedavg", settings, rounds),
            eval_every=1,
            out=tmp_path / "r",
            scorer=Odd(task),
            emit=printing.print_json,
        )
        one.execute()
    figures = [strict(line).get("train_loss") for line in capsys.readouterr().out.splitlines()]
    # round 0; two lines and the last word, twice
    assert figures == [0.75, None, None, None, None, 0.5, None]
    log = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert [strict(line)["train_loss"] for line in log] == [0.75, None, None, None, 0.5]
    nothing = [math.isnan(line["train_loss"]) for line in one.lines]
    assert nothing == [False, True, True, True, False]  # read back, or not
    printing.print_json({"histogram": {"edges": [1.0, math.inf]}})
    assert strict(capsys.readouterr().out)["histogram"]["edges"] == [1.0, None]


# -- the folder ------------------------------------------------------------------------------------


def test_measuring_less_often_is_the_same_run(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    assert train(out, 9, "--eval-every", "3") == 0
    assert rounds_in((out / "metrics.jsonl").read_text()) == [0, 2, 4, 6, 9]
    assert train(out, 10, "--set", "client_rate=0.03") == 2
    assert (
        "other settings (client_rate=0.02 there, client_rate=0.03 here)" in capsys.readouterr().err
    )


def test_threads_may_be_others_and_the_settings_say_which(tmp_path: Path, half: Path) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    assert train(out, 6, "--set", "threads=1", "--eval-every", "3") == 0
    known = json.loads((out / "settings.json").read_text())
    assert (known["settings"]["threads"], known["eval_every"]) == (1, 3)


def test_a_trained_model_is_not_written_over_by_a_run_from_nothing(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    for name in ("checkpoint.safetensors", "metrics.jsonl"):
        (out / name).unlink()
    before = (out / "model.safetensors").read_bytes()
    assert train(out, 4) == 2
    assert (
        "holds a trained model.safetensors, but checkpoint.safetensors is missing"
        in capsys.readouterr().err
    )
    assert (out / "model.safetensors").read_bytes() == before


def test_other_test_data_are_another_run(tmp_path: Path, half: Path) -> None:
    """The training data and so the checkpoint are the same, but half of the curve would be of
    another test set."""
    shutil.copytree(half, tmp_path / "run")
    task = TASKS["example1"].synthetic()
    test = task.test.select(np.arange(task.test.examples) > 0)
    settings = settings_for(task, TASKS["example1"].algorithm, RUN[3::2][:2])
    other = Experiment(
        replace(task, test=test), TASKS["example1"].algorithm, settings, 8, out=tmp_path / "run"
    )
    with pytest.raises(InputError, match=r"a run with other test_data \(test_data="):
        other.execute()


def test_one_process_at_a_time(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    about = json.loads((out / "settings.json").read_text())
    with Folder(out, about):
        assert train(out, 8) == 2
    assert f"{out} is in use by another fedslice process" in capsys.readouterr().err
    assert train(out, 8) == 0


def test_runs_started_together_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: wanted.free_folder(tmp_path / "runs", "task"), range(40)))
    assert sorted(folders) == sorted(
        tmp_path / "runs" / f"task-{number}" for number in range(1, 41)
    )
    assert all(folder.is_dir() for folder in folders)


def test_wrong_settings_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--set", "engine=warp"]) == 2
    assert main([*RUN, "--rounds", "0"]) == 2
    assert not list(tmp_path.iterdir())


def test_what_kills_leave_behind_is_cleared(tmp_path: Path) -> None:
    """A kill while settings.json, or a checkpoint, is written leaves temporary files, ours or those
    of safetensors."""
    left = [".settings.json.123.tmp", ".checkpoint.safetensors.99.tmp", ".tmpAb12Cd", ".lock"]
    for name in left:
        (tmp_path / name).touch()
    with Folder(tmp_path, {"settings": {}}):
        assert visible(tmp_path) == ["settings.json"]
    (tmp_path / ".checkpoint.safetensors.99.tmp").touch()
    (tmp_path / "my notes.tmp").touch()
    with Folder(tmp_path, {"settings": {}}):
        assert visible(tmp_path) == ["my notes.tmp", "settings.json"]


@pytest.mark.parametrize("text", ["[1, 2]", '{"task": "x"}', "3", '{"settings": 1}', "{"])
def test_damaged_settings_are_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(text)
    with (
        pytest.raises(InputError, match=r"settings\.json is damaged"),
        Folder(tmp_path, {"settings": {}}),
    ):
        pass


def test_tables_in_mapped_files(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(tmp_path / "rows"))
    assert train(tmp_path / "r", 4, *store) == 0
    assert train(tmp_path / "r", 8, *store) == 0
    assert_same_figures(whole, tmp_path / "r")
    assert (tmp_path / "rows").is_dir()
    capsys.readouterr()
    assert train(tmp_path / "r", 9) == 2
    assert "other store (store=mapped there, store=ram here)" in capsys.readouterr().err


def assert_same_figures(first: Path, second: Path) -> None:
    one, other = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (first, second)
    )
    assert [line.keys() for line in one] == [line.keys() for line in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


def test_saves_follow_the_clock_between_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], Run.save

    def noted(run: Run, folder: Path) -> Path:
        saved.append(run.round)
        return save(run, folder)

    monkeypatch.setenv("FEDSLICE_SAVE_EVERY", "0")
    monkeypatch.setattr(Run, "save", noted)
    assert train(tmp_path / "r", 5, "--eval-every", "100") == 0
    assert set(saved) >= {1, 2, 3, 4, 5}


# -- files -----------------------------------------------------------------------------------------


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        sealed.seal(tmp_path / "a", {}, {"x": np.zeros(3)})
        writing.atomic_write(tmp_path / "b", b"x")
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {"0o640"}


def test_a_changed_byte_of_a_model_is_noticed(tmp_path: Path) -> None:
    rows = Rows(
        np.array([2, 5]), ["Ada", "Bob"], np.array([3, 1]), np.array([0.5, -1.5], np.float32)
    )
    write_model(Exported({"bias": np.float32([0.25])}, {"weight": rows}), tmp_path)
    assert read_model(tmp_path).row("weight", "Bob") == -1.5
    for name in ("model.safetensors", "names.json"):
        content = (tmp_path / name).read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 1
            (tmp_path / name).write_bytes(changed)
            with pytest.raises(InputError, match=re.escape(f"the model in {tmp_path} is damaged")):
                read_model(tmp_path)
        (tmp_path / name).write_bytes(content)


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_the_checkpoint_and_says_so(
    tmp_path: Path,
    half: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(half, tmp_path / "r")
    before = (out / "checkpoint.safetensors").read_bytes()
    monkeypatch.setenv("FEDSLICE_SAVE_EVERY", "0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert train(out, 8) == 2
    said = capsys.readouterr().err
    assert f"{out / 'checkpoint.safetensors'} could not be written: No space left on device" in said
    assert "it is intact" in said
    assert (out / "checkpoint.safetensors").read_bytes() == before
    monkeypatch.setenv("FEDSLICE_SAVE_EVERY", "100")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert train(out, 8) == 2
    assert f"{out / 'metrics.jsonl'} could not be written: No space left" in capsys.readouterr().err
    assert train(out, 8) == 0
    assert_same(whole, out)


def test_a_disk_that_fills_up_in_a_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "raw", full)
    with pytest.raises(OSError, match=r"a\.safetensors could not be written: No space left"):
        sealed.seal(tmp_path / "a.safetensors", {}, {"w": np.zeros(3)})
    assert not list(tmp_path.iterdir())


def test_an_export_that_cannot_be_written_is_named(
    tmp_path: Path, half: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(np, "savez_compressed", full)
    assert main(["export", str(half), str(tmp_path / "w.npz")]) == 2
    assert (
        f"{tmp_path / 'w.npz'} could not be written: No space left on device"
        in capsys.readouterr().err
    )
