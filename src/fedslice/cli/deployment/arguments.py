"""The arguments of ``fedslice deploy``."""

from pathlib import Path
from typing import Any

from fedslice.cli.arguments import source_arguments
from fedslice.cli.deployment import commands as deployment


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
        parser.add_argument(
            "--task",
            help=f"as for fedslice run (default: {deployment.TASK} on generated data)",
        )
        parser.add_argument("--algorithm", help="as for fedslice run (default: the task's)")
        parser.add_argument("--nodes", type=int, help="clients that become nodes (default: 4)")
        parser.add_argument("--rounds", type=int, help="rounds in all (default: 3)")
        parser.add_argument("--seed", type=int, help="of the run (default: 0)")
        parser.add_argument(
            "--deadline",
            type=float,
            help=f"seconds that nodes have for an answer (default: {deployment.DEADLINE:g})",
        )
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="change a setting, as often as needed; see fedslice run --help",
        )
        source_arguments(parser)
