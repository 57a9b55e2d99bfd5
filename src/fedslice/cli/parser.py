"""All that can be said on the command line."""

import argparse
from importlib.metadata import version

from fedslice.cli import (
    attack,
    compare,
    demo,
    example,
    exporting,
    heat,
    listings,
    privacy,
    recommending,
    reproduce,
    results,
    train,
)
from fedslice.cli.deployment import arguments as deployment


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    parser = argparse.ArgumentParser(
        prog="fedslice",
        description="Federated optimisation where every client trains only its slice of the model.",
    )
    parser.add_argument("--version", action="version", version=f"fedslice {version('fedslice')}")
    sub = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in (demo, train, compare, results, reproduce, heat, listings):
        each.add_to(sub)
    below = privacy.add_to(sub).add_subparsers(title="a demonstration", metavar="attack")
    attack.add_to(below)
    for each in (example, recommending, exporting, deployment):
        each.add_to(sub)
    return parser
