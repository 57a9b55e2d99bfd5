"""A node's place in the secure sum under way, on the disk between its turns.

A node may be a new process for every letter, so what it must know to go on lies in its folder, for
its owner alone: how the sum was opened, its participant's secrets, and its last reply.  A letter
that comes twice, byte for byte, has the same reply: who resumes a sum gets no second draw.  After
the last turn the secrets are gone, and with the next news the rest.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.given import Given
from fedslice.deploy.letter import Letter
from fedslice.deploy.turns import SUM, Opening, Turn
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write
from fedslice.privacy.secure import resting
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import Parts

NAME = "session.bin"
_SIZES = struct.Struct("<5I")


class Seat(NamedTuple):
    """What lies in the folder."""

    opening: bytes
    beside: bytes  # what came with it
    participant: bytes  # with its secrets; empty after the last turn
    letter: bytes  # hash of the last one
    reply: bytes


class Acts(NamedTuple):
    """What a node does in a sum: ``allow`` it or raise, ``take`` rows of a union (beside turn 0),
    and make its ``vector`` (from what was beside turns 0 and 2); ``once``: noise that is accounted
    for one try of a round."""

    allow: Callable[[Opening], None]
    take: Callable[[Opening, bytes], bytes]
    vector: Callable[[Opening, bytes, bytes], tuple[Parts, Mapping[str, np.ndarray]]]
    use: Callable[[Opening], tuple[str, bool]]


class Sitting:
    """The sum in which the node with this folder, number and private key sits; ``given`` is what it
    gave before, ``random(n)`` gives n random bytes (for tests, the same every time)."""

    def __init__(
        self,
        folder: Path,
        number: int,
        private: bytes,
        given: Given,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.folder, self.number, self.private, self.random = folder, number, private, random
        self.file, self.given = folder / NAME, given

    def answer(self, head: Letter, letter: bytes, acts: Acts) -> Letter:
        """The reply to a letter of a turn, on the disk before it leaves; a letter that came before
        has the same reply."""
        seat = self._read()
        if seat is not None and seat.letter == hashlib.sha256(letter).digest():
            return letters.unpack(seat.reply)
        turn, after = self.turn(Turn.unpack(head.body), acts)
        reply = head.reply(letters.TURNED, head.program, turn.pack())
        self.keep(after, letter, reply.pack())
        return reply

    def opening(self) -> Opening | None:
        """Of the sum in which it sits."""
        seat = self._read()
        return None if seat is None else Opening.unpack(seat.opening)

    def turn(self, turn: Turn, acts: Acts) -> tuple[Turn, Seat]:
        """One turn: the reply, and the seat after it, to be kept before the reply leaves."""
        if turn.number == 0:
            return self._first(turn, acts)
        seat = self._read()
        if seat is None or not seat.participant:
            raise InputError(
                "a turn of a secure sum in which this node does not sit: it was not asked from the"
                " beginning, or has done its last turn"
            )
        opening = Opening.unpack(seat.opening)
        session = opening.session
        given = session, self.number, self.private, seat.participant, self.random
        participant = resting.unpack(*given)
        if turn.number == 2:
            use, once = acts.use(opening)
            stands = use, opening.round, opening.attempt, session.tag.hex()
            counts = opening.purpose == SUM
            self.given.check(*stands, once, counts)
            vector = acts.vector(opening, seat.beside, turn.beside)
            said = participant.mask(turn.message, *vector)
            self.given.note(*stands, counts)
        else:
            each = {1: participant.share, 3: participant.agree, 4: participant.unmask}
            said = each[turn.number](turn.message)
        left = resting.pack(participant) if turn.number < 4 else b""
        return Turn(turn.number, message=said), seat._replace(participant=left)

    def _first(self, turn: Turn, acts: Acts) -> tuple[Turn, Seat]:
        opening = Opening.unpack(turn.opening)
        acts.allow(opening)
        session = opening.session
        use, once = acts.use(opening)
        stands = use, opening.round, opening.attempt, session.tag.hex()
        self.given.check(*stands, once, opening.purpose == SUM)
        participant = Participant(session, self.number, self.private, self.random)
        beside = acts.take(opening, turn.beside)
        said = participant.advertise()
        seat = Seat(turn.opening, turn.beside, resting.pack(participant), b"", b"")
        return Turn(0, message=said, beside=beside), seat

    def keep(self, seat: Seat, letter: bytes, reply: bytes) -> None:
        """Write the seat, with the reply to this letter."""
        seat = seat._replace(letter=hashlib.sha256(letter).digest(), reply=reply)
        self.folder.mkdir(parents=True, exist_ok=True)
        data = _SIZES.pack(*map(len, seat)) + b"".join(seat)
        atomic_write(self.file, data, private=True)

    def leave(self, round: int) -> None:
        """Delete it if it is of a round before this one."""
        seat = self._read()
        if seat is not None and Opening.unpack(seat.opening).round < round:
            self.file.unlink(missing_ok=True)

    def _read(self) -> Seat | None:
        if not self.file.exists():
            return None
        data = self.file.read_bytes()
        parts, start = [], _SIZES.size
        for size in _SIZES.unpack_from(data):
            parts.append(data[start : start + size])
            start += size
        return Seat(*parts)
