"""Epsilon against published figures, an independent accountant, closed forms and brute force."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from kinds import few
from scipy.optimize import brentq
from scipy.special import ive
from scipy.stats import norm

from fedslice.data import sampling
from fedslice.errors import InputError
from fedslice.privacy.accounting.account import Guarantee, default_delta, guarantee
from fedslice.privacy.accounting.budget import noise_for, rounds_for
from fedslice.privacy.accounting.composition import exact_epsilon, pld_epsilon, rdp_epsilon
from fedslice.privacy.accounting.correlated import Correlated
from fedslice.privacy.accounting.local import Local, local_noise, split_noise
from fedslice.privacy.accounting.mechanism import (
    ADD_OR_REMOVE,
    REPLACE,
    Bits,
    Central,
    Gaussians,
    Skellams,
)
from fedslice.privacy.accounting.release import HeatAnswers, HeatCounts
from fedslice.privacy.accounting.skellam import ORDERS, Distributed, amplified, skellam_curve

DELTA = 1e-5


def analytic_delta(noise: float, epsilon: float) -> float:
    """Balle and Wang's formula, in the open."""
    return float(
        norm.cdf(0.5 / noise - epsilon * noise)
        - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise)
    )


def analytic_epsilon(noise: float, delta: float) -> float:
    return float(brentq(lambda eps: analytic_delta(noise, eps) - delta, 0, 100, xtol=1e-12))


@pytest.mark.parametrize(
    ("clients", "cohort", "noise", "rounds", "pld", "rdp"),
    [
        (6040, 50, 1.0, 200, 0.7501, 1.2076),
        pytest.param(6040, 50, 0.5, 200, 6.904, 8.463, marks=pytest.mark.every),
        (6040, 50, 2.0, 1000, 0.5061, 0.5591),
        pytest.param(10000, 100, 1.0, 1000, 1.8282, 2.1014, marks=pytest.mark.every),
    ],
)
def test_poisson_figures(
    clients: int, cohort: int, noise: float, rounds: int, pld: float, rdp: float
) -> None:
    training = Central(clients, cohort, noise, rounds)
    tight = guarantee(training, delta=DELTA)
    assert tight.epsilon == pytest.approx(pld, abs=6e-4 if pld > 6 else 6e-5)
    assert tight.neighbours == ADD_OR_REMOVE
    assert tight.accountant.startswith("PLD")
    loose = guarantee(training, delta=DELTA, accountant="rdp")
    assert loose.epsilon == pytest.approx(rdp, abs=6e-4 if rdp > 6 else 6e-5)


@pytest.mark.parametrize(
    ("noise", "rounds", "expected"),
    [
        (1.0, 200, 1.5073),
        pytest.param(0.5, 200, 11.618, marks=pytest.mark.every),
        pytest.param(2.0, 1000, 1.1759, marks=pytest.mark.every),
    ],
)
def test_fixed_size_figures_are_of_noise_over_the_replaced_sensitivity(
    noise: float, rounds: int, expected: float
) -> None:
    """The figure of ``dp_accounting`` for z is that of noise z times the *sensitivity*, which is
    2 C when one client replaces another: a run with noise 2 z C has it, one with z C has not."""
    part = Gaussians(noise, rounds, 50 / 6040, "uniform")
    assert rdp_epsilon([part], DELTA) == pytest.approx(expected, abs=6e-4)
    run = Central(6040, 50, 2 * noise, rounds, "uniform")
    assert guarantee(run, delta=DELTA).epsilon == pytest.approx(expected, abs=6e-4)
    assert guarantee(run, delta=DELTA).neighbours == REPLACE
    assert guarantee(replace(run, noise=noise), delta=DELTA).epsilon > expected + 1


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def output(values: list[float], cohort: int, noise: float, grid: np.ndarray) -> np.ndarray:
    """The density, on a grid, of the noisy sum over a cohort of fixed size."""
    sums = [sum(chosen) for chosen in itertools.combinations(values, cohort)]
    return np.mean([norm.pdf(grid, total, noise) for total in sums], axis=0) * (grid[1] - grid[0])


