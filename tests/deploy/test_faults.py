"""Whatever a node sends, or does not: it is left out by name, and the model is that of the others.

One round for each fault; after each the state is compared, bit by bit, with a simulation of the
clients that counted.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kinds import few
from nodes import Deployment

from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter, unpack
from fedslice.deploy.link import Fault, late, replayed, silent, tampered
from fedslice.round.wire import HEAD, TOLD

IDS = HEAD.size + 4  # where the ids begin, in the body of a reply about one table


def letter(change: Callable[[Letter], Letter]) -> Fault:
    return tampered(lambda reply: change(unpack(reply)).pack())


def body(change: Callable[[bytes], bytes]) -> Fault:
    return letter(lambda reply: reply._replace(body=change(reply.body)))


def ids(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def write(data: bytes) -> bytes:
        count = int.from_bytes(data[IDS - 4 : IDS], "little")
        named = change(np.frombuffer(data, "<u4", count, IDS).copy())
        return data[:IDS] + named.astype("<u4").tobytes() + data[IDS + 4 * count :]

    return body(write)


def foreign(named: np.ndarray) -> np.ndarray:
    """Another row, ascending all the same."""
    free = [row for row in range(24) if row not in named]
    return np.sort(np.append(named[1:], free[0]))


def says(**changes: float) -> Fault:
    """Another weight, or another report."""
    names = ["weight", "loss", "start_loss", "examples", "steps", "failed"]

    def write(data: bytes) -> bytes:
        start = IDS + 4 * int.from_bytes(data[IDS - 4 : IDS], "little")
        values = dict(zip(names, TOLD.unpack_from(data, start), strict=True)) | changes
        return data[:start] + TOLD.pack(*values.values()) + data[start + TOLD.size :]

    return body(write)


def ends(number: float) -> Fault:
    """Another last number."""
    return body(lambda data: data[:-4] + np.float32(number).tobytes())


def next_round(data: bytes) -> bytes:
    return data[:4] + (int.from_bytes(data[4:8], "little") + 1).to_bytes(4, "little") + data[8:]


FAULTS: list[tuple[Fault, str]] = [
    (silent, "late"),
    (late, "late"),
    (replayed, "not to this letter"),
    (ends(np.nan), "not finite"),
    (ends(-np.inf), "not finite"),
    (ids(foreign), "was not offered to it"),
    (ids(lambda named: named[::-1]), "not ascending"),
    (ids(lambda named: named + 100), "not ascending ids below 24"),
    (body(lambda data: data[:-4]), "ends before its last leaf"),
    (body(lambda data: data + bytes(4)), "more than its leaves need"),
    (body(lambda data: data[: IDS - 4] + b"\xff\xff\xff\xff" + data[IDS:]), "too many"),
    (body(lambda data: data[:9]), "cut off"),
    (body(lambda data: b""), "no message of this version"),
    (tampered(lambda reply: reply + bytes(10_000_000)), "bytes, where"),
    (tampered(lambda reply: b""), "no letter of this version"),
    (tampered(lambda reply: b"what" + reply[4:]), "no letter of this version"),
    (letter(lambda reply: reply._replace(round=reply.round + 1)), "an answer of round"),
    (body(next_round), "a message of round"),
    (letter(lambda reply: reply._replace(program="00" * 8)), "it computes 0000000000000000"),
    (letter(lambda reply: reply._replace(nonce=bytes(16))), "not to this letter"),
    (letter(lambda reply: reply._replace(kind=letters.NOTED)), "a reply of kind 8"),
    (letter(lambda reply: reply.reply(letters.REFUSED, "0" * 16, b"no\x07")), "refused: no?"),
    (says(weight=1e6), "a weight of 1e+06"),
    (says(weight=-1.0), "a weight of -1"),
    (says(weight=np.nan), "not finite"),
    (says(loss=np.inf), "not finite"),
    (says(examples=1e6), "a report of 1e+06 examples"),
    (says(steps=-1.0), "in -1 steps"),
    (says(failed=1.0), "as it says"),
]


@pytest.mark.parametrize("name", few(["fedavg-weighted", "scaffold-2"], "scaffold-2"))
def test_a_bad_reply_is_left_out_and_named_and_moves_nothing(name: str, tmp_path: Path) -> None:
    made = Deployment(name, tmp_path)
    everyone = range(len(made.population))
    counted = [
        [i for i in everyone if i != round % 7 or not round] for round in range(1 + len(FAULTS))
    ]
    run = made.simulation(counted)
    for round, (fault, why) in enumerate([(None, ""), *FAULTS]):
        bad = str(round % 7)
        made.link.faults = {bad: fault} if fault else {}
        report = made.server.step()
        assert report.counted == tuple(map(str, counted[round]))
        if why == "late":
            assert report.late == (bad,)
        elif fault:
            assert list(report.excluded) == [bad], why
            assert why in report.excluded[bad]
        list(run.rounds(1))
        assert made.same(run), why
    made.link.faults = {}
    made.server.tell()
    if made.program.remembers:
        assert all(made.same_memory(run, i) for i in everyone)


def test_numbers_whose_squares_are_not_finite_never_reach_the_state(tmp_path: Path) -> None:
    """Finite ones, but Adam's second moment would not be."""
    made = Deployment("fedadam", tmp_path)
    counted = [[0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 4, 6]]
    run = made.simulation(counted)
    for expected in counted:
        report = made.server.step()
        assert report.counted == tuple(map(str, expected))
        list(run.rounds(1))
        assert made.same(run)
        made.link.faults = {"1": ends(3e38), "5": ends(2e38)}
    assert set(report.excluded.values()) == {"numbers so large that the sum is not finite"}


def second_trip(fault: Fault) -> Fault:
    """The fault, in answers alone."""

    def act(answer: Callable[[], bytes], earlier: object) -> bytes | None:
        reply = answer()
        late = unpack(reply).kind == letters.ANSWER
        return fault(lambda: reply, []) if late else reply

    return act


@pytest.mark.parametrize("name", ["mime"])
def test_one_that_looked_and_did_not_answer_has_not_looked(name: str, tmp_path: Path) -> None:
    """What the survey found is worked out again without it."""
    made = Deployment(name, tmp_path)
    counted = [[0, 1, 2, 4, 5, 6], [0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]
    run = made.simulation(counted)
    faults = [
        {"3": second_trip(late)},
        {"1": second_trip(ends(np.nan)), "6": second_trip(silent)},
        {},
    ]
    for each, expected in zip(faults, counted, strict=True):
        made.link.faults = each
        report = made.server.step()
        assert report.counted == tuple(map(str, expected))
        list(run.rounds(1))
        assert made.same(run)
