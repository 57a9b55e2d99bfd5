"""What a participant must refuse, whatever the coordinator sends it."""

import pytest
from people import ALL, DEGREE, OTHERS, PARTS, Room, ends_well, payload_of, says, seven, vector

from fedslice.errors import InputError
from fedslice.privacy.secure import messages
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.messages import HEADER, SEALED
from fedslice.privacy.secure.session import COORDINATOR
from fedslice.privacy.secure.shamir import SHARE


def _told(room: Room, number: int, payload: bytes) -> bytes:
    turn = room.coordinator.turn - 1
    return messages.addressed(room.session, turn, number, payload)


@pytest.mark.parametrize("turn", range(1, 5))
def test_a_participant_refuses_a_wrong_frame_and_takes_the_right_one(turn: int) -> None:
    room, other = seven(turn), seven(turn, seed=1)
    right = room.inbox[3]

    def give(message: bytes) -> None:
        room.answer(3, message)

    with says("the coordinator", "another session"):
        give(other.inbox[3])
    with says("the coordinator", "for participant 4"):
        give(room.inbox[4])
    with says("the coordinator", f"turn {turn}, and this is turn {turn - 1}"):
        give(messages.addressed(room.session, turn, 3, right[HEADER:]))
    with says("participant 4", "coordinator alone"):
        give(messages.header(room.session, turn - 1, 4, 3, 0))
    with says("the coordinator", "lengths"):
        give(right + b"x")
    with says("the coordinator", "too many"):
        give(_told(room, 3, right[HEADER:] + bytes(200)))
    with says("no header"):
        give(b"")
    room.turn()


def test_a_neighbours_key_that_was_changed_is_refused() -> None:
    room = seven(1)
    payload = bytearray(room.inbox[3][HEADER:])
    payload[4 + 40] ^= 1  # of participant 0, the first entry
    with says("participant 0", "signature of turn 0"):
        room.people[3].share(_told(room, 3, bytes(payload)))


def test_keys_of_strangers_and_of_too_few_are_refused() -> None:
    room = seven(1)
    entries = messages.unpack_entries(room.inbox[3][HEADER:], 160, COORDINATOR)
    few = {other: entries[other] for other in list(entries)[:3]}
    with says("the coordinator", "3 neighbours of participant 3", "at least 4"):
        room.people[3].share(_told(room, 3, messages.pack_entries(few)))
    own = {**few, 3: entries[0]}
    with says("participant 3", "no neighbour"):
        room.people[3].share(_told(room, 3, messages.pack_entries(own)))


def _tampered(room: Room, number: int, senders: set[int]) -> bytes:
    entries = messages.unpack_entries(room.inbox[number][HEADER:], SEALED, COORDINATOR)
    changed = {
        other: bytes([sealed[0] ^ 1]) + sealed[1:] if other in senders else sealed
        for other, sealed in entries.items()
    }
    return _told(room, number, messages.pack_entries(changed))


def test_a_share_that_does_not_authenticate_is_named_and_the_sum_goes_on() -> None:
    room = seven(2)
    room.inbox[3] = _tampered(room, 3, {1, 5})
    room.turn()
    assert set(room.people[3].refused) == {1, 5}
    assert "participant 1 is refused: its share does not authenticate" in room.people[3].refused[1]
    ends_well(room, ALL)


def test_a_share_for_somebody_else_does_not_authenticate() -> None:
    room = seven(2)
    entries = messages.unpack_entries(room.inbox[3][HEADER:], SEALED, COORDINATOR)
    others = messages.unpack_entries(room.inbox[4][HEADER:], SEALED, COORDINATOR)
    room.inbox[3] = _told(room, 3, messages.pack_entries({**entries, 1: others[1]}))
    room.turn()
    assert set(room.people[3].refused) == {1}


def test_a_share_that_comes_back_to_its_sender_does_not_authenticate() -> None:
    # 3 and 1 agree on one secret; what 3 sealed for 1 is not what 1 sealed for 3.
    room = seven(1)
    answers = room.answers()
    own = messages.unpack_entries(payload_of(answers[3]), SEALED, 3)
    room.finish(answers)
    entries = messages.unpack_entries(room.inbox[3][HEADER:], SEALED, COORDINATOR)
    room.inbox[3] = _told(room, 3, messages.pack_entries({**entries, 1: own[1]}))
    room.turn()
    assert set(room.people[3].refused) == {1}


def test_a_participant_with_too_few_good_shares_leaves() -> None:
    room = seven(2)
    message = _tampered(room, 3, {1, 2, 5})
    with says("only 3 neighbours of participant 3", "participant 5", "authenticate"):
        room.people[3].mask(message, PARTS, vector(3))


