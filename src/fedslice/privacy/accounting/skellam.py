"""Skellam noise on whole numbers: what clients can add by themselves below a secure sum.

The difference of two Poisson numbers of mean mu / 2 has variance mu, and sums of Skellam numbers
are Skellam, so K clients that add variance mu / K each make a sum with mu.  For whole alpha > 1

    RDP(alpha) <= alpha l2^2 / (2 mu) + min( ((2 alpha - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu) )

Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
NeurIPS 2021.  Updates are scaled, rotated and rounded to whole numbers first
(``rounded_norms``).

Samples are amplified by bounds that hold for any mechanism: Zhu, Wang, "Poisson Subsampled Renyi
Differential Privacy", ICML 2019, and Wang, Balle, Kasiviswanathan, "Subsampled Renyi
Differential Privacy and Analytical Moments Accountant", AISTATS 2019, theorem 9, for cohorts of
fixed size.  They are looser than what is known of Gaussians.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedslice.privacy.accounting.mechanism import (
    SECRECY,
    Part,
    Sampled,
    Skellams,
    cohorts,
    drawn,
    factors,
    positive,
    spoken,
)

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)


@dataclass(frozen=True)
class Distributed(Sampled):
    """Skellam noise on the secure sum of each round's updates, made of the clients' shares.

    ``l2`` and ``l1`` bound the norms of one client's whole numbers; the noise of the sum has
    standard deviation ``noise`` times ``l2``.

    >>> Distributed(6040, 50, 1.0, 200, l2=100.0, l1=2000.0).variance
    10000.0
    """

    clients: int
    cohort: float
    noise: float
    rounds: int
    l2: float
    l1: float
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        positive(noise=self.noise, l2=self.l2, l1=self.l1)
        drawn(self.clients, self.cohort, self.rounds, self.sampling)

    @property
    def variance(self) -> float:
        """Of the noise in the sum."""
        return (self.noise * self.l2) ** 2

    @property
    def words(self) -> str:
        """What it is."""
        return (
            f"{spoken(self.rounds)} with Skellam noise of multiplier {self.noise:g} on the secure"
            f" sum, {cohorts(self.clients, self.cohort, self.sampling)}"
        )

    @property
    def exposed(self) -> tuple[str, ...]:
        """What it does not protect."""
        shares = "a round in which fewer clients add their share of the noise than was planned"
        return (shares,) if self.sampling == "full" else (shares, SECRECY)

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """All rounds."""
        factor, sampling = factors(self.sampling, neighbours)
        l2, l1 = factor * self.l2, factor * self.l1
        return (Skellams(self.variance, l2, l1, self.rounds, self.rate, sampling),)


def rounded_norms(clip: float, scale: float, dimension: int, beta: float) -> tuple[float, float]:
    """Bounds (l2, l1) of an update of norm at most ``clip``, times ``scale``, rounded at random to
    whole numbers, and rounded again until its norm is within what it exceeds with chance ``beta``.

        l2^2 = min( (s c)^2 + d/4 + sqrt(2 ln(1/beta)) (s c + sqrt(d)/2), (s c + sqrt(d))^2 )
        l1   = min( sqrt(d) l2, l2^2 )

    Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with
    Secure Aggregation", ICML 2021.

    >>> [round(norm, 1) for norm in rounded_norms(1.0, 100.0, 4096, math.exp(-0.5))]
    [105.6, 6759.8]
    """
    positive(clip=clip, scale=scale, dimension=dimension, beta=beta)
    size, root = scale * clip, math.sqrt(dimension)
    likely = size**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (size + root / 2)
    squared = min(likely, (size + root) ** 2)
    return math.sqrt(squared), min(root * math.sqrt(squared), squared)


def skellam_curve(part: Skellams) -> np.ndarray:
    """RDP of all rounds at ``ORDERS``."""
    orders = np.arange(1, ORDERS[-1] + 1)
    near = ((2 * orders - 1) * part.l2**2 + 6 * part.l1) / (4 * part.variance**2)
    far = 3 * part.l1 / (2 * part.variance)
    once = orders * part.l2**2 / (2 * part.variance) + np.minimum(near, far)
    if part.rate < 1 and part.sampling != "full":
        once = amplified(once, part.rate, part.sampling)
    return part.times * once[np.array(ORDERS) - 1]


def amplified(curve: np.ndarray, rate: float, sampling: str) -> np.ndarray:
    """The RDP of a mechanism on samples; ``curve`` has its RDP at the orders 1, 2, ...

    >>> whole = np.arange(1, 33) / 2  # Gaussian noise of multiplier 1
    >>> [round(float(amplified(whole, 0.01, kind)[7]), 6) for kind in ("poisson", "uniform")]
    [0.001404, 0.002684]
    """
    bound = {"poisson": _poisson, "uniform": _uniform}[sampling]
    # at no order is a sample worse than the whole
    return np.array([min(bound(curve, rate, order), curve[order - 1])
                     for order in range(1, len(curve) + 1)])  # fmt: skip


def _poisson(curve: np.ndarray, rate: float, order: int) -> float:
    """(1-q)^(a-1) (a q - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^R(2) + 3 sum_{l>2} C(a,l) (1-q)^(a-l)
    q^l e^((l-1) R(l))"""
    if order == 1:
        return math.inf  # the theorem is about 2 and more
    held = np.arange(2, order + 1)
    terms = _choose(order) + held * math.log(rate) + (order - held) * math.log1p(-rate)
    terms += (held - 1) * curve[held - 1] + np.where(held > 2, math.log(3), 0.0)
    first = (order - 1) * math.log1p(-rate) + math.log1p(rate * (order - 1))
    return _log_sum(np.append(terms, first)) / (order - 1)


def _uniform(curve: np.ndarray, rate: float, order: int) -> float:
    """1 + C(a,2) q^2 min(4 (e^R(2) - 1), 2 e^R(2)) + 2 sum_{l>2} C(a,l) q^l e^((l-1) R(l))"""
    if order == 1:
        return math.inf
    held = np.arange(2, order + 1)
    terms = _choose(order) + held * math.log(rate) + (held - 1) * curve[held - 1] + math.log(2)
    two = curve[1] + min(math.log(4) + math.log(-math.expm1(-curve[1])), math.log(2))
    terms[0] += two - curve[1] - math.log(2)
    return _log_sum(np.append(terms, 0.0)) / (order - 1)


def _choose(order: int) -> np.ndarray:
    """ln C(order, l) for l = 2 to order."""
    total = math.lgamma(order + 1)
    return np.array(
        [total - math.lgamma(k + 1) - math.lgamma(order - k + 1) for k in range(2, order + 1)]
    )


def _log_sum(terms: np.ndarray) -> float:
    most = float(terms.max())
    return most + math.log(float(np.exp(terms - most).sum()))
