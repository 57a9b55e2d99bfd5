"""Which leaves of a module are tables is asked of the trace.

An embedding's weight is a table if it is read by rows alone and the rows are those that a column
of the data names.  In training a table holds a client's rows, and the column positions among them:
so whatever reads the ids as numbers, or the weight as a whole, would get something else without a
word.  :func:`tables_of` traces the figures of a module once, follows ids and weights through the
operations, and refuses what cannot be right.  Frameworks route their embeddings through
:func:`rows_of`, by whose name they are found in the trace.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from fedslice.errors import InputError
from fedslice.model import lookup
from fedslice.types import Array, Batch, Params

# what leaves ids as they are, but for their places
MOVING = (
    "reshape",
    "broadcast_in_dim",
    "squeeze",
    "slice",
    "transpose",
    "rev",
    "expand_dims",
    "copy",
    "convert_element_type",
    "dynamic_slice",
    "gather",
    "split",
)
# comparisons that tell padding from ids, whatever the ids are: each with the largest number
PADDING = {"lt": 0, "ge": 0, "gt": -1, "le": -1, "eq": -1, "ne": -1}
INSIDE = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # parameters that hold the operations of a call


@jax.jit
def rows_of(table: Array, ids: Array) -> Array:
    """Rows of an embedding, zeros where an id is padding.

    >>> rows_of(jnp.array([[1.0], [2.0]]), jnp.array([1, -1])).tolist()
    [[2.0], [0.0]]
    """
    return lookup(table, ids)


MARK = "rows_of"


class Leaf(NamedTuple):
    """A value that is a leaf of the module, unchanged."""

    name: str


class Ids(NamedTuple):
    """A value that is made of the ids of these columns, and of nothing else."""

    fields: frozenset[str]


class Constant(NamedTuple):
    """A whole number that is known, in one place or in all places of an array."""

    number: int


Mark = Leaf | Ids | Constant | None


class Reading(NamedTuple):
    """How leaves and columns are read: the columns that name rows of each embedding, leaves that
    are read otherwise, and columns that are read as numbers, each with the operation that does
    so."""

    indexed: dict[str, set[str]]
    whole: dict[str, str]
    numbers: dict[str, str]


def tables_of(
    figures: Callable[[Params, Batch], Any],
    leaves: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
    dense: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """The embeddings that are tables, each with the columns that index it; ``dense`` are those that
    shall not be.

    >>> leaves = {"item": np.zeros((9, 2)), "w": np.zeros(2)}
    >>> def score(params, batch):
    ...     return rows_of(params["item"], batch["item"]) @ params["w"]
    >>> tables_of(score, leaves, {"item": np.zeros(1, int)})
    {'item': ('item',)}
    """
    for name in dense:
        if name not in leaves:
            raise InputError(f"dense={name!r} is no leaf of the module: it has {sorted(leaves)}")
    reading = read(figures, leaves, columns)
    chosen = {
        name: fields
        for name, fields in reading.indexed.items()
        if fields and name not in reading.whole and name not in dense
    }
    for name, fields in chosen.items():
        for field in sorted(fields):
            _refuse(name, field, reading, chosen)
    return _together(chosen, leaves)


def _refuse(name: str, field: str, reading: Reading, chosen: Collection[str]) -> None:
    """A column that indexes a table must not be read in any other way."""
    advice = (
        f"In training {field!r} holds positions among a client's rows, so it can mean nothing else:"
        f" give the ids a second time under another name for that, or keep the embedding whole with"
        f" dense=({name!r},)"
    )
    if field in reading.numbers:
        raise InputError(
            f"the column {field!r} names rows of {name!r} and is read as a number, too"
            f" ({reading.numbers[field]}). {advice}. Padding is -1: ids < 0 finds it, and so does a"
            " comparison with the padding_idx of a torch embedding"
        )
    for other, fields in reading.indexed.items():
        if other not in chosen and field in fields:
            why = reading.whole.get(other, "as dense= says")
            raise InputError(
                f"the column {field!r} names rows of the table {name!r} and of {other!r}, which is"
                f" no table ({why}). {advice}"
            )


def _together(
    chosen: Mapping[str, set[str]], leaves: Mapping[str, np.ndarray]
) -> dict[str, tuple[str, ...]]:
    """Tables that share a column have all columns in common: a client then holds the same rows of
    each."""
    groups: list[tuple[set[str], set[str]]] = []  # tables, columns
    for name, fields in chosen.items():
        tables, columns = {name}, set(fields)
        for group in [group for group in groups if group[1] & columns]:
            groups.remove(group)
            tables |= group[0]
            columns |= group[1]
        groups.append((tables, columns))
    found: dict[str, tuple[str, ...]] = {}
    for tables, columns in groups:
        sizes = {name: leaves[name].shape[0] for name in sorted(tables)}
        if len(set(sizes.values())) > 1:
            raise InputError(
                f"the columns {sorted(columns)} index embeddings of different sizes ({sizes}): make"
                f" them equal, or keep some whole with dense={tuple(sizes)[:1]}"
            )
        found |= dict.fromkeys(tables, tuple(sorted(columns)))
    return {name: found[name] for name in leaves if name in found}


# -- following ids and leaves through a trace ------------------------------------------------------


def read(
    figures: Callable[[Params, Batch], Any],
    leaves: Mapping[str, np.ndarray],
    columns: Mapping[str, np.ndarray],
) -> Reading:
    """Trace the figures and see how they read what they are given."""
    params = {name: jax.ShapeDtypeStruct(x.shape, jnp.float32) for name, x in leaves.items()}
    closed = jax.make_jaxpr(figures)(params, like(columns))
    reading = Reading({name: set() for name in leaves}, {}, {})
    marks: list[Mark] = [Leaf(name) for name in sorted(leaves)]
    marks += [Ids(frozenset([name])) for name in sorted(columns)]
    for end in _walk(closed.jaxpr, marks, reading):
        _other("returned as it is", [end], reading)
    return reading


def like(columns: Mapping[str, np.ndarray], examples: int = 2) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of such columns, in shapes."""
    return {
        name: jax.ShapeDtypeStruct(
            (examples, *column.shape[1:]), jnp.int32 if column.dtype.kind in "iu" else jnp.float32
        )
        for name, column in columns.items()
    }


