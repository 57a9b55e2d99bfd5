"""The values of a column as ids: whole numbers and text as they are written, never merged; what is
no category refused.

Missing is missing everywhere: null, NaN, None and empty text are no value, so the id is -1,
padding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.files.guard import check_padded

WHOLE = r"^(0|-?[1-9][0-9]*)$"  # one way to write each number: "007" is text
WHOLE_FLOAT = r"^(0|-?[1-9][0-9]*)(\.0+)?$"  # what whole numbers become where some are missing
NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
# up to here a float of this kind names one whole number
EXACT = {"halffloat": 2**11, "float": 2**24, "double": 2**53}


def flatten(arrow: Any, column: Any) -> tuple[Any, np.ndarray | None]:
    """All values of a column one after the other, and how many each row has (None: one each)."""
    kind = column.type
    if arrow.types.is_fixed_size_list(kind):
        column = column.cast(arrow.list_(kind.value_type))
    elif not (arrow.types.is_list(kind) or arrow.types.is_large_list(kind)):
        return column, None
    return column.flatten(), np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)


def categories(arrow: Any, flat: Any, name: str, text: bool) -> Any:
    """Values that can be told apart for certain: whole numbers, truth values or text, null where
    there is none.

    >>> import pyarrow
    >>> categories(pyarrow, pyarrow.array([3.0, float("nan"), 4.0]), "item", text=False).to_pylist()
    [3, None, 4]
    """
    kinds = arrow.types
    if kinds.is_dictionary(flat.type):
        flat = flat.dictionary_decode()
    kind = flat.type
    if kinds.is_null(kind) or (kinds.is_decimal(kind) and kind.scale == 0):
        text = True
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        text = True
    if kinds.is_floating(kind):
        flat = arrow.compute.if_else(arrow.compute.is_nan(flat), None, flat)
        if not text:
            return _whole(arrow, flat, name)
    if (kinds.is_integer(kind) and not text) or kinds.is_boolean(kind):
        return flat
    if kinds.is_nested(kind):
        raise InputError(
            f"column {name!r} holds {kind}: a feature is one value, or a list of values, in"
            " each row"
        )
    if not text and (kinds.is_temporal(kind) or kinds.is_decimal(kind)):
        _refuse(name, f"holds {kind}", flat)
    try:
        flat = flat.cast(arrow.large_string())
    except arrow.ArrowException as error:
        raise InputError(
            f"column {name!r} is not UTF-8 text ({error}): save it as UTF-8"
        ) from error
    return arrow.compute.if_else(arrow.compute.equal(flat, ""), None, flat)


def _whole(arrow: Any, flat: Any, name: str) -> Any:
    values = flat.drop_null().to_numpy(zero_copy_only=False)
    if np.isinf(values).any():
        raise InputError(
            f"column {name!r} has infinite values, which name nothing: make them missing (NaN) or"
            " drop them"
        )
    if not (values == np.round(values)).all():
        _refuse(name, "has fractions", flat)
    if (np.abs(values) > EXACT[str(flat.type)]).any():
        raise InputError(
            f"column {name!r} holds ids as {flat.type}, which is not exact beyond"
            f" {EXACT[str(flat.type)]:,}: different ids are one there; store them as whole numbers"
            " or text"
        )
    return flat.cast(arrow.int64())


def _refuse(name: str, what: str, flat: Any) -> None:
    real = flat.drop_null()
    some = ", ".join(map(str, real[:2].to_pylist()))
    raise InputError(
        f"column {name!r} {what} ({some}): each of its {len(real.unique()):,} values would be a"
        " category with a row of its own. Round or bucket them first; or, if they are names, say"
        f" so with text=[{name!r}] (--text {name})"
    )


def as_written(arrow: Any, column: Any, missing: Sequence[str]) -> Any:
    """A column of a CSV, read as text: whole numbers if all of it is written so, numbers or moments
    likewise (to be judged by :func:`categories`), else the text.  Among numbers the spellings in
    ``missing`` are no value.

    >>> import pyarrow
    >>> columns = (["1", "NA"], ["01", "1"], ["x", "NA"])
    >>> [as_written(pyarrow, pyarrow.array(x), ["NA"]).to_pylist() for x in columns]
    [[1, None], ['01', '1'], ['x', 'NA']]
    """
    compute = arrow.compute
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    none = compute.is_in(values, arrow.array(missing, values.type))
    real = values.filter(compute.invert(none))
    if not len(real):
        return column

    def all_match(pattern: str) -> bool:
        return bool(compute.all(compute.match_substring_regex(real, pattern)).as_py())

    def converted(kind: Any) -> Any:
        return compute.if_else(none, None, values).cast(kind).take(encoded.indices)

    if all_match(WHOLE) or (all_match(WHOLE_FLOAT) and _distinct(compute, real)):
        values = compute.replace_substring_regex(values, r"\.0+$", "")
        try:
            return converted(arrow.int64())
        except arrow.ArrowInvalid:  # beyond 64 bits
            return column
    if (
        all_match(NUMBER)
        and not all_match(WHOLE_FLOAT)
        and compute.any(compute.match_substring(real, ".")).as_py()
    ):
        return converted(arrow.float64())
    for kind in (arrow.timestamp("us"), arrow.timestamp("us", "UTC")):
        try:
            return converted(kind)
        except arrow.ArrowInvalid:
            continue
    return column


def _distinct(compute: Any, texts: Any) -> bool:
    """Whether "1" and "1.0" do not both occur."""
    return len(compute.replace_substring_regex(texts, r"\.0+$", "").unique()) == len(texts)


def joined(arrow: Any, flats: Sequence[Any]) -> Any:
    """The values of columns that share their ids, one after the other: as text where some are
    numbers and some text.

    >>> import pyarrow
    >>> text = pyarrow.array(["01", "1"]).cast("large_string")
    >>> joined(pyarrow, [pyarrow.array([1]), text]).to_pylist()
    ['1', '01', '1']
    """
    kinds = {flat.type for flat in flats if flat.null_count < len(flat)} or {flats[0].type}
    if len(kinds) == 1:
        common = kinds.pop()
    else:
        common = (
            arrow.int64()
            if all(map(arrow.types.is_signed_integer, kinds))
            else arrow.large_string()
        )
    return arrow.concat_arrays([flat.cast(common) for flat in flats])


def encode(
    column: Any, name: str, known: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Ids in ascending order of the values, or as ``known`` counts them; -1 for missing and
    unknown; and the values."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    if values.dtype == object:
        sizes = [len(str(value)) for value in values]
        check_padded(f"column {name!r} has a value", max(sizes, default=0), len(sizes), sum(sizes))
        values = values.astype(str)
    rank = np.full(len(values) + 1, -1, np.int32)  # the last is the place of missing values
    if known is None:
        order = np.argsort(values, kind="stable")
        rank[order] = np.arange(len(values), dtype=np.int32)
        known = values[order]
    else:
        rank[:-1] = _places(values, np.asarray(known), name)
    return rank[np.asarray(encoded.indices.fill_null(len(values)))], known


def _places(values: np.ndarray, known: np.ndarray, name: str) -> np.ndarray:
    """Where each value stands among the known ones; by their text where a file has numbers and the
    other text."""
    if {values.dtype.kind, known.dtype.kind} not in ({values.dtype.kind}, {"i", "u"}):
        values, known = values.astype(str), known.astype(str)
    place = {value: number for number, value in enumerate(known.tolist())}
    if len(place) < len(known):
        raise InputError(f"names[{name!r}] has a value twice: ids would not be told apart")
    found = np.array([place.get(value, -1) for value in values.tolist()], np.int32)
    if len(values) and not (found >= 0).any():
        raise InputError(
            f"none of the values of {name!r}, such as {str(values[0])!r}, is among the names given,"
            f" such as {', '.join(map(repr, known[:1].astype(str).tolist())) or 'none'}: are they"
            " those of another column?"
        )
    return found


def padded(ids: np.ndarray, lengths: np.ndarray | None, name: str) -> np.ndarray:
    """One row for each example, filled up with -1."""
    if lengths is None:
        return ids
    width = max(1, int(lengths.max(initial=0)))
    check_padded(f"column {name!r} has a list", width, len(lengths), ids.nbytes + lengths.nbytes)
    out = np.full((len(lengths), width), -1, np.int32)
    out[np.arange(width) < lengths[:, None]] = ids
    return out
