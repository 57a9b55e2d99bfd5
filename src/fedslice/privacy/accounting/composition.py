"""Epsilon of several releases together, by ``dp_accounting``.

Three ways, each an upper bound:

    exact   Gaussians that are not sampled are one Gaussian: 1/z^2 = sum_i 1/z_i^2
    PLD     privacy loss distributions, convolved on a grid and rounded up: tight for add-or-remove
    RDP     Renyi divergences, added order by order: looser, and the only one for cohorts of fixed
            size under replace-one and for Skellam noise

Meiser, Mohammadi 2018; Koskela, Jalko, Honkela 2020; Doroshenko et al., "Connect the Dots", 2022.
Mironov, Talwar, Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019;
Wang, Balle, Kasiviswanathan, AISTATS 2019, theorem 27.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.accounting.mechanism import Bits, Gaussians, Part, Skellams
from fedslice.privacy.accounting.skellam import ORDERS, skellam_curve

# How fine the grid of privacy losses must be: rounded up, they add some 1e-3 of epsilon at most
GRIDS = ((0.3, 1e-5), (20.0, 1e-4), (math.inf, QUICK := 1e-3))


def accounting() -> ModuleType:
    """``dp_accounting``, if it is installed.

    >>> round(accounting().get_epsilon_gaussian(1.0, 1e-5), 4)
    4.3772
    """
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            "privacy accounting needs dp-accounting: pip install 'fedslice[privacy]'"
        ) from error
    module: ModuleType = dp_accounting
    return module


def exact(parts: Sequence[Part]) -> float | None:
    """The one noise multiplier that Gaussians without sampling amount to; None if there is
    anything else.

    >>> exact([Gaussians(2.0, times=4)]), exact([Gaussians(2.0, 4, 0.5, "poisson")])
    (1.0, None)
    """
    total = 0.0
    for part in parts:
        if not isinstance(part, Gaussians) or part.rate < 1:
            return None
        total += part.times / part.noise**2
    return total**-0.5


def exact_epsilon(parts: Sequence[Part], delta: float) -> float:
    """Epsilon of Gaussians without sampling.

    >>> round(exact_epsilon([Gaussians(2.0, times=4)], 1e-5), 4)
    4.3772
    """
    noise = exact(parts)
    if noise is None:
        raise InputError("the exact formula is for Gaussians without sampling: use PLD or RDP")
    with np.errstate(divide="ignore"):  # so much noise that delta is zero to the last digit
        return float(accounting().get_epsilon_gaussian(noise, delta))


def pld_epsilon(parts: Sequence[Part], delta: float, grid: float | None = None) -> float:
    """Epsilon by privacy loss distributions, on a ``grid`` of losses: a coarse one is quick and
    gives a larger bound.

    >>> round(pld_epsilon([Gaussians(1.0, 200, 50 / 6040, "poisson")], 1e-5), 4)
    0.7501
    """
    if grid is None:
        rough = rdp_epsilon(parts, delta)
        grid = next(fine for most, fine in GRIDS if rough <= most)
    losses = accounting().pld.privacy_loss_distribution
    total = losses.identity(value_discretization_interval=grid)
    for part in parts:
        total = total.compose(_losses(losses, part, grid))
    return float(total.get_epsilon_for_delta(delta))


def _losses(losses: Any, part: Part, grid: float) -> Any:
    if isinstance(part, Skellams) or getattr(part, "sampling", "") == "uniform":
        raise InputError(
            "privacy loss distributions are not known for Skellam noise nor, under replace-one,"
            " for cohorts of fixed size: use accountant='rdp'"
        )
    if isinstance(part, Gaussians) and part.rate == 1:
        std = part.noise / math.sqrt(part.times)
        return losses.from_gaussian_mechanism(std, value_discretization_interval=grid)
    return _once(part._replace(times=1), grid).self_compose(part.times)


@lru_cache(maxsize=8)
def _once(part: Bits | Gaussians, grid: float) -> Any:
    """The losses of one release: kept, since most of the time goes here, and tables and searches
    ask for the same release so many and so many times."""
    losses = accounting().pld.privacy_loss_distribution
    if isinstance(part, Gaussians):
        return losses.from_gaussian_mechanism(
            part.noise, value_discretization_interval=grid, sampling_prob=part.rate
        )
    first, second = (
        {1: math.log(chance), 0: math.log1p(-chance)} for chance in (part.first, part.second)
    )
    return losses.from_two_probability_mass_functions(
        second, first, value_discretization_interval=grid, symmetric=False
    )


def rdp_epsilon(parts: Sequence[Part], delta: float) -> float:
    """Epsilon by Renyi divergences.

    >>> round(rdp_epsilon([Gaussians(1.0, 200, 50 / 6040, "poisson")], 1e-5), 4)
    1.2076
    """
    if any(isinstance(part, Skellams) for part in parts):
        curve = sum((_curve(part) for part in parts), np.zeros(len(ORDERS)))
        return float(accounting().rdp.compute_epsilon(ORDERS, curve, delta)[0])
    fixed = any(isinstance(part, Gaussians) and part.sampling == "uniform" for part in parts)
    dp = accounting()
    relation = dp.NeighboringRelation
    accountant = dp.rdp.RdpAccountant(
        neighboring_relation=relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE
    )
    with _quiet():
        for part in parts:
            accountant.compose(_event(part))
    return float(accountant.get_epsilon(delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's lines about orders whose series does not converge: it leaves them out,
    and any order alone gives a bound."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _curve(part: Part) -> np.ndarray:
    if isinstance(part, Skellams):
        return skellam_curve(part)
    if isinstance(part, Gaussians) and part.rate < 1:
        raise InputError("Skellam noise is composed with releases that are not sampled, only")
    return _concentration(part) * np.array(ORDERS)


def _event(part: Part) -> Any:
    """The same for ``dp_accounting``."""
    dp = accounting()
    if isinstance(part, Gaussians) and part.rate < 1:
        one = dp.GaussianDpEvent(part.noise)
        if part.sampling == "uniform":
            # it uses the ratio alone
            sampled = dp.SampledWithoutReplacementDpEvent(1, part.rate, one)
        else:
            sampled = dp.PoissonSampledDpEvent(part.rate, one)
        return dp.SelfComposedDpEvent(sampled, part.times)
    return dp.ZCDpEvent(rho=_concentration(part))


def _concentration(part: Part) -> float:
    """rho of a release that is not sampled, RDP(alpha) <= rho alpha: 1 / (2 z^2) of a Gaussian,
    eps^2 / 2 of a bit (Bun, Steinke 2016)."""
    if isinstance(part, Gaussians):
        return part.times / (2 * part.noise**2)
    assert isinstance(part, Bits)
    ratios = part.first / part.second, (1 - part.first) / (1 - part.second)
    loss = max(abs(math.log(ratio)) for ratio in ratios)
    return part.times * loss**2 / 2
