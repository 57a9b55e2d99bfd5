"""Noise that is correlated over the rounds, as one Gaussian release.

Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML 2021;
Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", NeurIPS 2023.  Strategies are in
``matrix.py``.
"""

from dataclasses import dataclass

from fedslice.privacy.accounting.mechanism import (
    ADD_OR_REMOVE,
    REPLACE,
    THE_SERVER,
    Gaussians,
    Part,
    often,
    positive,
    spoken,
    whole,
)


@dataclass(frozen=True)
class Correlated:
    """Noise that is correlated over rounds: DP-FTRL with a tree, banded or other strategy.

    The rounds' noise is C^-1 Z with independent Z of standard deviation ``noise`` times the
    clipping bound.  All rounds together are *one* Gaussian release of C X, of sensitivity
    ``sensitivity`` = max ||C u|| over what one client may contribute (``matrix.py``), whoever is
    drawn: no secret sampling, but clients must keep to their ``participations`` and to
    ``separation``, the least number of rounds from one to the next.

    >>> Correlated(6.0, sensitivity=3.0, rounds=64, participations=4, separation=16).equivalent
    2.0
    """

    noise: float
    sensitivity: float
    rounds: int
    participations: int
    separation: int
    name: str = "correlated"

    neighbours = ADD_OR_REMOVE
    exposed = (THE_SERVER,)

    def __post_init__(self) -> None:
        positive(noise=self.noise, sensitivity=self.sensitivity)
        whole(rounds=self.rounds, participations=self.participations, separation=self.separation)

    @property
    def equivalent(self) -> float:
        """The noise multiplier of the one Gaussian release that all rounds amount to."""
        return self.noise / self.sensitivity

    @property
    def words(self) -> str:
        """What it is."""
        apart = f", {self.separation} rounds apart or more" if self.participations > 1 else ""
        return (
            f"{spoken(self.rounds)} with {self.name} noise of multiplier {self.noise:g}, for"
            f" clients that take part at most {often(self.participations)}{apart}, however drawn"
        )

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """One release."""
        return (Gaussians(self.equivalent / (2 if neighbours == REPLACE else 1)),)
