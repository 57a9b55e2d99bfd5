"""A node's own secret, and all that it draws from it: who it is, its noise, what it says of rows.

32 random bytes in its folder, for its owner alone, drawn once.  Everything else is derived from
them by HMAC-SHA256, each for one use: nothing else has to be kept, and whoever asks twice gets the
same draw.  Who deletes the file is somebody else.
"""

import hmac
import secrets
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.hashing import splitmix
from fedslice.errors import CheckpointError
from fedslice.files.writing import atomic_write
from fedslice.round.answers import answered, keys_of
from fedslice.round.protocol import key_of
from fedslice.types import Answers, Key

SECRET, SIZE = "secret", 32
OWN_NOISE = 0x6E6F6973  # what a simulation's key of a client is folded with


class Vault:
    """The secret of the node with this folder.

    >>> vault = Vault(getfixture("tmp_path"))
    >>> vault.derive("noise", 3) == Vault(getfixture("tmp_path")).derive("noise", 3)
    True
    >>> vault.derive("noise", 3) == vault.derive("noise", 4)
    False
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def secret(self) -> bytes:
        """From the folder; a new one the first time."""
        file = self.folder / SECRET
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(file, secrets.token_bytes(SIZE), private=True)
        found = file.read_bytes()
        if len(found) != SIZE:
            raise CheckpointError(f"{file} is damaged: restore it from a copy, or use a new folder")
        return found

    def derive(self, *use: object) -> bytes:
        """32 bytes for one use."""
        text = b"\0".join(
            each if isinstance(each, bytes) else str(each).encode() + b"." for each in use
        )
        return hmac.new(self.secret, text, sha256).digest()

    @property
    def identity(self) -> bytes:
        """The private key by which other nodes know it."""
        return self.derive("identity")

    def noise(self, run: int, round: int, number: int, *asked: bytes) -> Key:
        """The key of its noise in a round, for what it was ``asked`` there: another model has other
        noise, so that nothing is learned from a difference."""
        words = np.frombuffer(self.derive("noise", run, round, number, *asked), "<u4")
        return jax.random.wrap_key_data(jnp.array(words[:2], jnp.uint32))

    def answers(
        self,
        how: Answers,
        held: Mapping[str, np.ndarray],
        union: Mapping[str, np.ndarray],
        run: int,
        round: int,
        number: int,
    ) -> dict[str, np.ndarray]:
        """The rows of the union that it takes in a round."""
        from fedslice.privacy.rows import answers

        secret = self.derive("answers")
        given = {name: (how, held[name], union[name], secret, round, name) for name in union}
        return {name: answers(*each) for name, each in given.items()}


class Trial(Vault):
    """Noise and answers from the run's seed, which everybody knows: those that a simulation draws,
    to compare with it.  It hides nothing."""

    def noise(self, run: int, round: int, number: int, *asked: bytes) -> Key:
        """The simulation's key of this client, folded once more."""
        run_key = jax.random.fold_in(jax.random.key(run), 1)
        own = key_of(run_key, jnp.uint32(round), jnp.uint32(number))
        return jax.random.fold_in(own, OWN_NOISE)

    def answers(
        self,
        how: Answers,
        held: Mapping[str, np.ndarray],
        union: Mapping[str, np.ndarray],
        run: int,
        round: int,
        number: int,
    ) -> dict[str, np.ndarray]:
        """By hashes of seed, client, row and round."""
        found, run_key = {}, splitmix(np.array([run], np.uint64))
        for place, (name, ids) in enumerate(union.items()):
            keys = keys_of(run_key, place, np.array([number], np.uint64))
            mine = np.isin(ids, held[name])[None]
            found[name] = ids[answered(how, keys, ids.astype(np.uint64), mine, round)[0]]
        return found
