"""Turns of a secure sum from the node's folder alone: the same replies, without data or program."""

from pathlib import Path
from typing import Any

import pytest
from hidden import deployed, secure, simulated

from fedslice.deploy import letter as letters
from fedslice.deploy import light
from fedslice.deploy.turns import Turn


class Lightly:
    """A node that is asked only where its folder is not enough."""

    def __init__(self, node: Any) -> None:
        self.node, self.asked, self.spared = node, [], []

    def receive(self, letter: bytes) -> bytes:
        said = light.reply(self.node.folder, letter)
        head = letters.unpack(letter)
        turn = Turn.unpack(head.body).number if head.kind == letters.TURN else None
        (self.asked if said is None else self.spared).append(turn)
        return self.node.receive(letter) if said is None else said


def test_three_of_five_turns_need_no_data(tmp_path: Path) -> None:
    method, all_of_them = secure(), list(range(7))
    made = deployed(method, tmp_path)
    made.link.members = {name: Lightly(node) for name, node in made.link.members.items()}
    for _ in range(2):
        assert made.server.step().counted == tuple(map(str, all_of_them))
    assert made.same_model(simulated(method, [all_of_them] * 2))
    for node in made.link.members.values():
        assert node.asked == [0, 2, 0, 2] * 2
        assert node.spared == [1, 3, 4, 1, 3, 4] * 2


def test_what_is_no_turn_of_its_sum_is_left_to_the_node(tmp_path: Path) -> None:
    made = deployed(secure(), tmp_path)
    given = 0, b"n" * 16, letters.NONE, made.program.fingerprint
    place = made.link.members["2"].folder
    turn = letters.Letter(letters.TURN, *given, Turn(3).pack()).pack()
    assert light.reply(place, turn) is None  # it sits nowhere
    made.server.step()
    assert light.reply(place, letters.Letter(letters.REGISTER, *given).pack()) is None
    assert light.reply(place / "nowhere", turn) is None
    assert not (place / "nowhere").exists()
    assert light.reply(place, b"what") is None
    refused = letters.unpack(light.reply(place, turn) or b"")
    assert refused.kind == letters.REFUSED
    assert "has done its last turn" in letters.reason(refused.body)


@pytest.mark.parametrize("number", [0, 2])
def test_turns_that_need_data_are_left_to_the_node(number: int, tmp_path: Path) -> None:
    made = deployed(secure(), tmp_path)
    made.server.step()
    given = 1, b"n" * 16, letters.NONE, made.program.fingerprint
    letter = letters.Letter(letters.TURN, *given, Turn(number).pack()).pack()
    assert light.reply(made.link.members["2"].folder, letter) is None
