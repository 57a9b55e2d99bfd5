"""Files to try the command line on: a small click log with its own names, a larger one as shops
have it, and a user's ratings of generated films."""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.files.writing import replacing

CLICKS, RATINGS, LOG = "clicks.parquet", "me.csv", "clicks.csv"
ROWS = 250_000  # of the larger log
STARS = {"Movie 188": 5, "Movie 275": 4.5, "Movie 365": 4, "Movie 111": 2, "Movie 16": 1}
_DEVICES = ("phone", "laptop", "tablet")
_TAGS = ("new", "sale", "gift", "eco", "kids", "local")
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


def log(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A shop's click log of four weeks: user, item, category, tags, price, device, when, clicked.

    Whether somebody clicks depends on the item, its category, tags and price (the middle ones
    sell), on the device and the hour, and on what this user likes.  Users and items come by
    rank^-0.7: a few are in many rows, most in few.  Of the prices 5 % are missing, of the devices
    3 %, and many items have no tag.

    >>> some = log(1_000)
    >>> len(some["user"]), str(some["when"][0])
    (1000, '2026-01-05 00:15:14')
    """
    rng = np.random.default_rng(seed)
    users, items, kinds = max(20, rows // 50), max(40, rows // 100), 20
    user, item = (rng.choice(many, rows, p=_fame(many)) for many in (users, items))
    kind = rng.integers(kinds, size=items)
    price = np.round(np.exp(rng.normal(3, 0.8, items)), 2)
    moment = np.sort(rng.integers(0, 28 * 86_400, rows))
    device = rng.choice(len(_DEVICES), rows, p=(0.6, 0.3, 0.1))
    tagged = rng.random((items, len(_TAGS))) < 0.15
    taste = rng.normal(0, 0.7, (users, kinds))
    score = (
        -1.6
        + rng.normal(0, 0.7, items)[item]
        + rng.normal(0, 0.5, kinds)[kind][item]
        + (tagged @ rng.normal(0, 0.6, len(_TAGS)))[item]
        - 0.5 * ((np.log(price) - 3) / 0.8)[item] ** 2
        + np.array([0.2, -0.2, 0.0])[device]
        + 0.4 * np.sin(2 * np.pi * (moment / 86_400 - 0.5))
        + taste[user, kind[item]]
    )
    clicked = rng.random(rows) < 1 / (1 + np.exp(-score))
    tags = np.array(["|".join(np.array(_TAGS)[some]) for some in tagged])
    prices = np.array([f"{each:.2f}" for each in price])[item]
    names = np.array([f"kind-{number}" for number in range(kinds)])
    return {
        "user": np.char.add("u", user.astype(str)),
        "item": np.char.add("item-", item.astype(str)),
        "category": names[kind[item]],
        "tags": tags[item],
        "price": np.where(rng.random(rows) < 0.05, "", prices),
        "device": np.where(rng.random(rows) < 0.03, "", np.array(_DEVICES)[device]),
        "when": np.char.replace(
            (np.datetime64("2026-01-05T00:00:00") + moment).astype(str), "T", " "
        ),
        "clicked": clicked.astype(np.int8),
    }


def _fame(many: int) -> np.ndarray:
    fame = np.arange(1, many + 1) ** -0.7
    return np.asarray(fame / fame.sum())


def write_log(file: Path) -> Path:
    """The larger log as a CSV."""
    _refuse([file])
    columns = log(ROWS)
    text = [
        ",".join(columns),
        *map(",".join, zip(*(c.astype(str) for c in columns.values()), strict=True)),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text("\n".join(text) + "\n", encoding="utf-8")
    return file


def _refuse(files: list[Path]) -> None:
    if there := [str(file) for file in files if file.exists()]:
        raise InputError(
            f"{' and '.join(there)} is there already: give another folder, as in fedslice example"
            " try-it"
        )


def write(folder: Path) -> list[Path]:
    """Write all files into the folder; a file that is there is left alone, with an error."""
    files = [folder / CLICKS, folder / RATINGS, folder / LOG]
    _refuse(files)
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
    write_log(files[2])
    return files


def command(options: argparse.Namespace) -> None:
    """Write the files and say what they are for."""
    if options.folder.suffix == ".csv":
        _say_log(write_log(options.folder))
        return
    small, ratings, large = write(options.folder)
    print(
        f"written: {small}, a click log; try: fedslice heat {small} --client user --features"
        " item,category"
    )
    print(
        f"written: {ratings}, ratings of films as --synthetic makes them; for fedslice recommend"
        f" --user {ratings}"
    )
    _say_log(large)


def _say_log(file: Path) -> None:
    print(
        f"written: {file}, a click log of {ROWS:,} rows; try: fedslice run lr --data {file}"
        " --client user --label clicked --split time"
    )


def add_to(commands: Any) -> None:
    """The subcommand ``example``."""
    parser = commands.add_parser(
        "example", help=f"write files to try things on: {CLICKS}, {RATINGS} and {LOG}"
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help=f"where to (default: here); or a file such as {LOG}, for the larger click log alone",
    )
    parser.set_defaults(act=command)
