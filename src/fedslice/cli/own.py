"""Own data on the command line: what their columns are for, how they are split, which model."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedslice.cli.helpful import one_of
from fedslice.cli.text import pair, parse
from fedslice.data import preparing
from fedslice.data.preparing import SPLITS, TEST
from fedslice.data.purposes import LABELS, Purposes
from fedslice.data.reading import Query
from fedslice.errors import InputError
from fedslice.models.own import DIMENSION, NAMES
from fedslice.simulation.progress import show
from fedslice.tasks import own
from fedslice.tasks.base import Task

OPTIONS = {"dimension": DIMENSION, "longest": 64}
EXAMPLE = "fedslice run lr --data clicks.csv --client user --label clicked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What goes with ``--data``."""
    group = parser.add_argument_group(
        "your own data", f"with the tasks {', '.join(NAMES)}; see docs/how-to/your-own-data.md"
    )
    group.add_argument(
        "--sql",
        metavar="QUERY",
        help="a query in place of a file (DuckDB), or of --data BASE.duckdb",
    )
    group.add_argument("--client", metavar="COLUMN", help="names the client")
    group.add_argument(
        "--label", metavar="COLUMN", help="to predict: 0 and 1, yes and no, classes, or a number"
    )
    group.add_argument(
        "--label-as",
        default="auto",
        type=one_of(list(LABELS)),
        metavar="KIND",
        help=f"what labels are: {', '.join(LABELS)} (default: as they look)",
    )
    group.add_argument(
        "--features",
        metavar="A,B+C,D:hour",
        help="columns whose values have rows; B+C share theirs; D:hour and D:weekday of a moment"
        " (default: all columns, by what they hold)",
    )
    group.add_argument(
        "--numbers",
        default="",
        metavar="A,B:50,C:standard",
        help="columns of numbers, in 16 buckets by quantiles, or so many, or standardised",
    )
    group.add_argument(
        "--lists", default="", metavar="A,B", help="columns of text with several values in a field"
    )
    group.add_argument("--separator", default="|", help="between those values (default: |)")
    group.add_argument(
        "--text", default="", metavar="A,B", help="columns of names that look like numbers or dates"
    )
    group.add_argument("--time", metavar="COLUMN", help="when it was, to split by")
    group.add_argument(
        "--split",
        default="examples",
        type=one_of(list(SPLITS)),
        metavar="WAY",
        help=f"what is held out, {', '.join(SPLITS)}: any examples, whole clients, what is later"
        " than a moment, or each client's latest (default: examples)",
    )
    group.add_argument(
        "--test",
        type=part,
        default=TEST,
        metavar="SHARE|FILE",
        help=f"the test set: a share that is held out, or a file (default: {TEST:g})",
    )


def part(text: str) -> float | Path:
    """A share or a file.

    >>> part("0.1"), part("later.csv").name
    (0.1, 'later.csv')
    """
    try:
        return float(text)
    except ValueError:
        return Path(text)


def wanted(options: argparse.Namespace) -> bool:
    """Whether the options are about own data."""
    return options.task in NAMES or options.data is not None or bool(options.sql)


def columns(text: str | None) -> list[str]:
    """Names separated by commas.

    >>> columns("item, category,")
    ['item', 'category']
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def purposes_of(options: argparse.Namespace) -> Purposes:
    """What the columns are for."""
    numbers = dict(name.partition(":")[::2] for name in columns(options.numbers))
    return Purposes(
        options.client,
        options.label,
        None if options.features is None else columns(options.features),
        {name: how or "buckets" for name, how in numbers.items()},
        options.time,
        columns(options.lists),
        options.separator,
        columns(options.text),
        options.label_as,
        _options(options)["longest"],
    )


def _options(options: argparse.Namespace) -> dict[str, int]:
    listed = ", ".join(f"{name} ({default})" for name, default in OPTIONS.items())
    said = f"write name=value; the options of own data are {listed}"
    chosen = dict(OPTIONS)
    for change in options.option:
        key, text = pair("--option", change, said)
        if key not in OPTIONS:
            raise InputError(f"--option {change}: {said}")
        chosen[key] = parse(key, text, int)
    return chosen


def data_of(options: argparse.Namespace) -> Path | Query:
    """The file, the folder or the query."""
    if options.sql:
        return Query(options.sql, "" if options.data is None else str(options.data))
    found: Path = options.data
    return found


def check(options: argparse.Namespace, labelled: bool = True) -> None:
    """Refuse what cannot be, before any data are read."""
    needed = ["client", *(["label"] if labelled else [])]
    missing = [f"--{name}" for name in needed if getattr(options, name) is None]
    if options.data is None and not options.sql:
        missing.insert(0, "--data")
    if options.task not in NAMES or missing:
        raise InputError(
            f"your own data go with the tasks {', '.join(NAMES)}: {EXAMPLE} (missing here:"
            f" {', '.join(missing) or 'the name of one of these'})"
        )
    own.check_model(options.task, _options(options)["dimension"])
    preparing.check(options.split, options.test, getattr(options, "validation", 0.0))
    purposes_of(options)


def make(options: argparse.Namespace) -> Task:
    """The task that the options ask for."""
    check(options)
    held = getattr(options, "validation", 0.0)
    task = own.from_data(
        data_of(options),
        purposes_of(options),
        model=options.task,
        dimension=_options(options)["dimension"],
        split=options.split,
        test=options.test,
        validation=held,
        folder=_folder(options),
    )
    tell(own.described(task), task.notes)
    return task


def _folder(options: argparse.Namespace) -> Path | None:
    """Where tables are kept on disk, data are too, while the command runs."""
    store = str(getattr(options, "store", "ram"))
    if store.lower() == "ram":
        return None
    Path(store).mkdir(parents=True, exist_ok=True)
    # gone when the command ends
    options.scratch = tempfile.TemporaryDirectory(dir=store, prefix="data-")
    return Path(options.scratch.name)


def heat_of(options: argparse.Namespace) -> Task:
    """The same without a label: enough for the heat."""
    if options.client is None:
        raise InputError(
            "the heat of a file needs its columns: fedslice heat FILE --client user --features"
            " item,category"
        )
    options.task = "lr"
    check(options, labelled=False)
    task = own.whole(data_of(options), purposes_of(options))
    tell(task.notes)
    return task


def tell(*lines: Sequence[str]) -> None:
    """Notes for the person, on standard error."""
    for line in (each for some in lines for each in some):
        show(line, sys.stderr)


def words(options: argparse.Namespace) -> list[str]:
    """The arguments about own data, as they were said, for a command that does the same."""
    usual = {"label_as": "auto", "separator": "|", "split": "examples", "test": TEST}
    names = (
        "sql", "client", "label", "label_as", "features", "numbers", "lists", "separator", "text",
        "time", "split", "test",
    )  # fmt: skip
    given = {name: getattr(options, name) for name in names}
    said = {
        name: value for name, value in given.items() if value not in (None, "", usual.get(name))
    }
    return [
        word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
