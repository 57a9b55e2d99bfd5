"""Small files to try the command line on: a click log with its own names, and a user's ratings of
generated films."""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.files.writing import replacing

CLICKS, RATINGS = "clicks.parquet", "me.csv"
STARS = {"Movie 188": 5, "Movie 275": 4.5, "Movie 365": 4, "Movie 111": 2, "Movie 16": 1}
_USERS, _ITEMS, _KINDS, _SHOWN = 200, 400, 8, 30  # shown: items each user saw, on average


def clicks(seed: int = 0) -> dict[str, np.ndarray]:
    """A click log in columns: user, item, category, and whether the user clicked.

    A user sees popular items more often (rank^-0.8) and clicks on those of two favourite categories
    three times as often as on others, 60 % against 20 %; some items are better than others.

    >>> log = clicks()
    >>> sorted(log), str(log["item"][0]).startswith("item-")
    (['category', 'clicked', 'item', 'user'], True)
    """
    rng = np.random.default_rng(seed)
    counts = 1 + rng.poisson(_SHOWN - 1, _USERS)
    user = np.repeat(np.arange(_USERS), counts)
    fame = np.arange(1, _ITEMS + 1) ** -0.8
    item = rng.choice(_ITEMS, len(user), p=fame / fame.sum())
    kind = rng.integers(_KINDS, size=_ITEMS)
    liked = np.argsort(rng.random((_USERS, _KINDS)))[:, :2]
    chance = (
        np.where((liked[user] == kind[item][:, None]).any(1), 0.6, 0.2)
        + rng.uniform(-0.15, 0.15, _ITEMS)[item]
    )
    names = np.array([f"category-{number}" for number in range(_KINDS)])
    return {
        "user": np.char.add("user-", user.astype(str)),
        "item": np.char.add("item-", item.astype(str)),
        "category": names[kind[item]],
        "clicked": (rng.random(len(user)) < chance).astype(np.int8),
    }


def write(folder: Path) -> list[Path]:
    """Write both files into the folder; a file that is there is left alone, with an error."""
    files = [folder / CLICKS, folder / RATINGS]
    if there := [str(file) for file in files if file.exists()]:
        raise InputError(
            f"{' and '.join(there)} is there already: give another folder, as in fedslice example"
            " try-it"
        )
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("the examples need pyarrow: pip install 'fedslice[data]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(files[0]) as temporary:
        parquet.write_table(pyarrow.table(clicks()), temporary)
    with (
        replacing(files[1]) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as sink,
    ):
        csv.writer(sink).writerows([("title", "rating"), *STARS.items()])
    return files


def command(options: argparse.Namespace) -> None:
    """Write the files and say what they are for."""
    log, ratings = write(options.folder)
    print(
        f"written: {log}, a click log; try: fedslice heat {log} --client user --features"
        " item,category"
    )
    print(
        f"written: {ratings}, ratings of films as --synthetic makes them; for fedslice recommend"
        f" --user {ratings}"
    )


def add_to(commands: Any) -> None:
    """The subcommand ``example``."""
    parser = commands.add_parser(
        "example", help=f"write small files to try things on: {CLICKS} and {RATINGS}"
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="where to (default: here)"
    )
    parser.set_defaults(act=command)
