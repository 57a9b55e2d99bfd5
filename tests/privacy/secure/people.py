"""Sessions for tests, with random bytes that are the same every time, and a walk through the turns
that a test can stop at any place."""

import hashlib
import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.privacy.secure import messages
from fedslice.privacy.secure.coordinator import Coordinator
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.primitives import identity_of
from fedslice.privacy.secure.session import Session

DEGREE = Degree(6, 4)  # of seven
OTHERS, ALL = set(range(7)) - {3}, set(range(7))
PARTS = Parts([dense("bias", 5), rows("item", [2, 3, 9], 3)])


def source(seed: int) -> Callable[[int], bytes]:
    """Random bytes by a seed: SHAKE-256 of a counter."""
    count = 0

    def random(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed},{count}".encode()).digest(size)

    return random


def vector(number: int, parts: Parts = PARTS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    return {
        part.name: rng.integers(-(2**31), 2**31, part.shape, np.int64).astype(np.int32)
        for part in parts.parts
    }


def total(numbers: Iterable[int], parts: Parts = PARTS) -> dict[str, np.ndarray]:
    """The plain sum, modulo 2^32, in Python's integers."""
    found = [vector(number, parts) for number in numbers]
    return {
        name: (sum(each[name].astype(object) for each in found) % 2**32).astype(np.uint32)
        for name in found[0]
    }


class Room:
    """A session of so many, in one process."""

    def __init__(
        self, clients: int, degree: Degree, seed: int = 0, least: int | None = None
    ) -> None:
        self.random = source(seed)
        self.private = {number: self.random(32) for number in range(clients)}
        roster = {number: identity_of(key) for number, key in self.private.items()}
        self.session = Session(roster, self.random(32), degree, least)
        self.people = {
            number: Participant(self.session, number, self.private[number], self.random)
            for number in roster
        }
        self.coordinator = Coordinator(self.session, PARTS)
        self.inbox: dict[int, bytes] = dict.fromkeys(roster, b"")

    def answers(self, silent: Iterable[int] = ()) -> dict[int, bytes]:
        """What participants send in this turn."""
        quiet = set(silent)
        return {
            number: self.answer(number, message)
            for number, message in self.inbox.items()
            if number not in quiet
        }

    def answer(self, number: int, message: bytes) -> bytes:
        person, turn = self.people[number], self.coordinator.turn
        if turn == 0:
            return person.advertise()
        if turn == 2:
            return person.mask(message, PARTS, vector(number))
        return {1: person.share, 3: person.agree, 4: person.unmask}[turn](message)

    def turn(self, silent: Iterable[int] = ()) -> None:
        """One whole turn; in the last one nothing is left to send."""
        self.finish(self.answers(silent))

    def finish(self, answers: dict[int, bytes]) -> None:
        for message in answers.values():
            self.coordinator.receive(message)
        if self.coordinator.turn < 4:
            self.inbox = self.coordinator.close()

    def until(self, turn: int) -> "Room":
        while self.coordinator.turn < turn:
            self.turn()
        return self


def seven(turn: int, seed: int = 0) -> Room:
    """Seven participants who have come to this turn."""
    return Room(7, DEGREE, seed).until(turn)


def says(*words: str) -> "pytest.RaisesExc[InputError]":
    """An error with these words, in this order."""
    return pytest.raises(InputError, match=".*".join(map(re.escape, words)))


def signed(room: Room, sender: int, payload: bytes) -> bytes:
    """A participant's message of this turn, whatever is in it."""
    turn = room.coordinator.turn
    return messages.signed(room.session, turn, sender, payload, room.private[sender])


def payload_of(message: bytes) -> bytes:
    """Of a participant's message."""
    return message[messages.HEADER : -64]


def ends_well(room: Room, stayed: set[int], answered: bool = False) -> None:
    """The other turns, and the right sum of these."""
    if not answered:
        room.until(4).turn()
    found, expected = room.coordinator.total(), total(stayed)
    assert room.coordinator.stayed == stayed
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
