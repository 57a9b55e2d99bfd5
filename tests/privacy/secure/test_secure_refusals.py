"""Everything that must be refused is, with an error that names the sender and says why."""

import re
import struct
from collections.abc import Callable

import numpy as np
import pytest
from people import PARTS, Room, total, vector

from fedslice.errors import InputError
from fedslice.privacy.secure import messages
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.messages import HEADER, SEALED
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.session import COORDINATOR, Session
from fedslice.privacy.secure.shamir import PRIME, SHARE

DEGREE = Degree(6, 4)  # of seven
OTHERS, ALL = set(range(7)) - {3}, set(range(7))


def _room(turn: int, seed: int = 0) -> Room:
    return Room(7, DEGREE, seed).until(turn)


def _says(*words: str) -> "pytest.RaisesExc[InputError]":
    return pytest.raises(InputError, match=".*".join(map(re.escape, words)))


def _signed(room: Room, sender: int, payload: bytes) -> bytes:
    turn = room.coordinator.turn
    return messages.signed(room.session, turn, sender, payload, room.private[sender])


def _payload(message: bytes, signed: bool = True) -> bytes:
    return message[HEADER : -64 if signed else None]


def _ends_well(room: Room, stayed: set[int], answered: bool = False) -> None:
    """The other turns, and the right sum of these."""
    if not answered:
        room.until(4).turn()
    found, expected = room.coordinator.total(), total(stayed)
    assert room.coordinator.stayed == stayed
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


# -- by the coordinator: messages that somebody else may have made ---------------------------------


@pytest.mark.parametrize("turn", range(5))
def test_messages_with_a_wrong_frame_are_refused_and_the_right_one_still_counts(turn: int) -> None:
    room, other = _room(turn), _room(turn, seed=1)
    answers = room.answers()
    right, receive = answers[3], room.coordinator.receive
    with _says("participant 3", "another session"):
        receive(other.answers()[3])
    with _says("participant 3", "signature"):
        receive(right[:-1] + bytes([right[-1] ^ 1]))
    if len(_payload(right)):
        with _says("participant 3", "signature"):
            receive(right[:HEADER] + bytes([right[HEADER] ^ 1]) + right[HEADER + 1 :])
    with _says("participant 4", "signature"):  # 3 signs for 4
        payload = _payload(answers[4])
        receive(messages.signed(room.session, turn, 4, payload, room.private[3]))
    with _says("participant 99", "roster"):
        receive(messages.signed(room.session, turn, 99, _payload(right), room.private[3]))
    for wrong in {0, 1, 2, 3, 4, 77} - {turn}:
        with _says("participant 3", f"turn {wrong}, and this is turn {turn}"):
            receive(messages.signed(room.session, wrong, 3, _payload(right), room.private[3]))
    with _says("participant 3", "lengths"):
        receive(right + b"x")
    with _says("participant 3", "lengths"):
        receive(right[:-1])
    with _says("no header"):
        receive(right[:20])
    with _says("no message of a secure sum"):
        receive(b"????" + right[4:])
    with _says("participant 3", "is for participant 5"):
        receive(messages.header(room.session, turn, 3, 5, 0) + bytes(64))
    assert not room.coordinator.excluded
    receive(right)
    with _says("participant 3", "arrived already"):
        receive(right)
    del answers[3]
    room.finish(answers)
    _ends_well(room, ALL, answered=turn == 4)


@pytest.mark.parametrize("turn", range(5))
def test_too_many_bytes_are_refused_before_they_are_read(turn: int) -> None:
    room = _room(turn)
    most = len(room.answers()[3]) - HEADER - 64
    # The header alone announces too much: no such payload is needed for the refusal.
    announced = messages.header(room.session, turn, 3, COORDINATOR, most + 1)
    with _says("participant 3", f"{most + 1:,} bytes are too many, at most {most:,}"):
        room.coordinator.receive(announced + bytes(64))
    with _says("too many"):
        room.coordinator.receive(announced + bytes(most + 1 + 64))


def test_messages_of_an_earlier_turn_cannot_be_replayed() -> None:
    room = _room(0)
    first = room.answers()
    room.finish(first)
    with _says("participant 2", "turn 0, and this is turn 1"):
        room.coordinator.receive(first[2])


