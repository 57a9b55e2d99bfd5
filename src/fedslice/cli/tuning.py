"""A study: every cell of a grid with every seed, the choice on validation, the report.

Each cell is a run folder below ``cells/``.  A cell that has ended is never run again, and one that
was interrupted goes on from its checkpoint, so a study that was stopped, killed or given more
algorithms, values or seeds is started with the same command.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from fedslice.cli import grid
from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import Line
from fedslice.cli.live import Live
from fedslice.cli.scorer import Scorer
from fedslice.cli.stopping import Stopping
from fedslice.cli.text import minutes
from fedslice.data.devices import Devices
from fedslice.errors import DivergedError, InputError
from fedslice.report.records import Record, read
from fedslice.report.selection import Judge, edges
from fedslice.report.study import study as chosen_of
from fedslice.tasks.base import Task

Made = TypeVar("Made")
GROWS = 4  # times that --extend adds values
About: TypeAlias = Callable[
    [grid.Cell, int], Line
]  # what the folder of a cell tells of its command


class Plan(NamedTuple):
    """What a study is asked to do."""

    task: Task
    algorithms: Sequence[str]
    seeds: Sequence[int]
    changes: Sequence[str]
    axes: Sequence[grid.Axis]
    rounds: int
    eval_every: int
    out: Path
    extend: bool = False
    figure: str | None = None
    patience: int = 0
    devices: Devices | None = None


@dataclass
class Progress:
    """What is running, what was best so far, how long the rest will take: on a terminal at its
    foot, and a line for every cell that ends."""

    live: Live
    total: int = 0
    done: int = 0
    spent: float = 0.0  # seconds of cells that were run here
    ran: int = 0
    jobs: int = 1
    best: dict[str, tuple[float, str]] = field(default_factory=dict)
    compares: bool = True  # whether the best so far is of interest
    running: dict[tuple[str, str], int] = field(default_factory=dict)  # the round of each
    lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, name: str, cell: str, number: int) -> None:
        """A run has come to this round."""
        with self.lock:
            self.running[name, cell] = number
            self._show()

    def took(self, seconds: float) -> None:
        """So long for one that was run here."""
        self.spent += seconds
        self.ran += seconds > 0

    def _show(self) -> None:
        rows = [f"  running  {name} {cell}, round {n}" for (name, cell), n in self.running.items()]
        if self.compares:
            rows += [f"  best     {n} {c}: {value:.4f}" for n, (value, c) in self.best.items()]
        left = f"  {self.done} of {self.total} have ended{self._left()}"
        self.live.show([*rows, left] if self.done < self.total else [])

    def ended(self, name: str, cell: str, words: str, judged: tuple[Judge, float] | None) -> None:
        """One more cell has ended."""
        self.done += 1
        with self.lock:
            self.running.pop((name, cell), None)
        if judged is not None:
            judge, value = judged
            before = self.best.get(name, (math.nan, ""))
            if judge.better(value, before[0]):
                self.best[name] = (value, cell)
        best = self.best.get(name) if self.compares else None
        so_far = f"; best so far {best[0]:.4f} ({best[1]})" if best else ""
        self.live.tell(f"[{self.done}/{self.total}{self._left()}] {name} {cell}: {words}{so_far}")
        with self.lock:
            self._show()

    def _left(self) -> str:
        if not self.ran or self.done == self.total:
            return ""
        seconds = self.spent / self.ran * (self.total - self.done) / self.jobs
        return f", {minutes(seconds)} left"


def run(
    plan: Plan, stop: Stopping, tell: Callable[[str], None], jobs: int, about: About
) -> list[Record]:
    """Run what has not run yet; the records of all cells.  ``about(cell, seed)`` is what a run
    folder tells of its command."""
    axes = list(plan.axes)
    scorer = Scorer(plan.task)
    progress = Progress(Live(), jobs=jobs)
    records: dict[Path, Record] = {}
    for again in range(GROWS + 1):
        cells = grid.cells(plan.task, plan.algorithms, plan.changes, axes)
        todo = [
            (cell, seed, folder)
            for cell in cells
            for seed in plan.seeds
            if (folder := place(plan.out, cell, seed)) not in records
        ]
        progress.total += len(todo)
        jobs_of = [
            Job(
                cell.algorithm,
                f"{cell.name} seed {seed}",
                folder,
                partial(_experiment, plan, cell, seed, folder, scorer, stop, about(cell, seed)),
            )
            for cell, seed, folder in todo
        ]
        run_all(jobs_of, stop, progress, plan.figure)
        records |= {folder: read(folder) for _, _, folder in todo}
        if not plan.extend or again == GROWS:
            break
        known = chosen_of(list(records.values()), plan.figure)
        grown = grid.beyond(axes, edges(known.cells, known.final))
        if grown == axes:
            break
        tell(f"the best values lie at the grid's edge: trying {_news(axes, grown)}, too")
        axes = grown
    return list(records.values())


def _experiment(
    plan: Plan,
    cell: grid.Cell,
    seed: int,
    folder: Path,
    scorer: Scorer,
    stop: Stopping,
    about: Line,
) -> Experiment:
    return Experiment(
        plan.task,
        cell.algorithm,
        cell.settings,
        plan.rounds,
        seed,
        plan.eval_every,
        folder,
        scorer,
        stop=stop,
        about=about,
        patience=plan.patience,
        devices=plan.devices,
    )


def place(out: Path, cell: grid.Cell, seed: int) -> Path:
    """The folder of a cell with one seed."""
    return out / "cells" / cell.algorithm / f"{cell.name}-seed{seed}"


def _news(before: Sequence[grid.Axis], after: Sequence[grid.Axis]) -> str:
    added = [
        f"{new.setting} {', '.join(new.values[len(old.values) :])}"
        for old, new in zip(before, after, strict=True)
        if new != old
    ]
    return "; ".join(added)


class Job(NamedTuple):
    """A run of a study that may have ended before; ``name`` and ``cell`` are what a person reads of
    it.  ``make`` makes it, so that what a run holds goes with it."""

    name: str
    cell: str
    folder: Path
    make: Callable[[], Experiment]


def run_all(
    jobs: Sequence[Job], stop: Stopping, progress: Progress, figure: str | None = None
) -> None:
    """Runs side by side; a signal lets those that are under way save first."""

    def one(job: Job) -> tuple[str, float, Record]:
        begun = time.perf_counter()
        stop.check()
        experiment = job.make()
        if experiment.ended():
            return "ended before", 0.0, read(job.folder)
        follow(experiment, progress, job.name, job.cell)
        try:
            experiment.execute()
            words = ""
        except DivergedError:
            words = "diverged"
        return words, time.perf_counter() - begun, read(job.folder)

    with stop.patient(), ThreadPoolExecutor(progress.jobs) as pool:
        waiting = {pool.submit(one, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                words, seconds, record = future.result()
                progress.took(seconds)
                _tell(progress, waiting[future], words, record, figure)
        except BaseException:
            progress.live.show([])
            for future in waiting:
                future.cancel()
            raise


def side_by_side(
    work: Sequence[Callable[[], Made]], jobs: int, stop: Stopping, progress: Progress
) -> Iterator[Made]:
    """What each gives, in their order; a signal lets those that are under way save first."""
    if jobs == 1:
        yield from (each() for each in work)
        return
    with stop.patient(), ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(each) for each in work]
        try:
            for future in waiting:
                yield future.result()
        except BaseException:
            progress.live.show([])
            for future in waiting:
                future.cancel()
            raise


def follow(experiment: Experiment, progress: Progress, name: str, cell: str) -> None:
    """Show how far a run has come."""

    def emit(line: Line) -> None:
        if "round" in line:
            progress.at(name, cell, line["round"])

    progress.at(name, cell, 0)
    experiment.emit = emit


def _tell(progress: Progress, job: Job, words: str, record: Record, figure: str | None) -> None:
    if record.diverged or not record.lines:
        progress.ended(job.name, job.cell, words or "diverged", None)
        return
    last = record.lines[-1]
    figure = figure or ("validation_loss" if "validation_loss" in last else "train_loss")
    value = float(last.get(figure, math.nan))
    more = figure.removeprefix("validation_") in record.evaluation.get("more", ())
    text = f"{figure.replace('_', ' ')} {value:.4f}"
    told = f"{text}, {words}" if words else text
    progress.ended(job.name, job.cell, told, (Judge(figure, more), value))


def jobs_of(asked: int) -> int:
    """How many runs side by side; 0: one a core.

    >>> jobs_of(3)
    3
    """
    if asked < 0:
        raise InputError(f"--jobs {asked}: give a number of runs side by side, or 0 for one a core")
    if asked:
        return asked
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, found or 1)
