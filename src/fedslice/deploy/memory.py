"""What a node keeps between its rounds, in files of its own, in two phases.

    answer           pending-7-a3....safetensors     what it would remember, if its answer counts
    next letter      memory.safetensors              what it remembers: the answer counted

A letter says which answer of this node was the last that counted (``accepted``, the nonce of the
letter that it answered).  Is it a pending one, that is renamed; those of rounds before the letter's
did not count, and are removed.  Those of the letter's own round stay, for a round may be tried
several times, and letters may come twice.  Every write is a temporary file, a sync and a rename: a
kill at any moment leaves the state before or the one after.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.deploy.letter import NONE
from fedslice.errors import CheckpointError, InputError
from fedslice.files.sealed import load, seal
from fedslice.files.writing import writing
from fedslice.types import PyTree

KEPT, PENDING = "memory.safetensors", "pending-{}-{}.safetensors"
TRIES = 8  # of one round, whose memories are kept


class Memory:
    """The memory of one node; ``like`` has the structure of its tree, ``owner`` says whose it is
    (the run's seed, the node's number, what it computes).

    >>> folder = Path(getfixture("tmp_path"))
    >>> memory = Memory(folder, np.zeros(1), {"number": 3})
    >>> memory.propose(np.ones(1), b"a" * 16, round=0)
    >>> memory.settle(b"a" * 16, round=1)  # it counted
    >>> Memory(folder, np.zeros(1), {"number": 3}).value
    array([1.])
    """

    def __init__(self, folder: Path, like: PyTree, owner: Mapping[str, Any]) -> None:
        self.folder, self.like, self.owner = folder, like, dict(owner)
        folder.mkdir(parents=True, exist_ok=True)
        self.value: PyTree = None
        self.nonce = NONE
        if (folder / KEPT).exists():
            self.value, self.nonce = self._read(folder / KEPT)

    def settle(self, accepted: bytes, round: int) -> None:
        """Keep or drop what is pending, by a letter of this round which says what counted."""
        pending = self._pending()
        if any(of > round for of, _ in pending.values()):
            raise InputError(f"a letter of round {round + 1}, after one of a later round")
        file = next((file for file, (_, nonce) in pending.items() if nonce == accepted), None)
        if file is not None:
            value, nonce = self._read(file)
            with writing(self.folder / KEPT):
                file.replace(self.folder / KEPT)
                _sync(self.folder)
            self.value, self.nonce = value, nonce
        if accepted != self.nonce:
            raise InputError(
                f"the memory in {self.folder} is not the one that the coordinator counts on: it is"
                " of another run, or older or newer than the coordinator's checkpoint. Use a new"
                " folder for a new run; else restore both from copies of the same time"
            )
        for old, (of, _) in pending.items():
            if of < round:
                old.unlink(missing_ok=True)

    def propose(self, value: PyTree, nonce: bytes, round: int) -> None:
        """Write what will be remembered if the answer to the letter with this nonce counts."""
        leaves = {
            jax.tree_util.keystr(path): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(value)
        }
        tries = sorted(self._pending(), key=lambda file: file.stat().st_mtime_ns)
        for old in tries[: -TRIES + 1]:
            old.unlink(missing_ok=True)
        file = self.folder / PENDING.format(round, nonce.hex())
        seal(file, {**self.owner, "nonce": nonce.hex()}, leaves)

    def _pending(self) -> dict[Path, tuple[int, bytes]]:
        """The files that wait, each with its round and nonce."""
        found = {}
        for file in self.folder.glob(PENDING.format("*", "*")):
            _, round, nonce = file.name.removesuffix(".safetensors").split("-")
            found[file] = int(round), bytes.fromhex(nonce)
        return found

    def _read(self, file: Path) -> tuple[PyTree, bytes]:
        about, leaves = load(file)
        wrong = [name for name, value in self.owner.items() if about.get(name) != value]
        if wrong:
            raise CheckpointError(
                f"{file} is of another node or run ({', '.join(wrong)} differ): use another folder"
            )
        paths, tree = jax.tree_util.tree_flatten_with_path(self.like)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        if set(names) != set(leaves):
            raise CheckpointError(f"{file} has the memory of another algorithm: use another folder")
        return jax.tree.unflatten(tree, [leaves[name] for name in names]), bytes.fromhex(
            about["nonce"]
        )


def _sync(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
