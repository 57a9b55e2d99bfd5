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
