"""Sums are exact, whoever leaves in whatever turn, down to the threshold and not below it."""

import numpy as np
import pytest
from people import PARTS, Room, source, total, vector

from fedslice.errors import InputError
from fedslice.privacy.secure.coordinator import Coordinator
from fedslice.privacy.secure.degree import Degree, degree
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.primitives import identity_of
from fedslice.privacy.secure.run import Outcome, secure_sum
from fedslice.privacy.secure.session import Session
from fedslice.privacy.secure.sizes import sizes


def _run(clients: int, chosen: Degree, dropouts: dict[int, int], seed: int = 0) -> Outcome:
    vectors = [vector(number) for number in range(clients)]
    return secure_sum(vectors, PARTS, chosen, dropouts, source(seed))


def _exact(found: Outcome) -> bool:
    expected = total(found.stayed)
    return all(
        value.dtype == np.int32 and np.array_equal(value.view(np.uint32), expected[name])
        for name, value in found.total.items()
    )


@pytest.mark.parametrize("turn", range(5))
def test_a_complete_graph_down_to_the_threshold_and_one_fewer(turn: int) -> None:
    chosen = Degree(8, 5)  # of nine; five neighbours and oneself make six
    found = _run(9, chosen, dict.fromkeys((0, 4, 7), turn), turn)
    assert _exact(found)
    assert found.stayed == set(range(9)) - ({0, 4, 7} if turn < 3 else set())
    with pytest.raises(InputError, match="the sum ends"):
        _run(9, chosen, dict.fromkeys((0, 4, 7, 8), turn), turn)


@pytest.mark.parametrize("seed", range(12))
def test_random_sizes_graphs_thresholds_and_dropouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(5, 16))
    complete = clients - 1
    neighbours = complete if seed % 3 == 0 else 2 * int(rng.integers(1, (complete + 1) // 2))
    neighbours = neighbours if neighbours < complete else complete
    threshold = int(rng.integers(2, neighbours + 1))
    chosen = Degree(neighbours, threshold)
    vectors = [vector(number) for number in range(clients)]
    random = source(seed)
    # The same bytes give the same graph: who may leave so that everybody keeps t neighbours?
    probe = source(seed)
    for _ in range(clients):
        probe(32)
    roster = {number: bytes([number]) * 32 for number in range(clients)}
    session = Session(roster, probe(32), chosen)
    dropouts: dict[int, int] = {}
    for each in rng.permutation(clients).tolist():
        there = set(range(clients)) - set(dropouts) - {each}
        near = min(len(there.intersection(session.neighbours(u))) for u in range(clients))
        if near >= threshold and len(there) > threshold:
            dropouts[each] = int(rng.integers(0, 5))
    found = secure_sum(vectors, PARTS, chosen, dropouts, random)
    assert _exact(found)
    assert found.stayed == {u for u in range(clients) if dropouts.get(u, 5) > 2}
    assert not found.excluded


def test_a_sparse_graph_leaves_out_who_has_too_few_neighbours_before_anything_is_masked() -> None:
    room = Room(12, Degree(4, 2))
    ring, seats = room.session._ring
    lonely = 5
    room.turn(silent=[ring[(seats[lonely] + step) % 12] for step in (-1, 1, 2)])
    # Three of its four neighbours are away, and two are needed; everybody else has two.
    assert lonely not in room.inbox
    assert room.coordinator.left[0] >= {lonely}
    assert len(room.inbox) == 8
    for _ in range(4):
        room.turn()
    expected = total(room.coordinator.stayed)
    assert all(
        np.array_equal(value, expected[name]) for name, value in room.coordinator.total().items()
    )


def test_a_sum_that_cannot_be_opened_ends() -> None:
    # On a sparse graph too: the neighbours of one leave after they have shared keys.
    room = Room(12, Degree(4, 3)).until(2)
    near = room.session.neighbours(5)
    answers = room.answers(silent=near[:2])
    for message in answers.values():
        room.coordinator.receive(message)
    with pytest.raises(InputError, match="2 neighbours of participant"):
        room.coordinator.close()


def test_fewer_than_least_are_not_summed() -> None:
    vectors = [vector(number) for number in range(8)]
    gone = {0: 2, 1: 2}
    found = secure_sum(vectors, PARTS, Degree(7, 3), gone, source(0), least=6)
    assert _exact(found)
    with pytest.raises(InputError, match="7 must be"):
        secure_sum(vectors, PARTS, Degree(7, 3), gone, source(0), least=7)


def test_identities_can_be_any_numbers() -> None:
    private = {number: bytes([number % 251]) * 32 for number in (7, 3, 2**32 - 2, 100_000)}
    roster = {number: identity_of(key) for number, key in private.items()}
    session = Session(roster, b"x" * 32, Degree(3, 2))
    people = {n: Participant(session, n, private[n], source(n)) for n in roster}
    coordinator = Coordinator(session, PARTS)
    inbox = dict.fromkeys(roster, b"")
    for turn in range(5):
        for n, message in inbox.items():
            if turn == 2:
                answer = people[n].mask(message, PARTS, vector(n))
            elif turn == 0:
                answer = people[n].advertise()
            else:
                answer = getattr(people[n], {1: "share", 3: "agree", 4: "unmask"}[turn])(message)
            coordinator.receive(answer)
        inbox = coordinator.close() if turn < 4 else {}
    expected = total(roster)
    assert all(np.array_equal(v, expected[k]) for k, v in coordinator.total().items())


@pytest.mark.parametrize(("clients", "chosen"), [(9, Degree(8, 5)), (17, Degree(6, 4))])
def test_sizes_are_the_lengths_of_the_messages(clients: int, chosen: Degree) -> None:
    parts = Parts([dense("bias", 5), rows("item", [2, 3, 9], 3), rows("word", [], 2)])
    vectors = [vector(number, parts) for number in range(clients)]
    found = secure_sum(vectors, parts, chosen, random=source(0))
    said = sizes(clients, chosen.neighbours, parts.size, ids=3, parts=3)
    assert said.told == len(parts.pack())
    assert np.array_equal(found.up, np.array(said.up)[:, None] * np.ones(clients, int))
    assert np.array_equal(found.down, np.array(said.down)[:, None] * np.ones(clients, int))
    assert said.total == (sum(said.up), sum(said.down) + said.told)


def test_the_default_degree_is_that_of_the_number_of_vectors() -> None:
    vectors = [vector(number) for number in range(40)]
    found = secure_sum(vectors, PARTS, random=source(0))
    assert _exact(found)
    assert found.up[1, 0] == sizes(40, degree(40).neighbours, PARTS.size).up[1]


def test_unsigned_vectors_give_unsigned_sums() -> None:
    parts = Parts([dense("w", 2)])
    vectors = [{"w": np.array([2**32 - 1, number], np.uint32)} for number in range(4)]
    found = secure_sum(vectors, parts, Degree(3, 2), random=source(0)).total["w"]
    assert found.dtype == np.uint32
    assert found.tolist() == [2**32 - 4, 6]


@pytest.mark.parametrize("dropouts", [{9: 1}, {-1: 1}, {0: 5}])
def test_impossible_dropouts_are_refused(dropouts: dict[int, int]) -> None:
    with pytest.raises(InputError, match="dropouts"):
        _run(9, Degree(8, 5), dropouts)
