"""Sessions: who takes part, and what binds messages to one."""

import pytest
from people import DEGREE, says, seven

from fedslice.errors import InputError
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.session import COORDINATOR, Session


def test_a_participant_must_be_in_the_roster_with_its_key() -> None:
    room = seven(0)
    for number, key in ((3, room.private[4]), (99, room.private[3])):
        with says(f"participant {number}", "register"):
            Participant(room.session, number, key)


def test_everything_that_a_session_is_makes_its_tag() -> None:
    roster = {number: bytes([number]) * 32 for number in range(7)}
    sessions = [
        Session(roster, b"s" * 32, DEGREE),
        Session(roster, b"t" * 32, DEGREE),
        Session(roster, b"s" * 32, Degree(4, 4)),
        Session(roster, b"s" * 32, Degree(6, 5)),
        Session(roster, b"s" * 32, DEGREE, least=7),
        Session({**roster, 7: bytes(32)}, b"s" * 32, Degree(6, 4)),
        Session({**roster, 6: bytes(32)}, b"s" * 32, DEGREE),
    ]
    assert len({session.tag for session in sessions}) == len(sessions)
    assert Session(dict(reversed(roster.items())), b"s" * 32, DEGREE).tag == sessions[0].tag


@pytest.mark.parametrize(
    ("clients", "seed", "degree", "least"),
    [
        (7, b"short", DEGREE, None),
        (7, b"s" * 32, Degree(5, 3), None),
        (7, b"s" * 32, Degree(7, 3), None),
        (7, b"s" * 32, Degree(6, 7), None),
        (7, b"s" * 32, Degree(6, 1), None),
        (7, b"s" * 32, DEGREE, 4),
        (7, b"s" * 32, DEGREE, 8),
    ],
)
def test_impossible_sessions_are_refused(
    clients: int, seed: bytes, degree: Degree, least: int | None
) -> None:
    with pytest.raises(InputError):
        Session({number: bytes(32) for number in range(clients)}, seed, degree, least)


@pytest.mark.parametrize("roster", [{-1: bytes(32)}, {COORDINATOR: bytes(32)}, {5: bytes(31)}])
def test_impossible_rosters_are_refused(roster: dict[int, bytes]) -> None:
    others = {number: bytes(32) for number in range(3)}
    with says("roster entry"):
        Session({**others, **roster}, b"s" * 32, Degree(3, 2))
