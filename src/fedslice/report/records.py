"""What finished and unfinished runs left in their folders, and which of them belong together.

Runs of one task on the same data with the same algorithm and settings are one *cell*, of several
seeds; the cells of an algorithm differ by what a grid varied.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.errors import InputError, MissingDataError

SETTINGS, METRICS, PRIVACY = "settings.json", "metrics.jsonl", "privacy.json"
EVALUATION, ABOUT, DONE = "evaluation.json", "about.json", "done.json"
Line = Mapping[str, Any]
NOT_FIGURES = ("round", "examples", "bytes_down", "bytes_up", "seconds")


class Record(NamedTuple):
    """One run: what was run, one line for each evaluation, and what was written when it ended."""

    folder: Path
    known: Mapping[str, Any]  # settings.json
    lines: Sequence[Line]
    evaluation: Mapping[str, Any]  # by heat, by client; {} if it has not ended
    about: Mapping[str, Any]  # versions, data, command
    privacy: Mapping[str, Any]
    done: Mapping[str, Any]

    @property
    def algorithm(self) -> str:
        """Its algorithm."""
        return str(self.known["algorithm"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.known["seed"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything that it ran with."""
        settings: Mapping[str, Any] = self.known["settings"]
        return settings

    @property
    def diverged(self) -> str:
        """Why it was stopped, if it was."""
        return str(self.done.get("diverged", ""))

    def at(self, budget: int) -> Line | None:
        """The line of the last evaluation within so many rounds; None if it diverged before, or has
        not come so far for another reason than patience."""
        within = [line for line in self.lines if line["round"] <= budget]
        early = self.lines and self.lines[-1]["round"] < budget and not self.done.get("stopped")
        if not within or early:
            return None
        return within[-1]


class Cell(NamedTuple):
    """Runs that differ by their seed alone; ``varied`` is what a grid gave them."""

    algorithm: str
    varied: Mapping[str, Any]
    runs: Sequence[Record]

    @property
    def name(self) -> str:
        """The algorithm, and what it was given.

        >>> Cell("fedavg", {"client_rate": 0.1}, []).name
        'fedavg client_rate 0.1'
        """
        return " ".join([self.algorithm, *(f"{k} {_short(v)}" for k, v in self.varied.items())])


def find(paths: Iterable[str | Path]) -> list[Record]:
    """The runs in these folders, and in those below them.

    >>> find(["nowhere"])
    Traceback (most recent call last):
    fedslice.errors.MissingDataError: there is no folder nowhere: check the path
    """
    found: dict[Path, Record] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise MissingDataError(f"there is no folder {path}: check the path")
        places = sorted(file.parent for file in path.rglob(SETTINGS))
        if not places:
            raise InputError(f"{path} holds no run: a run's folder has a file {SETTINGS}")
        found |= {place.resolve(): read(place) for place in places}
    return list(found.values())


def read(folder: Path) -> Record:
    """The run of one folder."""
    known = _json(folder / SETTINGS)
    missing = {"task", "algorithm", "seed", "settings"} - set(known)
    if missing:
        raise InputError(f"{folder / SETTINGS} has no {', '.join(sorted(missing))}: is it a run's?")
    file = folder / METRICS
    lines = []
    for number, text in enumerate(file.read_text().splitlines() if file.exists() else [], 1):
        try:
            lines.append(_revived(json.loads(text)))
        except ValueError as error:
            raise InputError(
                f"{file}, line {number} is damaged ({error}): run the same command again, which"
                " writes it anew from the checkpoint"
            ) from error
    rest = (_json(folder / name, {}) for name in (EVALUATION, ABOUT, PRIVACY, DONE))
    return Record(folder, known, lines, *rest)


def cells(records: Sequence[Record]) -> list[Cell]:
    """Runs by algorithm and settings, in the order in which they came; ``varied`` are the settings
    in which cells of one algorithm differ."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(
            json.dumps([record.algorithm, record.settings], sort_keys=True), []
        ).append(record)
    found: list[Cell] = []
    varied = differing(records)
    for runs in groups.values():
        first = runs[0]
        keys = varied[first.algorithm]
        given = {key: first.settings[key] for key in first.settings if key in keys}
        found.append(Cell(first.algorithm, given, sorted(runs, key=lambda run: run.seed)))
    return found


def differing(records: Sequence[Record]) -> dict[str, set[str]]:
    """For each algorithm the settings in which its runs differ."""
    found: dict[str, set[str]] = {}
    for name in dict.fromkeys(record.algorithm for record in records):
        own = [record.settings for record in records if record.algorithm == name]
        keys = dict.fromkeys(key for each in own for key in each)
        found[name] = {k for k in keys if len({json.dumps(each.get(k)) for each in own}) > 1}
    return found


def frame(paths: Iterable[str | Path]) -> Any:
    """The runs in these folders as a pandas DataFrame, a row for each evaluation: algorithm, seed,
    what was varied, every figure, and the folder."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("a frame needs pandas: pip install pandas") from error
    records = find(paths)
    varied = differing(records)
    rows = [
        {
            "algorithm": record.algorithm,
            "seed": record.seed,
            **{k: record.settings[k] for k in record.settings if k in varied[record.algorithm]},
            **line,
            "folder": str(record.folder),
        }
        for record in records
        for line in record.lines
    ]
    return pandas.DataFrame(rows)


def check_alike(records: Sequence[Record]) -> None:
    """Refuse runs of several tasks or data: their figures cannot stand in one table."""
    kinds = dict.fromkeys(
        (str(record.known["task"]), str(record.known.get("data", ""))) for record in records
    )
    if len(kinds) > 1:
        listed = "; ".join(f"{task} on {data}" for task, data in kinds)
        raise InputError(f"one report is about one task on the same data, these are {listed}")


def figures(line: Line) -> dict[str, float]:
    """The measured figures of a line."""
    return {
        key: value
        for key, value in line.items()
        if key not in NOT_FIGURES and not key.startswith(("baseline_", "heat_"))
    }


def _json(file: Path, otherwise: Any = None) -> Any:
    if not file.exists() and otherwise is not None:
        return otherwise
    try:
        return _revived(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _revived(value: Any) -> Any:
    """What is null was no finite number."""
    if isinstance(value, dict):
        return {key: _revived(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_revived(each) for each in value]
    return math.nan if value is None else value


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
