"""The Gaussian mechanism by itself: exact calibration, noise on each client's own update, and the
share of adaptive clipping.

    delta(eps) = Phi(1 / (2 z) - eps z) - e^eps Phi(-1 / (2 z) - eps z)

with noise of z times the sensitivity: Balle, Wang, "Improving the Gaussian Mechanism for
Differential Privacy", ICML 2018.  k releases are one with z / sqrt(k).
"""

import math
from dataclasses import dataclass

from fedslice.errors import InputError
from fedslice.privacy.accounting.composition import accounting
from fedslice.privacy.accounting.mechanism import REPLACE, Gaussians, Part, often, positive, whole


@dataclass(frozen=True)
class Local:
    """Gaussian noise that each client adds to its own clipped update before it is sent.

    ``noise`` is the standard deviation over the clipping bound, ``participations`` how often one
    client may take part.  Nobody is trusted, so no sampling helps, and the relation is
    replace-one: no two updates that a client could send are easily told apart.

    >>> Local(noise=8.0, participations=4).parts(REPLACE)
    (Gaussians(noise=4.0, times=4, rate=1.0, sampling='full'),)
    """

    noise: float
    participations: int

    neighbours = REPLACE
    exposed = ("whether and when a client takes part",)

    def __post_init__(self) -> None:
        positive(noise=self.noise)
        whole(participations=self.participations)

    @property
    def words(self) -> str:
        """What it is."""
        return (
            f"Gaussian noise of multiplier {self.noise:g} on every update before it is sent, for"
            f" clients that take part at most {often(self.participations)}"
        )

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """All updates of one client."""
        if neighbours != REPLACE:
            raise InputError(
                "noise on each client's own update is judged by replace-one: whether a client"
                " sends anything is seen by the server"
            )
        return (Gaussians(self.noise / 2, self.participations),)


def local_noise(epsilon: float, delta: float, participations: int) -> float:
    """The noise multiplier with which a client may take part so often.

    >>> round(local_noise(8.0, 1e-5, participations=10), 3)
    3.796
    """
    _budget(epsilon, delta)
    whole(participations=participations)
    least: float = accounting().get_sigma_gaussian(epsilon, delta)
    return 2 * math.sqrt(participations) * least


def split_noise(noise: float, bits: float) -> float:
    """What is left for the updates when the clipping bound adapts: together they cost ``noise``.

    Each client also says whether its update was below the bound, as +1/2 or -1/2, and the sum of
    these gets noise of standard deviation ``bits``:  z_update = (z^-2 - (2 bits)^-2)^(-1/2).

    Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
    NeurIPS 2021; they take a twentieth of the cohort for ``bits``.

    >>> round(split_noise(1.0, bits=2.5), 4)
    1.0206
    """
    positive(noise=noise, bits=bits)
    if 2 * bits <= noise:
        raise InputError(
            f"bits={bits:g}: the noise of the clipping bound alone costs more than a noise"
            f" multiplier of {noise:g} does; it must be above {noise / 2:g}"
        )
    return float((noise**-2 - (2 * bits) ** -2) ** -0.5)


def _budget(epsilon: float, delta: float) -> None:
    positive(epsilon=epsilon)
    if not 0 < delta < 1:
        raise InputError(f"delta={delta:g}: give a number above 0, far below 1")
