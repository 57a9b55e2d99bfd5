"""What a coordinator must refuse, with an error that names the sender, and when it goes on."""

import struct
from collections.abc import Callable

import pytest
from people import ALL, OTHERS, Room, ends_well, payload_of, says, seven, signed, vector

from fedslice.privacy.secure import messages
from fedslice.privacy.secure.messages import HEADER, SEALED
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.session import COORDINATOR
from fedslice.privacy.secure.shamir import PRIME, SHARE

# -- messages that somebody else may have made ---------------------------------


@pytest.mark.parametrize("turn", range(5))
def test_messages_with_a_wrong_frame_are_refused_and_the_right_one_still_counts(turn: int) -> None:
    room, other = seven(turn), seven(turn, seed=1)
    answers = room.answers()
    right, receive = answers[3], room.coordinator.receive
    with says("participant 3", "another session"):
        receive(other.answers()[3])
    with says("participant 3", "signature"):
        receive(right[:-1] + bytes([right[-1] ^ 1]))
    if len(payload_of(right)):
        with says("participant 3", "signature"):
            receive(right[:HEADER] + bytes([right[HEADER] ^ 1]) + right[HEADER + 1 :])
    with says("participant 4", "signature"):  # 3 signs for 4
        payload = payload_of(answers[4])
        receive(messages.signed(room.session, turn, 4, payload, room.private[3]))
    with says("participant 99", "roster"):
        receive(messages.signed(room.session, turn, 99, payload_of(right), room.private[3]))
    for wrong in {0, 1, 2, 3, 4, 77} - {turn}:
        with says("participant 3", f"turn {wrong}, and this is turn {turn}"):
            receive(messages.signed(room.session, wrong, 3, payload_of(right), room.private[3]))
    with says("participant 3", "lengths"):
        receive(right + b"x")
    with says("participant 3", "lengths"):
        receive(right[:-1])
    with says("no header"):
        receive(right[:20])
    with says("no message of a secure sum"):
        receive(b"????" + right[4:])
    with says("participant 3", "is for participant 5"):
        receive(messages.header(room.session, turn, 3, 5, 0) + bytes(64))
    assert not room.coordinator.excluded
    receive(right)
    with says("participant 3", "arrived already"):
        receive(right)
    del answers[3]
    room.finish(answers)
    ends_well(room, ALL, answered=turn == 4)


@pytest.mark.parametrize("turn", range(5))
def test_too_many_bytes_are_refused_before_they_are_read(turn: int) -> None:
    room = seven(turn)
    most = len(room.answers()[3]) - HEADER - 64
    # The header alone announces too much: no such payload is needed for the refusal.
    announced = messages.header(room.session, turn, 3, COORDINATOR, most + 1)
    with says("participant 3", f"{most + 1:,} bytes are too many, at most {most:,}"):
        room.coordinator.receive(announced + bytes(64))
    with says("too many"):
        room.coordinator.receive(announced + bytes(most + 1 + 64))


def test_messages_of_an_earlier_turn_cannot_be_replayed() -> None:
    room = seven(0)
    first = room.answers()
    room.finish(first)
    with says("participant 2", "turn 0, and this is turn 1"):
        room.coordinator.receive(first[2])


def test_who_left_stays_away() -> None:
    room = seven(0)
    answers = room.answers()
    late = answers.pop(2)
    room.finish(answers)
    with says("participant 2", "turn 0"):
        room.coordinator.receive(late)
    with says("participant 2", "left in an earlier turn"):
        room.coordinator.receive(signed(room, 2, b""))


# -- messages that are signed and wrong exclude their sender -------------------


def _excluded(turn: int, change: Callable[[bytes], bytes], why: str, stayed: set[int]) -> None:
    room = seven(turn)
    answers = room.answers()
    bad = signed(room, 3, change(payload_of(answers.pop(3))))
    with says("participant 3", why):
        room.coordinator.receive(bad)
    assert why in room.coordinator.excluded[3]
    with says("participant 3", "excluded before"):
        room.coordinator.receive(bad)
    room.finish(answers)
    ends_well(room, stayed, answered=turn == 4)


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
    room = seven(2)
    other = Parts([dense("bias", 5), rows("item", [2, 3, 8], 3)])
    answer = room.people[3].mask(room.inbox[3], other, vector(3, other))
    with says("participant 3", "other parts or row ids"):
        room.coordinator.receive(answer)


# -- wrong shares cannot make a wrong sum ----------------------------------------------------------


def _with_wrong_shares(room: Room, liars: set[int]) -> None:
    while room.coordinator.turn < 4:
        room.turn(silent=[6] if room.coordinator.turn == 2 else [])
    answers = room.answers()
    for liar in liars:
        payload = bytearray(payload_of(answers[liar]))
        for start in range(4, len(payload), 4 + SHARE):
            payload[start] ^= 1
        answers[liar] = signed(room, liar, bytes(payload))
    for message in answers.values():
        room.coordinator.receive(message)


@pytest.mark.parametrize("liar", range(6))
def test_a_wrong_share_is_found_and_its_sender_named(liar: int) -> None:
    room = seven(0)
    _with_wrong_shares(room, {liar})
    ends_well(room, set(range(6)), answered=True)
    if liar < 5:  # the last one's shares are not needed, and nobody looks at them
        assert f"participant {liar} is refused" in room.coordinator.excluded.pop(liar)
    assert not room.coordinator.excluded


def test_too_many_wrong_shares_end_the_sum() -> None:
    room = seven(0)
    _with_wrong_shares(room, {0, 1, 2})
    with says("the sum ends", "do not give what it advertised"):
        room.coordinator.total()


def test_the_sum_is_not_opened_early_and_turns_are_not_closed_late() -> None:
    room = seven(3)
    with says("this is turn 3"):
        room.coordinator.total()
    room.turn()
    with says("turn 4 is the last"):
        room.coordinator.close()
    with says("the sum ends", "0 neighbours gave shares"):
        room.coordinator.total()
