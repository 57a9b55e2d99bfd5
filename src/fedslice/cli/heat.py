"""The command ``heat``: how many clients hold each row."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedslice.cli import own, report
from fedslice.cli.arguments import task_arguments
from fedslice.cli.printing import print_json
from fedslice.cli.wanted import task_of
from fedslice.cli.workloads import TASKS


def heat(options: argparse.Namespace) -> None:
    """Heat of a task or a file."""
    if options.png:
        report.check_picture(options.png)
    if options.task not in TASKS and Path(options.task).suffix:
        options.data, options.task = Path(options.task), "lr"
    task = own.heat_of(options) if own.wanted(options) else task_of(options)
    heat, figures = task.train.heat(task.model), task.train.summary(task.model)
    if options.json:
        edges, rows = heat.histogram()
        print_json({**figures, "histogram": {"edges": edges.tolist(), "rows": rows.tolist()}})
    else:
        print(report.text_histogram(heat) + "\n")
        meaning = {
            "sparsity": (
                "sparsity: mean share of the clients that hold a parameter (larger is denser)"
            )
        }
        cells = [
            [meaning.get(key, key), f"{value:,.4g}" if value < 1 else f"{value:,.0f}"]
            for key, value in figures.items()
        ]
        print(report.text_table(["", ""], cells))
    if options.png:
        print(f"picture: {report.heat_picture(heat, options.png, task.name)}", file=sys.stderr)


def add_to(commands: Any) -> None:
    """The subcommand ``heat``."""
    parser = commands.add_parser(
        "heat", help="how many clients hold each row of a task or file: histogram and figures"
    )
    task_arguments(parser)
    parser.add_argument("--png", type=Path, help="write the histogram as a picture too")
    parser.add_argument(
        "--json", action="store_true", help="figures as one JSON object on standard output"
    )
    parser.set_defaults(act=heat)
