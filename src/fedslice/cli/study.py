"""Several algorithms on one task, in one folder: what each ran with, and what earlier comparisons
left there."""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedslice.cli.catalogue import find_method
from fedslice.cli.experiment import Experiment
from fedslice.cli.settings import COMMON, Settings, differences
from fedslice.files.strict import parsed
from fedslice.privacy.accounting.account import Guarantee
from fedslice.report.records import PRIVACY
from fedslice.tasks.base import ON, Task

Groups = dict[str, list[Experiment]]
# settings that say, where they are an algorithm's default: nothing of the kind
IDLE = (0, "none", "constant", "sum", "auto", "exact", "no")


def read_back(
    out: Path, task: Task, rounds: int, groups: Groups, known: Container[Path]
) -> list[str]:
    """Add to ``groups`` the finished runs that earlier comparisons of the same task left in
    ``out``, in other folders than those ``known``; returns notes on those that do not fit."""
    notes = []
    for file in sorted(out.glob("*-seed*/settings.json")):
        if file.parent in known:
            continue
        try:
            run = _run(file, task, rounds)
        except (ValueError, KeyError, TypeError, OSError) as error:
            notes.append(f"note: {file.parent} is left out of the table ({error})")
            continue
        other = groups.get(run.algorithm, [run])[0]
        one, two = (
            {**each.settings.values, "eval_every": each.eval_every} for each in (run, other)
        )
        if unlike := differences(one, two):
            notes.append(f"note: {file.parent} is left out of the table: {unlike}")
        else:
            groups.setdefault(run.algorithm, []).append(run)
    return notes


def _run(file: Path, task: Task, rounds: int) -> Experiment:
    """The run of a folder, with its lines."""
    known = json.loads(file.read_text())
    if (known["task"], known["data"]) != (task.name, task.source):
        raise ValueError(f"it is of {known['task']} on {known['data']}")
    text = (file.parent / "metrics.jsonl").read_text()
    lines = [line for line in map(parsed, text.splitlines()) if line["round"] <= rounds]
    last = lines[-1]["round"] if lines else 0
    if last != rounds:
        raise ValueError(f"it has figures up to round {last}, not {rounds}")
    settings = Settings(known["settings"])
    names = known["algorithm"], settings, rounds, known["seed"], known["eval_every"]
    told = file.parent / PRIVACY
    privacy = str(Guarantee.of(json.loads(told.read_text()))) if told.exists() else ""
    return Experiment(task, *names, out=file.parent, privacy=privacy, lines=lines)


def ran_with(groups: Mapping[str, Sequence[Experiment]]) -> dict[str, str]:
    """The settings of each algorithm, those that all have alike first, under ``all``; idle ones are
    left out."""
    values = {name: runs[0].settings.values for name, runs in groups.items()}
    first = next(iter(values.values()))
    alike = {
        key
        for key, value in first.items()
        if all(each.get(key) == value for each in values.values())
    }
    found = {"all": {key: first[key] for key in first if key in alike}} if len(values) > 1 else {}
    found |= {
        n: {k: v for k, v in each.items() if len(values) == 1 or k not in alike}
        for n, each in values.items()
    }
    return {
        name: ", ".join(_words(some, _usual(values if name == "all" else [name])))
        for name, some in found.items()
    }


def _usual(names: Iterable[str]) -> dict[str, Any]:
    """What shared settings, and those of these algorithms, are by default."""
    known = dict(COMMON)
    for method in map(find_method, names):
        known |= {**method.options, **method.additions}
    return {key: default for key, (default, _) in known.items()}


def _words(values: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    # of these the other one counts
    told = {k: v for k, v in values.items() if v or k not in ("steps", "epochs")}
    return [
        f"{k} {_word(v)}"
        for k, v in told.items()
        if v not in IDLE or k not in usual or v != usual[k]
    ]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def beside(task: Task) -> dict[str, tuple[str, str]]:
    """Published results of the task, and what fedslice measured on its real data."""
    keys = dict.fromkeys(
        [*(key for key in task.observed if key == ON), *task.published, *task.observed]
    )
    return {key: (task.published.get(key, ""), task.observed.get(key, "")) for key in keys}
