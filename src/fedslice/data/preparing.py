"""Own data in parts for training, validation and test, as populations with one vocabulary.

    examples    a random share of all examples
    clients     a random share of the clients, with all that they have
    time        what is later than a moment, so that the share of later examples is held out
    latest      of each client the latest share of its examples

or parts that are files of their own.  Features are learned from the training part alone.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data import purposes as purposing
from fedslice.data.features import Features, notes
from fedslice.data.gathering import Raw
from fedslice.data.learning import gather, learn
from fedslice.data.population import Population
from fedslice.data.purposes import Purposes
from fedslice.data.reading import open_source
from fedslice.errors import InputError

SPLITS = ("examples", "clients", "time", "latest")
PART = 1 << 18  # rows that are encoded together
TEST = 0.2
SURELY = 10  # values, of which some should be known


class Prepared(NamedTuple):
    """Populations and what was learned; ``notes`` for the user."""

    features: Features
    train: Population
    test: Population | None
    validation: Population | None
    notes: list[str]


class Read(NamedTuple):
    """Data that were read: gathered columns, with the order of rows by client, where each client
    begins in it, and what clients are called."""

    raw: Raw
    order: np.ndarray
    offsets: np.ndarray
    clients: np.ndarray

    @property
    def owners(self) -> np.ndarray:
        """The client of each row in that order."""
        return np.repeat(np.arange(len(self.clients), dtype=np.int32), np.diff(self.offsets))


def by_client(raw: Raw, client: str) -> Read:
    """Rows in the order of clients, whose names are in ascending order."""
    given = raw.category(client)
    if given.ends is not None:
        raise InputError(f"column {client!r}, the client, holds lists: name one client in each row")
    missing = np.array([*(text is None for text in given.texts), True])
    if (lacking := missing[given.codes]).any():
        raise InputError(
            f"column {client!r}, the client, has missing values, first in row"
            f" {int(np.argmax(lacking)) + 1}: drop or fill those rows"
        )
    texts = np.array([text or "" for text in given.texts], np.str_)
    clients, place = np.unique(
        texts.astype(np.int64) if given.whole else texts, return_inverse=True
    )
    owner = place.astype(np.int32)[given.codes]
    counts = np.bincount(owner, minlength=len(clients))
    order = np.argsort(owner, kind="stable")
    return Read(raw, order, np.append(0, np.cumsum(counts)), clients)


def population(
    read: Read, features: Features, keep: np.ndarray | None = None, *,
    time: str = "", labelled: bool = True, folder: Path | None = None, all: bool = True,
) -> Population:  # fmt: skip
    """The rows where ``keep``, in the order by client, is true; a client without any stays, empty,
    unless not ``all`` do.

    In ``folder`` it is written there, and its columns are mapped.
    """
    rows = read.order if keep is None else read.order[keep]
    counts = np.diff(read.offsets)
    if keep is not None:
        counts = np.bincount(read.owners[keep], minlength=len(read.clients))
    some = np.ones(len(counts), bool) if all else counts > 0
    clients, counts = read.clients[some], counts[some]
    names = {"features": features.names}

    def encoded(part: np.ndarray) -> dict[str, np.ndarray]:
        found = features.encode(read.raw, part, labelled=labelled)
        return found | ({"time": _stamps(read.raw.numbers(time)[part])} if time else {})

    if folder is None:
        offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
        return Population(encoded(rows), offsets, clients, names)
    with Population.writer(folder, names) as writer:
        for start in range(0, max(1, len(rows)), PART):
            writer.append(encoded(rows[start : start + PART]))
        writer.owned(clients, counts, np.arange(len(clients)))
    return Population.open(folder)


def _stamps(seconds: np.ndarray) -> np.ndarray:
    """Moments as whole milliseconds, which a column on disk keeps as they are."""
    return np.round(1e3 * np.where(np.isnan(seconds), 0, seconds)).astype(np.int64)


def held_out(read: Read, split: str, share: float, time: str | None, seed: int) -> np.ndarray:
    """For each row, in the order by client, whether it is held out."""
    total = len(read.order)
    rng = np.random.default_rng(seed)
    if split == "examples":
        late = np.zeros(total, bool)
        late[rng.permutation(total)[: round(share * total)]] = True
        return late
    if split == "clients":
        many = len(read.clients)
        if many < 2:
            raise InputError("holding out clients needs at least two of them")
        some = np.zeros(many, bool)
        some[rng.permutation(many)[: min(max(1, round(share * many)), many - 1)]] = True
        return some[read.owners]
    if not time:
        raise InputError(
            f"split={split!r} needs the column that has the time: time='when' (--time when)"
        )
    stamps = read.raw.numbers(time)[read.order]
    if np.isnan(stamps).any():
        row = int(read.order[np.isnan(stamps)].min()) + 1
        raise InputError(
            f"column {time!r} has {int(np.isnan(stamps).sum()):,} missing moments, first in row"
            f" {row}, so these rows are neither early nor late: drop them, or split otherwise"
        )
    if split == "time":
        return np.asarray(stamps > np.quantile(stamps, 1 - share, method="lower"))
    counts = np.diff(read.offsets)
    rank = np.empty(total, np.int64)
    rank[np.lexsort((stamps, read.owners))] = np.arange(total) - read.offsets[read.owners]
    return np.asarray(rank >= (counts - np.floor(share * counts))[read.owners])


def prepare(
    data: Any,
    purposes: Purposes,
    *,
    split: str = "examples",
    test: Any = TEST,
    validation: Any = 0.0,
    model: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    seed: int = 0,
) -> Prepared:
    """Training, validation and test data; ``test`` and ``validation`` are shares to hold out of
    ``data`` by ``split``, or data of their own.  With ``folder`` the populations are kept there,
    mapped, and columns pass through files: for what is larger than memory.

    >>> import pyarrow
    >>> log = {"user": ["a", "a", "b", "b"], "item": ["x", "y", "x", "y"], "y": [0, 1, 0, 1]}
    >>> log["when"] = [1, 2, 3, 4]
    >>> purposes = Purposes("user", "y", ["item"], time="when")
    >>> found = prepare(pyarrow.table(log), purposes, split="time", test=0.5)
    >>> found.train.columns["label"].tolist(), found.features.columns[0].values
    ([0.0, 1.0], ('x', 'y'))
    """
    if purposes.label is None:
        raise InputError("there is no label to learn: name its column")
    check(split, test, validation)
    with _scratch(folder) as scratch:
        raw, purposes, told = gather(open_source(data), purposes, scratch)
        read = by_client(raw, purposes.client)
        parts = _parts(read, purposes.time, split, {"test": test, "validation": validation}, seed)
        features = replace(
            learn(raw, purposes, read.order[parts["train"]]), model=dict(model or {})
        )
        time = purposes.time or ""
        made = {
            name: population(
                read,
                features,
                keep,
                time=time,
                folder=_inside(folder, name),
                all=split != "clients",
            )
            for name, keep in parts.items()
        }
    for name, given in (("test", test), ("validation", validation)):
        if not _is_share(given):
            other, more = apply(features, given, labelled=True)
            told += [f"{name}: {note}" for note in more]
            known = time if time in other.raw.columns else ""
            made[name] = population(other, features, time=known, folder=_inside(folder, name))
    return Prepared(features, made["train"], made.get("test"), made.get("validation"), told)


def check(split: str, *parts: Any) -> None:
    """Refuse a split or shares that cannot be, before anything is read.

    >>> check("time", 0.2, "later.csv")
    """
    if split not in SPLITS:
        raise InputError(f"split={split!r} is not one of {', '.join(SPLITS)}")
    shares = [part for part in parts if _is_share(part)]
    if any(not 0 <= share < 1 for share in shares):
        raise InputError(
            f"held out shares of {', '.join(f'{s:g}' for s in shares)}: give some below 1"
        )


def _is_share(given: Any) -> bool:
    return isinstance(given, int | float)


def _inside(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


@contextmanager
def _scratch(folder: Path | None) -> Iterator[Path | None]:
    """A folder for columns on their way, if they are not in memory."""
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield Path(name)


def _parts(
    read: Read, time: str | None, split: str, wanted: Mapping[str, Any], seed: int
) -> dict[str, np.ndarray]:
    """For each part that is held out of the data, and for the rest, train, which rows it has."""
    shares = {name: share for name, share in wanted.items() if _is_share(share) and share}
    if shares and len(read.order) < 3:
        raise InputError(
            f"a fifth of the examples is held out, and here are {len(read.order)}: give three or"
            " more"
        )
    rest, parts = np.ones(len(read.order), bool), {}
    for name, share in shares.items():
        some = np.zeros_like(rest)
        some[rest] = held_out(_remaining(read, rest), split, share, time, seed)
        parts[name], rest = some, rest & ~some
    parts["train"] = rest
    for name, keep in parts.items():
        if not keep.any():
            word = {"train": "training"}.get(name, name)
            raise InputError(
                f"this split leaves the {word} set without examples: split otherwise, or hold out"
                " another share"
            )
    return parts


def _remaining(read: Read, keep: np.ndarray) -> Read:
    counts = np.bincount(read.owners[keep], minlength=len(read.clients))
    some = counts > 0
    return read._replace(
        order=read.order[keep],
        offsets=np.append(0, np.cumsum(counts[some])),
        clients=read.clients[some],
    )


def apply(features: Features, data: Any, *, labelled: bool | None = None) -> tuple[Read, list[str]]:
    """Data to which ``features`` will be applied, and notes on them.  With ``labelled`` they must
    have a label, without None they may."""
    source = open_source(data)
    purposes = purposing.of(features)
    if labelled is False or (labelled is None and purposes.label not in source.names):
        purposes = replace(purposes, label=None)
    if features.time and features.time not in source.names:
        purposes = replace(purposes, time=None)
    raw, _, _ = gather(source, purposes, lenient=True)
    for column in features.columns:
        if column.kind == "category":
            _refuse_others(features, raw, column.column, source.name)
    return by_client(raw, features.client), list(notes(features, raw))


def _refuse_others(features: Features, raw: Raw, column: str, name: str) -> None:
    """Values that are all unknown are those of another column, unless they are few."""
    category = raw.category(column)
    real = [text for text in category.texts if text is not None]
    if len(real) >= SURELY and not (features.known(category, column) >= 0).any():
        raise InputError(
            f"{name}: none of the {len(real):,} values of {column!r}, such as {real[0]!r}, was in"
            f" the training data, such as {_example(features, column)!r}: are they those of another"
            " column?"
        )


def _example(features: Features, column: str) -> str:
    own = next(each for each in features.columns if each.column == column)
    shared = next((each for each in features.columns if each.column == own.shares), own)
    return shared.values[0] if shared.values else ""
