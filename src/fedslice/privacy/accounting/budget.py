"""The other way round: how much noise, or how many rounds, a budget of epsilon allows.

What is spent falls with the noise and rises with the rounds, so both are where it crosses the
budget.  A quick accountant finds the neighbourhood, the right one the place.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeAlias, TypeVar

from fedslice.errors import InputError
from fedslice.privacy.accounting.account import (
    ACCOUNTANTS,
    best,
    ceiling,
    known,
    level_of,
    parts_of,
    relation_of,
)
from fedslice.privacy.accounting.composition import QUICK, pld_epsilon
from fedslice.privacy.accounting.correlated import Correlated
from fedslice.privacy.accounting.local import Local
from fedslice.privacy.accounting.mechanism import Central, Mechanism
from fedslice.privacy.accounting.skellam import Distributed

MOST_NOISE, LEAST_NOISE, MOST_ROUNDS = 1e6, 0.1, 10**8
Spend: TypeAlias = Callable[[tuple[Mechanism, ...]], float]
Tunable = TypeVar("Tunable", Central, Local, Correlated, Distributed)
Long = TypeVar("Long", Central, Distributed)


def noise_for(
    epsilon: float,
    mechanism: Tunable,
    *others: Mechanism,
    delta: float | None = None,
    accountant: str | None = None,
    neighbours: str | None = None,
) -> float:
    """The least noise multiplier, to four digits and rounded up, with which ``mechanism`` and
    ``others`` stay within ``epsilon``; ``mechanism``'s own does not matter.

    >>> noise_for(0.5, Central(6040, 50, noise=1.0, rounds=200))
    1.187
    """
    spend, rough = _spenders(epsilon, (mechanism, *others), delta, accountant, neighbours)

    def spent(noise: float) -> float:
        return spend((replace(mechanism, noise=noise), *others))

    def roughly(noise: float) -> float:
        return rough((replace(mechanism, noise=noise), *others))

    if roughly(MOST_NOISE) > epsilon and spent(MOST_NOISE) > epsilon:
        raise InputError(
            f"no noise multiplier up to {MOST_NOISE:g} stays within epsilon {epsilon:g}: allow"
            " more, or train for fewer rounds"
        )
    start = _least(roughly, epsilon, 1.0, 1.5, 1e-3)
    return ceiling(_least(spent, epsilon, start, 1.002, 1e-4))


def rounds_for(
    epsilon: float,
    mechanism: Long,
    *others: Mechanism,
    delta: float | None = None,
    accountant: str | None = None,
    neighbours: str | None = None,
) -> int:
    """The most rounds for which ``mechanism`` and ``others`` stay within ``epsilon``;
    ``mechanism``'s own do not matter.

    >>> rounds_for(1.0, Central(6040, 6040, noise=40.0, rounds=1, sampling="full"))
    114
    """
    spend, rough = _spenders(epsilon, (mechanism, *others), delta, accountant, neighbours)

    def spent(rounds: float) -> float:
        return spend((replace(mechanism, rounds=round(rounds)), *others))

    def roughly(rounds: float) -> float:
        return rough((replace(mechanism, rounds=round(rounds)), *others))

    if (first := spent(1)) > epsilon:
        raise InputError(
            f"one round takes epsilon {first:.4g}, more than {epsilon:g}: add more noise, or draw"
            " fewer of the clients"
        )
    start = _most(roughly, epsilon, 1, 1.0) if roughly(1) <= epsilon else 1
    return _most(spent, epsilon, start, 0.02)


def _spenders(
    epsilon: float,
    together: tuple[Mechanism, ...],
    delta: float | None,
    accountant: str | None,
    neighbours: str | None,
) -> tuple[Spend, Spend]:
    """What mechanisms spend, and a quick upper bound on it, after a check that the budget is not
    spent before the first round."""
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon={epsilon:g}: give a number above 0")
    level, relation = level_of(delta, together), relation_of(neighbours, together)
    name = known(accountant or best(parts_of(together, relation)))

    @cache  # a bracket's ends are asked for again
    def spend(mechanisms: tuple[Mechanism, ...]) -> float:
        return ACCOUNTANTS[name].epsilon(parts_of(mechanisms, relation), level)

    @cache
    def quick(mechanisms: tuple[Mechanism, ...]) -> float:
        return pld_epsilon(parts_of(mechanisms, relation), level, QUICK)

    others = together[1:]
    if others and (before := spend(others)) >= epsilon:
        raise InputError(
            f"epsilon {epsilon:g} is spent before the training:"
            f" {'; '.join(each.words for each in others)} takes {before:.4g}. Allow more, or add"
            " more noise to it"
        )
    return spend, quick if name == "pld" else spend


def _least(
    spent: Callable[[float], float], epsilon: float, start: float, factor: float, close: float
) -> float:
    """The least noise within the budget, up to the share ``close`` of it."""
    good = start
    while spent(good) > epsilon:
        good *= factor
    bad = good / factor
    while spent(bad) <= epsilon:
        factor = min(factor**2, 1.5)  # the start was far off
        good, bad = bad, bad / factor
        if bad < LEAST_NOISE:
            raise InputError(
                f"epsilon {epsilon:g} is so large that a noise multiplier of {LEAST_NOISE:g} stays"
                " within it, which protects nobody: ask for less, say 1 to 10"
            )
    return _crossing(spent, epsilon, bad, good, close * bad)


def _most(spent: Callable[[float], float], epsilon: float, start: int, share: float) -> int:
    """The most rounds within the budget, from some that are."""
    good = start
    bad = good + max(1, round(share * good))
    while spent(bad) <= epsilon:
        good, bad = bad, bad + max(1, round(share * bad))
        if bad > MOST_ROUNDS:
            raise InputError(
                f"{MOST_ROUNDS:,} rounds and more stay within epsilon {epsilon:g}: less noise"
                " would do"
            )
    return round(_crossing(spent, epsilon, bad, good, 1))


def _crossing(
    spent: Callable[[float], float], epsilon: float, bad: float, good: float, close: float
) -> float:
    """Where what is spent crosses the budget, from the good side: regula falsi of logarithms,
    which are nearly straight, and every third step a bisection.  With ``close`` = 1 numbers are
    whole."""

    def over(place: float) -> float:
        return math.log(min(max(spent(place), 1e-9), 1e9) / epsilon)

    high, low, step = over(bad), over(good), 0
    while abs(good - bad) > close:
        step += 1
        share = 0.5 if step % 3 == 0 else min(max(-low / (high - low), 0.05), 0.95)
        middle = good * (bad / good) ** share
        if close == 1:
            middle = min(max(round(middle), min(good, bad) + 1), max(good, bad) - 1)
        value = over(middle)
        if value > 0:
            bad, high = middle, value
        else:
            good, low = middle, value
    return good
