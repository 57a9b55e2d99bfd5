"""All that a coordinator ever receives of hidden rows, in two worlds that it must not tell apart.

In the second world nodes 0 and 1 have changed their data.  All else is the same, and so are all
random numbers (as only a test can have it), so whatever depends on data shows: it must be masked
numbers, their signatures, and nothing else.
"""

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from hidden import HEAT, shares
from kinds import few
from laws import MODEL
from nodes import SEED
from problems import people

import fedslice as fs
from fedslice.deploy import Coordinator, InProcess, Node, Program, columns_of, register
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter, unpack
from fedslice.deploy.turns import ROWS, SUM, Opening, Turn
from fedslice.privacy.secure.messages import HEADER
from fedslice.privacy.secure.primitives import KEY, SIGNATURE
from fedslice.types import Algorithm

SWAPPED = {"0", "1"}
WHOLE = fs.Work(steps=2, batch=8)  # all examples of every node, so that nothing hangs on numbers


def toward_zero() -> Algorithm:
    stages = [fs.stage.clip(1.0), fs.stage.secure(7, toward_zero=True)]
    return fs.recipes.fedsubavg(
        MODEL, optax.sgd(0.1), WHOLE, heat=HEAT, weights="uniform", stages=stages
    )


def drawn(name: str) -> Callable[[int], bytes]:
    """Random bytes that hang on how often they were asked for, not on how many."""
    calls = iter(range(10**6))

    def random(size: int) -> bytes:
        return hashlib.shake_256(f"{name} {next(calls)}".encode()).digest(size)

    return random


class Record(InProcess):
    """Everything that passes, by node."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.said: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in nodes}

    def exchange(self, sent: Any, deadline: float | None) -> dict[str, bytes]:
        replies = super().exchange(sent, deadline)
        for name, reply in replies.items():
            self.said[name].append((sent[name], reply))
        return replies


class World:
    """A round of seven nodes, of which two may have changed places."""

    def __init__(
        self, method: Algorithm, home: Path, swap: bool, patch: pytest.MonkeyPatch
    ) -> None:
        patch.setattr(secrets, "token_bytes", drawn("server and secrets"))
        population = people()
        order = [1, 0, *range(2, 7)] if swap else range(7)
        program = Program(method, columns_of(MODEL, population))
        self.nodes = {}
        for place, data in enumerate(order):
            alone = population.subset(np.array([data]))
            node = Node(program, alone, home / str(place), number=place)
            if program.summed:
                node.sums.sitting.random = drawn(f"node {place}")
            self.nodes[str(place)] = node
        self.link = Record(self.nodes)
        schema = register(self.link, MODEL)
        sampler = fs.sampling.uniform(7)
        self.server = Coordinator(program, schema, self.link, sampler=sampler, seed=SEED, secret=1)
        assert self.server.step().counted == tuple(self.nodes)


@pytest.mark.parametrize("made_of", ["secure", pytest.param("shares", marks=pytest.mark.every)])
def test_nothing_but_masked_numbers_depends_on_a_nodes_data(
    made_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"secure": toward_zero, "shares": shares}[made_of]()
    one, two = (World(method, tmp_path / name, name == "b", monkeypatch) for name in "ab")
    differ = set()
    for name in one.nodes:
        assert len(one.link.said[name]) == len(two.link.said[name])
        for step, (left, right) in enumerate(
            zip(one.link.said[name], two.link.said[name], strict=True)
        ):
            assert left[0] == right[0], (name, step)  # all that the server writes
            assert len(left[1]) == len(right[1])
            if left[1] != right[1]:
                differ.add((name, step))
                masked_alone(left[1], right[1])
    # of each of the two the masked numbers do differ: in the union of rows and in the sum
    steps = {3, 8} if made_of == "secure" else {3}  # after the registration
    assert differ == {(name, step) for name in SWAPPED for step in steps}
    if made_of == "secure":  # no rounding at random: the sums, and so the models, are the same
        models = [world.server.params({"w": np.arange(24)}) for world in (one, two)]
        assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def masked_alone(left: bytes, right: bytes) -> None:
    """Two replies that differ in the numbers of turn 2 and in their signature alone."""
    turns = [Turn.unpack(unpack(reply).body) for reply in (left, right)]
    assert turns[0].number == turns[1].number == 2
    start = left.index(turns[0].message) + HEADER + KEY
    assert left[:start] == right[:start]
    assert len(turns[0].message) > HEADER + KEY + SIGNATURE


@pytest.mark.parametrize("made_of", few(["secure", "shares"], "secure"))
def test_no_rows_and_no_update_are_in_anything_that_arrives(
    made_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searched for: the ids of a node's rows one after the other, in any width, as a mask of bits
    or of bytes, and its vector before it was masked."""
    method = {"secure": toward_zero, "shares": shares}[made_of]()
    vectors: dict[tuple[int, str], np.ndarray] = {}
    from fedslice.privacy.secure.participant import Participant

    plain = Participant.mask

    def mask(self: Participant, message: bytes, parts: Any, vector: Any) -> bytes:
        vectors[self.identity, parts.digest.hex()] = parts.flat(vector)
        return plain(self, message, parts, vector)

    monkeypatch.setattr(Participant, "mask", mask)
    world = World(method, tmp_path, False, monkeypatch)
    for name, node in world.nodes.items():
        ids = node.trainer.rows["w"]
        marks = np.isin(np.arange(24), ids)
        secret = [ids.astype(kind).tobytes() for kind in ("<u4", "<i8", "<u2", "u1")]
        secret += [marks.tobytes(), marks.astype("<i4").tobytes(), marks.astype("<f4").tobytes()]
        secret += [np.packbits(marks, bitorder=order).tobytes() for order in ("little", "big")]
        secret += [each.tobytes() for (who, _), each in vectors.items() if who == int(name)]
        arrived = b"|".join(reply for _, reply in world.link.said[name])
        for each in secret:
            assert len(each) < 3 or each not in arrived  # so few bytes are anywhere
        assert any((each != 0).any() for (who, _), each in vectors.items() if who == int(name))
    # a masked vector has no more zeros, or small numbers, than random ones
    masked = [
        np.frombuffer(Turn.unpack(unpack(reply).body).message[HEADER + KEY : -SIGNATURE], "<u4")
        for said in world.link.said.values()
        for letter, reply in said
        if unpack(letter).kind == letters.TURN and Turn.unpack(unpack(reply).body).number == 2
    ]
    numbers = np.concatenate(masked).astype(float) / 2**32
    assert abs(numbers.mean() - 0.5) < 4 / np.sqrt(12 * len(numbers))
    assert np.abs(numbers - np.round(numbers)).min() > 1e-6