def test_who_left_stays_away() -> None:
    room = _room(0)
    answers = room.answers()
    late = answers.pop(2)
    room.finish(answers)
    with _says("participant 2", "turn 0"):
        room.coordinator.receive(late)
    with _says("participant 2", "left in an earlier turn"):
        room.coordinator.receive(_signed(room, 2, b""))


# -- by the coordinator: messages that are signed and wrong exclude their sender -------------------


def _excluded(turn: int, change: Callable[[bytes], bytes], why: str, stayed: set[int]) -> None:
    room = _room(turn)
    answers = room.answers()
    bad = _signed(room, 3, change(_payload(answers.pop(3))))
    with _says("participant 3", why):
        room.coordinator.receive(bad)
    assert why in room.coordinator.excluded[3]
    with _says("participant 3", "excluded before"):
        room.coordinator.receive(bad)
    room.finish(answers)
    _ends_well(room, stayed, answered=turn == 4)


@pytest.mark.parametrize("place", [0, 32])
def test_keys_of_small_order_exclude(place: int) -> None:
    _excluded(0, lambda p: p[:place] + bytes(32) + p[place + 32 :], "small order", OTHERS)


def test_keys_that_are_cut_exclude() -> None:
    _excluded(0, lambda p: p[:-1], "95 bytes", OTHERS)


def test_shares_for_too_few_neighbours_exclude() -> None:
    _excluded(1, lambda p: p[4 + SEALED :], "not for its neighbours", OTHERS)


def test_shares_that_are_cut_exclude() -> None:
    _excluded(1, lambda p: p[:-1], "no whole number of entries", OTHERS)


def test_shares_for_the_same_neighbour_twice_exclude() -> None:
    step = 4 + SEALED
    _excluded(1, lambda p: p[:step] + p[:step] + p[2 * step :], "do not ascend", OTHERS)


def test_shares_for_strangers_exclude() -> None:
    stranger = struct.pack("<I", 99)
    step = 4 + SEALED
    _excluded(1, lambda p: p[:-step] + stranger + p[4 - step :], "not for its neighbours", OTHERS)


def test_other_parts_exclude() -> None:
    digest = Parts([dense("bias", 5), rows("item", [2, 3, 8], 3)]).digest
    _excluded(2, lambda p: digest + p[32:], "other parts or row ids", OTHERS)


def test_a_vector_that_is_cut_excludes() -> None:
    _excluded(2, lambda p: p[:-4], "other parts or row ids", OTHERS)


def test_another_set_excludes() -> None:
    _excluded(3, lambda p: b"\x7e", "another set", ALL)


def test_shares_beyond_the_field_exclude() -> None:
    high = PRIME.to_bytes(SHARE, "little")
    _excluded(4, lambda p: p[:4] + high + p[4 + SHARE :], "no numbers of the field", ALL)


def test_answers_for_strangers_exclude() -> None:
    step = 4 + SHARE
    _excluded(4, lambda p: p[:-step] + struct.pack("<I", 99) + p[4 - step :], "others than", ALL)


def test_a_participant_with_other_rows_is_refused_by_the_coordinator() -> None:
    room = _room(2)
    other = Parts([dense("bias", 5), rows("item", [2, 3, 8], 3)])
    answer = room.people[3].mask(room.inbox[3], other, vector(3, other))
    with _says("participant 3", "other parts or row ids"):
        room.coordinator.receive(answer)


# -- wrong shares cannot make a wrong sum ----------------------------------------------------------


def _with_wrong_shares(room: Room, liars: set[int]) -> None:
    while room.coordinator.turn < 4:
        room.turn(silent=[6] if room.coordinator.turn == 2 else [])
    answers = room.answers()
    for liar in liars:
        payload = bytearray(_payload(answers[liar]))
        for start in range(4, len(payload), 4 + SHARE):
            payload[start] ^= 1
        answers[liar] = _signed(room, liar, bytes(payload))
    for message in answers.values():
        room.coordinator.receive(message)


@pytest.mark.parametrize("liar", range(6))
def test_a_wrong_share_is_found_and_its_sender_named(liar: int) -> None:
    room = _room(0)
    _with_wrong_shares(room, {liar})
    _ends_well(room, set(range(6)), answered=True)
    if liar < 5:  # the last one's shares are not needed, and nobody looks at them
        assert f"participant {liar} is refused" in room.coordinator.excluded.pop(liar)
    assert not room.coordinator.excluded


