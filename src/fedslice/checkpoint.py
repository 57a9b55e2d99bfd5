"""A run on disk: one safetensors file with all state, a checksum, and what the run was set up with.

Written to a temporary file, synced and renamed, so a kill at any moment leaves the old checkpoint or the new one.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedslice.errors import CheckpointError, FedsliceError, WriteError
from fedslice.population import Population
from fedslice.store import expect

if TYPE_CHECKING:
    from fedslice.simulate import Run

NAME, LOG = "checkpoint.safetensors", "log"
FORMAT = 2
CHUNK = 1 << 20  # examples hashed at once
WORDS = {"program": "what is computed (rates, settings, model, heat)"}


def write(run: "Run", folder: Path) -> Path:
    """Write the run's checkpoint into ``folder``."""
    memory = {f"memory{key}": leaf for key, leaf in _leaves(run.memory).items()}
    leaves = {**run.store.snapshot(), **memory}
    about = {
        **run.identity,
        "round": run.round,
        "totals": run.totals,
        "capacity": run.planner.capacity,
        "first_loss": run.first_loss,
        "high": run.high,
    }
    if run.log:
        leaves[LOG] = np.frombuffer(run.log, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    seal(folder / NAME, about, leaves)
    return folder / NAME


def read(run: "Run", folder: Path) -> None:
    """Bring ``run`` to the state in ``folder``; refuse, changing nothing, what is damaged or of another run."""
    about, leaves = load(folder / NAME)
    log = leaves.pop(LOG, np.zeros(0, np.uint8)).tobytes()
    mine = dict(run.identity)
    if about.get("versions") != mine["versions"]:
        warnings.warn(
            f"{folder / NAME} was written with {about.get('versions')}, here are {mine['versions']}: whether rates and "
            "functions are the same cannot be told, and results may differ in their last bits",
            stacklevel=3,
        )
        del mine["program"], mine["versions"]
    wrong = [
        f"{WORDS.get(name, name)} is {about.get(name)!r}, here {value!r}"
        for name, value in mine.items()
        if about.get(name) != value
    ]
    if wrong:
        raise CheckpointError(
            f"{folder / NAME} belongs to another run: {'; '.join(wrong)}. Use another folder for this one."
        )
    names = run.store.names() | {f"memory{key}" for key in _leaves(run.memory)}
    if surplus := sorted(set(leaves) - names):
        raise CheckpointError(
            f"{folder / NAME} has leaves that this run does not: {', '.join(surplus[:5])}. It was written with another "
            "model, algorithm or population. Use another folder for this one."
        )
    memory = jax.tree_util.tree_map_with_path(
        lambda p, old: jnp.array(expect(leaves, f"memory{jax.tree_util.keystr(p)}", old.shape, old.dtype)), run.memory
    )
    run.store.restore(leaves)
    run.memory, run.round, run.totals = memory, about["round"], dict(about["totals"])
    run.planner.capacity, run.first_loss = dict(about["capacity"]), about["first_loss"]
    run.log = log
    run.forget_pending(about["high"])


def seal(file: Path, about: Mapping[str, Any], leaves: Mapping[str, np.ndarray]) -> None:
    """Write arrays, what is to be known about them, and a checksum of all of it; :func:`load` reads and checks."""
    header = {**about, "format": FORMAT}
    header["checksum"] = _checksum(header, leaves)
    with replacing(file) as temporary:
        save_file(dict(leaves), temporary, {"fedslice": json.dumps(header)})


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
        raise CheckpointError(f"{file} is damaged: its checksum does not match; restore it from a copy or start anew")
    if about["format"] != FORMAT:
        raise CheckpointError(f"{file} has format {about['format']}, this version reads {FORMAT}")
    return about, leaves


@contextmanager
def writing(file: Path, rest: str = "") -> Iterator[None]:
    """Whatever goes wrong while ``file`` is written becomes an error that names it."""
    try:
        yield
    except FedsliceError:
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WriteError(f"{file} could not be written: {reason}{rest}") from error


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A temporary path; what is written there takes the place of ``file`` in one step that survives a crash."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with writing(file, ". If there was one before, it is intact; make room or mend the disk and try again."):
            temporary.touch()
            mode = temporary.stat().st_mode  # by the umask; safetensors makes files for their owner alone
            yield temporary
            if temporary.stat().st_mode != mode:
                temporary.chmod(mode & 0o777)
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)


def atomic_write(file: Path, content: bytes) -> None:
    """Replace ``file`` in one step."""
    with replacing(file) as temporary:
        temporary.write_bytes(content)


def fingerprint(population: Population) -> str:
    """A short hash of all of the clients' data, and of the names of its rows.

    >>> people = Population.from_arrays([7, 7, 9], x=[1.0, 2.0, 3.0])
    >>> len(fingerprint(people)), fingerprint(people) == fingerprint(people.select(people.columns["x"] < 3))
    (16, False)
    """
    digest = hashlib.sha256()
    for name, column in {"": population.offsets, **dict(sorted(population.columns.items()))}.items():
        digest.update(f"{name} {column.dtype} {column.shape}".encode())
        for start in range(0, len(column), CHUNK):  # of columns on disk too, a part at a time
            digest.update(_bytes(column[start : start + CHUNK]))
    for name, given in sorted(population.names.items()):
        digest.update(json.dumps([name, [str(each) for each in given]]).encode())
    return digest.hexdigest()[:16]


def identity(run: "Run") -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "algorithm": run.algorithm.name,
        "seed": run.seed,
        "sampler": run.sampler.name,
        "work": [work.identity() for work in run.planner.works],
        "rows": "held" if run.planner.all_rows else "touched",
        "store": type(run.store).__name__,
        "engine": [run.engine.mode, *([run.engine.threads] if run.engine.mode == "vmap" else [])],
        "population": fingerprint(run.population),
        "program": run.anatomy.program(),
        "versions": f"fedslice {version('fedslice')}, jax {jax.__version__}",
    }


def _leaves(tree: Any) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def _checksum(about: Mapping[str, Any], leaves: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, leaf in sorted(leaves.items()):
        digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode())
        digest.update(_bytes(leaf))
    return digest.hexdigest()


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
