"""Arguments that several commands share: the task, its data, the training."""

import argparse
from pathlib import Path

from fedslice.cli.settings import explained
from fedslice.cli.workloads import TASKS


def task_arguments(parser: argparse.ArgumentParser) -> None:
    """A task by name, and where its data come from."""
    known = ", ".join(TASKS)
    parser.add_argument(
        "task", metavar="TASK", help=f"{known}; or lr with --data; heat also takes a file here"
    )
    source_arguments(parser)


def source_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the data come from."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--synthetic", action="store_true", help="generated data of the published size: no download"
    )
    source.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder (or zip) with the task's official files",
    )
    source.add_argument(
        "--data", type=Path, metavar="FILE", help="your own CSV or Parquet file, for the task lr"
    )
    parser.add_argument(
        "--scale",
        type=float,
        help="size of the generated data; 1 is the published one (default: the task's)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "an option of the task, such as split=time for movielens-mf, as often as needed; see"
            " fedslice tasks NAME"
        ),
    )
    parser.add_argument("--client", help="column of --data that names the client")
    parser.add_argument("--label", help="column of --data to predict, 0 or 1")
    parser.add_argument(
        "--features", help="columns of --data, separated by commas, whose values have weights"
    )
    parser.add_argument(
        "--text",
        default="",
        help="those of them that are names, though they look like fractions or dates",
    )


def training_arguments(parser: argparse.ArgumentParser) -> None:
    """How to train, for how long, and what to keep."""
    settings = "\n".join(f"  {key:<18} {meaning}" for key, meaning in explained().items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "settings for --set (defaults: as published, where fedslice tasks NAME shows them, else"
        f" those of fedslice algorithms NAME; settings.json has what was used):\n{settings}\n\nand"
        " those of the algorithm: fedslice algorithms NAME. ALGORITHM:KEY=VALUE sets it for one of"
        " those compared"
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        metavar="SHARE",
        help=(
            "hold out this share of the training data to choose settings on, as the test set is:"
            " clients, or each client's latest examples, or any (default: study 0.1, else none)"
        ),
    )
    parser.add_argument(
        "--devices",
        type=Path,
        metavar="TOML",
        help=(
            "devices whose time is estimated: bandwidths, speed, spreads, stragglers (default: the"
            " Field Guide's constants)"
        ),
    )
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="P",
        help=(
            "stop after P evaluations without a better validation loss, and keep the best model in"
            " best/ of the run folder (default: go on to the last round)"
        ),
    )
    parser.add_argument("--rounds", type=int, default=200, help="rounds in all (default: 200)")
    parser.add_argument(
        "--eval-every",
        type=int,
        default=10,
        metavar="E",
        help="measure every E rounds (default: 10)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder; an unfinished run in it goes on"
    )
    parser.add_argument(
        "--store",
        default="ram",
        metavar="DIR",
        help=(
            "keep tables and clients' memory in memory-mapped files below this folder, if they are"
            " larger than memory (default: ram)"
        ),
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, as often as needed; see below",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line on standard output"
    )
