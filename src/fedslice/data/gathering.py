"""Columns of own data as numbers, gathered batch by batch: the codes of values, numbers, moments.

Nothing is decided here about what a value becomes in the model (:mod:`fedslice.data.features`), but
for one thing: what is *missing*.  Null, NaN, empty text and, where all else is a number or a
moment, the spellings of :data:`MISSING` are no value, in whatever format they come.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.categories import NUMBER, as_written, categories, flatten
from fedslice.errors import InputError
from fedslice.files.guard import shown
from fedslice.files.writing import writing

MISSING = (
    "NA", "N/A", "#N/A", "#N/A N/A", "#NA", "n/a", "NaN", "nan", "-NaN", "-nan",
    "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN", "NULL", "null", "None",
)  # fmt: skip
TRUTH = {"true": "true", "false": "false"}
UNITS = ((1e17, 1e9, "nanoseconds"), (1e14, 1e6, "microseconds"), (1e11, 1e3, "milliseconds"))


class Category(NamedTuple):
    """A column of categories: the ``codes`` of all values one after the other (-1: missing), where
    those of each row ``ends`` (None: one each), and the ``texts`` that the codes stand for, with
    the text as ``written`` in a CSV.  In a ``whole`` column all values are whole numbers."""

    codes: np.ndarray
    ends: np.ndarray | None
    texts: list[str | None]
    written: list[str]
    whole: bool

    def lengths(self, rows: np.ndarray | None = None) -> np.ndarray:
        """How many values these rows have, or all."""
        if self.ends is None:
            return np.ones(len(self.codes) if rows is None else len(rows), np.int64)
        starts = np.append(0, self.ends[:-1])
        return np.asarray(self.ends - starts if rows is None else self.ends[rows] - starts[rows])


class Spool:
    """An array that grows: in memory, or in a file of ``folder`` for what is larger."""

    def __init__(self, folder: Path | None, name: str, kind: Any) -> None:
        self.kind, self.size = np.dtype(kind), 0
        self.parts: list[np.ndarray] = []
        self.file = None if folder is None else folder / f"{name}.bin"

    def add(self, part: np.ndarray) -> None:
        """More at the end."""
        self.size += len(part)
        if self.file is None:
            self.parts.append(np.asarray(part, self.kind))
            return
        with writing(self.file), self.file.open("ab") as sink:
            sink.write(np.ascontiguousarray(part, self.kind).data)

    def array(self) -> np.ndarray:
        """All of it; what is in a file is mapped."""
        if self.file is not None and self.size:
            return np.memmap(self.file, self.kind, "r")
        return np.concatenate([np.zeros(0, self.kind), *self.parts])


class Codes:
    """Gathers a column of categories; ``separator`` cuts text into several values.  A ``lenient``
    one takes fractions and moments as text: they may be among names that are known already."""

    def __init__(
        self, arrow: Any, name: str, folder: Path | None, place: int, *,
        written: bool, text: bool, separator: str = "", lenient: bool = False,
    ) -> None:  # fmt: skip
        self.arrow, self.name, self.separator = arrow, name, separator
        self.written, self.text, self.lenient = written, text, lenient
        self.known: dict[Any, int] = {}
        self.codes = Spool(folder, f"{place}-codes", np.int32)
        self.lengths = Spool(folder, f"{place}-lengths", np.int32)
        self.several = False

    def add(self, column: Any) -> None:
        """The column of one batch."""
        arrow = self.arrow
        chunk = column.combine_chunks()
        chunk = arrow.concat_arrays(chunk.chunks) if hasattr(chunk, "chunks") else chunk
        if self.separator and not arrow.types.is_nested(chunk.type):
            chunk = self._cut(chunk)
        flat, lengths = flatten(arrow, chunk)
        if lengths is not None:
            self.several = True
            self.lengths.add(lengths)
        elif self.several and not arrow.types.is_null(chunk.type):
            raise InputError(f"column {self.name!r} holds lists in some rows and none in others")
        else:
            self.lengths.add(np.ones(len(flat), np.int32))
        encoded = self._plain(flat).dictionary_encode()
        codes = [self.known.setdefault(v, len(self.known)) for v in encoded.dictionary.to_pylist()]
        places = np.asarray(encoded.indices.fill_null(len(codes)))
        self.codes.add(np.array([*codes, -1], np.int32)[places])

    def _cut(self, chunk: Any) -> Any:
        compute = self.arrow.compute
        parts = compute.split_pattern(chunk.cast(self.arrow.string()), self.separator)
        trimmed = compute.utf8_trim_whitespace(parts.flatten())
        return self.arrow.ListArray.from_arrays(
            parts.offsets, trimmed, mask=chunk.is_null() if chunk.null_count else None
        )

    def _plain(self, flat: Any) -> Any:
        """Values that Python tells apart as Arrow does: no NaN, and true is not 1."""
        kinds = self.arrow.types
        if kinds.is_dictionary(flat.type):
            flat = flat.dictionary_decode()
        if kinds.is_boolean(flat.type):
            return flat.cast(self.arrow.string())
        if kinds.is_floating(flat.type):
            return self.arrow.compute.if_else(self.arrow.compute.is_nan(flat), None, flat)
        return flat

    def finish(self) -> Category:
        """The column; what is no category is refused."""
        arrow, values = self.arrow, list(self.known)
        ends = np.cumsum(self.lengths.array(), dtype=np.int64) if self.several else None
        if not values:
            return Category(self.codes.array(), ends, [], [], True)
        mixed = len({type(value) for value in values}) > 1
        raw = [str(value) for value in values] if self.written or mixed else []
        given = arrow.array(raw if raw else values)
        if arrow.types.is_large_list(given.type) or arrow.types.is_list(given.type):
            raise InputError(
                f"column {self.name!r} holds lists in lists: a value is text or a number"
            )
        found = self._typed(given)
        whole = arrow.types.is_integer(found.type)
        texts = found.cast(arrow.large_string()).to_pylist()
        if all(text is None or text.lower() in TRUTH for text in texts):
            texts = [text and text.lower() for text in texts]
        return Category(self.codes.array(), ends, texts, raw if self.written else [], whole)

    def _typed(self, given: Any) -> Any:
        judged = self.written and not self.text
        try:
            read = as_written(self.arrow, given, MISSING) if judged else given
            return categories(self.arrow, read, self.name, self.text)
        except InputError:
            if not self.lenient:
                raise
            return categories(self.arrow, given, self.name, True)


class Numbers:
    """Gathers a column of numbers: NaN is missing.  ``moments`` become seconds since 1970."""

    def __init__(
        self, arrow: Any, name: str, folder: Path | None, place: int, *,
        comma: bool = False, moments: bool = False,
    ) -> None:  # fmt: skip
        self.arrow, self.name, self.comma, self.moments = arrow, name, comma, moments
        self.values = Spool(folder, f"{place}-numbers", np.float64)
        self.dated: bool | None = None

    def add(self, column: Any) -> None:
        """The column of one batch."""
        kinds, chunk = self.arrow.types, column.combine_chunks()
        chunk = self.arrow.concat_arrays(chunk.chunks) if hasattr(chunk, "chunks") else chunk
        if kinds.is_dictionary(chunk.type):
            chunk = chunk.dictionary_decode()
        if kinds.is_string(chunk.type) or kinds.is_large_string(chunk.type):
            chunk = self._read(chunk)
        kind = chunk.type
        dated = kinds.is_timestamp(kind) or kinds.is_date(kind)
        if dated and self.moments:
            stamps = chunk.cast(self.arrow.timestamp("us")).cast(self.arrow.int64())
            found = (
                stamps.cast(self.arrow.float64(), safe=False).to_numpy(zero_copy_only=False) / 1e6
            )
        elif kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
            plain = chunk.cast(self.arrow.float64(), safe=False)
            found = plain.to_numpy(zero_copy_only=False).astype(np.float64)
        elif kinds.is_boolean(kind) or kinds.is_null(kind):
            plain = chunk.cast(self.arrow.int8()).cast(self.arrow.float64())
            found = plain.to_numpy(zero_copy_only=False)
        else:
            raise InputError(
                f"column {self.name!r} must hold {'moments' if self.moments else 'numbers'}, got"
                f" {kind}, such as {shown(chunk.drop_null()[0])}"
            )
        if chunk.null_count < len(chunk) and self.moments:
            if self.dated not in (None, dated):
                raise InputError(f"column {self.name!r} has dates in some rows, numbers in others")
            self.dated = dated
        if np.isinf(found).any():
            row = self.values.size + int(np.argmax(np.isinf(found))) + 1
            raise InputError(
                f"column {self.name!r} has an infinite value, first in row {row}: correct it, or"
                " leave it empty"
            )
        self.values.add(found)

    def _read(self, chunk: Any) -> Any:
        """Numbers or moments from text."""
        arrow, compute = self.arrow, self.arrow.compute
        text = compute.utf8_trim_whitespace(chunk)
        none = compute.is_in(text, arrow.array(["", *MISSING], text.type))
        text = compute.if_else(none, None, text)
        plain = compute.replace_substring(text, ",", ".") if self.comma else text
        fits = compute.match_substring_regex(plain, NUMBER).fill_null(True)
        if compute.all(fits).as_py() is not False:
            return plain.cast(arrow.float64())
        if self.moments:
            for kind in (arrow.timestamp("us"), arrow.timestamp("us", "UTC")):
                try:
                    return text.cast(kind)
                except arrow.ArrowInvalid:
                    continue
        row = int(np.argmin(fits.to_numpy(zero_copy_only=False)))
        wanted = (
            "a moment, as in 2026-11-18 12:00:00 or in seconds since 1970"
            if self.moments
            else "a number"
        )
        raise InputError(
            f"column {self.name!r} has {shown(chunk[row].as_py())} in row"
            f" {self.values.size + row + 1}, which is not {wanted}: correct it, or leave it empty"
        )

    def finish(self) -> np.ndarray:
        """All numbers; those of large moments are brought to seconds."""
        values = self.values.array()
        if not self.moments or self.dated or not len(values):
            return values
        largest = np.nanmax(np.abs(values), initial=0.0)
        for least, many, _ in UNITS:
            if largest > least:
                return np.asarray(values) / many
        return values


class Raw(NamedTuple):
    """What was gathered: ``rows`` in all; a column is a :class:`Category`, or its numbers."""

    rows: int
    columns: Mapping[str, Category | np.ndarray]

    def category(self, name: str) -> Category:
        """A column of categories."""
        found = self.columns[name]
        assert isinstance(found, Category)
        return found

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers."""
        found = self.columns[name]
        assert isinstance(found, np.ndarray)
        return found
