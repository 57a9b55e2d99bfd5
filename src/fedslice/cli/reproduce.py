"""``fedslice reproduce``: every published table beside what comes out here.

Rows run with the published settings, each with several seeds, as cells of a study: finished ones
are not run again.  Where figures differ the page says what was found on the real data before.
"""

import re
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedslice.cli import grid, tuning
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.experiment import Experiment
from fedslice.cli.helpful import one_of
from fedslice.cli.printing import say
from fedslice.cli.published import PAPERS, ROUNDS, Row, Sheet
from fedslice.cli.results import add_files, write_report
from fedslice.cli.scorer import Scorer
from fedslice.cli.text import minutes, pair
from fedslice.cli.wanted import named_task, seeds_of
from fedslice.compose import check_sampler
from fedslice.errors import InputError, nearest
from fedslice.report import figures
from fedslice.report.content import Report
from fedslice.report.picture import Picture
from fedslice.report.records import Cell, Record, read
from fedslice.report.sections import Section
from fedslice.report.selection import Chosen, rounds_to
from fedslice.report.tables import Table
from fedslice.tasks.base import Task

RATHER_FEW = 3  # rounds that are timed


def reproduce(options: Namespace) -> None:
    """Run a paper's tables, and show what was published beside what was measured."""
    sheets = [s for s in PAPERS[options.paper] if options.task in (None, s.task)]
    if not sheets:
        known = dict.fromkeys(sheet.task for sheet in PAPERS[options.paper])
        raise InputError(
            f"{options.paper} has no task {options.task!r}: {nearest(options.task, known)}"
        )
    out = (
        options.out
        or Path("runs") / f"reproduce-{options.paper}{'-quick' if options.quick else ''}"
    )
    seeds = seeds_of(options.seeds or ("1" if options.quick else "3"))
    jobs = options.jobs or tuning.cores()
    tasks: dict[tuple[str, ...], Task] = {}
    sections = []
    for sheet in sheets:
        made = [_task(options, sheet, row, tasks) for row in sheet.rows]
        records = _run(options, sheet, made, seeds, out, jobs)
        sections.append(_section(options, sheet, made, records))
    title = f"{options.paper}: published and measured"
    quick = " A quick look: few rounds, generated data of a small size." if options.quick else ""
    lead = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}: {', '.join(map(str, seeds))}.{quick}"
    report = Report(title, lead, _differences(tasks), [], sections, {})
    for section in sections:
        print(f"\n{section.title}\n{section.tables[0].text()}")
    write_report(report, out / "report.html", options.files, options.formats)


def _task(options: Namespace, sheet: Sheet, row: Row, known: dict[tuple[str, ...], Task]) -> Task:
    """The task of a row; rows with the same options share it."""
    key = (sheet.task, *row.options)
    if key not in known:
        small = sheet.quick[1] if options.quick and options.data_dir is None else options.scale
        synthetic = options.synthetic or (options.quick and options.data_dir is None)
        given = Namespace(
            task=sheet.task,
            synthetic=synthetic,
            scale=small,
            data_dir=options.data_dir,
            option=list(row.options),
        )
        known[key] = named_task(given)
    return known[key]


