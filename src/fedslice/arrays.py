"""Names for what arrays are: the words that all signatures are written in."""

from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = dict[str, Any]
Batch: TypeAlias = dict[str, Array]
Rows: TypeAlias = dict[str, np.ndarray]
"""Row ids behind a table leaf, one int64 array a table: given to ``init`` functions only."""
Numbers: TypeAlias = Any
"""An array that is NumPy's on the host and JAX's, perhaps traced, in a compiled round."""


def among(known: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each number stands in ``known``, which ascends, and whether it is there at all.

    >>> [each.tolist() for each in among(np.array([3, 5, 9]), np.array([5, 4, 9]))]
    [[1, 1, 2], [True, False, True]]
    """
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    last = len(known) - 1
    if int(known[last]) - int(known[0]) == last:  # without a gap: nothing to search
        place = np.asarray(wanted, np.int64) - int(known[0])
        return np.clip(place, 0, last), (place >= 0) & (place <= last)
    place = np.minimum(np.searchsorted(known, wanted), last)
    return place, known[place] == wanted
