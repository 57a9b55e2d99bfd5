"""The commands ``study`` and ``report``: many runs, and one page about them."""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedslice.cli import grid, tuning
from fedslice.cli.arguments import task_arguments, training_arguments
from fedslice.cli.catalogue import find_method
from fedslice.cli.checks import check_algorithms, check_study
from fedslice.cli.folder import Line
from fedslice.cli.printing import say
from fedslice.cli.repeat import command
from fedslice.cli.text import change_of
from fedslice.cli.wanted import devices_of, free_folder, seeds_of, task_of, validated
from fedslice.compose import check_sampler
from fedslice.errors import InputError, MissingDataError, nearest
from fedslice.report import page
from fedslice.report.content import content
from fedslice.report.picture import KINDS
from fedslice.report.records import Record, find

SHARE = 0.1  # of the training data, to choose settings on
# what a study's file may say beside [grid] and [set]: as the flags of the same names
KEYS = {
    "task": str,
    "algorithms": list,
    "synthetic": bool,
    "data_dir": str,
    "scale": float,
    "option": list,
    "rounds": int,
    "eval_every": int,
    "seeds": (int, list),
    "validation": float,
    "out": str,
    "select": str,
    "extend": bool,
    "jobs": int,
}


def study(options: argparse.Namespace) -> None:
    """Run a grid, choose on validation, report on test."""
    axes = [grid.axis(text) for text in options.grid]
    if Path(options.task).suffix == ".toml":
        axes += _read(options)
    if not options.algorithms:
        raise InputError("name the algorithms to compare: fedslice study TASK fedavg fedsubavg")
    check_algorithms(options.algorithms)
    check_study(options, axes)
    task = validated(task_of(options), options)
    out = options.out = options.out or free_folder(Path("runs"), f"{task.name}-study")
    plan = tuning.Plan(
        task,
        options.algorithms,
        seeds_of(options.seeds),
        options.set,
        axes,
        options.rounds,
        options.eval_every,
        out,
        options.extend,
        options.select,
        options.patience,
        devices_of(options),
    )
    cells = grid.cells(task, plan.algorithms, plan.changes, axes)
    for cell in cells:  # what cannot work is refused before anything is trained
        method = find_method(cell.algorithm)
        check_sampler(method.build(task, cell.settings), method.sampler(cell.settings, task))
    say(
        f"{task.name} on {task.source}: {len(cells)} cells x {len(plan.seeds)} seeds ="
        f" {len(cells) * len(plan.seeds)} runs of {plan.rounds} rounds, in {out}"
    )
    jobs = tuning.jobs_of(options.jobs)
    records = tuning.run(
        plan, options.stop, say, jobs, lambda cell, seed: _command(options, cell, seed)
    )
    _write(records, options.select, out / "report.html", options.files, options.formats)


def report(options: argparse.Namespace) -> None:
    """One page about finished runs."""
    records = find(options.runs)
    _write(records, options.select, options.out, options.files, options.formats)


def _write(
    records: Sequence[Record], figure: str | None, file: Path, folder: Path | None, kinds: list[str]
) -> None:
    found = content(records, figure)
    print(f"\n{found.sections[0].tables[0].text()}\n")
    for line in found.findings:
        print(line)
    for line in found.warnings:
        print(f"note: {line}")
    write_report(found, file, folder, kinds)


def write_report(found: page.Report, file: Path, folder: Path | None, kinds: list[str]) -> None:
    """The page, and its parts as files where they are asked for."""
    page.write(found, file)
    print(f"\nreport: {file}")
    if folder is not None:
        parts = page.write_parts(found, folder, kinds)
        print(f"tables and pictures: {len(parts)} files in {folder}")


def _command(options: argparse.Namespace, cell: grid.Cell, seed: int) -> Line:
    """The command that repeats one cell."""
    changes = [change_of(text) for text in options.set]
    usable = [f"{k}={v}" for name, k, v in changes if not name and k in cell.settings.values]
    named = [f"{key}={value}" for name, key, value in changes if name == cell.algorithm]
    given = [f"{key}={value}" for key, value in cell.given.items()]
    times = options.rounds, options.eval_every
    return command(options, cell.algorithm, seed, *times, [*usable, *named, *given])


