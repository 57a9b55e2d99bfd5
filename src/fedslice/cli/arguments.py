"""Arguments that several commands share: the task, its data, the training."""

from pathlib import Path

from fedslice.cli import own
from fedslice.cli.helpful import Parser, columns, table, wrapped
from fedslice.cli.settings import COMMON, explained
from fedslice.cli.workloads import TASKS
from fedslice.models.own import NAMES


def task_arguments(parser: Parser) -> None:
    """A task by name, and where its data come from."""
    known = ", ".join(TASKS)
    parser.add_argument(
        "task",
        metavar="TASK",
        help=f"{known}; or, with --data, a model for your own file: {', '.join(NAMES)}",
    )
    source_arguments(parser)


def source_arguments(parser: Parser) -> None:
    """Where the data come from."""
    group = parser.add_argument_group("data")
    source = group.add_mutually_exclusive_group()
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
        "--data",
        type=Path,
        metavar="FILE",
        help=f"your own file, or a folder of Parquet files, for {', '.join(NAMES)}: CSV, JSONL,"
        " Parquet",
    )
    group.add_argument(
        "--scale",
        type=float,
        help="size of the generated data; 1 is the published one (default: the task's)",
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "an option of the task, such as split=time for movielens-mf, as often as needed; see"
            " fedslice tasks NAME"
        ),
    )
    own.add_arguments(parser)


def training_arguments(parser: Parser) -> None:
    """How to train, for how long, and what to keep."""
    _training(parser)
    _keeping(parser)
    parser.notes = _settings()


def _settings() -> str:
    """The settings that algorithms share, with their defaults."""
    usual = {key: f" (default: {_written(default)})" for key, (default, _) in COMMON.items()}
    meanings = {key: meaning + usual.get(key, "") for key, meaning in explained().items()}
    closing = (
        "A task's published settings come before these defaults: fedslice tasks NAME shows them."
        " fedslice algorithms NAME shows the settings of one algorithm. Where several are compared,"
        " ALGORITHM:KEY=VALUE sets it for one of them. settings.json of the run folder has what was"
        " used."
    )
    return "\n".join([table("settings for --set:", meanings), "", *wrapped(closing, columns())])


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _training(parser: Parser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, as often as needed; see below",
    )
    group.add_argument("--rounds", type=int, default=200, help="rounds in all (default: 200)")
    group.add_argument(
        "--eval-every",
        type=int,
        default=10,
        metavar="E",
        help="measure every E rounds (default: 10)",
    )
    group.add_argument(
        "--validation",
        type=own.part,
        default=0.0,
        metavar="SHARE",
        help=(
            "hold out this share of the training data to choose settings on, as the test set is:"
            " clients, or each client's latest examples, or any (default: study 0.1, else none)"
        ),
    )
    group.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="P",
        help=(
            "stop after P evaluations without a better validation loss (default: go on to the last"
            " round); with --validation, best/ of the run folder has the best model"
        ),
    )


def _keeping(parser: Parser) -> None:
    group = parser.add_argument_group("what is kept and shown")
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder; an unfinished run in it goes on"
    )
    group.add_argument(
        "--store",
        default="ram",
        metavar="DIR",
        help=(
            "keep tables and clients' memory in memory-mapped files below this folder, if they are"
            " larger than memory (default: ram)"
        ),
    )
    group.add_argument(
        "--json", action="store_true", help="one JSON object a line on standard output"
    )
    group.add_argument(
        "--devices",
        type=Path,
        metavar="TOML",
        help=(
            "devices whose time is estimated: bandwidths, speed, spreads, stragglers (default: the"
            " Field Guide's constants)"
        ),
    )