def _walk(jaxpr: Jaxpr, given: Iterable[Mark], reading: Reading) -> list[Mark]:
    marks: dict[Any, Mark] = dict(zip(jaxpr.invars, given, strict=True))

    def of(name: Any) -> Mark:
        return _constant(name) if isinstance(name, Literal) else marks.get(name)

    for equation in jaxpr.eqns:
        values = [of(name) for name in equation.invars]
        if any(values):
            marks.update(zip(equation.outvars, _apply(equation, values, reading), strict=True))
    return [of(name) for name in jaxpr.outvars]


def _apply(equation: JaxprEqn, values: list[Mark], reading: Reading) -> list[Mark]:
    """What the results of an operation are, and what it tells about its arguments."""
    name = equation.primitive.name
    nothing: list[Mark] = [None] * len(equation.outvars)
    if equation.params.get("name") == MARK:
        _index(values, reading)
        return nothing
    inner = next((equation.params[key] for key in INSIDE if key in equation.params), None)
    if inner is not None and name not in ("while", "shard_map"):
        inner = getattr(inner, "jaxpr", inner)
        if name == "scan":  # what is carried from step to step must be numbers
            kept, carried = equation.params["num_consts"], equation.params["num_carry"]
            _other(name, values[kept : kept + carried], reading)
            values = [*values[:kept], *[None] * carried, *values[kept + carried :]]
        if len(inner.invars) == len(values):
            return _walk(inner, values, reading)
    if (moved := _moved(equation, values)) is not None:
        return [moved] * len(nothing)
    if name in PADDING and isinstance(values[0], Ids) and _below(values[1], PADDING[name]):
        return nothing
    _other(name, values, reading)
    return nothing


def _moved(equation: JaxprEqn, values: list[Mark]) -> Mark:
    """What an operation gives that puts ids, or a known number, to other places, if it does."""
    name, out = equation.primitive.name, equation.outvars[0]
    first, ids = values[0], [value for value in values if isinstance(value, Ids)]
    if not np.issubdtype(getattr(out.aval, "dtype", np.float32), np.integer):
        return None
    if name in MOVING and (len(ids) == 1 or isinstance(first, Constant)):
        return first if isinstance(first, Ids | Constant) else None
    joined = Ids(frozenset().union(*(each.fields for each in ids)))
    if name == "concatenate" and len(ids) == len(values):
        return joined
    cases = values[1:] if name == "select_n" and values[0] is None else []
    if ids and cases and all(isinstance(case, Ids) or _below(case, -1) for case in cases):
        return joined
    return None


def _index(values: list[Mark], reading: Reading) -> None:
    """Rows of an embedding are read."""
    table, ids = values
    if not isinstance(table, Leaf):
        _other("an index of something that is no leaf", [ids], reading)
    elif isinstance(ids, Ids):
        reading.indexed[table.name] |= ids.fields
    else:
        reading.whole.setdefault(table.name, "its rows are computed, not named by a column")


def _other(operation: str, values: Iterable[Mark], reading: Reading) -> None:
    for value in values:
        if isinstance(value, Leaf):
            reading.whole.setdefault(value.name, f"it is read as a whole, in {operation!r}")
        elif isinstance(value, Ids):
            for field in value.fields:
                reading.numbers.setdefault(field, f"in {operation!r}")


def _constant(literal: Any) -> Mark:
    value = np.asarray(literal.val)
    return Constant(int(value)) if value.dtype.kind in "iu" and not value.ndim else None


def _below(value: Mark, most: int) -> bool:
    """A known number that is no larger than ``most``."""
    return isinstance(value, Constant) and value.number <= most
