"""``fedslice reproduce``: every published table beside what comes out here.

Rows run with the published settings, each with several seeds, as runs of a study: side by side, and
finished ones are not run again.  :mod:`fedslice.cli.reproduced` shows what came out.
"""

import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.cli import tuning
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import Line
from fedslice.cli.helpful import one_of
from fedslice.cli.live import Live
from fedslice.cli.printing import say
from fedslice.cli.published import DATA, PAPERS, Row, Sheet
from fedslice.cli.repeat import command
from fedslice.cli.reproduced import data_section, differences, section, slug
from fedslice.cli.results import add_files, write_report
from fedslice.cli.scorer import Scorer
from fedslice.cli.settings import Settings
from fedslice.cli.stopping import Stopping
from fedslice.cli.text import change_of, minutes
from fedslice.cli.wanted import named_task, seeds_of
from fedslice.compose import check_sampler
from fedslice.errors import InputError, nearest
from fedslice.report.page import Report
from fedslice.report.records import Record, read
from fedslice.tasks.base import Task

RATHER_FEW = 3  # rounds that are timed


class Source(NamedTuple):
    """A task with its scorer, and the options that a command names it with."""

    task: Task
    scorer: Scorer
    options: Namespace


def reproduce(options: Namespace) -> None:
    """Run a paper's tables, and show what was published beside what was measured."""
    sheets = [s for s in PAPERS[options.paper] if options.task in (None, s.task)]
    if not sheets:
        there = dict.fromkeys(sheet.task for sheet in PAPERS[options.paper])
        raise InputError(
            f"{options.paper} has no task {options.task!r}: {nearest(options.task, there)}"
        )
    fewer = options.quick and any(sheet.quick.rows for sheet in sheets)
    sheets = [sheet.quickly() for sheet in sheets] if options.quick else sheets
    quick = "-quick" if options.quick else ""
    out = options.out = options.out or Path("runs") / f"reproduce-{options.paper}{quick}"
    seeds = seeds_of(options.seeds or ("1" if options.quick else "3"))
    known: dict[tuple[str, ...], Source] = {}
    sections = []
    described = set()
    for sheet in sheets:
        sources = [_source(options, sheet, row, known) for row in sheet.rows]
        tasks = [source.task for source in sources]
        if sheet.task in DATA and sheet.task not in described:
            described.add(sheet.task)
            sections.append(data_section(sheet.task, tasks[0], DATA[sheet.task]))
        records = _run(options, sheet, sources, seeds, out)
        sections.append(section(sheet, tasks, records, _length(options, sheet)))
    title = f"{options.paper}: published and measured"
    told = ", ".join(map(str, seeds))
    lead = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}: {told}."
    if options.quick:
        lead += " A quick look: few rounds, generated data of a small size"
        lead += ", some of the rows." if fewer else "."
    report = Report(
        title, lead, differences(source.task for source in known.values()), [], sections, {}
    )
    for each in sections:
        print(f"\n{each.title}\n{each.tables[0].text()}\n{each.text}".rstrip())
    for line in report.findings:
        print(f"note: {line}")
    write_report(report, out / "report.html", options.files, options.formats)


def _source(
    options: Namespace, sheet: Sheet, row: Row, known: dict[tuple[str, ...], Source]
) -> Source:
    """The task of a row; rows with the same options, on as much data, share it."""
    small = options.quick and options.data_dir is None
    scale = sheet.quick.scale if small and options.scale is None else options.scale
    key = (sheet.task, str(scale), *row.options)
    if key not in known:
        given = Namespace(
            task=sheet.task,
            synthetic=options.synthetic or small,
            scale=scale,
            data_dir=options.data_dir,
            option=list(row.options),
        )
        task = named_task(given)
        known[key] = Source(task, Scorer(task), given)
    return known[key]


def _length(options: Namespace, sheet: Sheet) -> tuple[int, int]:
    """Rounds, and rounds from one evaluation to the next."""
    if options.quick:
        return sheet.quick.rounds, sheet.quick.eval_every
    return sheet.rounds, sheet.eval_every


def _run(
    options: Namespace,
    sheet: Sheet,
    sources: Sequence[Source],
    seeds: Sequence[int],
    out: Path,
) -> list[list[Record]]:
    """The records of each row, seed by seed."""
    rounds, every = _length(options, sheet)
    jobs, rows = [], []
    for row, source in zip(sheet.rows, sources, strict=True):
        changes = [*row.changes, *_fitting(row, source.task)]
        settings = settings_for(source.task, row.algorithm, changes)
        method = find_method(row.algorithm)
        check_sampler(method.build(source.task, settings), method.sampler(settings, source.task))
        rows.append((row, source, settings, changes))
        for seed in seeds:
            folder = out / slug(sheet.task) / f"{slug(row.label)}-seed{seed}"
            about = command(source.options, row.algorithm, seed, rounds, every, changes)
            given = (source, row.algorithm, settings, (rounds, every), seed, folder, about)
            make = partial(_experiment, *given, options.stop)
            jobs.append(tuning.Job(row.label, f"seed {seed}", folder, make))
    cores = tuning.jobs_of(options.jobs)
    progress = tuning.Progress(Live(), len(jobs), jobs=cores, compares=False)
    if not all((job.folder / "done.json").exists() for job in jobs):
        source, settings = rows[-1][1], rows[-1][2]
        _announce(sheet, source, rows[-1][0].algorithm, settings, (rounds, every), progress)
    tuning.run_all(jobs, options.stop, progress)
    found = [read(job.folder) for job in jobs]
    return [found[start : start + len(seeds)] for start in range(0, len(found), len(seeds))]


def _experiment(
    source: Source,
    algorithm: str,
    settings: Settings,
    length: tuple[int, int],
    seed: int,
    folder: Path | None,
    about: Line,
    stop: Stopping,
) -> Experiment:
    rounds, every = length
    return Experiment(
        source.task,
        algorithm,
        settings,
        rounds,
        seed,
        every,
        folder,
        source.scorer,
        stop=stop,
        about=about,
    )


def _fitting(row: Row, task: Task) -> list[str]:
    """A cohort of all clients, where generated data have fewer than were published."""
    asked = {key: value for _, key, value in map(change_of, row.changes)}
    wanted = asked.get("cohort") or task.settings.get("cohort", 50)
    most = int((task.train.counts > 0).sum())
    pooled = find_method(row.algorithm).pooled
    return [f"cohort={most}"] if not pooled and int(wanted) > most else []


def _announce(
    sheet: Sheet,
    source: Source,
    algorithm: str,
    settings: Settings,
    length: tuple[int, int],
    progress: tuning.Progress,
) -> None:
    """How long it will take, from a few rounds and two evaluations of the last row, which is as
    large as any."""
    rounds, every = length
    begun = time.perf_counter()
    run = _experiment(source, algorithm, settings, length, 0, None, {}, Stopping()).start()
    list(run.rounds(1))
    source.scorer(run)
    started = time.perf_counter()
    list(run.rounds(min(RATHER_FEW, rounds)))
    run.wait()
    trained = time.perf_counter()
    source.scorer(run)
    measured = time.perf_counter()
    each = started - begun + (trained - started) / min(RATHER_FEW, rounds) * rounds
    each += (measured - trained) * (rounds / every)
    say(
        f"{sheet.task}, {sheet.title}: {progress.total} runs of {rounds} rounds on"
        f" {source.task.source}, about {minutes(progress.total * each / progress.jobs)}"
    )


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
