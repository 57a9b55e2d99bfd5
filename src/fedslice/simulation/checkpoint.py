"""A run on disk: one safetensors file with all state, a checksum, and what the run was set up with.

Written to a temporary file, synced and renamed, so a kill at any moment leaves the old checkpoint
or the new one.  Rows that are on disk themselves are beside it, and of them only what changed is
written (:mod:`fedslice.simulation.segments`).
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.arrays import PyTree
from fedslice.data.population import Population
from fedslice.errors import CheckpointError
from fedslice.files.sealed import header, load, seal
from fedslice.round.disk import DiskMemory, DiskStore
from fedslice.round.mapped import KEPT
from fedslice.round.store import RamStore, expect
from fedslice.simulation import segments

NAME, LOG = "checkpoint.safetensors", "log"
WORDS = {"program": "what is computed (rates, settings, model, heat)"}


class Saved(NamedTuple):
    """What a checkpoint holds beside the rows of the store: where the run was, its clients' memory,
    its user's log."""

    where: dict[str, Any]
    memory: PyTree | DiskMemory
    log: bytes


def write(
    folder: Path, identity: Mapping[str, Any], store: RamStore | DiskStore, saved: Saved
) -> Path:
    """Write the checkpoint of a run into ``folder``."""
    leaves = {
        **store.snapshot(),
        **{f"memory{key}": leaf for key, leaf in _leaves(saved.memory).items()},
    }
    if saved.log:
        leaves[LOG] = np.frombuffer(saved.log, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    file, about = folder / NAME, {**identity, **saved.where}
    parts = segments.holders(store, saved.memory)
    rows = segments.groups(parts)
    for group in rows:
        group.settle()
    before = segments.listed(file, store.token) if isinstance(store, DiskStore) else []
    least, after = segments.level(rows, before), before
    try:
        after = segments.add(folder, rows, before, least) if rows else []
        seal(file, {**about, **({"segments": after} if after else {})}, leaves)
    except BaseException:
        segments.drop(file, [each for each in after if each not in before])
        raise
    if isinstance(store, DiskStore):
        store.token = header(file).get("checksum", "")
    for group in rows:
        group.saved(whole=least == KEPT)
    segments.clear(folder, after)
    return file


def read(
    folder: Path,
    identity: Mapping[str, Any],
    store: RamStore | DiskStore,
    memory: PyTree | DiskMemory,
) -> Saved:
    """Bring ``store`` to the state in ``folder`` and give the rest; refuse, changing nothing, what
    is damaged or of another run than the one with this ``identity``, whose clients' memory looks
    like ``memory``."""
    file = folder / NAME
    about, leaves = load(file)
    log = leaves.pop(LOG, np.zeros(0, np.uint8)).tobytes()
    _compare(file, about, dict(identity))
    names = store.names() | {f"memory{key}" for key in _leaves(memory)}
    if surplus := sorted(set(leaves) - names):
        raise CheckpointError(
            f"{file} has leaves that this run does not: {', '.join(surplus[:5])}. It was written"
            " with another model, algorithm or population. Use another folder for this one."
        )
    parts = segments.holders(store, memory)
    readers = segments.opened(folder, about.pop("segments", []), segments.groups(parts))
    found = memory
    if not isinstance(memory, DiskMemory):
        found = jax.tree_util.tree_map_with_path(
            lambda p, old: jnp.array(
                expect(leaves, f"memory{jax.tree_util.keystr(p)}", old.shape, old.dtype)
            ),
            memory,
        )
    rows = segments.load(parts, readers)
    store.restore(leaves)
    segments.replace(parts, rows)
    if isinstance(store, DiskStore):
        store.token = header(file).get("checksum", "")
    return Saved({key: value for key, value in about.items() if key not in identity}, found, log)


def _compare(file: Path, about: Mapping[str, Any], mine: dict[str, Any]) -> None:
    if about.get("versions") != mine["versions"]:
        warnings.warn(
            f"{file} was written with {about.get('versions')}, here are {mine['versions']}: whether"
            " rates and functions are the same cannot be told, and results may differ in their"
            " last bits",
            stacklevel=4,
        )
        del mine["program"], mine["versions"]
    wrong = [
        f"{WORDS.get(name, name)} is {about.get(name)!r}, here {value!r}"
        for name, value in mine.items()
        if about.get(name) != value
    ]
    if wrong:
        raise CheckpointError(
            f"{file} belongs to another run: {'; '.join(wrong)}. Use another folder for this one."
        )


def fingerprint(population: Population) -> str:
    """A short hash of all of the clients' data, and of the names of its rows.

    >>> people = Population.from_arrays([7, 7, 9], x=[1.0, 2.0, 3.0])
    >>> fewer = people.select(people.columns["x"] < 3)
    >>> len(fingerprint(people)), fingerprint(people) == fingerprint(fewer)
    (16, False)
    """
    return population.content


def _leaves(tree: Any) -> dict[str, np.ndarray]:
    """Of what is in memory, by path."""
    if isinstance(tree, DiskMemory):
        return {}
    return {
        jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)
    }
