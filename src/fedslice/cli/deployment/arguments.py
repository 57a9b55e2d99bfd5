"""The arguments of ``fedslice deploy``."""

import argparse
from pathlib import Path
from typing import Any

from fedslice.cli.arguments import source_arguments
from fedslice.cli.deployment import commands as deployment
from fedslice.cli.deployment import draft, serving


def add_to(commands: Any) -> None:
    """The subcommand ``deploy``."""
    deploy = commands.add_parser(
        "deploy", help="the same algorithm over nodes that keep their data, with Flower"
    )
    below = deploy.add_subparsers(required=True, metavar="COMMAND")
    init = below.add_parser("init", help="write a Flower app for a task, ready to run")
    init.add_argument("folder", type=Path, metavar="DIR", help="where to; must be new")
    init.set_defaults(act=deployment.init)
    local = below.add_parser(
        "local", help="train over SuperNodes on this machine, and compare with the simulation"
    )
    local.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="an app, which goes on where it was; or where to write one (default: in runs)",
    )
    local.add_argument(
        "--tls", action="store_true", help="encrypted, and with a registered key for each node"
    )
    local.set_defaults(act=deployment.local)
    for parser in (init, local):
        _app_arguments(parser)
        source_arguments(parser)
    _node_commands(below)


def _app_arguments(parser: argparse.ArgumentParser) -> None:
    """What an app is made with."""
    parser.add_argument(
        "--task", help=f"as for fedslice run (default: {draft.TASK} on generated data)"
    )
    parser.add_argument("--algorithm", help="as for fedslice run (default: the task's)")
    parser.add_argument("--nodes", type=int, help="clients that become nodes (default: 4)")
    parser.add_argument("--rounds", type=int, help="rounds in all (default: 3)")
    parser.add_argument("--seed", type=int, help="of the run (default: 0)")
    parser.add_argument(
        "--deadline",
        type=float,
        help=f"seconds that nodes have for an answer (default: {draft.DEADLINE:g})",
    )
    parser.add_argument(
        "--publish",
        choices=("no", "held", "all"),
        help=(
            "send nodes the trained model: not at all, the rows that each holds, or those of"
            " everybody (default: held where nodes have something of their own, else no)"
        ),
    )
    parser.add_argument(
        "--trial",
        action="store_true",
        help="draw all noise from the seed, to compare it with a simulation: it hides nothing",
    )
    parser.add_argument(
        "--vocabulary",
        type=Path,
        metavar="CSV",
        help=(
            "the values that features may have, agreed beforehand; nodes bring files of their own,"
            " which fedslice deploy data reads (with --client, --label, --features)"
        ),
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, as often as needed; see fedslice run --help",
    )


def _node_commands(below: Any) -> None:
    """What the owner of a node does, on its machine."""
    data = below.add_parser("data", help="on a node: write its own file into its folder")
    predict = below.add_parser("predict", help="on a node: its own model on its own examples")
    recommend = below.add_parser("recommend", help="on a node: the best items that it has not seen")
    for parser in (data, predict, recommend):
        parser.add_argument("folder", type=Path, metavar="APP", help="the folder of the app")
    data.add_argument("file", type=Path, metavar="FILE", help="the node's own CSV or Parquet file")
    for parser in (data, predict, recommend):
        parser.add_argument("node", type=Path, metavar="NODE", help="the node's folder")
    data.add_argument(
        "--number", type=int, help="of the node, each its own (default: the folder's name)"
    )
    data.add_argument("--only", metavar="CLIENT", help="of a file with several clients this one")
    predict.add_argument("--out", type=Path, metavar="CSV", help="figures of each example")
    recommend.add_argument("--top", type=int, default=10, help="how many (default: 10)")
    data.set_defaults(act=deployment.data)
    predict.set_defaults(act=serving.predict)
    recommend.set_defaults(act=serving.recommend)
