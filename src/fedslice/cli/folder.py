"""A run's folder: its settings, its metrics, and a lock, so that no two processes write into it.

The checkpoint holds a copy of the metrics up to its round, written in one step with the state.  So
when ``metrics.jsonl`` is cut off, damaged or lost, that is noticed, and it is written anew.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from fedslice.cli.export import MODEL
from fedslice.errors import InputError
from fedslice.files.lock import hold
from fedslice.files.strict import as_json, finite, parsed
from fedslice.files.writing import atomic_write, writing
from fedslice.report.records import METRICS as METRICS
from fedslice.report.records import SETTINGS as SETTINGS
from fedslice.simulation.checkpoint import NAME as CHECKPOINT
from fedslice.simulation.run import Run

LOCK = ".lock"
# what may be another when a run goes on; the checkpoint knows where threads matter
FREE = ("eval_every", "threads")
# by a kill while safetensors or we wrote a temporary file
LEFT_BEHIND = re.compile(r"\.(tmp\w{6}|.+\.\d+\.tmp)")

Line = dict[str, Any]


class Folder:
    """The folder of one run, ours alone while the ``with`` block lasts.

    ``about`` is what was run, and must be the same for a run to go on, but for how often it is
    measured; ``tell`` gets what a person should know.
    """

    def __init__(
        self, path: Path, about: Mapping[str, Any], tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.path, self.about, self.tell = path, dict(about), tell
        self.metrics = path / METRICS

    def __enter__(self) -> "Folder":
        self.path.mkdir(parents=True, exist_ok=True)
        # before the lock, which would be one more file in a folder that is not ours
        self._refuse_others()
        self._lock = self._hold()
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _hold(self) -> IO[bytes] | None:
        try:
            held = hold(self.path / LOCK)
        except OSError:  # some network file systems
            self.tell(
                f"note: {self.path} cannot be locked on this file system; start no second run in it"
            )
            return None
        if held is None:
            raise InputError(
                f"{self.path} is in use by another fedslice process: wait until it ends, or choose"
                " another --out"
            )
        return held

    def _take(self) -> None:
        self._refuse_others()
        for file in self.path.iterdir():
            if LEFT_BEHIND.fullmatch(file.name):
                file.unlink(missing_ok=True)
        file = self.path / SETTINGS
        if file.exists():
            self._compare(file)
        else:
            atomic_write(file, json.dumps(self.about, indent=2).encode())

    def _refuse_others(self) -> None:
        """A kill before the settings were written leaves a lock or a temporary file: such a folder
        counts as empty."""
        if (self.path / SETTINGS).exists():
            return
        if any(
            not LEFT_BEHIND.fullmatch(file.name)
            for file in self.path.iterdir()
            if file.name != LOCK
        ):
            raise InputError(f"{self.path} holds other files: give --out an empty or a new folder")

    def _compare(self, file: Path) -> None:
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            there, here = (
                {**each, **each["settings"], "settings": None} for each in (known, self.about)
            )
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{file} is damaged ({error!r}): restore a copy of it, or choose another --out"
            ) from error
        wrong = [
            key for key in {**there, **here} if key not in FREE and there.get(key) != here.get(key)
        ]
        if wrong:
            different = dict.fromkeys(
                "settings" if key in self.about["settings"] else key for key in wrong
            )
            details = [f"{key}={there.get(key)} there, {key}={here.get(key)} here" for key in wrong]
            raise InputError(
                f"{self.path} holds a run with other {', '.join(different)} ({'; '.join(details)}):"
                " choose another --out, or the same settings to go on with it. Nothing was"
                " changed."
            )
        if known != self.about:
            atomic_write(file, json.dumps(self.about, indent=2).encode())

    def write(self, name: str, about: Line) -> None:
        """A file of its own, as JSON, all of it or nothing; one that is so already stays."""
        text = json.dumps(finite(about), indent=2, allow_nan=False).encode()
        file = self.path / name
        if not file.exists() or file.read_bytes() != text:
            atomic_write(file, text)

    def resume(self, run: Run, rounds: int) -> list[Line]:
        """Bring ``run`` to the checkpoint, if there is one, and the log to the same round; returns
        the lines so far."""
        checkpoint = self.path / CHECKPOINT
        log = self.metrics.read_bytes() if self.metrics.exists() else b""
        if not checkpoint.exists():
            if log or (self.path / MODEL).exists():  # both come after the first checkpoint
                found = f"{METRICS} with lines of a run" if log else f"a trained {MODEL}"
                raise InputError(
                    f"{self.path} holds {found}, but {CHECKPOINT} is missing: put it back from a"
                    " copy, or begin anew with another --out. Nothing was changed."
                )
            return []
        run.restore(self.path)
        if run.round > rounds:
            raise InputError(
                f"{self.path} holds {run.round} rounds already: ask for more with --rounds"
            )
        if run.round == rounds:
            self.tell(
                f"the run in {self.path} has its {rounds} rounds; more go on with a larger --rounds"
            )
        else:
            self.tell(f"going on from round {run.round} of the run in {self.path}")
        if log != run.log:
            self._mend(log, run)
        return [parsed(line) for line in run.log.decode().splitlines()]

    def _mend(self, log: bytes, run: Run) -> None:
        """Make the log what the checkpoint knows; lines after it are computed again, anything else
        is kept aside."""
        # a kill between the two writes
        lacks_last = run.log.startswith(log) and b"\n" not in run.log[len(log) : -1]
        if not (lacks_last or (log.startswith(run.log) and _from(run.round, log[len(run.log) :]))):
            where = "was missing or empty"
            if log:
                number = 1
                while (aside := self.path / f"{METRICS}.damaged-{number}").exists():
                    number += 1
                self.metrics.rename(aside)
                where = f"is not as this run wrote it; it is kept as {aside.name}"
            self.tell(
                f"{self.metrics} {where}. It is written anew from the checkpoint of round"
                f" {run.round}."
            )
        atomic_write(self.metrics, run.log)

    def record(self, run: Run, line: Line) -> None:
        """Add a line to the run's log, then to the file.  The first one is saved before, so a log
        without a checkpoint means that somebody took the checkpoint away."""
        text = as_json(line).encode() + b"\n"
        run.log += text
        if not (self.path / CHECKPOINT).exists():
            run.save(self.path)
        with writing(self.metrics), self.metrics.open("ab") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())


def _from(round: int, text: bytes) -> bool:
    """Whether these are lines of ``round`` or later ones, the last perhaps cut off."""
    try:
        return all(json.loads(line)["round"] >= round for line in text.split(b"\n")[:-1])
    except (ValueError, TypeError, KeyError):
        return False
