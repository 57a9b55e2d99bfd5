"""Where a population meets a model: what its columns may hold, what padding does, and whether names
agree.

Ids of tables are checked where S(i) is made; here are the fields whose ranges the model declares,
and two things that are asked rather than declared.  Padding is -1, which plain indexing
``table[ids]`` takes for the last row: so the model is tried on a few padded examples, and none of
its figures may depend on which row comes last.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import jax
import numpy as np

from fedslice.data.columns import slices
from fedslice.data.population import Population, numeric
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Params

Plain = dict[str, np.ndarray]  # a batch on the host
TRIED = 4  # padded examples of each field that the model is tried on
SIZES = 1.0, 0.1, 0.01  # of the rows that it is tried with
ROUNDING = 1e-5  # of a figure: what a sum in another order may change
# it runs a few times: a third of the time to compile is saved
HASTY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


def meet(model: Model, population: Population, trained: Population | None = None) -> None:
    """Refuse data that the model would read wrongly without a word; ``trained`` is the population
    whose names the rows of the model's tables have, where that is another one.

    >>> from fedslice import Table
    >>> tables = {"w": Table(rows=9, fields="item")}
    >>> model = Model(lambda key: {}, lambda p, b: p["w"][b["item"]], tables)
    >>> meet(model, Population.from_arrays([0, 0], item=[3, -1]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedslice.errors.InputError: the model reads a row where 'item' is padding (-1): ...
    """
    if trained is None:  # what is only judged may lack a column that no figure reads
        _check_declared(model, population.columns)
    _check_ranges(model, population.columns)
    for table in model.tables.values():
        for name in table.fields if table.padding is not None else ():
            check_unnamed(name, population.columns[name], table.padding)
    _check_padding(model, population)
    if trained is not None and trained is not population:
        _check_names(model, population.names, trained.names)


def _check_declared(model: Model, columns: Mapping[str, np.ndarray]) -> None:
    for name in sorted(set(model.ranges) - set(columns)):
        near = get_close_matches(name, columns, 1, 0)
        raise InputError(
            f"the model's ranges speak of {name!r}, which is no column, so nothing would be"
            f" checked: did you mean {near[0] if near else 'another'!r}? There is {sorted(columns)}"
        )


def _check_ranges(model: Model, columns: Mapping[str, np.ndarray]) -> None:
    for name, span in model.spans.items():
        column = columns.get(name)
        if column is None:
            continue
        for part in slices(len(column)):
            _check_range(name, column[part], part.start, span)


def _check_range(name: str, column: np.ndarray, start: int, span: range) -> None:
    wrong = (column < span.start) | (column >= span.stop)
    if column.dtype.kind == "f":
        wrong |= column != np.round(column)
    if wrong.any():
        where = np.argwhere(wrong)[0]
        raise InputError(
            f"column {name!r} has the value {column[tuple(where)]:g} (first in example"
            f" {start + where[0]}), but the model takes whole numbers from {span.start} to"
            f" {span.stop - 1}: correct the data, or make the model larger"
        )


def check_unnamed(name: str, column: np.ndarray, row: int | None) -> None:
    """No id may be that of a row which a module of another library keeps for padding: in a
    population padding is -1, and a row that is named is trained."""
    if any((column[part] == row).any() for part in slices(len(column))):
        raise InputError(
            f"column {name!r} has the id {row}, which the model's embedding keeps for padding"
            f" (padding_idx): in a population padding is -1, so give np.where({name} == {row}, -1,"
            f" {name})"
        )


def _check_names(
    model: Model, given: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]
) -> None:
    for name in sorted(field for fields in model.spaces.values() for field in fields):
        if name not in given or name not in known or given[name] is known[name]:
            continue
        if not np.array_equal(given[name], known[name]):
            raise InputError(
                f"the ids of {name!r} stand for other values than in training ({len(given[name]):,}"
                f" names here, {len(known[name]):,} there), so rows would be mixed up: make this"
                " population with the names of the training one, as in from_file(file, ...,"
                " names=train.names), or split one population in two"
            )


def _check_padding(model: Model, population: Population) -> None:
    """Try the model once on each field that has padding."""
    fields = [field for names in model.spaces.values() for field in names]
    padded = [
        f for f in fields if f not in model.tried and population.columns[f].min(initial=0) < 0
    ]
    if not padded:
        return
    some = [_first_padded(population.columns[f]) for f in padded]
    batch, sizes = _examples(model, population, np.unique(np.concatenate(some)))
    if guilty := _guilty(model, batch, sizes, padded):
        name = next(table for table, each in model.tables.items() if guilty[0] in each.fields)
        raise InputError(
            f"the model reads a row where {guilty[0]!r} is padding (-1): plain indexing takes -1"
            f" for the last row. Use fedslice.lookup(params[{name!r}], batch[{guilty[0]!r}]), which"
            " gives zeros there, or mask what it reads"
        )
    model.tried.update(padded)


def _first_padded(column: np.ndarray) -> np.ndarray:
    """The first few examples that have padding."""
    found = np.zeros(0, np.int64)
    for part in slices(len(column)):
        short = (column[part] < 0).reshape(part.stop - part.start, -1).any(1)
        found = np.append(found, part.start + np.flatnonzero(short)[:TRIED])
        if len(found) >= TRIED:
            break
    return found[:TRIED]


def _examples(
    model: Model, population: Population, which: np.ndarray
) -> tuple[Plain, dict[str, int]]:
    """These examples, their ids renumbered, and how many rows of each space that takes."""
    batch = {
        name: numeric(name, population.columns[name][which])
        for name in model.fields(population.columns)
        if not any(name in fields for fields in model.spaces.values())
    }
    sizes = {}
    for space, fields in model.spaces.items():
        ids = {name: population.columns[name][which].astype(np.int64) for name in fields}
        held = np.unique(np.concatenate([each[each >= 0] for each in ids.values()]))
        batch |= {
            n: np.where(x < 0, -1, np.searchsorted(held, x)).astype(np.int32)
            for n, x in ids.items()
        }
        sizes[space] = max(1, len(held))
    return batch, sizes


def _guilty(model: Model, batch: Plain, sizes: Mapping[str, int], padded: list[str]) -> list[str]:
    """The fields whose padding is read as a row.

    Every table gets two rows more than there are ids, and they change places.  To what looks at
    whole tables, a norm or a softmax over all rows, nothing happens, up to rounding; a figure that
    changes where a field is padded, and far less where its padding is replaced by a real id, has
    read the last row for padding.
    """
    whole = {**batch, **{name: np.maximum(batch[name], 0) for name in padded}}
    measure = None
    for params in _draws(model, sizes):
        measure = measure or jax.jit(model.measure).lower(params, batch).compile(HASTY)
        alone = _swapped(measure, params, model, whole)
        if not _beyond(_swapped(measure, params, model, batch), alone):
            continue
        fields = [
            f
            for f in padded
            if _beyond(_swapped(measure, params, model, {**whole, f: batch[f]}), alone)
        ]
        return fields or padded
    return []


def _swapped(
    measure: Callable[..., Any], params: Params, model: Model, batch: Plain
) -> list[np.ndarray]:
    """How far each figure of each example moves when the last two rows change places, in parts of
    the largest."""
    other = {
        name: np.concatenate([leaf[:-2], leaf[-1:], leaf[-2:-1]]) if name in model.tables else leaf
        for name, leaf in params.items()
    }
    moved = []
    for one, two in zip(
        *(jax.tree.leaves(measure(each, batch)) for each in (params, other)), strict=True
    ):
        left, right = np.asarray(one, np.float64), np.asarray(two, np.float64)
        finite = np.isfinite(left) & np.isfinite(right)
        left, right = (np.where(finite, each, 0) for each in (left, right))
        moved.append(
            np.abs(left - right) / max(np.abs(left).max(initial=0), np.finfo(np.float32).tiny)
        )
    return moved


def _beyond(moved: list[np.ndarray], alone: list[np.ndarray]) -> bool:
    pairs = zip(moved, alone, strict=True)
    return any(bool((one > ROUNDING + 10 * two.max(initial=0)).any()) for one, two in pairs)


def _draws(model: Model, sizes: Mapping[str, int]) -> Iterator[Params]:
    """Numbers of either sign, whatever a model begins with: zeros would hide what is read.  One
    draw is not enough: large rows saturate a sigmoid, and of one sign they never pass a rectifier.
    """
    rng = np.random.default_rng(0)

    def some(shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    dense = jax.tree.map(
        lambda leaf: some(leaf.shape) / math.sqrt(max(1, math.prod(leaf.shape[:-1]))), shapes
    )
    for sign in (1, -1):
        for size in SIZES:
            rows = {
                name: np.asarray(
                    size * some((sizes[model.space_of[name]] + 2, *table.shape)), np.float32
                )
                for name, table in model.tables.items()
            }
            yield {
                **jax.tree.map(lambda x, leaf: np.asarray(sign * x, leaf.dtype), dense, shapes),
                **rows,
            }
