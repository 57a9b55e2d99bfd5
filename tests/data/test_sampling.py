"""Who takes part."""

import numpy as np
import pytest

from fedslice.data.sampling import Sampler, cyclic, full, poisson, uniform, weighted
from fedslice.errors import InputError

ONES = np.ones(40)


@pytest.mark.parametrize(
    "sampler", [uniform(7), weighted(7), poisson(7), full()], ids=lambda s: s.name
)
def test_ascending_distinct_and_a_function_of_seed_and_round(sampler: Sampler) -> None:
    counts = np.arange(1, 41)
    draws = [sampler.cohort(3, r, counts) for r in range(20)]
    for r, cohort in enumerate(draws):
        assert (np.diff(cohort) >= (0 if sampler.by_examples else 1)).all()
        assert set(cohort.tolist()) <= set(range(40))
        assert np.array_equal(cohort, sampler.cohort(3, r, counts))
    if not sampler.everyone:
        assert len({tuple(c.tolist()) for c in draws}) > 15
        assert any(not np.array_equal(c, sampler.cohort(4, r, counts)) for r, c in enumerate(draws))


@pytest.mark.parametrize("sampler", [uniform(7), weighted(7)], ids=lambda s: s.name)
def test_sizes(sampler: Sampler) -> None:
    assert all(len(sampler.cohort(0, r, ONES)) == 7 for r in range(50))


def test_full_is_everybody() -> None:
    assert full().cohort(0, 0, ONES).tolist() == list(range(40))


def test_uniform_is_uniform() -> None:
    """2,000 draws of 10 of 40: each count is 500 +- 19.4 (binomial); chi-square / 0.75 has 39
    degrees of freedom."""
    counts = np.bincount(
        np.concatenate([uniform(10).cohort(0, r, ONES) for r in range(2000)]), minlength=40
    )
    statistic = ((counts - 500) ** 2 / 500).sum() / 0.75
    assert 14 < statistic < 80  # 0.02 % on either side


def test_weighted_goes_by_examples() -> None:
    """Every draw by itself: client i with probability counts_i / sum, whoever was drawn before."""
    counts = np.array([0, 1, 2, 3, 4])
    drawn = np.bincount(
        np.concatenate([weighted(5).cohort(0, r, counts) for r in range(1000)]), minlength=5
    )
    # 3.5 standard errors of 0.007
    np.testing.assert_allclose(drawn / 5000, counts / 10, atol=0.025)
    assert drawn[0] == 0


def test_poisson_has_the_right_mean_and_spread() -> None:
    """Binomial(40, 8/40): mean 8, variance 8 * 0.8 = 6.4."""
    sizes = np.array([len(poisson(8).cohort(1, r, ONES)) for r in range(4000)])
    assert sizes.mean() == pytest.approx(8, abs=0.15)  # standard error 0.04
    assert sizes.var() == pytest.approx(6.4, abs=0.6)  # standard error 0.14


@pytest.mark.parametrize("make", [uniform, weighted, poisson])
@pytest.mark.parametrize("size", [0, -3])
def test_a_cohort_must_be_positive(make: object, size: int) -> None:
    with pytest.raises(InputError, match="positive"):
        make(size)  # type: ignore[operator]


@pytest.mark.parametrize("sampler", [uniform(41), poisson(41)], ids=lambda s: s.name)
def test_too_large_a_cohort_is_refused_with_advice(sampler: Sampler) -> None:
    with pytest.raises(
        InputError, match=r"41 was asked of 40.*smaller or take all of them \(sampling.full"
    ):
        sampler.cohort(0, 0, ONES)


def test_another_seed_is_no_other_round() -> None:
    """Runs with seeds 3 and 4 must not meet the same cohorts one round apart."""
    sampler = uniform(7)
    for seed in range(5):
        assert not np.array_equal(sampler.cohort(seed, 1, ONES), sampler.cohort(seed + 1, 0, ONES))


def test_the_share_that_takes_part() -> None:
    """On average, and never more than all: weighted draws may be more than there are clients."""
    assert [uniform(5).rate(n) for n in (3, 5, 20)] == [1.0, 1.0, 0.25]
    assert weighted(9).rate(3) == full().rate(3) == 1.0
    assert poisson(0.5).rate(10) == 0.05
    assert uniform(5).rate(0) == 1.0


def test_poisson_draws_all_alike_whatever_their_examples() -> None:
    """2,000 rounds, each client 500 times, standard deviation 19.4: within 4 of them."""
    counts = np.array([1] * 20 + [9] * 20)
    drawn = np.bincount(
        np.concatenate([poisson(10).cohort(2, r, counts) for r in range(2000)]), minlength=40
    )
    assert np.abs(drawn - 500).max() < 80


def test_groups_take_turns() -> None:
    """Nobody comes again before so many rounds, every client comes at times, and all cohorts have
    the same size."""
    turns = cyclic(4, 3)
    cohorts = [turns.cohort(7, round, np.ones(20)) for round in range(60)]
    assert {len(cohort) for cohort in cohorts} == {4}
    assert set(np.concatenate(cohorts).tolist()) == set(range(20))
    for first in range(58):
        nearby = np.concatenate(cohorts[first : first + 3])
        assert len(np.unique(nearby)) == len(nearby)
    with pytest.raises(InputError, match="2 or more"):
        cyclic(4, 1)
    with pytest.raises(InputError, match="of 6 clients with data"):
        cyclic(7, 3).cohort(0, 1, np.ones(19))
