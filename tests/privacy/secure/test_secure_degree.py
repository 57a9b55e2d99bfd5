"""Degrees and thresholds: exact tails against enumeration, and Google's figures."""

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from people import source
from scipy.stats import hypergeom

from fedslice.errors import InputError
from fedslice.privacy.secure.degree import (
    COMPLETE,
    Degree,
    degree,
    lower_tail,
    quantile,
    secure_threshold,
)
from fedslice.privacy.secure.session import Session

# Degrees and thresholds that Google's implementation of Bell et al. 2020 is tested against
# (google-parfait/federated-compute, graph_parameter_finder_test.cc), for 2^-40 and 2^-20: clients,
# corrupt, dropout, neighbours, threshold; for a server that is curious, and for one that lies.
CURIOUS = [
    (100, 0.45, 0.45, 92, 46),
    (100, 0.33, 0.33, 68, 34),
    (1000, 0.33, 0.33, 286, 150),
    (1000, 0.05, 0.33, 72, 24),
    (10_000, 0.05, 0.33, 86, 29),
    (1000, 0.33, 0.05, 78, 60),
    (10_000, 0.33, 0.05, 92, 70),
    (1000, 0.05, 0.05, 30, 17),
    (10_000, 0.05, 0.05, 34, 20),
    (1_000_000, 0.05, 0.05, 38, 22),
    (1000, 0.33, 0.0, 38, 36),
    (1000, 0.0, 0.33, 38, 2),
]
LYING = [
    (100, 0.3, 0.3, 92, 62),
    (100, 0.05, 0.33, 72, 39),
    (1000, 0.05, 0.33, 398, 223),
    (1000, 0.33, 0.05, 132, 109),
    (10_000, 0.33, 0.05, 178, 146),
    (1000, 0.05, 0.05, 52, 37),
    (10_000, 0.05, 0.05, 62, 44),
    (1_000_000, 0.05, 0.05, 74, 52),
]


@pytest.mark.parametrize(("clients", "corrupt", "dropout", "neighbours", "threshold"), CURIOUS)
def test_a_curious_server_as_googles_implementation_has_it(
    clients: int, corrupt: float, dropout: float, neighbours: int, threshold: int
) -> None:
    found = degree(clients, corrupt, dropout, 40, 20, active=False)
    assert found == Degree(neighbours, threshold)


@pytest.mark.parametrize(("clients", "corrupt", "dropout", "neighbours", "threshold"), LYING)
def test_a_lying_server_costs_no_less_than_googles_implementation_has_it(
    clients: int, corrupt: float, dropout: float, neighbours: int, threshold: int
) -> None:
    # Their rule asks for 2 t > k + X alone: the same numbers.
    tail = Fraction(1, 2**41 * clients)
    bad = quantile(clients - 1, round(corrupt * clients), neighbours, tail)
    assert (neighbours + bad - 1) // 2 + 1 == threshold
    # Ours asks in addition that lies about who stayed cannot part the ring.
    found = degree(clients, corrupt, dropout, 40, 20, active=True)
    assert neighbours <= found.neighbours <= 1.2 * neighbours
    assert 2 * found.threshold > found.neighbours


@pytest.mark.parametrize("clients", [60, 300, 1000])
@pytest.mark.parametrize("active", [False, True])
def test_the_bounds_hold_and_are_tight(clients: int, active: bool) -> None:
    # The inequalities of the module, by scipy's tails.
    bad = gone = clients // 10
    neighbours, threshold = degree(clients, active=active)
    pairs = clients * (clients - neighbours - 1) / 2

    def secure(threshold: int) -> bool:
        least = 2 * threshold - neighbours if active else threshold
        one = clients * hypergeom.sf(least - 1, clients - 1, bad, neighbours)
        if active:
            two = pairs * hypergeom.sf(least - 1, clients, bad, neighbours)
        else:
            two = pairs * comb(bad + gone, neighbours) / comb(clients, neighbours)
        return max(one, two) <= 2**-41

    assert secure(threshold)
    assert not secure(threshold - 1)
    assert clients * hypergeom.cdf(threshold - 1, clients - 1, clients - 1 - gone, neighbours) <= (
        2**-30
    )
    # Two neighbours fewer, with whatever threshold, are not enough.
    fewer = neighbours - 2
    least = secure_threshold(clients, fewer, bad, gone, 40, active)
    stay = hypergeom(clients - 1, clients - 1 - gone, fewer)
    assert least is None or clients * stay.cdf(least - 1) > 2**-30


@pytest.mark.parametrize(("population", "marked", "drawn"), [(20, 6, 8), (200, 60, 50), (9, 9, 4)])
def test_tails_are_those_of_scipy(population: int, marked: int, drawn: int) -> None:
    law = hypergeom(population, marked, drawn)
    for least in range(drawn + 2):
        assert float(lower_tail(population, marked, drawn, least)) == pytest.approx(
            law.cdf(least - 1), rel=1e-9, abs=1e-300
        )
    for probability in (0.5, 0.1, 1e-3):
        x = quantile(population, marked, drawn, Fraction(probability))
        assert law.sf(x - 1) <= probability * (1 + 1e-9)
        assert x == 0 or law.sf(x - 2) > probability * (1 - 1e-9)


def _rings(clients: int) -> list[tuple[int, ...]]:
    """All orders of a ring, up to turning it."""
    return [(0, *rest) for rest in itertools.permutations(range(1, clients))]