# -- a study in a file -----------------------------------------------------------------------------


def _read(options: argparse.Namespace) -> list[grid.Axis]:
    """Fill ``options`` from the study's TOML file, for what the command line does not say; its
    axes."""
    file = Path(options.task)
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is no TOML file: {error}") from error
    axes = grid.of_table(_table(file, given, "grid"))
    options.set = [*_changes(_table(file, given, "set")), *options.set]
    for key, value in given.items():
        kind: Any = KEYS.get(key)
        if kind is None:
            raise InputError(f"{file}: {key}: {nearest(key, [*KEYS, 'grid', 'set'])}")
        if isinstance(value, int) and kind is float:
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{file}: {key} = {value!r} is of the wrong kind")
        if key != "task" and getattr(options, key) != options.usual[key]:
            continue  # the command line has the last word
        setattr(options, key, _option(key, value))
    if "task" not in given:
        raise InputError(f'{file}: name the task, task = "movielens-lr"')
    return axes


def _option(key: str, value: Any) -> Any:
    if key in ("out", "data_dir"):
        return Path(value)
    if key == "seeds":
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return value


def _table(file: Path, given: dict[str, Any], name: str) -> Mapping[str, Any]:
    found = given.pop(name, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{file}: {name} is a table: write [{name}] above its lines")
    return found


def _changes(table: Mapping[str, Any]) -> list[str]:
    """``--set`` from TOML; ``[set.fedprox]`` is for one algorithm."""
    found = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found += [f"{key}:{change}" for change in _changes(value)]
        else:
            found.append(
                f"{key}={('yes' if value else 'no') if isinstance(value, bool) else value}"
            )
    return found


def add_to(sub: Any) -> None:
    """The arguments of both."""
    trial = sub.add_parser(
        "study", help="a grid of settings, seeds and algorithms: chosen on validation, one report"
    )
    task_arguments(trial)
    trial.add_argument(
        "algorithms", nargs="*", metavar="ALGORITHM", help="as many as you like to compare"
    )
    trial.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help=(
            "values of a setting to try, jointly with those of other --grid; ALGORITHM:KEY=... for"
            " one of them"
        ),
    )
    trial.add_argument("--seeds", default="2", help="how many, or a list such as 3,7 (default: 2)")
    trial.add_argument(
        "--extend",
        action="store_true",
        help="where the best value is the grid's first or last, try the next one, too",
    )
    trial.add_argument(
        "--select",
        metavar="FIGURE",
        help="what cells are chosen by (default: validation_loss, else train_loss)",
    )
    trial.add_argument(
        "--jobs", type=int, default=0, help="cells side by side (default: one a core)"
    )
    training_arguments(trial)
    add_files(trial)
    trial.set_defaults(act=study, validation=SHARE)
    trial.set_defaults(usual={key: trial.get_default(key) for key in KEYS} | {"algorithms": []})

    show = sub.add_parser("report", help="one page about finished runs: curves, tables, choices")
    show.add_argument("runs", nargs="+", type=Path, help="folders with runs in or below them")
    show.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), help="(default: report.html)"
    )
    add_files(show)
    show.add_argument(
        "--select", metavar="FIGURE", help="what cells are chosen by (default: validation_loss)"
    )
    show.set_defaults(act=report)


def add_files(parser: argparse.ArgumentParser) -> None:
    """The arguments for parts of a report as files."""
    parser.add_argument(
        "--files",
        type=Path,
        metavar="DIR",
        help="also every table (text, CSV, LaTeX) and every picture, as files for a paper",
    )
    parser.add_argument(
        "--formats",
        type=lambda text: [kind.strip() for kind in text.split(",") if kind.strip()],
        default=list(KINDS),
        help=f"of those pictures (default: {','.join(KINDS)})",
    )
