"""Which rows of its tables a model is shown with."""

import numpy as np

from fedslice.data.submodel import WHOLE
from fedslice.errors import InputError
from fedslice.model import Model


def every_row(model: Model, space: str) -> np.ndarray:
    """All rows, where they are few enough to be listed."""
    if (rows := model.tables[space].rows) > WHOLE:
        raise InputError(
            f"table {space!r} has {rows:,} rows, all of which have noise: say which ones,"
            " run.params({space: ids}) or run.table(name, ids)"
        )
    return np.arange(rows)


def check_rows(model: Model, space: str, ids: np.ndarray) -> None:
    """Refuse rows that are asked for and do not exist."""
    if space not in model.spaces:
        raise InputError(f"the model has no index space {space!r}, only {sorted(model.spaces)}")
    size = model.tables[space].rows
    if ids.size and ids.dtype.kind not in "iu":
        raise InputError(f"rows of table {space!r} are asked for by whole numbers, got {ids.dtype}")
    if ids.size and not (ids.min() >= 0 and ids.max() < size):
        raise InputError(
            f"table {space!r} has rows 0 to {size - 1}, asked for {ids.min()} to {ids.max()}"
        )
