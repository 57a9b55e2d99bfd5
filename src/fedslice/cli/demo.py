"""The command ``demo``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedslice.cli import report, study
from fedslice.cli.catalogue import settings_for
from fedslice.cli.compare import can_draw, show
from fedslice.cli.experiment import Experiment
from fedslice.cli.printing import say
from fedslice.cli.scorer import Scorer
from fedslice.cli.workloads import TASKS
from fedslice.report import figures
from fedslice.report.sections import heat_table


def demo(options: argparse.Namespace) -> None:
    """FedAvg and FedSubAvg side by side."""
    say(
        "MovieLens-like ratings, a quarter of the real size: every client holds a few of the rows"
        " of one weight table."
    )
    drawn = can_draw()
    task = TASKS["movielens-lr"].synthetic(scale=0.25)
    heat = task.train.heat(task.model)
    print(report.text_histogram(heat))
    print(
        f"heat dispersion {heat.dispersion:,.0f}: the hottest row has so many times the clients of"
        " the coldest\n"
    )
    groups: study.Groups = {}
    measured = {}
    scorer = Scorer(task)
    for name in ("fedavg", "fedsubavg"):
        settings, visible = settings_for(task, name, []), sys.stderr.isatty()
        run = Experiment(
            task, name, settings, 200, 0, 10, None, scorer, progress=visible, stop=options.stop
        )
        live = run.start()
        run.execute(live)
        groups[name], measured[name] = [run], scorer.details(live)
    options.out.mkdir(parents=True, exist_ok=True)
    show(groups, options.out, task, sys.stdout, drawn)
    table = heat_table({name: [each["by_heat"]] for name, each in measured.items()})
    print(f"\nDo cold rows learn?\n{table.text()}")
    picture = figures.by_heat({name: [each["by_heat_fine"]] for name, each in measured.items()})
    if drawn and picture is not None:
        print(f"\npicture: {picture.save(options.out, 'png')}")


def add_to(commands: Any) -> None:
    """The subcommand ``demo``."""
    parser = commands.add_parser(
        "demo", help="FedAvg and FedSubAvg side by side on embedded data, in a minute"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)"
    )
    parser.set_defaults(act=demo)
