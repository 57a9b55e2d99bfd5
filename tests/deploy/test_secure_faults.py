"""Whatever a node sends in whichever turn of a secure sum: it is named, and not one byte of the
model moves by it.  And what a node refuses to be asked."""

from pathlib import Path

import numpy as np
import optax
import pytest
from hidden import At, deployed, secure, shares, simulated, with_shares
from laws import MODEL
from nodes import SEED, Deployment
from problems import people

import fedslice as fs
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter, unpack
from fedslice.deploy.link import Fault, replayed, silent, tampered
from fedslice.deploy.turns import Opening, Turn
from fedslice.errors import InputError

ALL = list(range(7))
OTHERS = [0, 1, 2, 4, 5, 6]


def turn(change: dict[str, bytes]) -> Fault:
    """Another message, or something beside it."""

    def write(reply: bytes) -> bytes:
        letter = unpack(reply)
        return letter._replace(body=Turn.unpack(letter.body)._replace(**change).pack()).pack()

    return tampered(write)


def flipped(rng: np.random.Generator) -> Fault:
    """One bit of what the participant signed, or of its signature."""

    def write(reply: bytes) -> bytes:
        data = bytearray(reply)
        place = rng.integers(letters.HEAD.size + Turn(0).size, len(data))
        data[place] ^= 1 << rng.integers(8)
        return bytes(data)

    return tampered(write)


@pytest.mark.parametrize("made_of", [pytest.param("shares", marks=pytest.mark.every), "secure"])
def test_a_wrong_letter_in_any_turn_is_named_and_moves_nothing(
    made_of: str, tmp_path: Path
) -> None:
    """Bits that are changed, an earlier reply, bytes of another length, a turn that is none, a
    refusal: in the union of rows, in the sum, before and after the numbers have left."""
    method = {"shares": shares, "secure": secure}[made_of]()
    made = deployed(method, tmp_path)
    rng = np.random.default_rng(0)
    kinds = [
        (flipped(rng), ""),
        (replayed, "not to this letter"),
        (tampered(lambda reply: reply[:-1]), "announces other lengths"),
        (turn({"beside": b"more"}), ""),
        (tampered(lambda reply: reply + bytes(1 << 20)), "are the most"),
        (tampered(lambda reply: unpack(reply)._replace(kind=letters.ANSWER).pack()), "of kind 6"),
        (turn({"message": b""}), "has no header"),
        (
            tampered(lambda reply: unpack(reply).reply(letters.REFUSED, "0" * 16, b"no").pack()),
            "it refused: no",
        ),
    ]
    turns = 10 if made_of == "secure" else 5
    counted: list[list[int]] = []
    for step in range(turns):
        fault, why = kinds[step % len(kinds)] if turns == 10 else kinds[(step + 3) % len(kinds)]
        made.link.faults = {"3": At(step, fault)}
        report = made.server.step()
        in_sum = step > turns - 3 or (turns == 10 and step in (3, 4))
        counted.append(ALL if in_sum else OTHERS)
        assert report.counted == tuple(map(str, counted[-1])), (step, report)
        if step % len(kinds) == 3 and in_sum:
            continue  # beside the last turns' messages nothing is read
        assert list(report.excluded) == ["3"], step
        assert why in report.excluded["3"]
    expected = with_shares(method, counted) if made_of == "shares" else method
    assert made.same_model(simulated(expected, counted))


def test_nobody_speaks_for_another(tmp_path: Path) -> None:
    """A message that is signed, but not by the node that it comes from."""
    method = secure()
    made = deployed(method, tmp_path)
    heard: list[bytes] = []

    def listen(reply: bytes) -> bytes:
        heard.append(Turn.unpack(unpack(reply).body).message)
        return reply

    made.link.faults = {"2": At(5, tampered(listen)), "3": At(5, speaks(heard))}
    report = made.server.step()
    assert report.excluded == {"3": "it sent a message of participant 2"}
    assert made.same_model(simulated(method, [OTHERS]))


def speaks(heard: list[bytes]) -> Fault:
    def write(reply: bytes) -> bytes:
        letter = unpack(reply)
        return letter._replace(
            body=Turn.unpack(letter.body)._replace(message=heard[0]).pack()
        ).pack()

    return tampered(write)


