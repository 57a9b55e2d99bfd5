"""The command ``compare``: several algorithms and seeds on the same clients."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fedslice.cli import report, study, tuning
from fedslice.cli.arguments import task_arguments, training_arguments
from fedslice.cli.catalogue import ALGORITHMS, find_method, settings_of_all
from fedslice.cli.checks import check_algorithms, check_comparison
from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import Line
from fedslice.cli.live import Live
from fedslice.cli.printing import figures_of, print_json, say
from fedslice.cli.scorer import Scorer
from fedslice.cli.train import experiment_of
from fedslice.cli.tuning import Progress, follow, side_by_side
from fedslice.cli.wanted import free_folder, seeds_of, task_of, validated
from fedslice.compose import check_sampler
from fedslice.errors import DivergedError, InputError
from fedslice.files.writing import writing
from fedslice.report import records
from fedslice.report.sections import heat_table
from fedslice.tasks.base import OBSERVED, Task


def compare(options: argparse.Namespace) -> int:
    """Train several with several seeds; table and picture."""
    check_algorithms(options.algorithms)
    check_comparison(options)
    seeds = seeds_of(options.seeds)
    drawn = can_draw()
    task = validated(task_of(options), options)
    settings, notes = settings_of_all(task, options.algorithms, options.set)
    for note in notes:
        say(note)
    for name in options.algorithms:  # what cannot work is refused before anything is trained
        method = find_method(name)
        check_sampler(method.build(task, settings[name]), method.sampler(settings[name], task))
    out = options.out or free_folder(Path("runs"), f"{task.name}-compare")
    scorer = Scorer(task)
    places = [
        (name, seed, out / f"{name}-seed{seed}") for name in options.algorithms for seed in seeds
    ]
    groups: study.Groups = {}
    failures: list[str] = []
    runs = [
        experiment_of(options, task, name, settings[name], seed, out=folder, scorer=scorer)
        for name, seed, folder in places
    ]
    jobs = min(tuning.jobs_of(options.jobs), len(runs))
    progress = Progress(Live(), len(runs), jobs=jobs, compares=False)
    work = [partial(_trained, run, progress) for run in runs]
    for run, (done, seconds) in zip(
        runs, side_by_side(work, jobs, options.stop, progress), strict=True
    ):
        name, cell = run.algorithm, f"seed {run.seed}"
        progress.took(seconds)
        if isinstance(done, DivergedError):
            failures.append(f"{name} {cell}: {done}")
            progress.ended(name, cell, str(done), None)
            continue
        groups.setdefault(name, []).append(run)
        progress.ended(name, cell, figures_of(run.lines[-1]), None)
        if options.json:
            print_json({"algorithm": name, "seed": run.seed, **run.lines[-1], **done})
    here = [folder for _, _, folder in places]
    for note in study.read_back(out, task, options.rounds, groups, here):
        say(note)
    if groups:
        stream = sys.stderr if options.json else sys.stdout
        show(groups, out, task, stream, drawn)
        print(f"one page about all of it: fedslice report {out}", file=stream)
    return DivergedError.exit_code if failures else 0


def _trained(run: Experiment, progress: Progress) -> tuple[Line | DivergedError, float]:
    """The last line of a run, or why it diverged, and the seconds that it took."""
    begun = time.perf_counter()
    run.stop.check()
    if progress.jobs > 1:  # else it has a bar of its own
        run.progress = False
        follow(run, progress, run.algorithm, f"seed {run.seed}")
    try:
        done: Line | DivergedError = run.execute()
    except DivergedError as error:
        done = error
    return done, time.perf_counter() - begun


def can_draw() -> bool:
    """Whether pictures can be made; says so before any training, not after it."""
    try:
        report.check_picture(Path("curves.png"))
    except InputError as error:
        say(f"note: there will be no picture: {error}")
        return False
    return True


def show(groups: study.Groups, out: Path, task: Task, stream: TextIO, drawn: bool) -> None:
    """The table of a comparison and its picture, printed and in files."""
    parts = [report.comparison(groups)]
    measured = {
        name: [
            found["by_heat"]
            for run in runs
            if run.out and (found := records.read(run.out).evaluation).get("by_heat")
        ]
        for name, runs in groups.items()
    }
    if any(measured.values()):
        table = heat_table(measured)
        parts.append(f"{table.title}\n{table.text()}")
    parts.append(
        report.lines_of(
            "ran with", {name: [words] for name, words in study.ran_with(groups).items()}
        )
    )
    told = {name: runs[0].privacy.replace("\n", " ") for name, runs in groups.items()}
    if any(told.values()):
        words = {name: [text or "not private"] for name, text in told.items()}
        parts.append(report.lines_of("privacy", words))
    if known := study.beside(task):
        parts.append(report.lines_of(f"{task.name}: published, and {OBSERVED}", known))
    text = "\n\n".join(parts)
    with writing(out / "table.txt"):
        (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\ntable: {out / 'table.txt'}", file=stream)
    if drawn:
        print(
            f"curves: {report.curves(groups, out / 'curves.png', f'{task.name}: {task.source}')}",
            file=stream,
        )


def add_to(commands: Any) -> None:
    """The subcommand ``compare``."""
    parser = commands.add_parser(
        "compare", help="several algorithms, several seeds, the same clients: table and picture"
    )
    task_arguments(parser)
    parser.add_argument(
        "algorithms", nargs="+", metavar="ALGORITHM", help=f"of {', '.join(ALGORITHMS)}"
    )
    parser.add_argument(
        "--seeds", default="1", help="how many, or a list such as 3,7,11 (default: 1)"
    )
    parser.add_argument(
        "--jobs", type=int, default=0, help="runs side by side (default: one a core)"
    )
    training_arguments(parser)
    parser.set_defaults(act=compare)
