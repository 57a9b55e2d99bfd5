"""The union of rows by secure sums, and tunable answers: against sets, counts, published eps."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.privacy.rows import Plan, answers, plan_union, union
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.sizes import sizes
from fedslice.types import Answers

SECRET = b"0123456789abcdef" * 2


def _held(clients: int, rows: int, each: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.choice(rows, each, replace=False) for _ in range(clients)]


def _bytes(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def test_the_union_is_the_union() -> None:
    held = _held(8, 500, 30)
    found = union(held, 500, random=_bytes(1), chosen=Degree(7, 4))
    assert found.plan == Plan(500, 500)
    assert found.ids.tolist() == sorted(set(np.concatenate(held).tolist()))
    assert found.ids.dtype == np.int64


def test_rows_of_those_who_left_early_are_not_in_it() -> None:
    held = [[1], [2], [3], [4], [5], [6]]
    found = union(held, 10, random=_bytes(1), chosen=Degree(5, 2), dropouts={0: 1, 3: 2, 4: 4})
    assert found.ids.tolist() == [2, 3, 5, 6]


def test_a_filter_has_every_member_and_few_others() -> None:
    rows, rate = 200_000, 0.01
    held = _held(6, rows, 50)
    members = set(np.concatenate(held).tolist())
    found = union(held, rows, most=300, rate=rate, seed=7, random=_bytes(1), chosen=Degree(5, 3))
    assert found.plan.hashes > 0
    assert members <= set(found.ids.tolist())
    false = (len(found.ids) - len(members)) / (rows - len(members))
    # 2,000 expected: the load of this one filter moves it by a few per cent.
    assert 0.85 * rate < false < 1.15 * rate


@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-3, 1e-6])
def test_the_filter_is_the_smallest_for_its_rate(rate: float) -> None:
    plan = plan_union(10**9, 1000, rate)

    def false(hashes: int, cells: int) -> float:
        return (1 - math.exp(-hashes * 1000 / cells)) ** hashes

    assert false(plan.hashes, plan.cells) <= rate * (1 + 1e-9)
    for hashes in range(1, 65):
        assert false(hashes, plan.cells - 1) > rate
    # The optimum over real numbers of hashes: n ln(1/rate) / (ln 2)^2 cells.
    assert plan.cells >= -1000 * math.log(rate) / math.log(2) ** 2 - 1
    assert plan.cells < -1.06 * 1000 * math.log(rate) / math.log(2) ** 2


def test_the_smaller_one_is_chosen_by_bytes() -> None:
    cells = plan_union(10**6, 500).cells
    assert plan_union(cells, 500).hashes == 0
    assert plan_union(cells + 1, 500).cells == cells
    assert plan_union(cells + 1, 500).hashes > 0
    for plan in (plan_union(cells, 500), plan_union(10**6, 500)):
        assert plan.sizes(40, 12) == sizes(40, 12, plan.cells)


@pytest.mark.parametrize("rows", [300, 100_000])
def test_the_bytes_are_those_of_the_messages(rows: int) -> None:
    found = union(_held(6, rows, 10), rows, most=60, random=_bytes(2), chosen=Degree(5, 3))
    said = found.plan.sizes(6, 5)
    assert found.outcome.up[:, 0].tolist() == list(said.up)
    assert found.outcome.down[:, 0].tolist() == list(said.down)


def test_a_vector_is_random_where_rows_are_held_and_never_zero() -> None:
    def zeros(size: int) -> bytes:
        return bytes(size)

    def multiples(size: int) -> bytes:  # of 2^32 - 1: the remainder is zero
        return (2**32 - 1).to_bytes(8, "little") * (size // 8)

    for random in (zeros, multiples):
        assert Plan(9, 9).vector([2, 5, 5], random)["rows"].nonzero()[0].tolist() == [2, 5]
    first, second = (Plan(9, 9).vector([2, 5], _bytes(seed))["rows"] for seed in (1, 2))
    assert not np.any(first[[2, 5]] == second[[2, 5]])


def test_how_often_holders_cancel_each_other() -> None:
    # In a ring of q numbers, h non-zero ones have sum zero in a share of at most 1 / (q - 1).
    for ring, holders in itertools.product((4, 8, 16), (1, 2, 3)):
        numbers = itertools.product(range(1, ring), repeat=holders)
        found = [sum(each) % ring == 0 for each in numbers]
        share = Fraction(sum(found), len(found))
        assert share == (1 - Fraction(-1, ring - 1) ** (holders - 1)) / ring
        assert share <= Fraction(1, ring - 1)
        assert holders > 1 or share == 0


@pytest.mark.parametrize("rows", [1, 2**20 - 1, 2**20, 2**20 + 1, 2**21])
def test_the_last_row_is_found_however_many_there_are(rows: int) -> None:
    total = np.zeros(rows, np.uint32)
    total[[0, rows // 2, rows - 1]] = 1
    found = Plan(rows, rows).members({"rows": total})
    assert found.tolist() == sorted({0, rows // 2, rows - 1})


def test_another_seed_has_other_false_members() -> None:
    held = np.arange(40)
    plans = [plan_union(100_000, 40, 0.01, seed) for seed in (0, 1)]
    found = [set(plan.members(plan.vector(held, _bytes(1))).tolist()) for plan in plans]
    assert found[0] & found[1] > set(held.tolist())
    assert len(found[0] & found[1]) < 100 < min(map(len, found))


def test_nobody_holds_anything() -> None:
    assert union([[]] * 4, 20, random=_bytes(1), chosen=Degree(3, 2)).ids.tolist() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0, "most": 1},
        {"rows": 5, "most": 0},
        {"rows": 5, "most": 6},
        {"rows": 5, "most": 5, "rate": 0.0},
        {"rows": 5, "most": 5, "rate": 1.0},
        {"rows": 5, "most": 5, "seed": -1},
    ],
)
def test_impossible_unions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        plan_union(**wrong)


def test_ids_outside_of_the_table_and_totals_of_other_plans_are_refused() -> None:
    for ids in ([5], [-1, 2]):
        with pytest.raises(InputError, match="not in the table"):
            Plan(5, 5).vector(ids)
    with pytest.raises(InputError, match="not of this plan"):
        Plan(5, 5).members({"rows": np.zeros(4, np.uint32)})


# -- tunable answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "eps_1", "eps_inf"), [(15 / 16, 2.02, 2.71), (7 / 8, 1.27, 1.95), (3 / 4, 0.51, 1.10)]
)
def test_the_published_settings(high: float, eps_1: float, eps_inf: float) -> None:
    # Niu et al., p1 = p3 and p2 = p4 = 1 - p1.
    found = Answers(high, 1 - high, high, 1 - high)
    assert round(found.eps_1, 2) == eps_1
    assert round(found.eps_inf, 2) == eps_inf


def test_the_ends_of_the_scale() -> None:
    everything, nothing_hidden = Answers(), Answers(1, 0, 1, 0)
    assert everything.eps_1 == everything.eps_inf == 0
    assert nothing_hidden.eps_1 == nothing_hidden.eps_inf == math.inf
    assert Answers(1, 0.25, 1, 0).eps_inf == math.inf
    assert Answers(0.5, 0.25, 1, 1).eps_1 == 0
    held, rows = [2, 5], np.arange(10)
    assert answers(everything, held, rows, SECRET, 3, "item").tolist() == list(range(10))
    assert answers(nothing_hidden, held, rows, SECRET, 3, "item").tolist() == held
    assert answers(Answers(0, 0, 0, 0), held, rows, SECRET, 3, "item").tolist() == []


def test_answers_come_with_the_probabilities_of_one_round() -> None:
    how, rows = Answers(0.9, 0.2, 0.8, 0.3), np.arange(40_000)
    held = rows[::2]
    found = np.isin(rows, answers(how, held, rows, SECRET, 5, "item"))
    # Standard errors of 0.003: five of them.
    assert abs(found[::2].mean() - how.p5) < 0.015
    assert abs(found[1::2].mean() - how.p6) < 0.015
    assert how.p5 == pytest.approx(0.9 * 0.8 + 0.1 * 0.3)
    assert how.p6 == pytest.approx(0.2 * 0.8 + 0.8 * 0.3)


def test_permanent_answers_stay_and_rounds_differ() -> None:
    permanent, rows = Answers(0.5, 0.5, 1, 0), np.arange(2000)
    held = rows[:500]
    first = answers(permanent, held, rows, SECRET, 0, "item")
    assert all(
        np.array_equal(first, answers(permanent, held, rows, SECRET, number, "item"))
        for number in (1, 2, 9)
    )
    assert 900 < len(first) < 1100
    # A row's answer hangs on nothing else that is asked about.
    part = answers(permanent, held, rows[700:900], SECRET, 0, "item")
    assert np.array_equal(part, first[(first >= 700) & (first < 900)])
    for other in ({"secret": SECRET[::-1]}, {"table": "word"}):
        given = {"secret": SECRET, "round": 0, "table": "item", **other}
        again = answers(permanent, held, rows, **given)
        assert 400 < np.isin(first, again).sum() < 600
    instant = Answers(0.5, 0.5, 0.5, 0.5)
    one, two = (answers(instant, held, rows, SECRET, number, "item") for number in (1, 2))
    assert 400 < np.isin(one, two).sum() < 600
    assert np.array_equal(one, answers(instant, held, rows, SECRET, 1, "item"))


def test_rounds_together_do_not_reveal_more_than_the_permanent_answer() -> None:
    # Over 400 rounds the share of yes settles at p3 or p4, whether the row is held or not.
    how, rows, rounds = Answers(0.75, 0.25, 0.9, 0.2), np.arange(400), 400
    held = rows[:200]
    counts = sum(
        np.isin(rows, answers(how, held, rows, SECRET, number, "item")) for number in range(rounds)
    )
    shares = counts / rounds
    yes = shares > 0.55
    assert np.all(np.abs(shares[yes] - 0.9) < 0.09)
    assert np.all(np.abs(shares[~yes] - 0.2) < 0.12)
    assert 0.65 < yes[:200].mean() < 0.85
    assert 0.15 < yes[200:].mean() < 0.35


@pytest.mark.parametrize("wrong", [Answers(1.1, 0, 1, 0), Answers(1, -0.1, 1, 0)])
def test_impossible_probabilities_and_secrets_are_refused(wrong: Answers) -> None:
    with pytest.raises(InputError, match="no probability"):
        answers(wrong, [], [1], SECRET, 0, "item")
    with pytest.raises(InputError, match="32 bytes"):
        answers(Answers(), [], [1], b"short", 0, "item")
