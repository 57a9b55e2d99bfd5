"""Strategies for noise that is correlated over rounds, so that sums of rounds carry little of it.

A model after t rounds has the *prefix sum* of all updates in it.  Let X be the rounds' sums of
clipped updates and A the lower triangle of ones, so that the models are A X.  With any C that has
A = B C,

    A X + B Z = B (C X + Z),    Z independent Gaussians,

so whoever sees all models sees no more than C X + Z: one Gaussian release, whose sensitivity is
the largest ||C u|| over what one client may add.  Round t itself is published with noise Y_t,
where A Y = B Z: for square C, Y = C^-1 Z.

- ``square_root``: C is Toeplitz with the coefficients of (1 - x)^(-1/2), so B = C and C C = A.
  Fichtenberger, Henzinger, Upadhyay, "Constant Matters", ICML 2023.
- ``banded_inverse``: C^-1 is cut off after ``bands`` coefficients of (1 - x)^(1/2): a round's noise
  is a fixed sum of the last ``bands`` independent Gaussians, drawn again from their keys, and
  nothing is kept between rounds.  Kalinin, McKenna, Upadhyay, Lampert, "Back to Square Roots",
  2025.  The one to take.
- ``banded``: C itself is cut off, so that rounds ``bands`` apart do not meet.  Choquette-Choo et
  al., "(Amplified) Banded Matrix Factorization", NeurIPS 2023, with the square root's coefficients
  (Kalinin, Lampert, NeurIPS 2024).  Y_t = Z_t - sum_{0<j<bands} c_j Y_{t-j}: the last noises are
  kept.
- ``tree``: rows of C are the nodes of a binary tree over the rounds (Kairouz et al., ICML 2021).
  A prefix is a sum of at most log2(T) + 1 nodes.

Honaker's estimate from below would lower the tree's error by a quarter, for log2(T) models that
must be kept; ``banded_inverse`` is below both with 8 bands, and keeps none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.accounting.correlated import Correlated
from fedslice.privacy.accounting.mechanism import whole


class Terms(NamedTuple):
    """A round's noise: sum over i of ``weights[i]`` times the Gaussian of number ``draws[i]``.

    The same number is the same Gaussian in every round: ``normal(fold_in(key, draw))``.  Terms of
    weight zero fill up to the strategy's ``width``.
    """

    draws: np.ndarray  # int32
    weights: np.ndarray  # float32


@dataclass(frozen=True, eq=False)
class Toeplitz:
    """A strategy whose coefficients depend on how long ago a round was.

    ``encoder`` is the first column of C, non-negative and falling; ``decoder`` that of C^-1.

    >>> strategy = banded_inverse(rounds=4, bands=2)
    >>> strategy.decoder.tolist(), strategy.encoder.tolist()
    ([1.0, -0.5, 0.0, 0.0], [1.0, 0.5, 0.25, 0.125])
    >>> strategy.terms(2)
    Terms(draws=array([2, 1], dtype=int32), weights=array([ 1. , -0.5], dtype=float32))
    """

    name: str
    encoder: np.ndarray
    decoder: np.ndarray

    @property
    def rounds(self) -> int:
        """How many it is for."""
        return len(self.encoder)

    @property
    def width(self) -> int:
        """The most terms of a round."""
        return int(np.flatnonzero(self.decoder)[-1]) + 1

    def terms(self, round: int) -> Terms:
        """The noise of a round, counted from zero."""
        _within(round, self.rounds)
        ago = np.arange(self.width)
        weights = np.where(ago <= round, self.decoder[: self.width], 0)
        return Terms(np.maximum(round - ago, 0).astype(np.int32), weights.astype(np.float32))

    def sensitivity(self, participations: int, separation: int) -> float:
        """The largest ||C u||, exactly: with falling coefficients a client that comes as early and
        as often as it may tells most (Kalinin, Lampert 2024, theorem 2).

        >>> independent = banded(rounds=100, bands=1)
        >>> independent.sensitivity(participations=4, separation=25)
        2.0
        """
        total = np.zeros(self.rounds)
        for time in range(_times(self.rounds, participations, separation)):
            start = time * separation
            total[start:] += self.encoder[: self.rounds - start]
        return float(np.linalg.norm(total))

    @property
    def spread(self) -> float:
        """Root of the mean over rounds of the variance of the prefix sums' noise, for Z of one."""
        sums = np.cumsum(self.decoder)
        left = np.arange(self.rounds, 0, -1)
        return float(np.sqrt((left * sums**2).sum() / self.rounds))