def test_a_set_without_oneself_or_of_too_few_is_not_signed() -> None:
    room = seven(3)

    def give(members: set[int]) -> bytes:
        return room.people[3].agree(_told(room, 3, messages.pack_set(room.session, members)))

    with says("the coordinator", "without participant 3"):
        give(OTHERS)
    with says("the coordinator", "4 participants, 3 of them neighbours"):
        give({0, 1, 2, 3})
    with says("beyond the roster"):
        room.people[3].agree(_told(room, 3, b"\xff"))
    give({0, 1, 2, 3, 4})
    with says("cannot agree now"):  # nor another set after that
        give({0, 1, 2, 3, 5})


def test_a_set_with_many_members_and_few_neighbours_is_not_signed() -> None:
    room = Room(12, Degree(4, 3)).until(3)
    others = set(range(12)) - {5}
    near = room.session.neighbours(5)
    with says("the coordinator", "10 participants, 2 of them neighbours"):
        members = messages.pack_set(room.session, {5, *others} - set(near[:2]))
        room.people[5].agree(_told(room, 5, members))
    members = messages.pack_set(room.session, {5, *others} - set(near[:1]))
    room.people[5].agree(_told(room, 5, members))


def test_a_sum_below_least_is_not_signed() -> None:
    room = Room(7, DEGREE, least=6).until(3)
    with says("5 participants", "6 and 4 must"):
        members = messages.pack_set(room.session, {0, 1, 2, 3, 4})
        room.people[3].agree(_told(room, 3, members))


def test_a_set_with_neighbours_that_never_came_is_not_signed() -> None:
    """A server that says that all stayed, where two had left before they shared anything, would
    open the sum of fewer than it says."""
    room = Room(7, DEGREE, least=5)
    room.turn(silent={4, 5})
    while room.coordinator.turn < 3:
        room.turn()
    everybody = messages.pack_set(room.session, range(7))
    with says("the coordinator", "participant 4", "never shared its secrets"):
        room.people[3].agree(_told(room, 3, everybody))


def test_shares_are_given_only_for_the_set_that_enough_neighbours_signed() -> None:
    room = seven(4)
    chosen = messages.pack_set(room.session, ALL)
    signatures = messages.unpack_entries(room.inbox[3][HEADER + 1 :], 64, COORDINATOR)
    unmask = room.people[3].unmask

    def give(members: set[int], signed: dict[int, bytes]) -> bytes:
        payload = messages.pack_set(room.session, members) + messages.pack_entries(signed)
        return unmask(_told(room, 3, payload))

    with says("the coordinator", "another set"):
        give({0, 1, 2, 3, 4}, signatures)
    with says("the coordinator", "3 neighbours of participant 3 signed"):
        give(ALL, {other: signatures[other] for other in (0, 1, 2)})
    with says("participant 2", "signature of turn 3"):
        give(ALL, {**signatures, 2: signatures[1]})
    with says("participant 3", "no neighbour"):
        give(ALL, {0: signatures[0], 1: signatures[1], 3: signatures[0]})
    with says("participant 1", "signature of turn 3"):  # of another set
        other = messages.pack_set(room.session, {0, 1, 2, 3, 4})
        forged = messages.signed(room.session, 3, 1, other, room.private[1])[-64:]
        give(ALL, {**signatures, 1: forged})
    answer = give(ALL, signatures)
    # Everybody stayed: own masks alone, one share for each neighbour.
    assert len(payload_of(answer)) == 6 * (4 + SHARE)
    with says("the coordinator", "second time"):
        give(ALL, signatures)
    assert chosen == b"\x7f"


def test_signatures_of_those_who_left_do_not_count() -> None:
    room = seven(2)
    room.turn(silent=[5])
    room.until(4)
    chosen = messages.pack_set(room.session, ALL - {5})
    forged = messages.signed(room.session, 3, 5, chosen, room.private[5])[-64:]
    signatures = messages.unpack_entries(room.inbox[3][HEADER + 1 :], 64, COORDINATOR)
    del signatures[0]
    payload = chosen + messages.pack_entries({**signatures, 5: forged})
    with says("participant 5", "no neighbour"):
        room.people[3].unmask(_told(room, 3, payload))


def test_one_share_of_each_neighbour_never_both() -> None:
    room = seven(2)
    room.turn(silent=[0, 5])
    room.until(4)
    held = dict(room.people[3]._shares)
    answer = messages.unpack_entries(payload_of(room.answer(3, room.inbox[3])), SHARE, 3)
    assert set(answer) == set(held) == OTHERS
    for owner, share in answer.items():
        own, pair = held[owner][:SHARE], held[owner][SHARE:]
        assert share == (pair if owner in (0, 5) else own)
    assert not room.people[3]._shares


@pytest.mark.parametrize("turn", range(5))
def test_a_turn_is_done_once(turn: int) -> None:
    room = seven(turn)
    room.answer(3, room.inbox[3])
    with pytest.raises(InputError, match=r"once|second time"):
        room.answer(3, room.inbox[3])


def test_turns_are_not_skipped() -> None:
    room = seven(0)
    with says("participant 3 cannot mask now", "advertise() is next"):
        room.people[3].mask(b"", PARTS, vector(3))
