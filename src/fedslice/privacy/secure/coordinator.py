"""The coordinator of a secure sum: it takes bytes, gives bytes, and learns the sum.

In each of the turns 0 to 3 it receives what arrives and then closes the turn, which gives the
messages to send; after turn 4 it has the total:

    sum_u x_u = sum_u y_u - sum_{u stayed} PRG(b_u) - sum_{u stayed, v left} +-PRG(s_uv)

Whoever has not sent its message when a turn is closed has left.  A message that is wrong is
refused, with an error that names its sender.  If the sender's own signature is on it, the sender is
excluded and counts as one that left; if not, somebody else may have made it, and the right one can
still come.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError
from fedslice.privacy.secure import messages
from fedslice.privacy.secure.messages import KEYS, NUMBER, SEALED, refused
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import KEY, agree, private_key
from fedslice.privacy.secure.session import COORDINATOR, Session
from fedslice.privacy.secure.shamir import PRIME, SHARE
from fedslice.privacy.secure.unmasking import Opened, remove

_PROBE = private_key(b"fedslice: is this key harmless? ")


class Coordinator:
    """The coordinator's side of a session, for a sum of vectors of these parts.

    ``excluded`` says who was excluded and why, ``left`` has for each closed turn who left in it.

    >>> from fedslice.privacy.secure.degree import Degree
    >>> from fedslice.privacy.secure.parts import dense
    >>> session = Session({n: bytes([n]) * 32 for n in range(4)}, b"s" * 32, Degree(3, 2))
    >>> Coordinator(session, Parts([dense("bias", 2)])).receive(b"...")
    Traceback (most recent call last):
    fedslice.errors.InputError: a message of 3 bytes has no header: refused
    """

    def __init__(self, session: Session, parts: Parts) -> None:
        self.session, self.parts, self.turn = session, parts, 0
        self.excluded: dict[int, str] = {}
        self.left: list[frozenset[int]] = []
        self._present = frozenset(session.identities)
        self._arrived: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._near = {each: session.neighbours(each) for each in session.identities}
        self._keys: dict[int, bytes] = {}
        self._advertised: frozenset[int] = frozenset()
        self._sharers: frozenset[int] = frozenset()
        self._stayed: frozenset[int] = frozenset()
        self._flat = np.zeros(parts.size, np.uint32)
        self._answers: dict[int, dict[int, bytes]] = {}

    @property
    def stayed(self) -> frozenset[int]:
        """Whose vectors are in the sum, once turn 2 is closed."""
        return self._stayed

    # -- what arrives ------------------------------------------------------------------------------

    def receive(self, message: bytes) -> None:
        """Take one message of the current turn; a wrong one is refused."""
        most = self.most()
        found = messages.read(self.session, message, self.turn, COORDINATOR, most)
        sender, payload = found.sender, found.payload
        if sender in self.excluded:
            raise refused(sender, f"it was excluded before ({self.excluded[sender]})")
        if sender not in self._present:
            raise refused(sender, "it left in an earlier turn")
        if sender in self._arrived:
            raise refused(sender, f"its message of turn {self.turn} has arrived already")
        messages.check_signature(self.session, self.turn, sender, payload, found.signature)
        try:
            self._reader()(sender, payload)
        except InputError as error:
            self.excluded[sender] = str(error)
            raise
        self._arrived[sender] = b"" if self.turn == 2 else payload
        self._signatures[sender] = found.signature

    def most(self) -> int:
        """The most bytes that a payload of this turn can have."""
        neighbours = self.session.degree.neighbours
        sizes = (
            KEYS,
            neighbours * (NUMBER + SEALED),
            KEY + 4 * self.parts.size,
            messages.set_size(self.session),
            neighbours * (NUMBER + SHARE),
        )
        return sizes[self.turn]

    def _reader(self) -> Callable[[int, bytes], None]:
        readers = (self._read_keys, self._read_shares, self._read_numbers, self._read_set)
        return (*readers, self._read_answer)[self.turn]

    def _read_keys(self, sender: int, payload: bytes) -> None:
        if len(payload) != KEYS:
            raise refused(sender, f"its keys have {len(payload)} bytes, not {KEYS}")
        try:
            for start in (0, KEY):
                agree(_PROBE, payload[start : start + KEY])
        except InputError as error:
            raise refused(sender, str(error)) from error

    def _read_shares(self, sender: int, payload: bytes) -> None:
        entries = messages.unpack_entries(payload, SEALED, sender)
        self._for_exactly(sender, entries, self._advertised)

    def _read_numbers(self, sender: int, payload: bytes) -> None:
        if len(payload) != KEY + 4 * self.parts.size or payload[:KEY] != self.parts.digest:
            raise refused(sender, "its vector has other parts or row ids than this sum")
        self._flat += np.frombuffer(payload, "<u4", offset=KEY)

    def _read_set(self, sender: int, payload: bytes) -> None:
        if payload != messages.pack_set(self.session, self._stayed):
            raise refused(sender, "it signed another set of participants")

    def _read_answer(self, sender: int, payload: bytes) -> None:
        entries = messages.unpack_entries(payload, SHARE, sender)
        if not set(entries) <= set(self._near[sender]) & self._sharers:
            raise refused(sender, "it answers for others than its neighbours")
        if any(int.from_bytes(share, "little") >= PRIME for share in entries.values()):
            raise refused(sender, "its shares are no numbers of the field")
        for owner, share in entries.items():
            self._answers.setdefault(owner, {})[sender] = share

    def _for_exactly(self, sender: int, entries: dict[int, bytes], among: frozenset[int]) -> None:
        if set(entries) != set(self._near[sender]) & among:
            raise refused(sender, "its shares are not for its neighbours, all and no others")

    # -- the end of a turn -------------------------------------------------------------------------

    def close(self) -> dict[int, bytes]:
        """End turn 0, 1, 2 or 3: what to send, to whom.  Raises if too few are left to go on."""
        if self.turn == 4:
            raise InputError("turn 4 is the last: total() gives the sum")
        before, self._present = self._present, frozenset(self._arrived)
        payloads = (self._end_keys, self._end_shares, self._end_numbers, self._end_sets)[
            self.turn
        ]()
        self.left.append(before - self._present)
        sent = {
            receiver: messages.addressed(self.session, self.turn, receiver, payload)
            for receiver, payload in payloads.items()
        }
        self._arrived, self._signatures, self.turn = {}, {}, self.turn + 1
        return sent

    def _end_keys(self) -> dict[int, bytes]:
        self._prune()
        self._advertised = self._present
        self._keys = self._arrived
        signed = {each: self._arrived[each] + self._signatures[each] for each in self._present}
        return {each: self._of_neighbours(each, signed) for each in self._present}

    def _end_shares(self) -> dict[int, bytes]:
        self._prune()
        self._sharers = self._present
        sealed = {
            each: messages.unpack_entries(self._arrived[each], SEALED, each)
            for each in self._present
        }
        return {
            each: messages.pack_entries(
                {near: sealed[near][each] for near in self._near[each] if near in sealed}
            )
            for each in self._present
        }

    def _end_numbers(self) -> dict[int, bytes]:
        self._stayed = self._present
        self._enough()
        chosen = messages.pack_set(self.session, self._stayed)
        return dict.fromkeys(self._present, chosen)

    def _end_sets(self) -> dict[int, bytes]:
        self._enough()
        chosen = messages.pack_set(self.session, self._stayed)
        signatures = {each: self._signatures[each] for each in self._present}
        return {each: chosen + self._of_neighbours(each, signatures) for each in self._present}

    def _of_neighbours(self, receiver: int, entries: dict[int, bytes]) -> bytes:
        near = self._near[receiver]
        return messages.pack_entries({each: entries[each] for each in near if each in entries})

    def _prune(self) -> None:
        """Leave out those with too few neighbours, while nothing has been masked: nobody could
        rebuild their masks."""
        threshold, found = self.session.degree.threshold, set(self._present)
        while lonely := [u for u in found if len(found.intersection(self._near[u])) < threshold]:
            found.difference_update(lonely)
        self._present = frozenset(found)
        self._check_least()

    def _enough(self) -> None:
        """End if somebody's masks can no longer be rebuilt."""
        self._check_least()
        threshold = self.session.degree.threshold
        for owner in sorted(self._needed()):
            if (count := len(self._present.intersection(self._near[owner]))) < threshold:
                raise InputError(
                    f"the sum ends: {count} neighbours of participant {owner} are left, and"
                    f" {threshold} are needed to take its masks off. Begin another session"
                )

    def _check_least(self) -> None:
        if len(self._present) < self.session.least:
            raise InputError(
                f"the sum ends: {len(self._present)} participants are left after turn {self.turn},"
                f" {self.session.least} must be. Begin another session"
            )

    def _needed(self) -> frozenset[int]:
        """Whose secrets are needed: of those who stayed, and of those who left with masks behind
        them."""
        behind = {near for each in self._stayed for near in self._near[each]}
        return self._stayed | (self._sharers & behind)

    # -- the sum -----------------------------------------------------------------------------------

    def total(self) -> dict[str, NDArray[np.uint32]]:
        """The sum of the vectors of those who ``stayed``, modulo 2^32: use ``.view(np.int32)`` for
        numbers with a sign.  Raises if too few have answered."""
        if self.turn != 4:
            raise InputError(f"this is turn {self.turn}: the sum can be opened after turn 4")
        opened = Opened(self.session, self._keys, self._sharers, self._stayed)
        secrets = {}
        for owner in sorted(self._needed()):
            secrets[owner], wrong = opened.secret(owner, self._answers.get(owner, {}))
            for sender in wrong:
                self.excluded[sender] = str(refused(sender, f"its share of {owner} is wrong"))
        flat = self._flat.copy()
        remove(flat, opened, secrets, self.parts)
        return self.parts.named(flat)