class Tap:
    """Keeps the letters to a node."""

    def __init__(self, node: object) -> None:
        self.node, self.letters = node, []

    def receive(self, letter: bytes) -> bytes:
        self.letters.append(letter)
        return self.node.receive(letter)


def sums_of(made: Deployment, name: str) -> list[bytes]:
    """The letters of a round's sum to one node."""
    tap = made.link.members[name] = Tap(made.link.members[name])
    made.server.step()
    made.link.members[name] = tap.node
    return tap.letters[-5:]


def refusal(reply: bytes) -> str:
    letter = unpack(reply)
    assert letter.kind == letters.REFUSED
    return letters.reason(letter.body)


def test_a_letter_that_comes_twice_has_the_same_reply_and_another_has_none(tmp_path: Path) -> None:
    """Nothing is drawn twice, masked twice or unmasked twice."""
    for method, once in ((shares(), True), (secure(), False)):
        made = deployed(method, tmp_path / str(once))
        sent = sums_of(made, "3")
        node = made.link.members["3"]
        assert unpack(node.receive(sent[-1])).kind == letters.TURNED
        assert node.receive(sent[-1]) == node.receive(sent[-1])
        for earlier in sent[1:-1]:  # its secrets are gone
            assert "does not sit" in refusal(node.receive(earlier))
        head, first = unpack(sent[0]), Turn.unpack(unpack(sent[0]).body)
        told = Opening.unpack(first.opening)
        # another session of this round: with the same partners, and with others
        fewer = dict(list(told.roster.items())[1:])
        for roster in (told.roster, fewer):
            again = told._replace(seed=b"x" * 32, roster=roster)
            letter = head._replace(body=first._replace(opening=again.pack()).pack())
            assert "gives them once" in refusal(node.receive(letter.pack()))
        # another try: where there is noise it was accounted for already
        letter = head._replace(
            body=first._replace(opening=told._replace(attempt=1, seed=b"y" * 32).pack()).pack()
        )
        reply = node.receive(letter.pack())
        assert (unpack(reply).kind == letters.REFUSED) == once


def test_what_a_node_will_not_be_asked(tmp_path: Path) -> None:
    """A sum with too few, without the noise that it was promised, of strangers; its update by
    itself."""
    made = deployed(shares(), tmp_path)
    first = sums_of(made, "3")[0]
    made.link.faults = {}
    node = made.link.members["3"]
    head, body = unpack(first), Turn.unpack(unpack(first).body)
    told = Opening.unpack(body.opening)._replace(round=1)

    def ask(opening: Opening, **changes: object) -> str:
        letter = head._replace(round=1, body=body._replace(opening=opening.pack()).pack())
        return refusal(node.receive(letter._replace(**changes).pack()))

    some = dict(list(told.roster.items())[:4])
    assert "shares of noise are for 5" in ask(told._replace(roster=some, least=4))
    assert "so few hide nobody" in ask(told._replace(least=2))
    pair = dict(list(told.roster.items())[2:4])
    assert "so few hide nobody" in ask(told._replace(roster=pair, least=2))
    assert "of a kind that" in ask(told._replace(purpose="all"))
    assert "no union of rows" in ask(told._replace(purpose="rows"))
    assert "into no such count" in ask(told._replace(purpose="heat", how=(1.0, 3)))
    assert "of another round" in ask(told._replace(round=2))
    assert "another key in the roster" in ask(told._replace(roster=told.roster | {3: b"k" * 32}))
    assert "the coordinator runs 0000" in ask(told, program="00" * 8)
    node.discretion.trusted.update(dict(told.roster) | {6: b"k" * 32})
    assert "node 6, with this key, is none of those" in ask(told)
    invitation = Letter(letters.INVITE, 1, b"n" * 16, letters.NONE, node.program.fingerprint)
    assert "in secure sums alone" in refusal(node.receive(invitation.pack()))


def test_a_plan_without_places_for_all_rows_is_refused(tmp_path: Path) -> None:
    """By whether it fails a node would tell which rows it holds."""
    made = deployed(secure(), tmp_path)
    tap = made.link.members["3"] = Tap(made.link.members["3"])
    made.server.step()
    head = unpack(tap.letters[0])
    body = Turn.unpack(head.body)
    told = Opening.unpack(body.opening)._replace(attempt=1)
    plan = told.plans[0]
    for wrong in ({"cells": 12}, {"hashes": 65}, {"hashes": 3, "cells": 0}, {"seed": -1}):
        opening = told._replace(plans=(plan._replace(**wrong),))
        letter = head._replace(body=body._replace(opening=opening.pack()).pack())
        assert "no place for every row" in refusal(tap.node.receive(letter.pack()))


