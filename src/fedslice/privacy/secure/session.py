"""One secure sum: who is invited, who is whose neighbour, and the tag that binds messages to it.

The order of the ring is by the SHA-256 of a public seed and a place of the roster, so that all
compute the same graph.  The seed must not be chosen by those who know which clients are corrupt: a
server that may try many could seat a client among its own.  Take it from a source that nobody
controls, or a complete graph.
"""

import hashlib
import struct
from collections.abc import Mapping
from functools import cached_property

from fedslice.errors import InputError
from fedslice.privacy.secure.degree import Degree

SEED, PUBLIC = 32, 32
COORDINATOR = 2**32 - 1
"""The number that stands for the coordinator in messages: no participant has it."""


class Session:
    """The roster (identity to Ed25519 public key, registered beforehand), a public ``seed`` of 32
    bytes that no other session has, and the graph's :class:`Degree`.

    Below ``least`` participants nobody helps to open the sum; by default it is the threshold and
    one.

    >>> roster = {number: bytes([number]) * 32 for number in range(10)}
    >>> session = Session(roster, b"s" * 32, Degree(4, 3))
    >>> session.neighbours(0)
    (4, 5, 6, 8)
    """

    def __init__(
        self,
        roster: Mapping[int, bytes],
        seed: bytes,
        degree: Degree,
        least: int | None = None,
    ) -> None:
        self.roster = dict(sorted(roster.items()))
        self.identities = tuple(self.roster)
        self.seed, self.degree = seed, degree
        self.least = degree.threshold + 1 if least is None else least
        self._check()

    def _check(self) -> None:
        clients, (neighbours, threshold) = len(self.roster), self.degree
        if len(self.seed) != SEED:
            raise InputError(f"a session's seed has {SEED} bytes, not {len(self.seed)}")
        for identity, key in self.roster.items():
            if not 0 <= identity < COORDINATOR or len(key) != PUBLIC:
                raise InputError(
                    f"roster entry {identity} is not possible: an identity is a number from 0 below"
                    f" {COORDINATOR}, its public key has {PUBLIC} bytes"
                )
        sparse = neighbours % 2 == 0 and 0 < neighbours < clients - 1
        if not (sparse or neighbours == clients - 1) or not 2 <= threshold <= neighbours:
            raise InputError(
                f"{clients} participants cannot have {neighbours} neighbours with a threshold of"
                f" {threshold}: take what degree({clients}) gives"
            )
        if not threshold < self.least <= clients:
            raise InputError(
                f"least={self.least} is not possible: give a number above the threshold,"
                f" {threshold}, and up to {clients}"
            )

    @cached_property
    def tag(self) -> bytes:
        """32 bytes that are this session's in every message: a hash of all that it is."""
        found = hashlib.sha256(b"fedslice secure sum 1" + self.seed)
        found.update(struct.pack("<4I", len(self.roster), *self.degree, self.least))
        for identity, key in self.roster.items():
            found.update(struct.pack("<I", identity) + key)
        return found.digest()

    @cached_property
    def places(self) -> dict[int, int]:
        """Each identity's place in the roster."""
        return {identity: place for place, identity in enumerate(self.identities)}

    @cached_property
    def _ring(self) -> tuple[list[int], dict[int, int]]:
        """Identities in the order of the ring, and where each stands."""
        hashes = {
            identity: hashlib.sha256(b"ring" + self.seed + struct.pack("<I", place)).digest()
            for identity, place in self.places.items()
        }
        ring = sorted(self.identities, key=hashes.__getitem__)
        return ring, {identity: seat for seat, identity in enumerate(ring)}

    def neighbours(self, identity: int) -> tuple[int, ...]:
        """The neighbours of one participant, ascending."""
        if self.degree.neighbours == len(self.roster) - 1:
            return tuple(other for other in self.identities if other != identity)
        ring, seats = self._ring
        seat, reach = seats[identity], self.degree.neighbours // 2
        steps = (*range(-reach, 0), *range(1, reach + 1))
        return tuple(sorted(ring[(seat + step) % len(ring)] for step in steps))
