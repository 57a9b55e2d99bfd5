"""An agreed vocabulary: the values that features may have, the same on all nodes, and known before
anybody's data are.

    items.csv        item,category          what is public: a catalogue, a word list
    vocabulary.json  values of each feature, in their order: goes with the app to server and nodes
    clicks.csv       one node's own file    -> ids by the vocabulary, in the node's folder

The ids of rows follow from the vocabulary alone, so nobody has to show data for them to mean the
same everywhere.  A value that is not among them is padding, and is counted aloud.
"""

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.loading import from_file
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.files.writing import atomic_write

NAME, FIELD = "vocabulary.json", "features"
LARGEST = 8 << 20  # bytes: Flower takes apps of up to ten million


class Vocabulary(NamedTuple):
    """The columns of the nodes' files, and the values of each feature."""

    client: str
    label: str
    features: tuple[str, ...]
    text: tuple[str, ...]
    values: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        """Rows of the model: one for each value of each feature."""
        return sum(map(len, self.values.values()))

    @property
    def names(self) -> dict[str, np.ndarray]:
        """What the model's rows are called."""
        each = [f"{field}={value}" for field in self.features for value in self.values[field]]
        return {FIELD: np.array(each)}

    @property
    def digest(self) -> str:
        """A short hash of all of it."""
        return hashlib.sha256(self.pack()).hexdigest()[:16]

    def pack(self) -> bytes:
        """As JSON."""
        return json.dumps(self._asdict(), ensure_ascii=False, indent=1).encode()

    def write(self, folder: Path) -> None:
        """Keep it in an app's package."""
        packed = self.pack()
        if len(packed) > LARGEST:
            raise InputError(
                f"the vocabulary takes {len(packed):,} bytes, and travels with the app, which may"
                f" have {LARGEST:,}: leave out what is rare, or bucket it"
            )
        atomic_write(folder / NAME, packed)


def read(folder: Path) -> Vocabulary:
    """The one in an app's package."""
    file = folder / NAME
    if not file.exists():
        raise MissingDataError(
            f"{file} is not there: this app was not written with --vocabulary, and its nodes have"
            " the data that fedslice deploy init gave them"
        )
    try:
        told = json.loads(file.read_bytes())
        values = {name: list(map(str, told["values"][name])) for name in told["features"]}
        names = str(told["client"]), str(told["label"])
        return Vocabulary(*names, tuple(told["features"]), tuple(told["text"]), values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is no vocabulary ({error}): write the app anew") from error


def agree(
    file: Path, client: str, label: str, features: Sequence[str], text: Sequence[str]
) -> Vocabulary:
    """The distinct values of each feature in a CSV or TSV file with these columns, ascending; empty
    ones are none."""
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    try:
        with file.open(newline="", encoding="utf-8-sig") as source:
            lines = csv.DictReader(source, delimiter="\t" if ".tsv" in file.suffixes else ",")
            have = list(lines.fieldnames or [])
            if missing := [name for name in features if name not in have]:
                raise InputError(
                    f"{file} has the columns {', '.join(have) or 'none'}, and lacks"
                    f" {', '.join(missing)}: a vocabulary has one for each feature"
                )
            found: dict[str, set[str]] = {name: set() for name in features}
            for line in lines:
                for name in features:
                    found[name].add(line[name] or "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as CSV in UTF-8: {error}") from error
    values = {name: sorted(each - {""}) for name, each in found.items()}
    if empty := [name for name, each in values.items() if not each]:
        raise InputError(f"{file} has no value of {', '.join(empty)}")
    return Vocabulary(client, label, tuple(features), tuple(text), values)


class Mine(NamedTuple):
    """A node's own file in the terms of a vocabulary: its data, and of each feature how many values
    there are and how many of them are unknown."""

    data: Population
    unknown: Mapping[str, tuple[int, int]]


def own_file(file: Path, words: Vocabulary, number: int, only: str | None = None) -> Mine:
    """The examples of one client (``only``, where a file has several) as the node with this number
    trains on them."""
    names = {name: np.array(each) for name, each in words.values.items()}
    how: dict[str, Any] = {"client": words.client, "label": words.label, "text": words.text}
    people = from_file(file, features=words.features, names=names, **how)
    people = _one(people, file, only)
    labels = np.unique(people.columns[words.label])
    if not set(labels.tolist()) <= {0, 1}:
        raise InputError(
            f"the label {words.label!r} must be 0 or 1, but has values such as"
            f" {labels[:5].tolist()}"
        )
    # what stood there is known from a reading without the vocabulary
    bare = _one(from_file(file, features=words.features, **how), file, only)
    unknown = {
        name: (
            int((bare.columns[name] >= 0).sum()) - int((people.columns[name] >= 0).sum()),
            int((bare.columns[name] >= 0).sum()),
        )
        for name in words.features
    }
    columns = {
        FIELD: _side_by_side(people, words),
        "label": people.columns[words.label].astype(np.float32),
    }
    data = Population(columns, people.offsets, people.clients, {}, np.array([number], np.int64))
    return Mine(data, unknown)


def _side_by_side(people: Population, words: Vocabulary) -> np.ndarray:
    """The ids of all features as the model's rows: those of a feature come after all values of the
    features before it."""
    parts, start = [], 0
    for name in words.features:
        ids = people.columns[name].reshape(people.examples, -1)
        parts.append(np.where(ids < 0, -1, ids + start))
        start += len(words.values[name])
    return np.concatenate(parts, axis=1).astype(np.int32)


def _one(people: Population, file: Path, only: str | None) -> Population:
    clients = [str(each) for each in people.clients.tolist()]
    if only is not None and only not in clients:
        raise InputError(f"{file} has no client {only!r}; it has {', '.join(clients[:5])}")
    if only is None and len(clients) != 1:
        raise InputError(
            f"a node is one client, and {file} has {len(clients):,}, such as"
            f" {', '.join(clients[:3])}: --only NAME takes one of them"
        )
    return people.subset(np.array([0 if only is None else clients.index(only)]))
