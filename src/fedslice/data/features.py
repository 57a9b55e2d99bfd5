"""From the columns of own data to what a model reads: a value, learned from training data, kept
with the model as JSON, and applied to whatever is predicted later.

Each example becomes ``features``, ids in one space of rows in which every column has a range of its
own, and ``numbers``, those columns that stay numbers:

    category    id = start + place of the value among the values of the training data
    buckets     id = start + number of edges up to the number; edges are the training quantiles
    hour        id = start + hour of the day, from 0 to 23 (UTC)
    weekday     id = start + day of the week, Monday 0
    standard    (x - mean) / spread, with the training data's; at most 10 from 0

A missing value contributes nothing: its id is padding (-1), its number 0.  So does a category that
the training data did not have.  A list keeps its last ``width`` values, and is filled up with -1.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.gathering import Category, Raw
from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import check_padded
from fedslice.files.writing import atomic_write

FILE, FORMAT = "features.json", 1
HOURS, DAYS, FARTHEST = 24, 7, 10.0
KINDS = ("category", "buckets", "hour", "weekday", "standard")


@dataclass(frozen=True)
class Column:
    """One column of the data as the model reads it; see the module for the kinds.

    Its rows start at ``start``, its ids stand in ``width`` places from ``place`` on (of ``numbers``
    for kind standard).  One that ``shares`` another's ids has no values of its own; the values of
    one that is ``text`` are names, though they look like numbers.

    >>> Column("price", "buckets", edges=(2.0, 5.0), start=7).names
    ['price=(-inf, 2)', 'price=[2, 5)', 'price=[5, inf)']
    """

    column: str
    kind: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    mean: float = 0.0
    spread: float = 1.0
    start: int = 0
    place: int = 0
    width: int = 1
    separator: str = ""
    shares: str = ""
    text: bool = False

    @property
    def rows(self) -> int:
        """Rows of its own."""
        if self.kind == "category":
            return 0 if self.shares else len(self.values)
        return {"buckets": len(self.edges) + 1, "hour": HOURS, "weekday": DAYS}.get(self.kind, 0)

    @property
    def names(self) -> list[str]:
        """What its own rows are called."""
        if self.kind == "category":
            return [] if self.shares else [f"{self.column}={value}" for value in self.values]
        if self.kind == "buckets":
            ends = ["-inf", *(f"{edge:g}" for edge in self.edges), "inf"]
            pairs = pairwise(ends)
            return [f"{self.column}={'[' if a != '-inf' else '('}{a}, {b})" for a, b in pairs]
        return [f"{self.column}:{self.kind}={number}" for number in range(self.rows)]

    def as_json(self) -> dict[str, Any]:
        """Without what is as it is by default."""
        plain = {key: value for key, value in asdict(self).items() if value not in ((), "", False)}
        return {**plain, **({"values": list(self.values)} if self.kind == "category" else {})}


@dataclass(frozen=True)
class Label:
    """What is predicted: ``kind`` is binary (``classes`` has two, the second is 1), classes, or
    number, in units of the training labels' ``spread`` from their ``mean``."""

    column: str
    kind: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True)
