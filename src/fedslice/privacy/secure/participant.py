"""A participant of a secure sum, alone on its device: it gets bytes and gives bytes.

    0  advertise()               two public keys and the commitment of its own mask, signed
    1  share(keys)               a share of each of its two secrets for each neighbour, sealed
    2  mask(shares, vector)      its numbers under all masks
    3  agree(set)                its signature of who stayed
    4  unmask(signatures)        of each neighbour one share: of the own mask b if it stayed, of the
                                 key s behind the pair masks if it did not

It sees its own vector, its identity key, the roster and what the coordinator sends, which it checks
before it uses it.  A message that is refused changes nothing, so that the right one can still come.
Each turn is done once: whoever could ask twice would get both secrets of a neighbour.
"""

import hashlib
import os
from collections.abc import Callable, Mapping

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.secure import masks, messages
from fedslice.privacy.secure.messages import KEYS, NUMBER, SEALED, TURNS, refused
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import (
    KEY,
    SIGNATURE,
    X25519PrivateKey,
    agree,
    derive,
    identity_of,
    private_key,
    public_of,
    seal,
    unseal,
)
from fedslice.privacy.secure.session import COORDINATOR, Session
from fedslice.privacy.secure.shamir import SHARE, split

PAIR, OWN = b"pair mask", b"own mask"
"""What a secret masks: see :func:`fedslice.privacy.secure.masks.add`."""