@dataclass(frozen=True)
class Tree:
    """The binary tree; rounds are its leaves, and only full subtrees are nodes.

    >>> Tree(8).sensitivity(participations=1, separation=8) ** 2  # a leaf has four nodes above it
    4.0
    >>> Tree(8).terms(1)  # the first two rounds' node is new, the first round's own has gone
    Terms(draws=array([8, 0, 0, 0], dtype=int32), weights=array([ 1., -1.,  0.,  0.],
    dtype=float32))
    """

    rounds: int

    name = "tree"

    @property
    def width(self) -> int:
        """The most terms of a round."""
        return int(self.rounds).bit_length()

    def terms(self, round: int) -> Terms:
        """The noise of a round: its new node, less those that it stands for."""
        _within(round, self.rounds)
        done = round + 1
        level = (done & -done).bit_length() - 1
        nodes = [(level, done, 1.0), *((low, round, -1.0) for low in range(level))]
        draws, weights = np.zeros(self.width, np.int32), np.zeros(self.width, np.float32)
        for place, (height, end, weight) in enumerate(nodes):
            draws[place], weights[place] = self._node(height, end), weight
        return Terms(draws, weights)

    def _node(self, height: int, end: int) -> int:
        """The number of the node over the last 2^height of the first ``end`` rounds, or of so many
        of them as are full at this height."""
        return sum(self.rounds >> low for low in range(height)) + (end >> height) - 1

    def sensitivity(self, participations: int, separation: int) -> float:
        """An upper bound on ||C u||, exact in most cases: level by level, as if each could have
        its own worst pattern.  A node of s rounds sees a client ceil(s / separation) times at most.
        """
        times = _times(self.rounds, participations, separation)
        total = 0
        for height in range(self.width):
            most = min(times, -(-(1 << height) // separation))
            seen = min(times, (self.rounds >> height) * most)
            total += seen // most * most**2 + (seen % most) ** 2
        return float(np.sqrt(total))

    @property
    def spread(self) -> float:
        """As of ``Toeplitz``: a prefix has one node for each bit of its length."""
        return float(np.sqrt(np.mean([count.bit_count() for count in range(1, self.rounds + 1)])))


def square_root(rounds: int) -> Toeplitz:
    """The best that is known for one participation, but a round needs all Gaussians before it.

    >>> square_root(4).encoder.tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    whole(rounds=rounds)
    return Toeplitz("square-root", _power(rounds, -0.5), _power(rounds, 0.5))


def banded(rounds: int, bands: int) -> Toeplitz:
    """C has ``bands`` bands; 1: independent noise.

    >>> banded(4, bands=2).encoder.tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    encoder = _cut(_power(rounds, -0.5), bands)
    return Toeplitz(f"banded ({bands})", encoder, _inverse(encoder, bands))


def banded_inverse(rounds: int, bands: int) -> Toeplitz:
    """C^-1 has ``bands`` bands; 1: independent noise.

    >>> strategy = banded_inverse(200, bands=16)
    >>> strategy.width, round(error(strategy, participations=4, separation=50), 1)
    (16, 5.7)
    """
    decoder = _cut(_power(rounds, 0.5), bands)
    return Toeplitz(f"banded inverse ({bands})", _inverse(decoder, bands), decoder)


def error(strategy: Toeplitz | Tree, participations: int, separation: int) -> float:
    """Root mean square noise of the prefix sums, over the noise multiplier of the one release that
    all rounds amount to: what to compare strategies by.

    >>> round(error(banded(200, 1), 4, 50), 1), round(error(Tree(200), 4, 50), 1)
    (20.0, 12.3)
    """
    return strategy.sensitivity(participations, separation) * strategy.spread


def best_bands(rounds: int, participations: int, separation: int, most: int = 64) -> int:
    """How many bands of ``banded_inverse``: of the powers of two up to ``most``, the smallest whose
    error is within 2 % of the least, since a round draws so many Gaussians.

    >>> best_bands(200, participations=4, separation=50)
    16
    """
    whole(rounds=rounds, most=most)
    choices = [1 << power for power in range(min(most, rounds).bit_length())]
    errors = [error(banded_inverse(rounds, bands), participations, separation) for bands in choices]
    least = min(errors)
    return next(
        bands for bands, found in zip(choices, errors, strict=True) if found <= 1.02 * least
    )


def mechanism(
    strategy: Toeplitz | Tree, noise: float, participations: int, separation: int
) -> Correlated:
    """What an accountant reads; ``noise`` is the standard deviation of Z over the clipping bound.

    >>> mechanism(banded(100, 1), 4.0, participations=4, separation=25).equivalent
    2.0
    """
    return Correlated(
        noise,
        strategy.sensitivity(participations, separation),
        strategy.rounds,
        participations,
        separation,
        strategy.name,
    )


def participation(cohorts: Iterable[np.ndarray]) -> tuple[int, int]:
    """How often any client takes part, and the least number of rounds from one time to the next,
    of a run's cohorts in order.

    >>> participation([np.array([0, 1]), np.array([2]), np.array([1])])
    (2, 2)
    """
    last: dict[int, int] = {}
    times: dict[int, int] = {}
    apart, count = [], 0
    for round, cohort in enumerate(cohorts):
        count = round + 1
        for client in cohort.tolist():
            if client in last:
                apart.append(round - last[client])
            last[client] = round
            times[client] = times.get(client, 0) + 1
    if not times:
        raise InputError("no client takes part in any round")
    return max(times.values()), min(apart, default=count)


def _times(rounds: int, participations: int, separation: int) -> int:
    """How often a client can come in so many rounds."""
    whole(rounds=rounds, participations=participations, separation=separation)
    return min(participations, -(-rounds // separation))


def _within(round: int, rounds: int) -> None:
    if not 0 <= round < rounds:
        raise InputError(
            f"round {round} of a strategy for {rounds}: the noise beyond is not accounted for;"
            " make the strategy for all rounds of the training"
        )


def _power(rounds: int, exponent: float) -> np.ndarray:
    """Coefficients of (1 - x)^exponent."""
    whole(rounds=rounds)
    steps = np.arange(1, rounds)
    return np.cumprod(np.concatenate([[1.0], (steps - 1 - exponent) / steps]))


def _cut(coefficients: np.ndarray, bands: int) -> np.ndarray:
    whole(bands=bands)
    return np.where(np.arange(len(coefficients)) < bands, coefficients, 0.0)


def _inverse(column: np.ndarray, bands: int) -> np.ndarray:
    """First column of the inverse of a Toeplitz triangle with ones on its diagonal."""
    found = np.zeros(len(column))
    found[0] = 1.0
    for place in range(1, len(column)):
        reach = min(place, bands - 1)
        found[place] = -column[1 : reach + 1] @ found[place - reach : place][::-1]
    return found