class Features:
    """All that is needed to make the inputs of a model from a row of own data.

    >>> item = Column("item", "category", values=("x", "y"))
    >>> price = Column("price", "buckets", edges=(2.0,))
    >>> both = Features("user", Label("clicked", "binary", ("0", "1")), (item, price)).placed()
    >>> both.rows, both.wide, [column.start for column in both.columns]
    (4, 2, [0, 2])
    >>> Features.from_json(json.loads(json.dumps(both.as_json()))) == both
    True
    """

    client: str
    label: Label
    columns: tuple[Column, ...]
    time: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[Column, ...]:
        """The columns that become ids."""
        return tuple(column for column in self.columns if column.kind != "standard")

    @property
    def measured(self) -> tuple[Column, ...]:
        """The columns that stay numbers."""
        return tuple(column for column in self.columns if column.kind == "standard")

    @property
    def rows(self) -> int:
        """Of the tables."""
        return sum(column.rows for column in self.columns)

    @property
    def wide(self) -> int:
        """Ids of each example."""
        return sum(column.width for column in self.ids)

    @cached_property
    def names(self) -> np.ndarray:
        """What the rows are called, ``column=value``."""
        found = [name for column in self.columns for name in column.names]
        sizes = [len(name) for name in found]  # one long value makes all names wide
        columns = ", ".join(dict.fromkeys(column.column for column in self.columns))
        check_padded(
            f"one of the features {columns} has a value",
            max(sizes, default=0),
            len(sizes),
            sum(sizes),
        )
        return np.array(found, np.str_)

    def placed(self) -> "Features":
        """With ranges of rows and places given out in the order of the columns."""
        found: dict[str, Column] = {}
        start = place = number = 0
        for column in self.columns:
            if column.kind == "standard":
                made = replace(column, place=number)
                number += 1
            else:
                own = found[column.shares].start if column.shares else start
                made = replace(column, start=own, place=place)
                start, place = start + column.rows, place + column.width
            found[
                f"{column.column}:{column.kind}" if column.kind in KINDS[2:4] else column.column
            ] = made
        return replace(self, columns=tuple(found.values()))

    # -- kept --------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """For ``features.json``."""
        return {
            "format": FORMAT,
            "model": dict(self.model),
            "client": self.client,
            "time": self.time,
            "label": {**asdict(self.label), "classes": list(self.label.classes)},
            "columns": [column.as_json() for column in self.columns],
            "rows": self.rows,
            "wide": self.wide,
            "numbers": len(self.measured),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Features":
        """What :meth:`as_json` gave."""
        try:
            if given["format"] != FORMAT:
                raise InputError(
                    f"{FILE} has format {given['format']}, this version reads {FORMAT}"
                )
            listed = ("values", "edges")
            plain: list[dict[str, Any]] = [
                {k: tuple(v) if k in listed else v for k, v in each.items()}
                for each in given["columns"]
            ]
            columns = tuple(Column(**each) for each in plain)
            label = Label(**{**given["label"], "classes": tuple(given["label"]["classes"])})
            found = cls(given["client"], label, columns, given["time"], dict(given["model"]))
            if any(column.kind not in KINDS for column in columns) or found.rows != given["rows"]:
                raise ValueError("its columns do not fit together")
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{FILE} is damaged ({error!r}): train again, or restore a copy"
            ) from error

    def write(self, folder: Path) -> None:
        """Into ``features.json`` of a run folder."""
        text = json.dumps(self.as_json(), ensure_ascii=False)
        atomic_write(folder / FILE, text.encode())

    @classmethod
    def read(cls, folder: Path) -> "Features":
        """From a run folder."""
        file = Path(folder) / FILE
        if not file.exists():
            raise MissingDataError(
                f"{folder} holds no {FILE}: give the folder of a finished run on your own data,"
                " such as fedslice run lr --data clicks.csv ... makes"
            )
        try:
            given = json.loads(file.read_bytes())
        except ValueError as error:
            raise InputError(
                f"{file} is damaged ({error}): train again, or restore a copy"
            ) from error
        return cls.from_json(given)

    # -- applied -----------------------------------------------------------------------------------

    def encode(self, raw: Raw, rows: np.ndarray, *, labelled: bool = True) -> dict[str, np.ndarray]:
        """What the model reads of these rows; without ``labelled`` no label."""
        features = np.full((len(rows), self.wide), -1, np.int32)
        for column in self.ids:
            part = self._ids(raw, column, rows)
            features[:, column.place : column.place + part.shape[1]] = part
        found = {"features": features}
        if self.measured:
            columns = [
                _standard(column, raw.numbers(column.column)[rows]) for column in self.measured
            ]
            found["numbers"] = np.stack(columns, 1)
        if labelled:
            found["label"] = self.labels(raw, rows)
        return found

    def _ids(self, raw: Raw, column: Column, rows: np.ndarray) -> np.ndarray:
        if column.kind == "category":
            return self._listed(raw.category(column.column), column, rows)
        values = raw.numbers(column.column)[rows]
        known = ~np.isnan(values)
        plain = np.where(known, values, 0.0)
        if column.kind == "buckets":
            places = np.searchsorted(np.array(column.edges), plain, side="right")
        elif column.kind == "hour":
            places = np.floor(plain / 3600).astype(np.int64) % HOURS
        else:
            places = (
                np.floor(plain / 86400).astype(np.int64) + 3
            ) % DAYS  # 1970 began on a Thursday
        return np.where(known, column.start + places, -1).astype(np.int32)[:, None]

    @cached_property
    def _vocabulary(self) -> dict[str, dict[str, int]]:
        own = {c.column: c for c in self.columns if c.kind == "category" and not c.shares}
        found = {
            name: {text: column.start + place for place, text in enumerate(column.values)}
            for name, column in own.items()
        }
        shared = {c.column: found[c.shares] for c in self.columns if c.shares}
        return found | shared

    def known(self, category: Category, column: str) -> np.ndarray:
        """The row of each code of a gathered column, -1 for what the training data did not have; in
        a last place -1 for what is missing."""
        vocabulary = self._vocabulary[column]
        written = category.written or [""] * len(category.texts)
        found = [
            vocabulary.get(text, vocabulary.get(raw, -1)) if text is not None else -1
            for text, raw in zip(category.texts, written, strict=True)
        ]
        return np.array([*found, -1], np.int32)

    def _listed(self, category: Category, column: Column, rows: np.ndarray) -> np.ndarray:
        known = self.known(category, column.column)
        if category.ends is None:
            return known[category.codes[rows]][:, None]
        ends, counts = category.ends[rows], np.minimum(category.lengths(rows), column.width)
        real = np.arange(column.width) < counts[:, None]
        places = np.where(real, (ends - counts)[:, None] + np.arange(column.width), 0)
        if not len(category.codes):
            return np.full(real.shape, -1, np.int32)
        return np.where(real, known[category.codes[places]], -1).astype(np.int32)

    def labels(self, raw: Raw, rows: np.ndarray) -> np.ndarray:
        """The labels as the model reads them; NaN (of classes -1) where there is none."""
        label, given = self.label, raw.columns[self.label.column]
        if label.kind == "number":
            assert isinstance(given, np.ndarray)
            return ((given[rows] - label.mean) / label.spread).astype(np.float32)
        place = {text: number for number, text in enumerate(label.classes)}
        for one, other in (("0", "false"), ("1", "true")):  # the same, wherever it comes from
            place |= {other: place[one]} if one in place and other not in place else {}
            place |= {one: place[other]} if other in place and one not in place else {}
        if isinstance(given, Category):
            if given.ends is not None:
                raise InputError(f"the label {label.column!r} holds lists: one value in each row")
            codes, texts = np.asarray(given.codes[rows]), given.texts
        else:
            values, codes = np.unique(given[rows], return_inverse=True)
            texts = [None if np.isnan(value) else text_of(value) for value in values]
        used = np.unique(codes[codes >= 0])
        strange = [texts[c] for c in used if texts[c] is not None and texts[c] not in place]
        if strange:
            raise InputError(
                f"the label {label.column!r} has {strange[0]!r}, which is not among those of the"
                f" training: {', '.join(label.classes[:10])}"
            )
        found = np.array([*(-1 if t is None else place.get(t, -1) for t in texts), -1])[codes]
        if label.kind == "classes":
            return found.astype(np.int32)
        return np.where(found < 0, np.nan, found).astype(np.float32)


def text_of(number: float) -> str:
    """A number as the text of a category: whole ones in their shortest form.

    >>> text_of(3.0), text_of(2.5)
    ('3', '2.5')
    """
    return str(int(number)) if number == int(number) else repr(float(number))


def _standard(column: Column, values: np.ndarray) -> np.ndarray:
    scaled = np.clip((values - column.mean) / column.spread, -FARTHEST, FARTHEST)
    return np.where(np.isnan(values), 0.0, scaled).astype(np.float32)


def notes(features: Features, raw: Raw) -> Sequence[str]:
    """What a person should know of data to which ``features`` are applied: values that are not
    known, lists that are cut."""
    found = []
    for column in features.columns:
        if column.kind != "category":
            continue
        category = raw.category(column.column)
        known = features.known(category, column.column)[category.codes]
        lost = int(((known < 0) & (category.codes >= 0)).sum())
        if lost:
            share = lost / max(1, int((category.codes >= 0).sum()))
            found.append(
                f"{column.column}: {lost:,} values ({share:.1%}) were not in the training data"
            )
        many = int((category.lengths() > column.width).sum())
        if many:
            found.append(f"{column.column}: {many:,} lists keep their last {column.width} values")
    return found