def test_fixed_size_by_brute_force() -> None:
    """All cohorts of 2 out of 4 clients with updates +-1: the hockey-stick divergence of a client
    that is replaced, or gone, is within what is claimed, and beyond what noise over C alone would
    say."""
    noise, cohort, grid = 1.5, 2, np.linspace(-12, 12, 40001)
    others = [-1.0, -1.0, -1.0]
    rate = cohort / 4
    with_client = output([*others, 1.0], cohort, noise, grid)
    gone = output(others, cohort, noise, grid)
    replaced = output([*others, -1.0], cohort, noise, grid)
    for delta in (0.01,):
        claimed = {
            "gone": pld_epsilon(Central(4, 2, noise, 1, "uniform").parts(ADD_OR_REMOVE), delta),
            "replaced": rdp_epsilon(Central(4, 2, noise, 1, "uniform").parts(REPLACE), delta),
        }
        naive = pld_epsilon([Gaussians(noise, 1, rate, "poisson")], delta)
        for name, neighbour in (("gone", gone), ("replaced", replaced)):
            for pair in ((with_client, neighbour), (neighbour, with_client)):
                assert hockey_stick(*pair, claimed[name]) <= delta * (1 + 1e-6)
            assert hockey_stick(with_client, neighbour, naive) > 2 * delta
        # here the bound for a client that is gone is attained
        assert hockey_stick(with_client, gone, claimed["gone"] - 1e-3) > delta


@pytest.mark.parametrize(
    ("rate", "noise", "rounds"),
    [(50 / 6040, 1.0, 200), pytest.param(0.01, 1.0, 1000, marks=pytest.mark.every)],
)
def test_against_another_accountant(rate: float, noise: float, rounds: int) -> None:
    prv = pytest.importorskip("prv_accountant")
    one = prv.PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    other = prv.PRVAccountant(
        prvs=[one], max_self_compositions=[rounds], eps_error=1e-2, delta_error=1e-10
    )
    low, middle, high = other.compute_epsilon(DELTA, [rounds])
    ours = pld_epsilon([Gaussians(noise, rounds, rate, "poisson")], DELTA)
    assert low <= ours <= high
    assert ours == pytest.approx(middle, abs=1e-3)


def test_heat_and_training_against_another_accountant() -> None:
    prv = pytest.importorskip("prv_accountant")
    mechanisms = [
        prv.PoissonSubsampledGaussianMechanism(noise_multiplier=1.0, sampling_probability=0.01),
        prv.GaussianMechanism(noise_multiplier=5.0),
    ]
    other = prv.PRVAccountant(
        prvs=mechanisms, max_self_compositions=[200, 1], eps_error=1e-2, delta_error=1e-10
    )
    heat = HeatCounts(std=50.0, rows=100)
    ours = guarantee(Central(10000, 100, 1.0, 200), heat, delta=DELTA).epsilon
    assert ours == pytest.approx(other.compute_epsilon(DELTA, [200, 1])[1], abs=1e-3)


def test_full_participation_is_one_gaussian() -> None:
    found = guarantee(Central(100, 100, 8.0, 16, "full"), delta=DELTA)
    assert found.epsilon == pytest.approx(analytic_epsilon(2.0, DELTA), abs=1e-8)
    assert found.accountant.startswith("the exact formula")
    parts = [Gaussians(8.0, 16)]
    assert pld_epsilon(parts, DELTA) == pytest.approx(found.epsilon, abs=1e-3)
    assert rdp_epsilon(parts, DELTA) > found.epsilon


def test_local_noise() -> None:
    noise = local_noise(4.0, DELTA, participations=9)
    assert analytic_delta(noise / 2 / 3, 4.0) == pytest.approx(DELTA, rel=1e-6)
    assert guarantee(Local(noise, 9), delta=DELTA).epsilon == pytest.approx(4.0, abs=1e-6)
    assert guarantee(Local(noise, 9), delta=DELTA).neighbours == REPLACE
    with pytest.raises(InputError, match="replace-one"):
        guarantee(Local(noise, 9), delta=DELTA, neighbours=ADD_OR_REMOVE)


def test_adaptive_clipping_costs_what_it_says() -> None:
    """The pair (sum of updates, noise z_u C; sum of bits of size 1/2, noise b) is, scaled to unit
    noise, one vector of norm 1/z."""
    update = split_noise(1.0, bits=2.5)
    assert math.hypot(1 / update, 0.5 / 2.5) == pytest.approx(1.0, rel=1e-12)
    with pytest.raises(InputError, match=r"above 0\.5"):
        split_noise(1.0, bits=0.5)