def test_too_many_wrong_shares_end_the_sum() -> None:
    room = _room(0)
    _with_wrong_shares(room, {0, 1, 2})
    with _says("the sum ends", "do not give what it advertised"):
        room.coordinator.total()


def test_the_sum_is_not_opened_early_and_turns_are_not_closed_late() -> None:
    room = _room(3)
    with _says("this is turn 3"):
        room.coordinator.total()
    room.turn()
    with _says("turn 4 is the last"):
        room.coordinator.close()
    with _says("the sum ends", "0 neighbours gave shares"):
        room.coordinator.total()


# -- by a participant ------------------------------------------------------------------------------


def _told(room: Room, number: int, payload: bytes) -> bytes:
    turn = room.coordinator.turn - 1
    return messages.addressed(room.session, turn, number, payload)


@pytest.mark.parametrize("turn", range(1, 5))
def test_a_participant_refuses_a_wrong_frame_and_takes_the_right_one(turn: int) -> None:
    room, other = _room(turn), _room(turn, seed=1)
    right = room.inbox[3]

    def give(message: bytes) -> None:
        room.answer(3, message)

    with _says("the coordinator", "another session"):
        give(other.inbox[3])
    with _says("the coordinator", "for participant 4"):
        give(room.inbox[4])
    with _says("the coordinator", f"turn {turn}, and this is turn {turn - 1}"):
        give(messages.addressed(room.session, turn, 3, right[HEADER:]))
    with _says("participant 4", "coordinator alone"):
        give(messages.header(room.session, turn - 1, 4, 3, 0))
    with _says("the coordinator", "lengths"):
        give(right + b"x")
    with _says("the coordinator", "too many"):
        give(_told(room, 3, right[HEADER:] + bytes(200)))
    with _says("no header"):
        give(b"")
    room.turn()


def test_a_neighbours_key_that_was_changed_is_refused() -> None:
    room = _room(1)
    payload = bytearray(room.inbox[3][HEADER:])
    payload[4 + 40] ^= 1  # of participant 0, the first entry
    with _says("participant 0", "signature of turn 0"):
        room.people[3].share(_told(room, 3, bytes(payload)))


def test_keys_of_strangers_and_of_too_few_are_refused() -> None:
    room = _room(1)
    entries = messages.unpack_entries(room.inbox[3][HEADER:], 160, COORDINATOR)
    few = {other: entries[other] for other in list(entries)[:3]}
    with _says("the coordinator", "3 neighbours of participant 3", "at least 4"):
        room.people[3].share(_told(room, 3, messages.pack_entries(few)))
    own = {**few, 3: entries[0]}
    with _says("participant 3", "no neighbour"):
        room.people[3].share(_told(room, 3, messages.pack_entries(own)))


def _tampered(room: Room, number: int, senders: set[int]) -> bytes:
    entries = messages.unpack_entries(room.inbox[number][HEADER:], SEALED, COORDINATOR)
    changed = {
        other: bytes([sealed[0] ^ 1]) + sealed[1:] if other in senders else sealed
        for other, sealed in entries.items()
    }
    return _told(room, number, messages.pack_entries(changed))


def test_a_share_that_does_not_authenticate_is_named_and_the_sum_goes_on() -> None:
    room = _room(2)
    room.inbox[3] = _tampered(room, 3, {1, 5})
    room.turn()
    assert set(room.people[3].refused) == {1, 5}
    assert "participant 1 is refused: its share does not authenticate" in room.people[3].refused[1]
    _ends_well(room, ALL)


def test_a_share_for_somebody_else_does_not_authenticate() -> None:
    room = _room(2)
    entries = messages.unpack_entries(room.inbox[3][HEADER:], SEALED, COORDINATOR)
    others = messages.unpack_entries(room.inbox[4][HEADER:], SEALED, COORDINATOR)
    room.inbox[3] = _told(room, 3, messages.pack_entries({**entries, 1: others[1]}))
    room.turn()
    assert set(room.people[3].refused) == {1}


