"""A whole secure sum in one process, for tests and trials: every message is packed and read."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.secure.coordinator import Coordinator
from fedslice.privacy.secure.degree import Degree, degree
from fedslice.privacy.secure.messages import TURNS
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import KEY, identity_of
from fedslice.privacy.secure.session import SEED, Session


class Outcome(NamedTuple):
    """The ``total`` of those who ``stayed``, and what it cost.

    ``up`` and ``down`` are bytes by turn and participant, zero for those who had left.
    ``participant`` and ``coordinator`` are seconds of CPU by turn, of all participants together;
    the coordinator has one number more, for opening the sum.
    """

    total: dict[str, np.ndarray]
    stayed: frozenset[int]
    excluded: dict[int, str]
    up: np.ndarray
    down: np.ndarray
    participant: np.ndarray
    coordinator: np.ndarray


def secure_sum(
    vectors: Sequence[Mapping[str, np.ndarray]],
    parts: Parts,
    chosen: Degree | None = None,
    dropouts: Mapping[int, int] | None = None,
    random: Callable[[int], bytes] = os.urandom,
    least: int | None = None,
) -> Outcome:
    """Sum vectors of participants 0, 1, ... securely; ``dropouts`` says in which turn (0 to 4) some
    of them fall silent.  Sums have the type of the vectors.

    >>> from fedslice.privacy.secure.parts import dense
    >>> vectors = [{"w": np.int32([number, -1])} for number in range(5)]
    >>> secure_sum(vectors, Parts([dense("w", 2)]), Degree(4, 3)).total["w"]
    array([10, -5], dtype=int32)
    """
    clients, gone = len(vectors), dict(dropouts or {})
    if bad := [each for each in gone if not 0 <= each < clients or not 0 <= gone[each] <= 4]:
        raise InputError(f"dropouts names participant {bad[0]}: give {{participant: turn 0 to 4}}")
    people = _people(clients, chosen or degree(clients), random, least)
    coordinator = Coordinator(people[0].session, parts)
    up, down = np.zeros((2, len(TURNS), clients), np.int64)
    spent, ours = np.zeros(len(TURNS)), np.zeros(len(TURNS) + 1)

    messages: dict[int, bytes] = dict.fromkeys(range(clients), b"")
    for turn in range(len(TURNS)):
        begun = time.process_time()
        for each, message in messages.items():
            if gone.get(each, len(TURNS)) > turn:
                asked = time.process_time()
                answer = _answer(people[each], turn, message, parts, vectors[each])
                spent[turn] += time.process_time() - asked
                up[turn, each] = len(answer)
                coordinator.receive(answer)
        if turn < len(TURNS) - 1:
            messages = coordinator.close()
            for each, message in messages.items():
                down[turn, each] = len(message)
        ours[turn] = time.process_time() - begun - spent[turn]
    begun = time.process_time()
    total = coordinator.total()
    ours[-1] = time.process_time() - begun
    types = {name: np.asarray(vectors[0][name]).dtype for name in total}
    typed = {name: value.view(types[name]) for name, value in total.items()}
    return Outcome(typed, coordinator.stayed, coordinator.excluded, up, down, spent, ours)


def _people(
    clients: int, chosen: Degree, random: Callable[[int], bytes], least: int | None
) -> list[Participant]:
    """Participants of a new session, with new identities."""
    private = [random(KEY) for _ in range(clients)]
    roster = {number: identity_of(key) for number, key in enumerate(private)}
    session = Session(roster, random(SEED), chosen, least)
    return [Participant(session, number, private[number], random) for number in roster]


def _answer(
    participant: Participant,
    turn: int,
    message: bytes,
    parts: Parts,
    vector: Mapping[str, np.ndarray],
) -> bytes:
    if turn == 0:
        return participant.advertise()
    if turn == 2:
        return participant.mask(message, parts, vector)
    return {1: participant.share, 3: participant.agree, 4: participant.unmask}[turn](message)