def test_correlated_noise_is_one_gaussian() -> None:
    found = guarantee(Correlated(6.0, 3.0, 64, 4, 16, "tree"), delta=DELTA)
    assert found.epsilon == pytest.approx(analytic_epsilon(2.0, DELTA), abs=1e-8)
    assert "at most 4 times, 16 rounds apart or more" in str(found)
    assert "drawn: sampling helps" not in str(found)


def skellam(variance: float, reach: int = 400) -> np.ndarray:
    return np.asarray(ive(np.abs(np.arange(-reach, reach + 1)), variance))


@pytest.mark.parametrize(("variance", "moved"), [(4.0, 1), (25.0, 3), (100.0, 10)])
def test_skellam_bound_holds_and_is_close(variance: float, moved: int) -> None:
    chances = skellam(variance)
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    first, second = chances[moved:], chances[:-moved]
    keep = (first > 1e-250) & (second > 1e-250)
    for order in (2, 3, 8):
        logs = order * np.log(first[keep]) - (order - 1) * np.log(second[keep])
        divergence = math.log(np.exp(logs).sum()) / (order - 1)
        part = Skellams(variance, moved, moved, 1, 1.0, "full")
        bound = skellam_curve(part)[ORDERS.index(order)]
        assert divergence <= bound * (1 + 1e-9)
        assert variance < 25 or bound < 1.25 * divergence  # it is for fine steps


def test_fine_skellam_noise_is_gaussian() -> None:
    part = Distributed(100, 100, 2.0, 1, l2=1e4, l1=1e5, sampling="full")
    found = guarantee(part, delta=DELTA).epsilon
    assert found == pytest.approx(rdp_epsilon([Gaussians(2.0)], DELTA), rel=2e-3)
    heat = HeatCounts(20.0, 100)
    both = rdp_epsilon([Gaussians(2.0), Gaussians(2.0)], DELTA)
    assert guarantee(part, heat, delta=DELTA).epsilon == pytest.approx(both, rel=2e-3)


@pytest.mark.parametrize("rate", [0.001, 0.05])
def test_amplification_of_any_mechanism_bounds_that_of_gaussians(rate: float) -> None:
    """Of a Gaussian the Poisson sample's divergence is known: E over its density, integrated."""
    noise, places = 2.0, np.linspace(-40, 60, 200001)
    step = 100 / 200000
    other = norm.logpdf(places, 0, noise)
    mixed = np.logaddexp(other + math.log1p(-rate), norm.logpdf(places, 1, noise) + math.log(rate))
    curve = np.arange(1, 33) / (2 * noise**2)
    for order in (2, 5, 16):
        exact = math.log(np.exp(order * mixed - (order - 1) * other).sum() * step) / (order - 1)
        bound = float(amplified(curve, rate, "poisson")[order - 1])
        assert exact * (1 - 1e-6) <= bound <= 3 * exact
        # replace-one, both in the sample: x = +-1/2 around the others
        ends = (norm.logpdf(places, side, noise) + math.log(rate) for side in (0.5, -0.5))
        plus, minus = (np.logaddexp(other + math.log1p(-rate), end) for end in ends)
        exact = math.log(np.exp(order * plus - (order - 1) * minus).sum() * step) / (order - 1)
        assert exact <= float(amplified(curve, rate, "uniform")[order - 1])


def test_sampled_skellam_helps_and_is_looser_than_gaussian() -> None:
    part = Distributed(6040, 50, 1.0, 200, l2=1e4, l1=1e5)
    found = guarantee(part, delta=DELTA)
    assert 1.2076 < found.epsilon < 1.7
    assert found.accountant.startswith("RDP")
    fixed = guarantee(replace(part, sampling="uniform", noise=2.0), delta=DELTA)
    assert 1.5073 <= fixed.epsilon < 2
    assert fixed.neighbours == REPLACE
    with pytest.raises(InputError, match="accountant='rdp'"):
        guarantee(part, accountant="pld")


