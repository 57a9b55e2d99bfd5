"""A model from a module's leaves and figures: what all frameworks have in common."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.frameworks.tables import like, tables_of
from fedslice.metrics import Metric, PerExample
from fedslice.model import Model, Table
from fedslice.simulation.run import Run
from fedslice.types import Batch, Key, Params

Columns = Mapping[str, np.ndarray]


def columns_of(data: Population | Mapping[str, Any]) -> Columns:
    """The columns of a population, or arrays by name as they are."""
    if isinstance(data, Population):
        return data.columns
    arrays = {name: np.asarray(column) for name, column in data.items()}
    if not arrays or any(not column.ndim or not len(column) for column in arrays.values()):
        raise InputError("give the population, or a dict of columns with one example at least")
    return arrays


def assembled(
    leaves: Mapping[str, np.ndarray],
    loss: PerExample,
    metrics: Mapping[str, PerExample | Metric],
    columns: Columns,
    dense: Collection[str],
    settle: Callable[[PerExample, Collection[str]], PerExample] = lambda loss, tables: loss,
    padding: Mapping[str, int] | None = None,
    **options: Any,
) -> Model:
    """The model whose first values are ``leaves``; ``settle`` may change the loss once it is known
    which leaves are tables, and ``padding`` has the rows of embeddings that no id may name."""
    for name, leaf in leaves.items():
        if leaf.dtype != np.float32:
            raise InputError(
                f"the leaf {name!r} is {leaf.dtype}, and models are float32: convert the module"
                " first (module.float() in torch)"
            )
    _check_loss(loss, leaves, columns)
    figures: dict[str, PerExample | Metric] = {"loss": loss, **metrics}

    def measured(params: Params, batch: Batch) -> Any:
        return [
            figure.values(params, batch) if isinstance(figure, Metric) else figure(params, batch)
            for figure in figures.values()
        ]

    if isinstance(dense, str):
        dense = (dense,)
    fields = tables_of(measured, leaves, columns, dense)
    tables = {
        name: _table(leaves[name], fields[name], (padding or {}).get(name)) for name in fields
    }
    rest = {name: leaf for name, leaf in leaves.items() if name not in tables}

    def init(key: Key) -> Params:
        return {name: jnp.asarray(leaf) for name, leaf in rest.items()}

    return Model(init, settle(loss, tables), tables, metrics=metrics, **options)


def trained_leaves(run: Run) -> dict[str, np.ndarray]:
    """All leaves with what was trained; rows that nobody held are as they were in the beginning."""
    found = {}
    for name, leaf in run.params().items():
        table = run.model.tables.get(name)
        if table is None:
            found[name] = np.array(leaf)
        elif table.values is None:
            raise InputError(
                f"the run's model was not made of a module: {name!r} has no first values"
            )
        else:
            found[name] = np.array(table.values)
            found[name][run.listed(run.model.space_of[name])] = np.asarray(leaf)
    return found


def _table(values: np.ndarray, fields: tuple[str, ...], padding: int | None) -> Table:
    return Table(len(values), fields, values.shape[1:], values=values, padding=padding)


def _check_loss(loss: PerExample, leaves: Mapping[str, np.ndarray], columns: Columns) -> None:
    params = {name: jax.ShapeDtypeStruct(x.shape, jnp.float32) for name, x in leaves.items()}
    given = jax.eval_shape(loss, params, like(columns, 3))
    if getattr(given, "shape", None) != (3,):
        raise InputError(
            "the loss must give one number for each example: for 3 examples it gives the shape"
            f" {getattr(given, 'shape', type(given).__name__)}. Leave the mean out (in torch,"
            ' reduction="none") and sum over other axes'
        )
