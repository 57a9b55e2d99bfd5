"""What ``fedslice reproduce`` shows: published figures beside those measured here, and why they
differ."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fedslice.cli.published import ROUNDS, Sheet
from fedslice.report import figures
from fedslice.report.picture import Picture
from fedslice.report.records import Cell, Record
from fedslice.report.sections import Section
from fedslice.report.selection import Chosen, rounds_to
from fedslice.report.tables import Table
from fedslice.tasks.base import ON, Task

GENERATED = (
    "The data are generated: compare who is ahead, and by how much, rather than the figures"
    " themselves."
)


def section(
    sheet: Sheet,
    tasks: Sequence[Task],
    records: Sequence[Sequence[Record]],
    length: tuple[int, int],
) -> Section:
    """A table of published and measured figures, its curves, and in words why they differ."""
    names = ["rounds" if name == ROUNDS else figures.words(name) for name in sheet.figures]
    # a figure that the paper does not have stands alone
    known = [
        any(row.published and row.published[i] for row in sheet.rows) for i in range(len(names))
    ]
    head = [""]
    for name, there in zip(names, known, strict=True):
        head += [f"published {name}", f"measured {name}"] if there else [f"measured {name}"]
    rows = []
    for row, task, runs in zip(sheet.rows, tasks, records, strict=True):
        found = _measured(sheet, task, runs)
        given = row.published or [""] * len(found)
        cells = [row.label]
        for old, new, there in zip(given, found, known, strict=True):
            cells += [old, new] if there else [new]
        rows.append(cells)
    note = f"{sheet.task} on {tasks[0].source}."
    if len(records[0]) > 1:
        note += " Several figures are several seeds."
    if not any(known):
        note += " The paper has curves alone, no figures."
    table = Table(slug(f"{sheet.task}-{sheet.title}"), sheet.title, head, rows, note)
    chosen = {
        row.label: Chosen(row.label, 0, Cell(row.label, {}, runs), None)
        for row, runs in zip(sheet.rows, records, strict=True)
        if any(run.lines for run in runs)
    }
    pictures = _pictures(sheet, tasks[0], chosen)
    return Section(f"{sheet.task}: {sheet.title}", _why(sheet, tasks[0], length), [table], pictures)


def data_section(name: str, task: Task, published: Sequence[str]) -> Section:
    """Table 1 of FedSubAvg: the data as they were published, and as they are here."""
    people = task.train
    samples = people.examples + task.test.examples
    heat = people.heat(task.model)
    measured = (len(people), samples, samples / max(1, len(people)), heat.dispersion)
    labels = ("clients", "samples", "samples a client", "heat dispersion")
    rows = [
        [label, known, f"{value:,.0f}"]
        for label, known, value in zip(labels, published, measured, strict=True)
    ]
    title = "Table 1: the data"
    note = f"{name} on {task.source}. Dispersion: the most over the least clients that hold a row."
    table = Table(slug(f"{name}-{title}"), title, ["", "published", "measured"], rows, note)
    return Section(f"{name}: {title}", GENERATED if _generated(task) else "", [table])


def _why(sheet: Sheet, task: Task, length: tuple[int, int]) -> str:
    told = []
    if _generated(task):
        told.append(GENERATED)
    if length[0] < sheet.rounds:
        told.append(f"{length[0]:,} rounds, where {sheet.rounds:,} were published.")
    if ROUNDS in sheet.figures:
        told.append(f"Measured every {length[1]} rounds; a plus: not reached.")
    return " ".join(told)


def _generated(task: Task) -> bool:
    return task.source.startswith("generated")


def _pictures(sheet: Sheet, task: Task, chosen: Mapping[str, Chosen]) -> list[Picture]:
    target = task.target.metric if task.target else None
    figure = target if sheet.figures == (ROUNDS,) and target else sheet.figures[0]
    name = slug(f"{sheet.task}-{sheet.title}")
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


def differences(tasks: Iterable[Task]) -> list[str]:
    """What was found on the real data before: where figures differ from the published ones, and
    why."""
    told = []
    for task in tasks:
        told += [
            f"{task.name}, {'fedslice ' if key == ON else ''}{key}: {value}."
            for key, value in task.observed.items()
        ]
    return list(dict.fromkeys(told))


def slug(text: str) -> str:
    """A name for files.

    >>> slug("FedSubAvg, K = 10")
    'fedsubavg-k-10'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
