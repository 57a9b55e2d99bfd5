"""Arrays and what is to be known about them in one safetensors file, under a checksum of it all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fedslice.errors import CheckpointError
from fedslice.files import streamed
from fedslice.files.streamed import raw

FORMAT = 3


def seal(file: Path, about: Mapping[str, Any], leaves: Mapping[str, np.ndarray]) -> None:
    """Write arrays, what is to be known about them, and a checksum of all of it; :func:`load` reads
    and checks."""
    header = {**about, "format": FORMAT}
    header["checksum"] = _checksum(header, leaves)
    # the widest numbers first, so that all stand at multiples of their size
    ordered = sorted(leaves.items(), key=lambda leaf: (-leaf[1].dtype.itemsize, leaf[0]))
    streams = {name: streamed.of(leaf) for name, leaf in ordered}
    streamed.write(file, streams, {"fedslice": json.dumps(header)})


def load(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the leaves of a checkpoint, after checking that it is whole."""
    if not file.exists():
        raise CheckpointError(f"there is no checkpoint {file}: give the folder of a saved run")
    try:
        with safe_open(file, "np") as handle:
            about = json.loads((handle.metadata() or {})["fedslice"])
            leaves = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{file} is damaged or is not a fedslice checkpoint ({error}); it was left as it is"
        ) from error
    if about.pop("checksum", None) != _checksum(about, leaves):
        raise CheckpointError(
            f"{file} is damaged: its checksum does not match; restore it from a copy or start anew"
        )
    if about["format"] != FORMAT:
        raise CheckpointError(f"{file} has format {about['format']}, this version reads {FORMAT}")
    return about, leaves


def header(file: Path) -> dict[str, Any]:
    """What is known about the arrays of a file, its checksum too, without a look at them; nothing
    if it cannot be read."""
    try:
        with safe_open(file, "np") as handle:
            about = json.loads((handle.metadata() or {})["fedslice"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _checksum(about: Mapping[str, Any], leaves: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, leaf in sorted(leaves.items()):
        digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode())
        digest.update(raw(leaf))
    return digest.hexdigest()
