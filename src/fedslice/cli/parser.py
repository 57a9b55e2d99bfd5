"""All that can be said on the command line."""

from importlib.metadata import version

from fedslice.cli import (
    attack,
    compare,
    completion,
    demo,
    example,
    heat,
    listings,
    predict,
    privacy,
    recommending,
    reproduce,
    results,
    train,
)
from fedslice.cli.deployment import arguments as deployment
from fedslice.cli.formats import command as exporting
from fedslice.cli.help_examples import EXAMPLES
from fedslice.cli.helpful import Parser, walk


def parser() -> Parser:
    """The arguments of all commands.

    >>> parser().parse_args(["heat", "movielens-lr", "--synthetic"]).synthetic
    True
    """
    parser = Parser(
        prog="fedslice",
        description="Federated optimisation where every client trains only its slice of the model.",
    )
    parser.add_argument("--version", action="version", version=f"fedslice {version('fedslice')}")
    sub = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in (demo, train, compare, results, reproduce, heat, listings):
        each.add_to(sub)
    below = privacy.add_to(sub).add_subparsers(title="a demonstration", metavar="attack")
    attack.add_to(below)
    for each in (example, predict, recommending, exporting, deployment, completion):
        each.add_to(sub)
    for path, one in walk(parser):
        one.examples = EXAMPLES.get(path, [])
        if path == "completion":
            one.set_defaults(whole=parser)
    return parser
