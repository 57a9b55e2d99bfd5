"""The commands that show what there is: ``algorithms``, ``tasks`` and ``data``."""

import argparse
from pathlib import Path
from typing import Any

from fedslice.cli.catalogue import ALGORITHMS, find_method
from fedslice.cli.printing import listing, print_json, say
from fedslice.cli.reference import page
from fedslice.cli.workloads import TASKS, find_task, obtain, present, sections, task_page
from fedslice.tasks.base import Workload
from fedslice.tasks.own import SUMMARIES
from fedslice.tasks.readers.files import data_home


def algorithms(options: argparse.Namespace) -> None:
    """List the algorithms, or show one."""
    if options.markdown:
        print(page(), end="")
    elif options.name:
        print(find_method(options.name).text(options.name))
        print("Settings that all share: fedslice run --help.")
    else:
        listing({name: method.page.summary for name, method in ALGORITHMS.items()})


def tasks(options: argparse.Namespace) -> None:
    """List the tasks, or show one: sizes, settings, published results, and what data are here."""
    if options.markdown:
        print(task_page(), end="")
        return
    if options.name is None:
        listing({name: workload.summary for name, workload in TASKS.items()})
        print("\nand for your own --data:")
        listing(SUMMARIES)
        return
    workload = find_task(options.name)
    parts = {**sections(workload), "data": _whereabouts(workload, options.data_dir or data_home())}
    if options.json:
        print_json({"name": workload.name, "summary": workload.summary, **parts})
        return
    print(f"{workload.name}: {workload.summary}")
    for title, cells in parts.items():
        width = max(map(len, cells))
        print(
            f"\n{title}\n" + "\n".join(f"  {key:<{width}}  {value}" for key, value in cells.items())
        )


def _whereabouts(workload: Workload, place: Path) -> dict[str, str]:
    scale = f", scale {workload.scale:g} unless you say --scale" if workload.scale != 1 else ""
    made = {"--synthetic": f"generated, nothing to download{scale}"}
    if workload.load is None:
        return made
    found = (
        ", ".join(present(workload, place))
        or f"nothing; fedslice data {workload.name} fetches or explains"
    )
    return {f"in {place}": found, "needed": workload.needs, **made}


def data(options: argparse.Namespace) -> None:
    """Fetch a task's data, or say where to get them."""
    workload = find_task(options.name)
    if workload.load is None:
        say(f"{workload.name} needs no data: it is generated")
        return
    place = obtain(workload, options.dir)
    print(f"{workload.name}: {', '.join(present(workload, place))} in {place}")
    where = f" --data-dir {place}" if options.dir else ""
    print(f"try: fedslice run {workload.name}{where}")


def add_to(commands: Any) -> None:
    """The subcommands ``tasks``, ``data`` and ``algorithms``."""
    names = commands.add_parser(
        "tasks", help="list the tasks, or show one: sizes, settings, published results, data found"
    )
    names.add_argument("name", nargs="?", metavar="NAME", help="the task to show")
    names.add_argument("--data-dir", type=Path, metavar="DIR", help="where to look for its data")
    names.add_argument("--json", action="store_true", help="what is shown, as one JSON object")
    names.add_argument("--markdown", action="store_true", help="all of them as one Markdown page")
    names.set_defaults(act=tasks)
    fetch = commands.add_parser(
        "data", help="fetch the data of a task, or say where they are to be had"
    )
    fetch.add_argument("name", metavar="NAME", help="the task")
    fetch.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where to (default: FEDSLICE_DATA, or the user's cache)",
    )
    fetch.set_defaults(act=data)
    methods = commands.add_parser(
        "algorithms", help="list the algorithms, or show one: equation, citation, settings"
    )
    methods.add_argument("name", nargs="?", metavar="NAME", help="the algorithm to show")
    methods.add_argument("--markdown", action="store_true", help="all of them as one Markdown page")
    methods.set_defaults(act=algorithms)