def test_refusals_are_the_same_whatever_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters of all kinds, cut off, with too much or too little room, for no rows and for all: a
    node's words, and whether it has any, do not hang on what it holds."""
    one, two = (World(toward_zero(), tmp_path / name, name == "b", monkeypatch) for name in "ab")
    said = one.link.said["0"]
    letters_sent = [letter for letter, _ in said]
    head = unpack(letters_sent[1])
    session = Turn.unpack(head.body)
    told = Opening.unpack(session.opening)
    union = Turn.unpack(unpack(letters_sent[6]).body).beside
    tries: list[Letter] = []
    for kind in range(1, 26):
        tries.append(Letter(kind, 1, b"n" * 16, letters.NONE, head.program, b"\1" * 40))
    for purpose in (ROWS, SUM, "heat", "other"):
        for beside in (union, b"", union[:-8]):
            opening = told._replace(purpose=purpose, round=1, seed=b"z" * 32)
            turn = Turn(0, opening.pack(), b"", beside)
            tries.append(head._replace(round=1, nonce=b"m" * 16, body=turn.pack()))
    tries += [head._replace(body=head.body[:cut]) for cut in range(0, len(head.body), 37)]
    for letter in tries:
        left, right = (world.nodes["0"].receive(letter.pack()) for world in (one, two))
        assert unpack(left).kind == unpack(right).kind
        assert len(left) == len(right)
        if unpack(left).kind == letters.REFUSED:
            strip = [
                reply.replace(str(tmp_path / name).encode(), b"")
                for reply, name in ((left, "a"), (right, "b"))
            ]
            assert strip[0] == strip[1]


def test_room_that_is_too_small_is_not_complained_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node makes room for itself: else a server could find out how many rows it holds, or
    examples it has, by offering less and less."""
    method = toward_zero()
    population = people()
    program = Program(method, columns_of(MODEL, population))
    nodes = {
        str(i): Node(program, population.subset(np.array([i])), tmp_path / str(i), number=i)
        for i in range(7)
    }
    link = InProcess(nodes)
    room = {"batch 0": 1, "w rows": 1, "w union": 1, "clients": 1}
    given = {"sampler": fs.sampling.uniform(7), "seed": SEED, "secret": 1, "room": room}
    server = Coordinator(program, register(link, MODEL), link, **given)
    report = server.step()
    assert report.counted == tuple(nodes)
    assert not report.excluded