def _near(ring: tuple[int, ...], seat: int, neighbours: int) -> list[int]:
    reach = neighbours // 2
    return [ring[(seat + step) % len(ring)] for step in range(-reach, reach + 1) if step]


def _connected(ring: tuple[int, ...], there: set[int], neighbours: int) -> bool:
    if not there:
        return True
    seats = {client: seat for seat, client in enumerate(ring)}
    found, todo = set(), [min(there)]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += [near for near in _near(ring, seats[each], neighbours) if near in there]
    return found == there


@pytest.mark.parametrize(("clients", "neighbours", "bad", "gone"), [(7, 2, 2, 1), (7, 4, 2, 2)])
def test_bounds_hold_over_all_orders_of_a_small_ring(
    clients: int, neighbours: int, bad: int, gone: int
) -> None:
    # 0 .. bad-1 are corrupt, the next ones drop out, the others are honest and stay.
    rings = _rings(clients)
    honest = set(range(bad + gone, clients))
    split = sum(not _connected(ring, honest, neighbours) for ring in rings)
    pairs = Fraction(clients * (clients - neighbours - 1), 2)
    bound = pairs * Fraction(comb(bad + gone, neighbours), comb(clients, neighbours))
    assert Fraction(split, len(rings)) <= bound
    # Neighbours of one honest client are hypergeometric, exactly.
    someone = clients - 1
    counts = [
        sum(near < bad for near in _near(ring, ring.index(someone), neighbours)) for ring in rings
    ]
    for least in range(neighbours + 2):
        exact = 1 - lower_tail(clients - 1, bad, neighbours, least)
        assert Fraction(sum(count >= least for count in counts), len(rings)) == exact


def test_a_lie_parts_a_ring_only_where_two_runs_have_enough_corrupt_clients() -> None:
    # Orders of 8 with 4 corrupt, every set of honest ones that a server may leave out such that
    # each of the others sees t of its neighbours stay: what the bound for a lying server rests on.
    clients, neighbours, bad = 8, 4, 4
    for threshold, possible in ((3, True), (4, False)):
        parted = [
            ring
            for ring in _rings(clients)[::7]
            if _can_be_parted(ring, neighbours, bad, threshold)
        ]
        assert bool(parted) == possible
        for ring in parted:
            marks = [client < bad for client in ring] * 2
            runs = [sum(marks[seat : seat + 2]) for seat in range(clients)]
            assert any(
                runs[one] + runs[(one + gap) % clients] >= 2 * threshold - neighbours
                for one in range(clients)
                for gap in range(3, clients - 2)
            )


def _can_be_parted(ring: tuple[int, ...], neighbours: int, bad: int, threshold: int) -> bool:
    honest = range(bad, len(ring))
    for size in range(2, len(honest)):
        for there in itertools.combinations(honest, size):
            stayed = {*there, *range(bad)}
            near = [
                sum(each in stayed for each in _near(ring, ring.index(client), neighbours))
                for client in there
            ]
            if min(near) >= threshold and not _connected(ring, set(there), neighbours):
                return True
    return False


def test_neighbours_of_the_session_are_a_uniform_choice() -> None:
    # 2,000 seeds: every other client is a neighbour of client 0 equally often (chi-square, 8
    # degrees of freedom, 26.1 is the 0.999 quantile).
    clients, neighbours, random = 10, 4, source(4)
    counts = np.zeros(clients)
    roster = {number: bytes([number]) * 32 for number in range(clients)}
    for _ in range(2000):
        session = Session(roster, random(32), Degree(neighbours, 3))
        counts[list(session.neighbours(0))] += 1
    assert counts[0] == 0
    expected = 2000 * neighbours / (clients - 1)
    # Neighbours are drawn without replacement, which makes the statistic smaller, not larger.
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 26.1


@pytest.mark.parametrize("clients", [4, 9, 40])
def test_the_graph_is_regular_and_mutual(clients: int) -> None:
    roster = {3 * number + 1: bytes([number]) * 32 for number in range(clients)}
    for neighbours in (2, clients - 1):
        session = Session(roster, b"s" * 32, Degree(neighbours, 2))
        for identity in roster:
            near = session.neighbours(identity)
            assert len(set(near)) == neighbours
            assert identity not in near
            assert all(identity in session.neighbours(other) for other in near)


def test_small_cohorts_have_complete_graphs() -> None:
    assert degree(3, 0, 0) == Degree(2, 2)
    for clients in range(8, COMPLETE + 1):
        found = degree(clients)
        bad = gone = clients // 10
        assert found.neighbours == clients - 1
        assert 2 * found.threshold > clients - 1 + bad
        assert found.threshold <= clients - 1 - gone
    assert degree(200, complete=True).neighbours == 199


def test_more_safety_needs_more_neighbours() -> None:
    degrees = [degree(500, active=active, security=s) for active in (False, True) for s in (20, 60)]
    counts = [found.neighbours for found in degrees]
    assert counts == sorted(counts)
    assert len(set(counts)) == 4
    assert secure_threshold(500, 4, 50, 50, 40, active=False) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 2},
        {"clients": 50, "corrupt": 1.0},
        {"clients": 50, "dropout": -0.1},
        {"clients": 50, "security": 0},
        {"clients": 50, "corrupt": 0.5, "dropout": 0.5},
        {"clients": 50, "corrupt": 0.34, "dropout": 0.34},
    ],
)
def test_what_is_not_possible_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        degree(**wrong)
