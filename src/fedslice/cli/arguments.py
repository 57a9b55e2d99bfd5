"""What can be said on the command line, with its help."""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from fedslice.cli import attack, commands, example, privacy, reproduce, results
from fedslice.cli.catalogue import ALGORITHMS
from fedslice.cli.deployment import arguments as deployment
from fedslice.cli.settings import explained
from fedslice.cli.workloads import TASKS

Commands: TypeAlias = Any  # argparse has no public name for the place where commands are added


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    parser = argparse.ArgumentParser(
        prog="fedslice",
        description="Federated optimisation where every client trains only its slice of the model.",
    )
    parser.add_argument("--version", action="version", version=f"fedslice {version('fedslice')}")
    sub = parser.add_subparsers(required=True, metavar="COMMAND")
    _training(sub)
    _looking(sub)
    _afterwards(sub)
    deployment.add_to(sub, _source_arguments)
    return parser


def _training(sub: Commands) -> None:
    demo = sub.add_parser(
        "demo", help="FedAvg and FedSubAvg side by side on embedded data, in a minute"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)"
    )
    demo.set_defaults(act=commands.demo)

    run = sub.add_parser("run", help="train one algorithm on a task or on your own file")
    _task_arguments(run)
    run.add_argument(
        "--algorithm",
        help=f"one of {', '.join(ALGORITHMS)} (default: the task's, mostly fedsubavg)",
    )
    run.add_argument(
        "--seed", type=int, default=0, help="of sampling, batches and initial values (default: 0)"
    )
    run.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="KIND",
        help=(
            "also write figures for tensorboard, mlflow or wandb (offline), in or beside the run"
            " folder; needs that package, pip install 'fedslice[track]'"
        ),
    )
    _training_arguments(run)
    run.add_argument(
        "--ray",
        metavar="ADDRESS",
        help=(
            "train on a Ray cluster: auto (the one of this machine, or one that is started here),"
            " or HOST:PORT of its head; see docs/how-to/cluster.md"
        ),
    )
    run.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="processes that train, with --ray (default: one for each core of the cluster)",
    )
    run.set_defaults(act=commands.run_task)

    compare = sub.add_parser(
        "compare", help="several algorithms, several seeds, the same clients: table and picture"
    )
    _task_arguments(compare)
    compare.add_argument(
        "algorithms", nargs="+", metavar="ALGORITHM", help=f"of {', '.join(ALGORITHMS)}"
    )
    compare.add_argument(
        "--seeds", default="1", help="how many, or a list such as 3,7,11 (default: 1)"
    )
    _training_arguments(compare)
    compare.set_defaults(act=commands.compare)
    results.add_to(sub, _task_arguments, _training_arguments)
    reproduce.add_to(sub, results.add_files)


def _looking(sub: Commands) -> None:
    heat = sub.add_parser(
        "heat", help="how many clients hold each row of a task or file: histogram and figures"
    )
    _task_arguments(heat)
    heat.add_argument("--png", type=Path, help="write the histogram as a picture too")
    heat.add_argument(
        "--json", action="store_true", help="figures as one JSON object on standard output"
    )
    heat.set_defaults(act=commands.heat)

    names = sub.add_parser(
        "tasks", help="list the tasks, or show one: sizes, settings, published results, data found"
    )
    names.add_argument("name", nargs="?", metavar="NAME", help="the task to show")
    names.add_argument("--data-dir", type=Path, metavar="DIR", help="where to look for its data")
    names.add_argument("--json", action="store_true", help="what is shown, as one JSON object")
    names.add_argument("--markdown", action="store_true", help="all of them as one Markdown page")
    names.set_defaults(act=commands.tasks)
    fetch = sub.add_parser("data", help="fetch the data of a task, or say where they are to be had")
    fetch.add_argument("name", metavar="NAME", help="the task")
    fetch.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where to (default: FEDSLICE_DATA, or the user's cache)",
    )
    fetch.set_defaults(act=commands.data)
    methods = sub.add_parser(
        "algorithms", help="list the algorithms, or show one: equation, citation, settings"
    )
    methods.add_argument("name", nargs="?", metavar="NAME", help="the algorithm to show")
    methods.add_argument("--markdown", action="store_true", help="all of them as one Markdown page")
    methods.set_defaults(act=commands.algorithms)

    below = privacy.add_to(sub).add_subparsers(title="a demonstration", metavar="attack")
    attack.add_to(below)
    example.add_to(sub)


def _afterwards(sub: Commands) -> None:
    suggest = sub.add_parser(
        "recommend", help="a new user's best items, from a few ratings and a trained movielens-mf"
    )
    suggest.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="the --out folder of the run"
    )
    suggest.add_argument(
        "--user", type=Path, required=True, metavar="CSV", help="the user's ratings: title,rating"
    )
    suggest.add_argument("--top", type=int, default=10, help="how many (default: 10)")
    suggest.add_argument(
        "--steps", type=int, help="of reconstruction (default: the most of the training)"
    )
    suggest.add_argument(
        "--rate", type=float, help="of reconstruction (default: that of the training)"
    )
    suggest.add_argument(
        "--fewest", type=int, default=10, help="leave out items of fewer clients (default: 10)"
    )
    suggest.add_argument(
        "--json", action="store_true", help="one JSON object an item on standard output"
    )
    suggest.set_defaults(act=commands.recommend)

    out = sub.add_parser("export", help="the trained tables of a run, with your names for the rows")
    out.add_argument("run", type=Path, help="the --out folder of a run")
    out.add_argument(
        "file",
        type=Path,
        help="to write: .npz, .safetensors or .parquet (with NAME.dense.parquet beside it)",
    )
    out.set_defaults(act=commands.export_run)


def _task_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(TASKS)
    parser.add_argument(
        "task", metavar="TASK", help=f"{known}; or lr with --data; heat also takes a file here"
    )
    _source_arguments(parser)


def _source_arguments(parser: argparse.ArgumentParser) -> None:
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


def _training_arguments(parser: argparse.ArgumentParser) -> None:
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