class Participant:
    """One participant's side of a session; ``random(n)`` gives n random bytes (for tests, the same
    every time).

    ``refused`` says which neighbours' shares did not authenticate.  They are not given away in turn
    4: the neighbour needs ``threshold`` others.

    >>> from fedslice.privacy.secure.degree import Degree
    >>> keys = {number: bytes([number]) * 32 for number in range(4)}
    >>> roster = {number: identity_of(key) for number, key in keys.items()}
    >>> participant = Participant(Session(roster, b"s" * 32, Degree(3, 2)), 1, keys[1])
    >>> len(participant.advertise())
    209
    """

    def __init__(
        self,
        session: Session,
        identity: int,
        private: bytes,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if session.roster.get(identity) != identity_of(private):
            raise InputError(
                f"participant {identity} has another key in the roster, or none: register it first"
            )
        self.session, self.identity = session, identity
        self.refused: dict[int, str] = {}
        self._private, self._random, self._turn = private, random, 0
        self._seal_key, self._pair_key = private_key(random(KEY)), private_key(random(KEY))
        self._own_secret = random(KEY)
        self._neighbours = session.neighbours(identity)
        self._keys: dict[int, bytes] = {}
        self._sealing: dict[int, bytes] = {}
        self._shares: dict[int, bytes] = {}
        self._sharers: frozenset[int] = frozenset()
        self._set: bytes = b""

    # -- the five turns ----------------------------------------------------------------------------

    def advertise(self) -> bytes:
        """Turn 0: public keys, and a commitment by which a rebuilt mask can be checked."""
        self._at(0)
        payload = public_of(self._seal_key) + public_of(self._pair_key)
        payload += commitment(self.session, self.identity, self._own_secret)
        return self._sent(payload)

    def share(self, message: bytes) -> bytes:
        """Turn 1: given the neighbours' keys, shares of both secrets for each of them."""
        self._at(1)
        size = KEYS + SIGNATURE
        entries = self._entries(message, 0, size, self._neighbours)
        for sender, entry in entries.items():
            messages.check_signature(self.session, 0, sender, entry[:KEYS], entry[KEYS:])
        places = [self.session.places[sender] + 1 for sender in entries]
        threshold = self.session.degree.threshold
        secrets = self._own_secret, self._pair_key.private_bytes_raw()
        own, pair = (split(secret, threshold, places, self._random) for secret in secrets)
        sealed, agreed = {}, {}
        for place, (receiver, entry) in enumerate(entries.items()):
            secret = self._agreed(self._seal_key, receiver, entry[:KEY])
            key, bound = self._seal(secret, self.identity, receiver)
            sealed[receiver] = seal(key, own[place] + pair[place], bound)
            agreed[receiver] = secret
        self._keys, self._sealing = entries, agreed
        return self._sent(messages.pack_entries(sealed))

    def mask(self, message: bytes, parts: Parts, vector: Mapping[str, np.ndarray]) -> bytes:
        """Turn 2: given the neighbours' shares, the masked vector."""
        self._at(2)
        flat = parts.flat(vector)
        entries = self._entries(message, 1, SEALED, self._keys)
        opened, bad = {}, {}
        for sender, sealed in entries.items():
            key, bound = self._seal(self._sealing[sender], sender, self.identity)
            share = unseal(key, sealed, bound)
            if share is None:
                bad[sender] = str(refused(sender, "its share does not authenticate"))
            else:
                opened[sender] = share
        if len(opened) < self.session.degree.threshold:
            raise InputError(
                f"only {len(opened)} neighbours of participant {self.identity} gave it shares,"
                f" {self.session.degree.threshold} must: it leaves. {' '.join(bad.values())}"
            )
        tag = self.session.tag
        masks.add(flat, self._own_secret, OWN, tag, parts)
        for other in entries:
            secret = self._agreed(self._pair_key, other, self._keys[other][KEY : 2 * KEY])
            masks.add(flat, secret, PAIR, tag, parts, 1 if self.identity < other else -1)
        self._shares, self._sharers, self.refused = opened, frozenset(entries), bad
        return self._sent(parts.digest + flat.astype("<u4", copy=False).tobytes())

    def agree(self, message: bytes) -> bytes:
        """Turn 3: given the set of those whose numbers arrived, its signature."""
        self._at(3)
        size = messages.set_size(self.session)
        payload = messages.read(self.session, message, 2, self.identity, size).payload
        stayed = messages.unpack_set(self.session, payload, COORDINATOR)
        near = len(stayed & self._sharers)
        if self.identity not in stayed:
            raise refused(COORDINATOR, f"its set is without participant {self.identity} itself")
        if silent := sorted((stayed & frozenset(self._neighbours)) - self._sharers):
            raise refused(
                COORDINATOR,
                f"its set has participant {silent[0]}, a neighbour that never shared its secrets:"
                " fewer took part than it says",
            )
        if near < self.session.degree.threshold or len(stayed) < self.session.least:
            raise refused(
                COORDINATOR,
                f"its set has {len(stayed)} participants, {near} of them neighbours; the sum of so"
                f" few is not opened, {self.session.least} and {self.session.degree.threshold} must"
                " be there",
            )
        self._set = payload
        return self._sent(payload)

    def unmask(self, message: bytes) -> bytes:
        """Turn 4: given enough neighbours' signatures of the same set, one share of each."""
        if self._turn > 4:
            raise refused(
                COORDINATOR,
                "it asks a second time for shares, and could get both secrets of a participant",
            )
        self._at(4)
        size = len(self._set)
        most = size + len(self._sharers) * (NUMBER + SIGNATURE)
        payload = messages.read(self.session, message, 3, self.identity, most).payload
        if payload[:size] != self._set:
            raise refused(COORDINATOR, "it asks about another set than the one that was signed")
        signatures = messages.unpack_entries(payload[size:], SIGNATURE, COORDINATOR)
        stayed = messages.unpack_set(self.session, self._set, COORDINATOR)
        self._known(signatures, self._sharers & stayed)
        for sender, signature in signatures.items():
            messages.check_signature(self.session, 3, sender, self._set, signature)
        if len(signatures) < self.session.degree.threshold:
            raise refused(
                COORDINATOR,
                f"{len(signatures)} neighbours of participant {self.identity} signed the set,"
                f" {self.session.degree.threshold} must",
            )
        answer = {
            owner: share[:SHARE] if owner in stayed else share[SHARE:]
            for owner, share in self._shares.items()
        }
        self._shares = {}
        return self._sent(messages.pack_entries(answer))

    # -- what the turns share ----------------------------------------------------------------------

    def _at(self, turn: int) -> None:
        if self._turn != turn:
            said = TURNS[self._turn] + "() is next" if self._turn < len(TURNS) else "it is done"
            raise InputError(
                f"participant {self.identity} cannot {TURNS[turn]} now: {said}. Each turn is done"
                " once; for another sum make another session"
            )

    def _sent(self, payload: bytes) -> bytes:
        """The signed message of this turn; the next turn begins."""
        turn, self._turn = self._turn, self._turn + 1
        return messages.signed(self.session, turn, self.identity, payload, self._private)

    def _entries(
        self, message: bytes, turn: int, size: int, known: Mapping[int, bytes] | tuple[int, ...]
    ) -> dict[int, bytes]:
        """Entries of at least ``threshold`` of the ``known`` neighbours, and of nobody else."""
        most = len(known) * (NUMBER + size)
        payload = messages.read(self.session, message, turn, self.identity, most).payload
        entries = messages.unpack_entries(payload, size, COORDINATOR)
        self._known(entries, frozenset(known))
        if len(entries) < self.session.degree.threshold:
            raise refused(
                COORDINATOR,
                f"it names {len(entries)} neighbours of participant {self.identity}, at least"
                f" {self.session.degree.threshold} must take part",
            )
        return entries

    def _known(self, entries: Mapping[int, bytes], known: frozenset[int]) -> None:
        if strangers := sorted(set(entries) - known):
            raise refused(
                strangers[0], f"it is no neighbour of participant {self.identity} in this turn"
            )

    def _agreed(self, key: X25519PrivateKey, other: int, public: bytes) -> bytes:
        try:
            return agree(key, public)
        except InputError as error:
            raise refused(other, str(error)) from error

    def _seal(self, secret: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The key of the shares that go from one to the other, and what they are bound to."""
        bound = messages.header(self.session, 1, sender, receiver, 2 * SHARE)
        return derive(secret, bound), bound


def commitment(session: Session, identity: int, secret: bytes) -> bytes:
    """A hash of the own mask's secret.  It hides 32 random bytes, and shows whether others were put
    in their place."""
    number = identity.to_bytes(NUMBER, "little")
    return hashlib.sha256(b"own mask" + session.tag + number + secret).digest()