def test_answers_about_rows() -> None:
    """Counting the ones is enough: two binomials."""
    answers = HeatAnswers(0.6, 0.4, rows=30)
    assert answers.epsilon_row == pytest.approx(math.log(1.5))
    assert answers.epsilon_client(REPLACE) == pytest.approx(60 * math.log(1.5))
    ones = np.arange(31)
    ways = np.array([math.comb(30, int(one)) for one in ones])
    first, second = (ways * p**ones * (1 - p) ** (30 - ones) for p in (0.6, 0.4))
    for delta in (1e-2, 1e-4):
        found = guarantee(answers, delta=delta)
        assert found.epsilon < answers.epsilon_client(ADD_OR_REMOVE)
        assert hockey_stick(first, second, found.epsilon) <= delta
        assert hockey_stick(first, second, found.epsilon - 0.01) > delta
        assert rdp_epsilon(answers.parts(ADD_OR_REMOVE), delta) >= found.epsilon
    assert answers.parts(REPLACE) == (Bits(0.6, 0.4, 30), Bits(0.4, 0.6, 30))
    # asymmetric answers: the worse of both directions
    skew = HeatAnswers(0.9, 0.5, rows=1)
    assert guarantee(skew, delta=1e-9).epsilon == pytest.approx(math.log(5), abs=1e-3)


def test_heat_counts_by_relation() -> None:
    heat = HeatCounts(std=6.0, rows=9)
    assert heat.noise == 2.0
    assert exact_epsilon(heat.parts(REPLACE), DELTA) == pytest.approx(
        analytic_epsilon(math.sqrt(2), DELTA)
    )
    # with cohorts of fixed size all is judged by replace-one
    both = guarantee(Central(6040, 50, 2.0, 200, "uniform"), heat, delta=DELTA)
    assert both.neighbours == REPLACE
    assert both.epsilon > exact_epsilon(heat.parts(REPLACE), DELTA)


# of a sampled mechanism, whose figures take seconds, rounds are searched for below
@pytest.mark.parametrize("kind", few(["poisson", "full"], "full"))
def test_noise_for_is_the_least(kind: str) -> None:
    training = Central(6040, 6040 if kind == "full" else 50, 1.0, 100, kind)
    noise = noise_for(0.4, training)
    assert guarantee(replace(training, noise=noise)).epsilon <= 0.4
    assert guarantee(replace(training, noise=noise * (1 - 3e-4))).epsilon > 0.4


def test_noise_with_heat_and_of_other_mechanisms() -> None:
    training, heat = Central(6040, 50, 1.0, 100), HeatCounts(100.0, 100)
    alone, together = (
        noise_for(1.0, training, accountant="rdp"),
        noise_for(1.0, training, heat, accountant="rdp"),
    )
    assert together > alone
    assert noise_for(4.0, Local(1.0, 9), delta=DELTA) == pytest.approx(
        local_noise(4.0, DELTA, 9), rel=1e-3
    )
    tree = Correlated(1.0, 3.0, 64, 4, 16)
    assert noise_for(4.0, tree, delta=DELTA) == pytest.approx(
        3 / 6 * local_noise(4.0, DELTA, 9), rel=1e-3
    )


def test_rounds_for_is_the_most() -> None:
    training = Central(6040, 50, 1.5, 1)
    rounds = rounds_for(0.5, training)
    assert guarantee(replace(training, rounds=rounds)).epsilon <= 0.5
    assert guarantee(replace(training, rounds=rounds + 1)).epsilon > 0.5
    few = Central(100, 100, 10.0, 1, "full")
    assert exact_epsilon([Gaussians(10.0, rounds_for(1.0, few))], 1e-5) <= 1.0
    assert exact_epsilon([Gaussians(10.0, rounds_for(1.0, few) + 1)], 1e-5) > 1.0


def test_impossible_budgets() -> None:
    training, heat = Central(6040, 50, 1.0, 100), HeatCounts(1.0, 100)
    for call, words in [
        (lambda: noise_for(1.0, training, heat), "spent before the training: counts of the rows'"),
        (lambda: rounds_for(1.0, training, heat), "spent before the training"),
        (lambda: noise_for(0.0, training), "epsilon=0: give a number above 0"),
        (lambda: noise_for(math.inf, training), "epsilon=inf"),
        (lambda: noise_for(1e6, training, accountant="rdp"), "protects nobody"),
        (lambda: rounds_for(0.01, replace(training, noise=0.5)), "one round takes epsilon"),
        (lambda: rounds_for(50.0, Central(10, 10, 1e5, 1, "full")), "less noise"),
        (lambda: noise_for(1.0, training, accountant="magic"), "use exact, pld, rdp"),
    ]:
        with pytest.raises(InputError, match=words):
            call()