def _run(
    options: Namespace,
    sheet: Sheet,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    out: Path,
    jobs: int,
) -> list[list[Record]]:
    """The records of each row, seed by seed."""
    rounds = sheet.quick[0] if options.quick else sheet.rounds
    every = max(1, min(sheet.eval_every, rounds // 4))
    found = []
    told = False
    progress = tuning.Progress(say, total=len(sheet.rows) * len(seeds), jobs=jobs)
    scorers: dict[int, Scorer] = {}
    for row, task in zip(sheet.rows, tasks, strict=True):
        changes = [*row.changes, *_fitting(row, task)]
        given = dict(pair("", change, "") for change in changes)
        cell = grid.Cell(row.algorithm, given, settings_for(task, row.algorithm, changes))
        method = find_method(row.algorithm)
        check_sampler(method.build(task, cell.settings), method.sampler(cell.settings, task))
        scorer = scorers.setdefault(id(task), Scorer(task))
        todo = [
            (cell, seed, out / _slug(sheet.task) / f"{_slug(row.label)}-seed{seed}")
            for seed in seeds
        ]
        if not told and not all((folder / "done.json").exists() for _, _, folder in todo):
            _announce(sheet, task, cell, scorer, rounds, every, len(sheet.rows) * len(seeds), jobs)
            told = True
        plan = tuning.Plan(task, [row.algorithm], seeds, changes, [], rounds, every, out)
        tuning.run_all(plan, todo, scorer, options.stop, progress, lambda cell, seed: {})
        found.append([read(folder) for _, _, folder in todo])
    return found


def _fitting(row: Row, task: Task) -> list[str]:
    """A cohort of all clients, where generated data have fewer than were published."""
    wanted = dict(change.split("=") for change in row.changes).get("cohort") or task.settings.get(
        "cohort", 50
    )
    most = int((task.train.counts > 0).sum())
    pooled = find_method(row.algorithm).pooled
    return [f"cohort={most}"] if not pooled and int(wanted) > most else []


def _announce(
    sheet: Sheet,
    task: Task,
    cell: grid.Cell,
    scorer: Scorer,
    rounds: int,
    every: int,
    runs: int,
    jobs: int,
) -> None:
    """How long it will take, from a few rounds and one evaluation of the first row."""
    run = Experiment(task, cell.algorithm, cell.settings, rounds, 0, every).start()
    list(run.rounds(1))
    scorer(run)
    begun = time.perf_counter()
    list(run.rounds(RATHER_FEW))
    trained = time.perf_counter()
    scorer(run)
    each = (trained - begun) / RATHER_FEW * rounds + (time.perf_counter() - trained) * (
        rounds / every
    )
    say(
        f"{sheet.task}, {sheet.title}: {runs} runs of {rounds} rounds on {task.source}, about"
        f" {minutes(runs * each / jobs)}"
    )


def _section(
    options: Namespace, sheet: Sheet, tasks: Sequence[Task], records: Sequence[Sequence[Record]]
) -> Section:
    rows = [
        [row.label, row.published, *_measured(sheet, task, runs)]
        for row, task, runs in zip(sheet.rows, tasks, records, strict=True)
    ]
    names = ["rounds" if name == ROUNDS else figures.words(name) for name in sheet.figures]
    head = ["", "published", *(f"measured {name}" for name in names)]
    note = f"{sheet.task} on {tasks[0].source}. Several figures are several seeds."
    table = Table(_slug(f"{sheet.task}-{sheet.title}"), sheet.title, head, rows, note, 2)
    chosen = {
        row.label: Chosen(row.label, 0, Cell(row.label, {}, runs), None)
        for row, runs in zip(sheet.rows, records, strict=True)
        if any(run.lines for run in runs)
    }
    return Section(f"{sheet.task}: {sheet.title}", "", [table], _pictures(sheet, tasks[0], chosen))


def _pictures(sheet: Sheet, task: Task, chosen: Mapping[str, Chosen]) -> list[Picture]:
    target = task.target.metric if task.target else None
    figure = target if sheet.figures == (ROUNDS,) and target else sheet.figures[0]
    name = _slug(f"{sheet.task}-{sheet.title}")
    return [
        figures.curves(chosen, figure, axis, f"{name}-{axis}")
        for axis in ("rounds", "time")
        if chosen
    ]


def _measured(sheet: Sheet, task: Task, runs: Sequence[Record]) -> list[str]:
    found = []
    for name in sheet.figures:
        if name == ROUNDS:
            assert task.target is not None
            goal = task.target.metric, task.target.value, task.target.below
            numbers = [rounds_to(run, *goal) for run in runs]
            last = [run.lines[-1]["round"] if run.lines else 0 for run in runs]
            cells = [
                f"{end}+" if n is None else f"{n}" for n, end in zip(numbers, last, strict=True)
            ]
        else:
            cells = [f"{run.lines[-1][name]:.4f}" if run.lines else "" for run in runs]
        shown = [
            "diverged" if run.diverged else cell for run, cell in zip(runs, cells, strict=True)
        ]
        found.append(", ".join(shown))
    return found


def _differences(tasks: Mapping[tuple[str, ...], Task]) -> list[str]:
    """What was found on the real data before: where figures differ from the published ones, and
    why."""
    told = []
    for (name, *_), task in tasks.items():
        told += [f"{name}, {key}: {value}." for key, value in task.observed.items()]
    return list(dict.fromkeys(told))


def _slug(text: str) -> str:
    """A name for files.

    >>> _slug("FedSubAvg, K = 10")
    'fedsubavg-k-10'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def add_to(sub: Any) -> None:
    """Its arguments."""
    again = sub.add_parser(
        "reproduce", help="a paper's tables: published figures beside those measured here"
    )
    again.add_argument(
        "paper",
        type=one_of(list(PAPERS)),
        metavar="PAPER",
        help=f"whose tables: {', '.join(PAPERS)}",
    )
    again.add_argument("--task", help="one of its tasks (default: all of them)")
    source = again.add_mutually_exclusive_group()
    source.add_argument("--data-dir", type=Path, metavar="DIR", help="the task's official files")
    source.add_argument(
        "--synthetic", action="store_true", help="generated data of the published size"
    )
    again.add_argument("--scale", type=float, help="size of the generated data")
    again.add_argument(
        "--quick", action="store_true", help="small generated data, few rounds: minutes, not hours"
    )
    again.add_argument("--seeds", help="how many, or a list (default: 3, with --quick 1)")
    again.add_argument(
        "--jobs", type=int, default=0, help="runs side by side (default: one a core)"
    )
    again.add_argument("--out", type=Path, metavar="DIR", help="(default: runs/reproduce-PAPER)")
    add_files(again)
    again.set_defaults(act=reproduce)
