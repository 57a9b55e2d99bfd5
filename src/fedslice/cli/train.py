"""The command ``run``: one algorithm."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedslice.cli.arguments import task_arguments, training_arguments
from fedslice.cli.catalogue import ALGORITHMS, settings_for
from fedslice.cli.checks import check_run
from fedslice.cli.clock import shares
from fedslice.cli.experiment import BEST, Experiment
from fedslice.cli.folder import Line
from fedslice.cli.printing import folded, print_json, print_line, say
from fedslice.cli.settings import Settings
from fedslice.cli.trackers import open_tracker
from fedslice.cli.wanted import devices_of, free_folder, task_of, validated
from fedslice.cli.workloads import usual_algorithm
from fedslice.cluster.crew import Crew
from fedslice.cluster.rays import ray
from fedslice.errors import InputError
from fedslice.simulation.run import Run
from fedslice.tasks.base import Task

NEXT = ("predict", "evaluate", "export")  # what the model of a run on own data is for


def run(options: argparse.Namespace) -> None:
    """Train one algorithm."""
    algorithm = options.algorithm or usual_algorithm(options.task)
    check_run(options, algorithm)
    task = validated(task_of(options), options)
    if options.validation and not options.patience:
        options.patience = options.rounds  # the best model is kept, and nothing is cut short
    emit = print_json if options.json else print_line
    settings = settings_for(task, algorithm, options.set)
    experiment = experiment_of(options, task, algorithm, settings, options.seed, emit=emit)
    say(
        f"{task.name} on {task.source}: {len(task.train):,} clients, {task.train.examples:,}"
        " training examples"
    )
    with _crew(options, settings.threads) as experiment.crew:
        run = experiment.start()
        experiment.out = options.out or free_folder(
            Path("runs"), f"{task.name}-{algorithm}"
        )  # not before all else is right
        done = _tracked(experiment, run, options.track)
    if not options.json:
        print(folded(_closing(experiment, done), sys.stdout))


def _tracked(experiment: Experiment, run: Run, kinds: Sequence[str]) -> Line:
    """Train, and tell those who watch."""
    assert experiment.out is not None
    name, settings = experiment.out.name, experiment.settings.values
    plain = experiment.emit
    trackers = [open_tracker(kind, experiment.out, name, settings) for kind in kinds]

    def emit(line: Line) -> None:
        plain(line)
        for each in trackers:
            each.emit(line)

    experiment.emit = emit
    try:
        return experiment.execute(run)
    finally:
        for each in trackers:
            each.close()


def experiment_of(
    options: argparse.Namespace,
    task: Task,
    algorithm: str,
    settings: Settings,
    seed: int,
    **more: Any,
) -> Experiment:
    """One run as the options want it."""
    return Experiment(
        task,
        algorithm,
        settings,
        options.rounds,
        seed,
        options.eval_every,
        progress=sys.stderr.isatty(),
        tell=say,
        store=options.store,
        stop=options.stop,
        patience=options.patience,
        devices=devices_of(options),
        **more,
    )


@contextmanager
def _crew(options: argparse.Namespace, threads: int) -> Iterator[Crew | None]:
    """The cluster that was asked for, while it is needed."""
    if options.ray is None:
        if options.workers is not None:
            raise InputError("--workers is of a cluster: say --ray auto, too")
        yield None
        return
    crew = ray(options.ray, workers=options.workers, threads=max(1, threads))
    say(f"Ray: {crew.workers} workers train, {crew.shards} shards have the tables")
    try:
        yield crew
    finally:
        crew.close()


def _closing(experiment: Experiment, done: dict[str, Any]) -> str:
    target, speed = experiment.task.target, done["ms_per_round"]
    reached = (
        f"{target.metric} {target.value:g} reached in round {done['rounds_to_target']}"
        if target
        else ""
    )
    if target and done["rounds_to_target"] is None:
        reached = f"{target.metric} {target.value:g} not reached in {done['rounds']} rounds"
    pace = f"{speed:.2f} ms a round" if speed is not None else ""
    if "best_round" in done:
        best = f"best on validation in round {done['best_round']}: {Path(done['out']) / BEST}"
        why = done.get("stopped")
        early = f"stopped after round {done['rounds']}: {why}" if why else ""
        reached = "\n".join(filter(None, [early, best, reached]))
    spent = f"time: {shares(experiment.time)}"
    words = [reached, experiment.privacy, pace, spent, f"run folder: {done['out']}"]
    if experiment.task.features is not None:
        words.append("next: " + ", ".join(f"fedslice {c} {done['out']} FILE" for c in NEXT))
    return "\n".join(filter(None, words))


def add_to(commands: Any) -> None:
    """The subcommand ``run``."""
    parser = commands.add_parser("run", help="train one algorithm on a task or on your own file")
    task_arguments(parser)
    parser.add_argument(
        "--algorithm",
        help=f"which one: {', '.join(ALGORITHMS)} (default: the task's, mostly fedsubavg)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of sampling, batches and initial values (default: 0)"
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="KIND",
        help=(
            "also write figures for tensorboard, mlflow or wandb (offline), in or beside the run"
            " folder; needs that package, pip install 'fedslice[track]'"
        ),
    )
    training_arguments(parser)
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help=(
            "train on a Ray cluster: auto (the one of this machine, or one that is started here),"
            " or HOST:PORT of its head; see docs/how-to/cluster.md"
        ),
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="processes that train, with --ray (default: one for each core of the cluster)",
    )
    parser.set_defaults(act=run)