def test_a_participant_with_too_few_good_shares_leaves() -> None:
    room = _room(2)
    message = _tampered(room, 3, {1, 2, 5})
    with _says("only 3 neighbours of participant 3", "participant 5", "authenticate"):
        room.people[3].mask(message, PARTS, vector(3))


def test_a_set_without_oneself_or_of_too_few_is_not_signed() -> None:
    room = _room(3)

    def give(members: set[int]) -> bytes:
        return room.people[3].agree(_told(room, 3, messages.pack_set(room.session, members)))

    with _says("the coordinator", "without participant 3"):
        give(OTHERS)
    with _says("the coordinator", "4 participants, 3 of them neighbours"):
        give({0, 1, 2, 3})
    with _says("beyond the roster"):
        room.people[3].agree(_told(room, 3, b"\xff"))
    give({0, 1, 2, 3, 4})
    with _says("cannot agree now"):  # nor another set after that
        give({0, 1, 2, 3, 5})


def test_a_sum_below_least_is_not_signed() -> None:
    room = Room(7, DEGREE, least=6).until(3)
    with _says("5 participants", "6 and 4 must"):
        members = messages.pack_set(room.session, {0, 1, 2, 3, 4})
        room.people[3].agree(_told(room, 3, members))


def test_shares_are_given_only_for_the_set_that_enough_neighbours_signed() -> None:
    room = _room(4)
    chosen = messages.pack_set(room.session, ALL)
    signatures = messages.unpack_entries(room.inbox[3][HEADER + 1 :], 64, COORDINATOR)
    unmask = room.people[3].unmask

    def give(members: set[int], signed: dict[int, bytes]) -> bytes:
        payload = messages.pack_set(room.session, members) + messages.pack_entries(signed)
        return unmask(_told(room, 3, payload))

    with _says("the coordinator", "another set"):
        give({0, 1, 2, 3, 4}, signatures)
    with _says("the coordinator", "3 neighbours of participant 3 signed"):
        give(ALL, {other: signatures[other] for other in (0, 1, 2)})
    with _says("participant 2", "signature of turn 3"):
        give(ALL, {**signatures, 2: signatures[1]})
    with _says("participant 3", "no neighbour"):
        give(ALL, {0: signatures[0], 1: signatures[1], 3: signatures[0]})
    with _says("participant 1", "signature of turn 3"):  # of another set
        other = messages.pack_set(room.session, {0, 1, 2, 3, 4})
        forged = messages.signed(room.session, 3, 1, other, room.private[1])[-64:]
        give(ALL, {**signatures, 1: forged})
    answer = give(ALL, signatures)
    # Everybody stayed: own masks alone, one share for each neighbour.
    assert len(_payload(answer)) == 6 * (4 + SHARE)
    with _says("the coordinator", "second time"):
        give(ALL, signatures)
    assert chosen == b"\x7f"


def test_one_share_of_each_neighbour_never_both() -> None:
    room = _room(2)
    room.turn(silent=[0, 5])
    room.until(4)
    held = dict(room.people[3]._shares)
    answer = messages.unpack_entries(_payload(room.answer(3, room.inbox[3])), SHARE, 3)
    assert set(answer) == set(held) == OTHERS
    for owner, share in answer.items():
        own, pair = held[owner][:SHARE], held[owner][SHARE:]
        assert share == (pair if owner in (0, 5) else own)
    assert not room.people[3]._shares


@pytest.mark.parametrize("turn", range(5))
def test_a_turn_is_done_once(turn: int) -> None:
    room = _room(turn)
    room.answer(3, room.inbox[3])
    with pytest.raises(InputError, match=r"once|second time"):
        room.answer(3, room.inbox[3])


def test_turns_are_not_skipped() -> None:
    room = _room(0)
    with _says("participant 3 cannot mask now", "advertise() is next"):
        room.people[3].mask(b"", PARTS, vector(3))


# -- sessions --------------------------------------------------------------------------------------


def test_a_participant_must_be_in_the_roster_with_its_key() -> None:
    room = _room(0)
    for number, key in ((3, room.private[4]), (99, room.private[3])):
        with _says(f"participant {number}", "register"):
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
    with _says("roster entry"):
        Session({**others, **roster}, b"s" * 32, Degree(3, 2))
