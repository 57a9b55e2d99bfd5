"""A trained model as a PyTorch state dict: tensors under names, and a JSON file beside them.

A model for own data has its leaves as torch modules hold them: every table with one more row, of
zeros, for padding (``nn.Embedding(rows + 1, ..., padding_idx=rows)``, to which the id -1 is sent),
and the weights of layers as those of ``nn.Linear``, [out, in].  Any other model has its leaves as
they are, and for each table the ids of its rows, ``item.ids``.
"""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.cli.formats.onnx import padded
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write
from fedslice.types import Params

LAYERS = ("tower", "attention")


def write(arrays: dict[str, np.ndarray], file: Path) -> None:
    """Arrays by name; ``torch.load(file, weights_only=True)`` reads them."""
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "a .pt file needs PyTorch: pip install 'fedslice[torch]'. Without it .safetensors holds"
            " the same tensors, which safetensors.torch.load_file reads"
        ) from error
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(x)) for name, x in arrays.items()}, buffer)
    atomic_write(file, buffer.getvalue())


def state_of(params: Params) -> dict[str, np.ndarray]:
    """The leaves of a model for own data, with all rows of its tables, as torch modules hold
    them.

    >>> state = state_of({"weight": np.ones(2, np.float32), "bias": np.float32(3)})
    >>> {name: leaf.tolist() for name, leaf in state.items()}
    {'bias': 3.0, 'weight': [1.0, 1.0, 0.0]}
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = _as_torch(name, np.asarray(leaf, np.float32))
    return found


def _as_torch(name: str, leaf: np.ndarray) -> Any:
    if name in ("weight", "factor", "embedding"):
        return padded(leaf)
    return leaf.T if name.split(".")[0] in LAYERS else leaf
