"""The tasks by name, where their data are, and who takes part in a round."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.text import pair, parse
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError, nearest
from fedslice.files.guard import reading
from fedslice.models import own as models
from fedslice.models.own import NAMES
from fedslice.tasks import own, workloads
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.readers.files import data_home, fetch, locate_all

TASKS = {workload.name: workload for workload in workloads()}


def find_task(name: str) -> Workload:
    """A task by name, or an error that lists them.

    >>> find_task("quadratic").name
    'quadratic'
    """
    if name not in TASKS:
        near = nearest(name, [*TASKS, *NAMES])
        raise InputError(
            f"there is no task {name!r}; {near} ({', '.join(NAMES)} are for your own --data)"
        )
    return TASKS[name]


def usual_algorithm(name: str) -> str:
    """What a task or a model for own data is trained with, if nobody says otherwise.

    >>> usual_algorithm("movielens-mf"), usual_algorithm("lr")
    ('fedrecon', 'fedsubavg')
    """
    return TASKS[name].algorithm if name in TASKS else own.algorithm_of(name)


def outline(name: str) -> Task:
    """A task without its data: enough to see whether settings can be.

    >>> outline("lr").settings["batch"] > 0
    True
    """
    nobody = Population.from_arrays(np.zeros(0, np.int64))
    if name in NAMES:
        model, rates = models.own(name, 1), {"": own.RATES[name]}
        given = own.settings_of(name), rates
        return Task(name, model, nobody, nobody, *given, algorithms=own.ALONE)
    workload = find_task(name)
    published = workload.settings, workload.learning_rates
    model = models.own("lr", 1)
    return Task(name, model, nobody, nobody, *published, algorithms=workload.algorithms)


INTRODUCTION = """# Tasks

The workloads of the papers. Each has a reader for its real data, its model, the published settings and results, and
a generator of data of the published shape.

`fedslice tasks` lists them, `fedslice tasks NAME` shows one and the data that were found, and `fedslice data NAME`
fetches the data or says where to get them; with `--synthetic` none are needed. Options are given as `--option
NAME=VALUE`, or in Python as arguments of the task's `synthetic` and `load`. This page is written by `fedslice tasks
--markdown`.

Parsed data are kept in the user's cache, `~/.cache/fedslice/parsed` or `FEDSLICE_CACHE`, and parsed again when the
files change. Generated ratings are kept there too, up to 1 GB of them, and made again when the generator or an argument
changes.
"""  # noqa: E501


def task_page() -> str:
    """All tasks as one Markdown page.

    >>> task_page().startswith("# Tasks")
    True
    """
    parts = [INTRODUCTION]
    for workload in TASKS.values():
        needs = workload.needs.replace("*", r"\*")
        about = needs and f"\nReal data: {needs}\n"
        parts.append(
            f"## {workload.name}\n\n{workload.summary[0].upper()}{workload.summary[1:]}.\n{about}"
        )
        for title, cells in sections(workload).items():
            rows = "\n".join(f"| {key} | {value} |" for key, value in cells.items())
            parts.append(f"| {title} | |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def sections(workload: Workload) -> dict[str, dict[str, str]]:
    """What there is to know of a task, by heading: as published, and its options with their
    defaults.

    >>> sections(find_task("shakespeare-words"))["options"]["buckets"]
    '500'
    """
    generated, real = options_of(workload, real=False), options_of(workload, real=True)
    names = {**real, **generated}
    only = {**dict.fromkeys(real.keys() - generated, ", real data only"),
            **dict.fromkeys(generated.keys() - real, ", generated data only")}  # fmt: skip
    options = {name: f"{_written(default)}{only.get(name, '')}" for name, default in names.items()}
    return {**workload.sections(), **({"options": options} if options else {})}


def _written(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def options_of(workload: Workload, real: bool) -> dict[str, Any]:
    """What else its generator, or its reader of real data, can be told, with the defaults.

    >>> options_of(find_task("movielens-mf"), real=True)
    {'split': 'users', 'part': 'test', 'local': True, 'judged': 0}
    """
    make = workload.load if real and workload.load is not None else workload.synthetic
    given = inspect.signature(make).parameters.values()
    return {each.name: each.default for each in given if each.name not in ("path", "seed", "scale")}


def make_task(workload: Workload, place: Path | None, scale: float, changes: Sequence[str]) -> Task:
    """The task from the data in ``place``, or generated; ``changes`` are options as ``name=value``.

    >>> task = make_task(find_task("movielens-mf"), None, 0.02, ["split=time"])
    >>> len(task.train) == len(task.test), task.source
    (True, 'generated data, seed 0, scale 0.02; split=time')
    """
    chosen = chosen_options(workload, place is not None, changes)
    if place is None or workload.load is None:
        task = workload.synthetic(scale=scale, **chosen)
    else:
        with reading(place):
            task = workload.load(place, **chosen)
    return replace(task, source=f"{task.source}; {', '.join(changes)}") if changes else task


def chosen_options(workload: Workload, real: bool, changes: Sequence[str]) -> dict[str, Any]:
    """The options of a task that ``name=value`` set, as values."""
    known, chosen = options_of(workload, real), {}
    names = ", ".join(f"{name} ({_written(default)})" for name, default in known.items()) or "none"
    wanted = f"write name=value; the options of {workload.name} here are {names}"
    for change in changes:
        key, text = pair("--option", change, wanted)
        if key not in known:
            raise InputError(f"--option {change}: {nearest(key, known)} {wanted}")
        chosen[key] = parse(key, text, type(known[key]))
    return chosen


def present(workload: Workload, place: Path) -> list[str]:
    """Which of the task's files are in ``place``: a folder, an archive or one of the files."""
    found: list[str] = []
    for pattern in workload.files:
        try:
            names = [file.name for file in locate_all(place, pattern, needs="")]
            found += names if len(names) <= 10 else [f"{names[0]} and {len(names) - 1:,} more"]
        except MissingDataError:
            continue
    return list(dict.fromkeys(found))


def obtain(workload: Workload, place: Path | None = None) -> Path:
    """Where the task's real data are: in ``place`` or the data home, else downloaded, else an error
    with advice."""
    home = place or data_home()
    if present(workload, home):
        return home
    if workload.download is not None and not home.is_file():
        return fetch(workload.download, home)
    raise MissingDataError(
        f"the data of {workload.name} are not in {home}. {workload.needs} Put them there"
        " (FEDSLICE_DATA changes the place), name their folder with --data-dir, or use --synthetic"
        " for generated data."
    )
