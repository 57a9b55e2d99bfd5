"""Where a population meets a model: what its columns may hold, what padding does, and whether names agree.

Ids of tables are checked where S(i) is made; here are the fields whose ranges the model declares, and two things that
are asked rather than declared.  Padding is -1, which plain indexing ``table[ids]`` takes for the last row: so the model
is tried on a few padded examples, and none of its figures may depend on a row that no id names.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.population import Population, numeric
from fedslice.types import Array, Batch, Params

TRIED = 4  # padded examples of each field that the model is tried on
HASTY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0"
}  # it runs twice: a third of the time to compile is saved


def meet(model: Model, population: Population, trained: Population | None = None) -> None:
    """Refuse data that the model would read wrongly without a word; ``trained`` is the population whose names the rows
    of the model's tables have, where that is another one.

    >>> from fedslice import Table
    >>> model = Model(lambda key: {}, lambda p, b: p["w"][b["item"]], {"w": Table(rows=9, fields="item")})
    >>> meet(model, Population.from_arrays([0, 0], item=[3, -1]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedslice.errors.InputError: the model reads a row where 'item' is padding (-1): ...
    """
    _check_ranges(model, population.columns)
    _check_padding(model, population)
    if trained is not None and trained is not population:
        _check_names(model, population.names, trained.names)


def _check_ranges(model: Model, columns: Mapping[str, np.ndarray]) -> None:
    for name, span in model.spans.items():
        column = columns.get(name)
        if column is None or not column.size:
            continue
        wrong = (column < span.start) | (column >= span.stop)
        if column.dtype.kind == "f":
            wrong |= column != np.round(column)
        if wrong.any():
            where = np.argwhere(wrong)[0]
            raise InputError(
                f"column {name!r} has the value {column[tuple(where)]:g} (first in example {where[0]}), but the model "
                f"takes whole numbers from {span.start} to {span.stop - 1}: correct the data, or make the model larger"
            )


def _check_names(model: Model, given: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> None:
    for name in sorted(field for fields in model.spaces.values() for field in fields):
        if name not in given or name not in known or given[name] is known[name]:
            continue
        if not np.array_equal(given[name], known[name]):
            raise InputError(
                f"the ids of {name!r} stand for other values than in training ({len(given[name]):,} names here, "
                f"{len(known[name]):,} there), so rows would be mixed up: make this population with the names of the "
                "training one, as in from_file(file, ..., names=train.names), or split one population in two"
            )


def _check_padding(model: Model, population: Population) -> None:
    """Try the model once on each field that has padding."""
    fields = [field for names in model.spaces.values() for field in names]
    padded = [f for f in fields if f not in model.tried and population.columns[f].min(initial=0) < 0]
    if not padded:
        return
    some = [np.flatnonzero((population.columns[f] < 0).reshape(population.examples, -1).any(1))[:TRIED] for f in padded]
    batch, sizes = _examples(model, population, np.unique(np.concatenate(some)))
    if guilty := _guilty(model, batch, sizes, padded):
        name = next(table for table, each in model.tables.items() if guilty[0] in each.fields)
        raise InputError(
            f"the model reads a row where {guilty[0]!r} is padding (-1): plain indexing takes -1 for the last row. Use "
            f"fedslice.lookup(params[{name!r}], batch[{guilty[0]!r}]), which gives zeros there, or mask what it reads"
        )
    model.tried.update(padded)


def _examples(model: Model, population: Population, which: np.ndarray) -> tuple[Batch, dict[str, int]]:
    """These examples, their ids renumbered, and how many rows of each space that takes."""
    batch = {
        name: jnp.asarray(numeric(name, population.columns[name][which]))
        for name in model.fields(population.columns)
        if not any(name in fields for fields in model.spaces.values())
    }
    sizes = {}
    for space, fields in model.spaces.items():
        ids = {name: population.columns[name][which].astype(np.int64) for name in fields}
        held = np.unique(np.concatenate([each[each >= 0] for each in ids.values()]))
        batch |= {
            n: jnp.asarray(np.where(x < 0, -1, np.searchsorted(held, x)).astype(np.int32)) for n, x in ids.items()
        }
        sizes[space] = max(1, len(held))
    return batch, sizes


def _guilty(model: Model, batch: Batch, sizes: Mapping[str, int], padded: list[str]) -> list[str]:
    """The fields whose padding is read as a row.

    Every table gets one row more than there are ids.  A figure that changes with this row where a field is padded, and
    does not where its padding is replaced by a real id, has read it for padding.
    """
    params = _random(model, sizes)
    other = {name: leaf.at[-1].add(1.0) if name in model.tables else leaf for name, leaf in params.items()}
    measure = jax.jit(model.measure).lower(params, batch).compile(HASTY)

    def changes(batch: Batch) -> bool:
        one, two = (jax.tree.map(np.asarray, measure(each, batch)) for each in (params, other))
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
        return not all(np.array_equal(left, right, equal_nan=True) for left, right in pairs)

    whole = {**batch, **{name: jnp.maximum(batch[name], 0) for name in padded}}
    if not changes(batch) or changes(whole):  # a model that reads whole tables reads that row anyway
        return []
    return [name for name in padded if changes({**whole, name: batch[name]})]


def _random(model: Model, sizes: Mapping[str, int]) -> Params:
    """Positive numbers of the size of means, whatever a model begins with: zeros would hide what is read."""
    rng = np.random.default_rng(0)

    def some(leaf: Any) -> Array:
        fan = math.prod(leaf.shape[:-1])
        return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape) / max(1, fan), leaf.dtype)

    rows = {
        name: jnp.asarray(rng.uniform(0.5, 1.5, (sizes[model.space_of[name]] + 1, *table.shape)), jnp.float32)
        for name, table in model.tables.items()
    }
    return {**jax.tree.map(some, jax.eval_shape(model.init, jax.random.key(0))), **rows}
