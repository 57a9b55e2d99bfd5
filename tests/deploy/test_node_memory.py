"""What a node remembers is of rounds that counted, whatever happens in between."""

from pathlib import Path

import numpy as np
import pytest
from nodes import Deployment, bits

from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter, unpack
from fedslice.deploy.link import late, silent

NAME = "scaffold-2"


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return Deployment(NAME, tmp_path)


def steps(made: Deployment, count: int) -> None:
    for _ in range(count):
        assert made.server.step().accepted


def test_an_answer_that_did_not_count_is_forgotten(made: Deployment) -> None:
    steps(made, 2)
    made.server.tell()
    before = bits(made.link.members["3"].memory)
    made.link.faults = {"3": late}
    steps(made, 1)  # it answered, and was too late
    made.server.tell()
    assert bits(made.link.members["3"].memory) == before
    made.link.faults = {}
    steps(made, 1)
    made.server.tell()
    run = made.simulation([[*range(7)], [*range(7)], [0, 1, 2, 4, 5, 6], [*range(7)]])
    list(run.rounds(4))
    assert made.same(run)
    assert all(made.same_memory(run, i) for i in range(7))


def test_a_round_that_is_thrown_away_leaves_every_memory_as_it_was(made: Deployment) -> None:
    made.server.way.least = 7
    steps(made, 1)
    made.link.faults = {"2": silent}
    state = bits(made.server.office.store.state)
    report = made.server.step()
    assert (report.accepted, report.round, report.late) == (False, 2, ("2",))
    assert bits(made.server.office.store.state) == state
    made.link.faults = {}
    steps(made, 2)  # the same round again, and one more
    made.server.tell()
    run = made.simulation([[*range(7)]] * 3)
    list(run.rounds(3))
    assert made.same(run)
    assert all(made.same_memory(run, i) for i in range(7))


def test_nodes_and_coordinator_may_restart_between_answer_and_acceptance(made: Deployment) -> None:
    for _ in range(3):
        steps(made, 1)
        for place in range(7):
            made.restart(place)
        made.server = made.coordinator()  # from its checkpoint
    made.server.tell()
    run = made.simulation([[*range(7)]] * 3)
    list(run.rounds(3))
    assert made.same(run)
    assert all(made.same_memory(run, i) for i in range(7))


def test_acceptance_is_told_rounds_later(made: Deployment) -> None:
    """A node that counted once and was away for two rounds keeps what it learned."""
    steps(made, 1)
    made.link.faults = {"5": silent}
    steps(made, 2)
    made.restart(5)
    made.link.faults = {}
    steps(made, 1)
    made.server.tell()
    away = [0, 1, 2, 3, 4, 6]
    run = made.simulation([[*range(7)], away, away, [*range(7)]])
    list(run.rounds(4))
    assert made.same(run)
    assert made.same_memory(run, 5)


def test_a_server_that_died_before_its_checkpoint_asks_again(made: Deployment) -> None:
    """All nodes answered a round that the next coordinator knows nothing of."""
    steps(made, 1)
    old = made.coordinator()
    steps(made, 1)
    made.server = old
    steps(made, 2)
    made.server.tell()
    run = made.simulation([[*range(7)]] * 3)
    list(run.rounds(3))
    assert made.same(run)
    assert all(made.same_memory(run, i) for i in range(7))


def test_a_memory_that_the_server_does_not_count_on_is_refused(made: Deployment) -> None:
    """Lost, of another run, or newer than a server that was set back: no silent wrong start."""
    steps(made, 2)
    for file in (made.home / "nodes" / "4").iterdir():
        file.unlink()
    made.restart(4)
    report = made.server.step()
    assert "not the one that the coordinator counts on" in report.excluded["4"]
    assert report.counted == ("0", "1", "2", "3", "5", "6")
    made.settings["seed"] = 6
    made.home = made.home / "another"
    other = made.coordinator()
    assert "of another node or run (seed differ)" in other.step().excluded["0"]


def test_letters_that_come_twice_or_late_do_no_harm(made: Deployment) -> None:
    """An old invitation is refused; the same one again gives the same answer."""
    said: list[bytes] = []
    node = made.link.members["1"]
    receive = node.receive

    def overheard(letter: bytes) -> bytes:
        said.append(letter)
        return receive(letter)

    node.receive = overheard
    steps(made, 2)
    assert receive(said[1]) == receive(said[1])
    refused = unpack(receive(said[0]))
    assert (refused.kind, refused.nonce) == (letters.REFUSED, unpack(said[0]).nonce)
    steps(made, 1)
    made.server.tell()
    run = made.simulation([[*range(7)]] * 3)
    list(run.rounds(3))
    assert made.same(run)
    assert made.same_memory(run, 1)


def test_a_letter_of_an_earlier_try_comes_after_the_one_that_counted(made: Deployment) -> None:
    made.server.way.least = 7
    said: list[bytes] = []
    node = made.link.members["1"]
    receive = node.receive
    node.receive = lambda letter: said.append(letter) or receive(letter)
    made.link.faults = {"2": silent}
    assert not made.server.step().accepted
    made.link.faults = {}
    steps(made, 1)
    receive(said[0])  # of the round that was thrown away, again
    steps(made, 1)
    made.server.tell()
    run = made.simulation([[*range(7)]] * 2)
    list(run.rounds(2))
    assert made.same(run)
    assert made.same_memory(run, 1)


def test_a_damaged_memory_is_named_and_not_read(made: Deployment) -> None:
    steps(made, 1)
    made.server.tell()
    file = made.home / "nodes" / "6" / "memory.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    made.restart(6)
    assert "is damaged" in made.server.step().excluded["6"]


def test_a_node_believes_no_letter_that_is_wrong(made: Deployment) -> None:
    node = made.link.members["0"]
    program, rows = node.program.fingerprint, made.schema.nodes["0"].rows
    good = made.server.office.invitation(0, rows)
    wrong = {
        "both need the same model": Letter(letters.INVITE, 0, b"n" * 16, bytes(16), "0" * 16, good),
        "which this node does not know": Letter(letters.FOUND, 0, b"n" * 16, bytes(16), program),
        "this client holds": Letter(
            letters.INVITE,
            0,
            b"n" * 16,
            bytes(16),
            program,
            made.server.office.invitation(0, made.schema.nodes["3"].rows),
        ),
    }
    made.server.office.room["batch 0"] = 1
    small = made.server.office.invitation(0, rows)
    wrong["room for 1 examples"] = Letter(letters.INVITE, 0, b"n" * 16, bytes(16), program, small)
    for why, letter in wrong.items():
        reply = unpack(node.receive(letter.pack()))
        assert reply.kind == letters.REFUSED
        assert why in reply.body.decode()
    rng = np.random.default_rng(0)
    whole = Letter(letters.INVITE, 0, b"n" * 16, bytes(16), program, good).pack()
    for cut in rng.integers(0, len(whole), 20):
        assert unpack(node.receive(whole[:cut])).kind == letters.REFUSED


def test_an_invitation_to_another_round_than_its_letters_is_refused(tmp_path: Path) -> None:
    """Which memory holds follows from the letter, what is trained from the invitation."""
    made = Deployment("scaffold-2", tmp_path)
    body = made.server.office.invitation(3, made.schema.nodes["2"].rows)
    for round, wanted in ((4, letters.REFUSED), (3, letters.ANSWER)):
        given = round, b"n" * 16, letters.NONE, made.program.fingerprint, body
        reply = letters.unpack(
            made.link.members["2"].receive(letters.Letter(letters.INVITE, *given).pack())
        )
        assert reply.kind == wanted
