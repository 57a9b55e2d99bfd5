"""``fedslice deploy predict`` and ``fedslice deploy recommend``: a node uses its own model.

All of it happens in the node's folder: the rows that the server published, its own examples, and
what is its own of the model.  Nobody is asked.
"""

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedslice.cli.deployment import app
from fedslice.cli.printing import say
from fedslice.deploy import Node, flower
from fedslice.deploy.served import Served
from fedslice.errors import InputError
from fedslice.metrics import Metric

ITEMS, USER, FIELD = "item", "user", "movie"


def predict(options: argparse.Namespace) -> None:
    """The node's model on its own examples: all figures, and by example in a file."""
    node = node_of(options.folder, options.node)
    mine = node.model()
    columns = {name: np.asarray(node.data.columns[name]) for name in node.program.columns}
    found = mine.measure(**columns)
    words = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    print(f"{node.data.examples:,} examples of its own: {words}")
    if options.out is not None:
        # of other metrics an example has no figure of its own, only a part in that of all
        plain = [name for name, f in mine.model.metrics.items() if not isinstance(f, Metric)]
        figures = mine.figures(**columns)
        write(options.out, {name: figures[name] for name in ("loss", *plain)})
        say(f"by example: {options.out}")


def recommend(options: argparse.Namespace) -> None:
    """The items of which the node has no example, best first."""
    node = node_of(options.folder, options.node)
    seen = np.asarray(node.data.columns.get(FIELD, np.zeros(0, np.int64)))
    for place, (item, score) in enumerate(best(node.model(), seen, options.top), start=1):
        print(f"{place:>3}  {score:5.2f}  {item}")


def best(mine: Served, seen: np.ndarray, top: int) -> list[tuple[int, float]]:
    """The ``top`` items by u . q_m, with their scores, but for those that were ``seen``.

    >>> params = {"user": np.array([1.0, 0]), "item": np.array([[2.0, 0], [3, 0], [1, 1]])}
    >>> best(Served(None, params, {"item": np.array([4, 7, 9])}), np.array([7]), top=1)
    [(4, 2.0)]
    """
    if top < 1:
        raise InputError(f"--top {top}: give 1 or more")
    if USER not in mine.params or ITEMS not in mine.params or mine.params[ITEMS].ndim != 2:
        raise InputError(
            "this model has no vector of the user and table 'item' of vectors: recommend is for"
            " movielens-mf; fedslice deploy predict is for all models"
        )
    ids = mine.ids[ITEMS]
    scores = np.asarray(mine.params[ITEMS]) @ np.asarray(mine.params[USER])
    left = ~np.isin(ids, seen)
    if not left.any():
        raise InputError(
            "this node was sent the rows of its own items alone: train with publish=all, fedslice"
            " deploy init --publish all, to have those of everybody"
        )
    order = np.argsort(np.where(left, -scores, np.inf), kind="stable")[: min(top, left.sum())]
    return [(int(ids[place]), float(scores[place])) for place in order]


def node_of(folder: Path, place: Path) -> Node:
    """The node with this folder, of an app."""
    method = app.method_of(folder)
    return flower.node({"folder": str(place)}, method.algorithm)


def write(file: Path, figures: Mapping[str, np.ndarray]) -> None:
    """One line an example."""
    with file.open("w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(figures)
        lines.writerows(zip(*(values.tolist() for values in figures.values()), strict=True))
