"""Features learned from own data: which values there are, where the buckets end, what labels mean.

Only the rows of the training data are looked at, so that nothing of the test set gets into a model.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.features import Column, Features, Label, text_of
from fedslice.data.gathering import Category, Codes, Numbers, Raw
from fedslice.data.purposes import Purposes, Wish
from fedslice.data.reading import Source, pyarrow_for
from fedslice.errors import InputError
from fedslice.files.guard import reading

MOST_CLASSES = 1_000


def gather(
    source: Source, purposes: Purposes, folder: Path | None = None, *, lenient: bool = False
) -> tuple[Raw, Purposes, list[str]]:
    """All columns that have a purpose, in memory or in files of ``folder``; the purposes, now told
    by the data where the user said nothing, and notes on them.

    >>> import pyarrow
    >>> from fedslice.data.reading import open_source
    >>> source = open_source(pyarrow.table({"user": ["a", "b"], "item": [3, None], "y": [0, 1]}))
    >>> raw, purposes, _ = gather(source, Purposes("user", "y"))
    >>> raw.category("item").codes.tolist(), purposes.features, raw.numbers("y").tolist()
    ([0, -1], ['item'], [0.0, 1.0])
    """
    arrow = pyarrow_for("own data")
    found = source.batches(purposes.wanted(source))
    with reading(source.name):
        first = next(found, None)
        if first is None or not first.num_rows:
            raise InputError(f"{source.name} has no rows")
        purposes, notes = purposes.resolved(arrow, first, source)
        parts = _gatherers(arrow, source, purposes, first, folder, lenient)
        rows = 0
        for batch in _chained(first, found):
            rows += batch.num_rows
            for name, part in parts.items():
                part.add(batch.column(name))
        return Raw(rows, {name: part.finish() for name, part in parts.items()}), purposes, notes


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _gatherers(
    arrow: Any, source: Source, purposes: Purposes, first: Any, folder: Path | None, lenient: bool
) -> dict[str, Codes | Numbers]:
    found: dict[str, Codes | Numbers] = {}

    def codes(name: str, cut: bool) -> Codes:
        return Codes(
            arrow, name, folder, len(found), written=source.written, text=name in purposes.text,
            separator=purposes.separator if cut else "", lenient=lenient,
        )  # fmt: skip

    def numbers(name: str, moments: bool = False) -> Numbers:
        return Numbers(arrow, name, folder, len(found), comma=source.comma, moments=moments)

    found[purposes.client] = codes(purposes.client, False)
    if purposes.label is not None:
        text = purposes.label_is_text(arrow, first)
        found[purposes.label] = codes(purposes.label, False) if text else numbers(purposes.label)
    if purposes.time is not None:
        found[purposes.time] = numbers(purposes.time, moments=True)
    for wish in purposes.wishes:
        if wish.column in found:
            continue
        if wish.kind == "category":
            found[wish.column] = codes(wish.column, wish.column in purposes.lists)
        else:
            found[wish.column] = numbers(wish.column, wish.kind in ("hour", "weekday"))
    return found


def learn(raw: Raw, purposes: Purposes, rows: np.ndarray) -> Features:
    """What the ``rows`` of the training data tell.

    >>> codes = np.array([1, 0, 1], np.int32)
    >>> user, item = (Category(codes, None, ["b", "a"], [], False) for _ in range(2))
    >>> raw = Raw(3, {"user": user, "item": item, "y": np.array([0.0, 1.0, 1.0])})
    >>> learn(raw, Purposes("user", "y", ["item"]), np.arange(3)).columns[0].values
    ('a', 'b')
    """
    groups = {wish.column: [wish] for wish in purposes.wishes if not wish.shares}
    for wish in purposes.wishes:
        if wish.shares:
            groups[wish.shares].append(wish)
    columns = [_column(raw, purposes, wish, groups, rows) for wish in purposes.wishes]
    label = Label("", "binary", ("0", "1"))
    if purposes.label is not None:
        label = _label(raw, purposes.label, purposes.label_as, rows)
    found = Features(purposes.client, label, tuple(columns), purposes.time or "").placed()
    if not found.rows and not found.measured:
        listed = ", ".join(dict.fromkeys(wish.column for wish in purposes.wishes))
        raise InputError(
            f"none of the features {listed} has any value: there is nothing to learn from"
        )
    return found


def _column(
    raw: Raw, purposes: Purposes, wish: Wish, groups: dict[str, list[Wish]], rows: np.ndarray
) -> Column:
    if wish.kind in ("hour", "weekday"):
        return Column(wish.column, wish.kind)
    if wish.kind == "category":
        category = raw.category(wish.column)
        longest = int(category.lengths(rows).max(initial=0))
        return Column(
            wish.column,
            "category",
            ()
            if wish.shares
            else _values(raw, [each.column for each in groups[wish.column]], rows),
            width=max(1, min(longest, purposes.longest)),
            separator=purposes.separator if wish.column in purposes.lists else "",
            shares=wish.shares,
            text=wish.column in purposes.text,
        )
    values = raw.numbers(wish.column)[rows]
    values = values[~np.isnan(values)]
    if wish.kind == "standard":
        spread = float(values.std()) if len(values) else 0.0
        mean = float(values.mean()) if len(values) else 0.0
        return Column(wish.column, "standard", mean=mean, spread=spread or 1.0)
    if not len(values):
        return Column(wish.column, "buckets")
    shares = np.linspace(0, 1, wish.buckets + 1)[1:-1]
    edges = np.unique(np.quantile(values, shares))
    return Column(
        wish.column, "buckets", edges=tuple(float(edge) for edge in edges if edge > values.min())
    )


def _values(raw: Raw, names: Sequence[str], rows: np.ndarray) -> tuple[str, ...]:
    """The texts that occur in these rows of columns that share their ids: numbers by size, text in
    the order of its letters."""
    texts: set[str] = set()
    whole = True
    for name in names:
        category = raw.category(name)
        used = np.zeros(len(category.texts) + 1, bool)
        if category.ends is None:
            used[category.codes[rows]] = True
        else:
            chosen = np.zeros(len(category.ends), bool)
            chosen[rows] = True
            used[category.codes[np.repeat(chosen, category.lengths())]] = True
        whole = whole and category.whole
        texts |= {text for text, seen in zip(category.texts, used, strict=False) if seen and text}
    return tuple(sorted(texts, key=int) if whole else sorted(texts))


def _label(raw: Raw, name: str, wanted: str, rows: np.ndarray) -> Label:
    given = raw.columns[name]
    if isinstance(given, Category):
        codes = np.asarray(given.codes[rows])
        _refuse_missing(name, (codes < 0) | (_missing(given)[codes]), rows)
        used = {given.texts[code] for code in np.unique(codes)}
        classes = tuple(sorted((str(text) for text in used), key=int if given.whole else str))
        if wanted == "auto" or len(classes) < 2:
            return _classes(name, "binary" if len(classes) == 2 else "classes", classes)
        return _classes(name, wanted, classes)
    values = given[rows]
    _refuse_missing(name, np.isnan(values), rows)
    distinct = np.unique(values[: 1 << 20]) if wanted == "auto" else np.unique(values)
    if len(distinct) <= 2:
        distinct = np.unique(values)
    small = len(distinct) <= 2 and bool((distinct == np.round(distinct)).all())
    if wanted != "number" and set(distinct.tolist()) <= {0.0, 1.0}:
        return Label(name, "binary", ("0", "1"))
    if wanted == "binary" or (wanted == "auto" and small and len(distinct) == 2):
        return _classes(name, "binary", tuple(text_of(value) for value in distinct[:3]))
    spread = float(values.std())
    return Label(name, "number", (), float(values.mean()), spread or 1.0)


def _classes(name: str, kind: str, classes: tuple[str, ...]) -> Label:
    if kind == "binary" and len(classes) != 2:
        raise InputError(
            f"the label {name!r} must have two values to be binary, but has"
            f" {', '.join(map(repr, classes[:5]))}{' ...' if len(classes) > 5 else ''}"
        )
    if len(classes) < 2:
        raise InputError(f"the label {name!r} is {classes[0]!r} everywhere: nothing to learn")
    if len(classes) > MOST_CLASSES:
        raise InputError(
            f"the label {name!r} has {len(classes):,} classes, more than {MOST_CLASSES:,}: if they"
            " are numbers, say label_as='number' (--label-as number)"
        )
    return Label(name, kind, classes)


def _missing(given: Category) -> np.ndarray:
    return np.array([*(text is None for text in given.texts), True])


def _refuse_missing(name: str, missing: np.ndarray, rows: np.ndarray) -> None:
    if missing.any():
        raise InputError(
            f"column {name!r} has {int(missing.sum()):,} missing values, first in row"
            f" {int(rows[missing].min()) + 1}: drop or fill those rows"
        )