def test_refusals() -> None:
    for call, words in [
        (lambda: Central(10, 5, 0.0, 1), "without noise there is no guarantee"),
        (lambda: Central(10, 5, -1.0, 1), "noise=-1"),
        (lambda: Central(10, 5, math.nan, 1), "noise=nan"),
        (lambda: Central(10, 11, 1.0, 1), "cohort of 11 out of 10"),
        (lambda: Central(10, 0, 1.0, 1), "cohort=0"),
        (lambda: Central(10, 5, 1.0, 0), "rounds=0: give a whole number, 1 or more"),
        (lambda: Central(10, 2.5, 1.0, 1, "uniform"), "a whole number of clients"),
        (lambda: Central(10, 5, 1.0, 1, "full"), "all 10 clients, not 5"),
        (lambda: Central(10, 5, 1.0, 1, "weighted"), "far more often than others"),
        (lambda: Central(10, 5, 1.0, 1, "mine"), "'mine' cannot be accounted for"),
        (lambda: Central.of(sampling.weighted(5), 10, 1.0, 1), "far more often"),
        (lambda: guarantee(Central(10, 5, 1.0, 1), delta=1.0), "delta=1"),
        (lambda: guarantee(Central(10, 5, 1.0, 1), neighbours=REPLACE), "add-or-remove-one"),
        (lambda: guarantee(Central(10, 5, 1.0, 1), neighbours="any"), "neighbours='any'"),
        (lambda: guarantee(Central(10, 5, 1.0, 1, "uniform"), accountant="pld"), "'rdp'"),
        (lambda: guarantee(Central(10, 5, 1.0, 1), accountant="exact"), "without sampling"),
        (lambda: guarantee(Local(1.0, 3)), "give delta"),
        (lambda: HeatAnswers(0.2, 0.8, 3), "the larger one"),
        (lambda: HeatCounts(1.0, 0), "rows=0"),
    ]:
        with pytest.raises(InputError, match=words):
            call()


def test_a_run_with_another_sampler_is_refused() -> None:
    accounted = Central(100, 10, 1.0, 5, "poisson")
    accounted.check(sampling.poisson(10), 100)
    Central.of(sampling.full(), 100, 1.0, 5).check(sampling.full(), 100)
    for sampler, clients, words in [
        (sampling.uniform(10), 100, r"drawn by uniform\(10\): account for sampling='uniform'"),
        (sampling.weighted(10), 100, "drawn by weighted"),
        (sampling.poisson(20), 100, "20 of 100 take part"),
        (sampling.poisson(10), 90, "10 of 90 take part"),
    ]:
        with pytest.raises(InputError, match=words):
            accounted.check(sampler, clients)


def test_delta() -> None:
    assert default_delta(6040) == 1e-5
    assert default_delta(1) == default_delta(2) == 1e-5
    assert default_delta(10**6) == pytest.approx(1 / (1e6 * math.log(1e6)))
    with pytest.warns(UserWarning, match="not below 1/100"):
        guarantee(Central(100, 100, 5.0, 1, "full"), delta=0.01)


def test_what_is_said_and_stored() -> None:
    found = guarantee(Central(6040, 50, 2.0, 200, "uniform"), HeatCounts(100.0, 100))
    text = str(found)
    for words in ("replace-one", "50 of 6040 clients drawn without replacement", "losses, counts",
                  "looking at results", "floating-point", "sees the sum before the noise",
                  "counts of the rows' holders"):  # fmt: skip
        assert words in text
    assert text.count("the server itself") == 1
    stored = json.loads(json.dumps(found.as_dict()))
    assert stored["epsilon"] == found.epsilon
    assert len(stored["mechanisms"]) == 2
    # printed figures are rounded up, never down
    assert "epsilon = 0.1235 " in str(replace(found, epsilon=0.12341))
    assert isinstance(found, Guarantee)
