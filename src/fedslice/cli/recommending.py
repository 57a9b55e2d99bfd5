"""The command ``recommend``: a new user's best items."""

import argparse
from pathlib import Path
from typing import Any

from fedslice.cli import recommend as recommender
from fedslice.cli import report
from fedslice.cli.printing import print_json


def recommend(options: argparse.Namespace) -> None:
    """A new user's best items."""
    model, ways = recommender.trained(options.model)
    given = {"steps": options.steps, "rate": options.rate}
    ways |= {name: value for name, value in given.items() if value is not None}
    ratings = recommender.read_ratings(options.user)
    found = recommender.recommend(model, ratings, top=options.top, fewest=options.fewest, **ways)
    if options.json:
        for each in found:
            print_json(each._asdict())
        return
    cells = [
        [str(place), f"{each.score:.2f}", each.name, f"{each.heat:,}"]
        for place, each in enumerate(found, 1)
    ]
    print(report.text_table(["", "score", "item", "clients"], cells))


def add_to(commands: Any) -> None:
    """The subcommand ``recommend``."""
    parser = commands.add_parser(
        "recommend", help="a new user's best items, from a few ratings and a trained movielens-mf"
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="the --out folder of the run"
    )
    parser.add_argument(
        "--user", type=Path, required=True, metavar="CSV", help="the user's ratings: title,rating"
    )
    parser.add_argument("--top", type=int, default=10, help="how many (default: 10)")
    parser.add_argument(
        "--steps", type=int, help="of reconstruction (default: the most of the training)"
    )
    parser.add_argument(
        "--rate", type=float, help="of reconstruction (default: that of the training)"
    )
    parser.add_argument(
        "--fewest", type=int, default=10, help="leave out items of fewer clients (default: 10)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object an item on standard output"
    )
    parser.set_defaults(act=recommend)
