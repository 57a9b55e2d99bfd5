"""What the columns of own data are for: said by the user, or told by their values.

Where no features are named, every other column is one, and what it holds says of which kind:

    text, truth values, lists, whole numbers     a category
    fractions                                    a number, in buckets
    moments                                      their hour and weekday
    a value of its own in nearly every row       none: an order's number, a text; left out, and said
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.categories import NUMBER, as_written, flatten
from fedslice.data.features import Features
from fedslice.data.gathering import MISSING
from fedslice.data.reading import Source
from fedslice.errors import InputError

FEWEST = 100  # rows, to tell that a value hardly ever repeats
BUCKETS = 16
LABELS = ("auto", "binary", "number", "classes")


class Wish(NamedTuple):
    """A feature, before anything is learned: ``buckets`` so many at most, 0 for other kinds."""

    column: str
    kind: str
    buckets: int = 0
    shares: str = ""


@dataclass(frozen=True)
class Purposes:
    """Which column is the client, the label, the time, and which are features.

    ``features`` are categories: a list of columns, columns that share their ids together in a tuple
    or as ``"item+history"``, parts of a moment as ``"when:hour"`` and ``"when:weekday"``; None: all
    other columns, by what they hold.  ``numbers`` are numeric columns, in 16 buckets by quantiles
    unless a mapping says otherwise: ``{"age": "standard", "price": 50}``.  ``lists`` are columns of
    text that hold several values, with a ``separator`` between them.  ``text`` are columns whose
    values are names though they look like numbers or dates.  ``label_as`` says what the label is
    where its values do not: binary, number or classes.

    >>> Purposes("user", "clicked", ["item"], {"price": "standard"}).wishes[1].kind
    'standard'
    """

    client: str
    label: str | None = None
    features: Sequence[str | Sequence[str]] | None = None
    numbers: Sequence[str] | Mapping[str, str | int] = ()
    time: str | None = None
    lists: Sequence[str] = ()
    separator: str = "|"
    text: Sequence[str] = ()
    label_as: str = "auto"
    longest: int = 64
    wishes: tuple[Wish, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        for name in ("features", "numbers", "lists", "text"):
            if isinstance(given := getattr(self, name), str):
                raise InputError(f"{name}={given!r}: give a list of columns, such as [{given!r}]")
        if self.label_as not in LABELS:
            raise InputError(f"label_as={self.label_as!r}: it is one of {', '.join(LABELS)}")
        if self.longest < 1 or not self.separator:
            raise InputError("longest= must be at least 1, and separator= not empty")
        object.__setattr__(self, "wishes", (*self._categories(), *self._numbers()))
        self._check()

    def _categories(self) -> list[Wish]:
        found = []
        for group in self.features or ():
            names = group.split("+") if isinstance(group, str) else list(group)
            for name in names:
                column, _, part = name.partition(":")
                if part and (part not in ("hour", "weekday") or len(names) > 1):
                    raise InputError(f"feature {name!r}: a moment has :hour and :weekday")
                shares = names[0] if name != names[0] else ""
                found.append(Wish(column, part or "category", shares=shares))
        return found

    def _numbers(self) -> list[Wish]:
        given = self.numbers
        pairs = (
            given.items() if isinstance(given, Mapping) else [(name, "buckets") for name in given]
        )
        found = []
        for name, how in pairs:
            if how == "standard":
                found.append(Wish(name, "standard"))
                continue
            many = BUCKETS if how == "buckets" else int(how) if str(how).isdigit() else 0
            if many < 2:
                raise InputError(
                    f"numbers={{{name!r}: {how!r}}}: say standard, buckets, or how many buckets, at"
                    " least 2"
                )
            found.append(Wish(name, "buckets", many))
        return found

    def _check(self) -> None:
        keys = [(wish.column, wish.kind) for wish in self.wishes]
        plain = [wish.column for wish in self.wishes if wish.kind not in ("hour", "weekday")]
        twice = {name for name in plain if plain.count(name) > 1}
        twice |= {column for column, kind in keys if keys.count((column, kind)) > 1}
        used = {wish.column for wish in self.wishes}
        for name, others in ((self.label, (*used, self.client, self.time)), (self.time, plain)):
            if name is not None and name in (*others, self.client):
                twice.add(name)
        if twice:
            raise InputError(
                f"column {', '.join(map(repr, sorted(twice)))} is named for two purposes:"
                " copy it under another name"
            )
        strange = (set(self.text) | set(self.lists)) - {*used, self.client}
        if self.features is not None and strange:
            raise InputError(
                f"text= and lists= speak of {', '.join(map(repr, sorted(strange)))}, not among the"
                " features"
            )

    # -- told by the data --------------------------------------------------------------------------

    def wanted(self, source: Source) -> list[str]:
        """The columns to read; those that are missing are an error."""
        named = [self.client, self.label, self.time, *(wish.column for wish in self.wishes)]
        wanted = list(dict.fromkeys(name for name in named if name))
        missing = [name for name in wanted if name not in source.names]
        if missing:
            raise InputError(
                f"{source.name} has no column {', '.join(map(repr, missing))}; it has"
                f" {', '.join(source.names)}"
            )
        if self.features is None:
            wanted = list(dict.fromkeys([*wanted, *source.names]))
        twice = sorted({name for name in wanted if source.names.count(name) > 1})
        if twice:
            raise InputError(
                f"{source.name} has two columns named {', '.join(map(repr, twice))}: rename one of"
                " them"
            )
        return wanted

    def resolved(self, arrow: Any, first: Any, source: Source) -> tuple["Purposes", list[str]]:
        """With all other columns as features, if none were named, by what the ``first`` batch
        holds; and notes on those that were left out."""
        if self.features is not None:
            if not self.wishes:
                raise InputError(
                    "no features are named: give columns whose values have a row in the model, or"
                    " numbers"
                )
            return self, []
        taken = {self.client, self.label, *(wish.column for wish in self.wishes)}
        categories, fractions, moments, left = (list[str]() for _ in range(4))
        for name in (each for each in first.column_names if each not in taken):
            kind = self._kind(arrow, first.column(name), name, source)
            where = {"category": categories, "number": fractions, "moment": moments}
            where.get(kind, left).append(name)
        time = self.time or (moments[0] if len(moments) == 1 else None)
        parts = [f"{name}:{part}" for name in moments for part in ("hour", "weekday")]
        numbers = (
            self.numbers
            if isinstance(self.numbers, Mapping)
            else dict.fromkeys(self.numbers, "buckets")
        )
        told = [
            f"note: {name} has a value of its own in nearly every row: left out (name it in the"
            " features to have it)"
            for name in left
        ]
        found = Purposes(
            self.client, self.label, [*categories, *parts],
            {**numbers, **dict.fromkeys(fractions, "buckets")}, time, self.lists, self.separator,
            self.text, self.label_as, self.longest,
        )  # fmt: skip
        if not found.wishes:
            raise InputError(f"{source.name} has no column to learn from: name the features")
        return found, told

    def _kind(self, arrow: Any, column: Any, name: str, source: Source) -> str:
        if name == self.time:
            return "moment"
        if name in self.lists:
            return "category"
        chunk = column.combine_chunks()
        chunk = arrow.concat_arrays(chunk.chunks) if hasattr(chunk, "chunks") else chunk
        flat, several = flatten(arrow, chunk)
        if arrow.types.is_dictionary(flat.type):
            flat = flat.dictionary_decode()
        real = flat.drop_null()
        if name not in self.text:
            if source.written:
                distinct = as_written(arrow, real.unique(), MISSING)
                if arrow.types.is_string(distinct.type) and source.comma:
                    fits = arrow.compute.match_substring_regex(
                        distinct, r"^-?[0-9]+,[0-9]+$|^-?[0-9]+$"
                    )
                    if len(distinct) and arrow.compute.all(fits).as_py():
                        return "number"
                kind = distinct.type
            else:
                kind = flat.type
            if arrow.types.is_timestamp(kind) or arrow.types.is_date(kind):
                return "moment"
            if arrow.types.is_decimal(kind):
                return "number"
            if arrow.types.is_floating(kind):
                plain = (
                    real.to_numpy(zero_copy_only=False) if not source.written else np.array([0.5])
                )
                if (plain[np.isfinite(plain)] % 1 != 0).any():
                    return "number"
        if several is None and len(real) >= FEWEST and len(real.unique()) > 0.9 * len(real):
            return "alone"
        return "category"

    def label_is_text(self, arrow: Any, first: Any) -> bool:
        """Whether labels are gathered as categories: by their first values, or as the user says."""
        if self.label is None or self.label_as == "number":
            return False
        column = first.column(self.label)
        if self.label_as == "classes":
            return True
        kind = column.type
        if arrow.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
            kind = column.type
        if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
            real = column.combine_chunks().drop_null().unique()
            none = arrow.compute.is_in(real, arrow.array(MISSING, real.type))
            real = real.filter(arrow.compute.invert(none))
            plain = arrow.compute.replace_substring(real, ",", ".")
            fits = arrow.compute.match_substring_regex(plain, NUMBER)
            return bool(arrow.compute.all(fits).as_py() is False)
        return bool(arrow.types.is_boolean(kind))


def of(features: Features) -> Purposes:
    """The purposes of columns that ``features`` were learned from.

    >>> from fedslice.data.features import Column, Label
    >>> price = Column("price", "buckets", edges=(2.0,))
    >>> of(Features("user", Label("y", "number"), (price,))).wishes[0].kind
    'buckets'
    """
    categories = [column for column in features.columns if column.kind == "category"]
    groups = [
        tuple(c.column for c in categories if each.column in (c.column, c.shares))
        for each in categories
        if not each.shares
    ]
    parts = [f"{c.column}:{c.kind}" for c in features.columns if c.kind in ("hour", "weekday")]
    numbers = {c.column: c.kind for c in features.columns if c.kind in ("buckets", "standard")}
    cut = [column for column in categories if column.separator]
    return Purposes(
        features.client, features.label.column, [*groups, *parts], numbers, features.time or None,
        [column.column for column in cut], cut[0].separator if cut else "|",
        [column.column for column in categories if column.text],
        "number" if features.label.kind == "number" else "classes",
    )  # fmt: skip