def test_local_noise_is_given_once_a_round(tmp_path: Path) -> None:
    """The same invitation has the same answer, with the same noise; another one has none."""
    stages = fs.privacy.local(1.0, 2.0, fs.sampling.uniform(7))
    method = fs.recipes.fedavg(MODEL, optax.sgd(0.3), weights="uniform", stages=stages)
    made = deployed(method, tmp_path, node={})
    tap = made.link.members["3"] = Tap(made.link.members["3"])
    made.server.step()
    letter, node = tap.letters[-1], tap.node
    again = unpack(letter)._replace(nonce=b"n" * 16).pack()
    assert unpack(node.receive(again)).body == unpack(node.receive(letter)).body
    body = unpack(letter).body
    other = unpack(letter)._replace(body=body[:-1] + bytes([body[-1] ^ 1]))
    assert "gives them once" in refusal(node.receive(other.pack()))


def test_an_owner_says_how_often(tmp_path: Path) -> None:
    made = deployed(secure(), tmp_path, node={"rounds": 2, "trial": True})
    made.link.members["3"].given.most = 1
    counted = [made.server.step() for _ in range(3)]
    assert [len(report.counted) for report in counted] == [7, 6, 0]
    assert "1 times, which is all that its owner allows" in counted[1].excluded["3"]


def test_a_model_without_tables_has_no_union(tmp_path: Path) -> None:
    model = fs.Model(
        lambda key: {"slope": np.ones(3, np.float32)},
        lambda params, batch: (batch["x"] * params["slope"].sum()) ** 2,
    )
    stages = [fs.stage.clip(1.0), fs.stage.secure(7)]
    method = fs.recipes.fedavg(model, optax.sgd(0.1), weights="uniform", stages=stages)
    made = deployed(method, tmp_path)
    assert made.server.step().counted == tuple(map(str, ALL))
    assert made.same_model(simulated(method, [ALL]))


def test_what_does_not_go_together_speaks_of_privacy(tmp_path: Path) -> None:
    population = people()
    made = deployed(secure(), tmp_path)
    exact = secure(heat=population.heat(MODEL))
    with pytest.raises(InputError, match="the heat is exact, and tells how many hold each row"):
        Deployment("exact", tmp_path / "exact", exact, sampler=fs.sampling.uniform(7))
    made.settings["spare"] = 1
    made.settings["sampler"] = fs.sampling.uniform(5)
    with pytest.raises(InputError, match="a secure sum has no spare nodes"):
        made.coordinator()
    plain = Deployment("fedavg", tmp_path / "plain")
    for one, other, why in (
        (plain, made, "since its own algorithm hides them"),
        (made, plain, "named them when it registered"),
    ):
        one.schema, kept = other.schema, one.schema
        one.settings = {"sampler": fs.sampling.uniform(7), "seed": SEED}
        with pytest.raises(InputError, match=why):
            one.coordinator()
        one.schema = kept
    stages = [fs.stage.clip(1.0), fs.stage.secure(7)]
    with pytest.raises(InputError, match="surveys its clients first"):
        fs.recipes.mime(
            MODEL,
            optax.sgd(0.1),
            heat=population.heat(MODEL),
            stages=stages,
            weights="uniform",
        )
    with pytest.raises(InputError, match="sends more than updates"):
        fs.recipes.fednova(MODEL, 0.1, weights="uniform", stages=stages)


def test_a_registration_tells_no_rows_and_no_examples(tmp_path: Path) -> None:
    made = deployed(secure(), tmp_path)
    for node in made.schema.nodes.values():
        assert (node.hidden, node.examples, len(node.key)) == (True, 1, 64)
        assert all(len(rows) == 0 for rows in node.rows.values())
    with pytest.raises(InputError, match="collect the heat from them privately"):
        made.schema.heat(MODEL)
    made.link.faults = {"0": silent}
    assert made.server.step().counted == tuple(map(str, range(1, 7)))
