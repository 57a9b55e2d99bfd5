"""What noise was added, to what, how often: values that an accountant reads.

The unit is one client, with all its data.  Two populations are neighbours when they differ in one:

    add-or-remove-one   the client is there, or it is not (its update is zero)
    replace-one         the client is there, or another one in its stead

A client's whole update is clipped to L2 norm C, so a sum of updates differs by at most C between
neighbours of the first kind, by at most 2 C of the second.  A noise multiplier is *the standard
deviation of the noise over C*, whatever the relation: the factor two is put in here, in ``parts``.

A cohort of fixed size K out of N, without replacement, is amplified less than one drawn client by
client (Poisson), for a client that comes pushes another out: the sum then moves by 2 C even if
the relation is add-or-remove-one.  Let A be a cohort without the client, a one of A.  The
cohorts with the client are those in which it stands for some a, so over all (A, a)

    with it     E[(1 - q) Noise(sum A) + q Noise(sum A - a + x)],  q = K/N
    without     E[Noise(sum A)]

and hockey-stick divergences are jointly convex: the pair is dominated by Poisson sampling at rate
q with noise multiplier z / 2 (Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function", AISTATS 2022).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError

LEAST = 0.1  # noise multiplier that is accounted for
ADD_OR_REMOVE, REPLACE = "add-or-remove-one", "replace-one"

SECRECY = "whoever learns which clients were drawn: sampling helps only while that is secret"
THE_SERVER = "the server itself, which sees the sum before the noise"


class Gaussians(NamedTuple):
    """``times`` Gaussian releases, of standard deviation ``noise`` times their sensitivity, each
    over a sample at ``rate``."""

    noise: float
    times: int = 1
    rate: float = 1.0
    sampling: str = "full"


class Skellams(NamedTuple):
    """``times`` Skellam releases of whole numbers, as ``Gaussians``."""

    variance: float
    l2: float
    l1: float
    times: int
    rate: float
    sampling: str


class Bits(NamedTuple):
    """``times`` bits that are 1 with a chance that differs between neighbours."""

    first: float
    second: float
    times: int


Part: TypeAlias = Gaussians | Skellams | Bits


class Mechanism(Protocol):
    """What an accountant needs to know."""

    @property
    def neighbours(self) -> str:
        """The relation under which it is judged, unless one asks for another."""

    @property
    def words(self) -> str:
        """What it is, as a clause of a sentence."""

    @property
    def exposed(self) -> tuple[str, ...]:
        """What it does not protect."""

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """Its releases, with the sensitivity that the relation implies."""


class Sampled:
    """Mechanisms on cohorts of ``cohort`` out of ``clients``, drawn as ``sampling`` says."""

    clients: int
    cohort: float
    sampling: str

    @property
    def rate(self) -> float:
        """The share of the clients that takes part."""
        return self.cohort / self.clients

    @property
    def neighbours(self) -> str:
        """Replace-one for cohorts of a fixed size."""
        return REPLACE if self.sampling == "uniform" else ADD_OR_REMOVE


@dataclass(frozen=True)
class Central(Sampled):
    """Gaussian noise on the sum of each round's clipped updates: DP-FedAvg.

    ``noise`` is the standard deviation over the clipping bound, ``cohort`` how many of the
    ``clients`` take part in a round (on average, with Poisson sampling).  Each client weighs the
    same and the sum is divided by a fixed number.

    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
    ICLR 2018.

    >>> Central(clients=6040, cohort=50, noise=1.0, rounds=200).rate
    0.008278145695364239
    """

    clients: int
    cohort: float
    noise: float
    rounds: int
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        positive(noise=self.noise)
        enough(self.noise)
        drawn(self.clients, self.cohort, self.rounds, self.sampling)

    @classmethod
    def of(cls, sampler: Sampler, clients: int, noise: float, rounds: int) -> "Central":
        """The mechanism of a run with this sampler.

        >>> from fedslice.data import sampling
        >>> Central.of(sampling.uniform(50), clients=6040, noise=1.0, rounds=200).sampling
        'uniform'
        """
        cohort = clients if sampler.clients is None else sampler.clients
        return cls(clients, cohort, noise, rounds, sampler.kind)

    @property
    def words(self) -> str:
        """What it is."""
        return (
            f"{spoken(self.rounds)} with Gaussian noise of multiplier {self.noise:g} on the sum,"
            f" {cohorts(self.clients, self.cohort, self.sampling)}"
        )

    @property
    def exposed(self) -> tuple[str, ...]:
        """What it does not protect."""
        return (THE_SERVER,) if self.sampling == "full" else (SECRECY, THE_SERVER)

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """All rounds."""
        factor, sampling = factors(self.sampling, neighbours)
        return (Gaussians(self.noise / factor, self.rounds, self.rate, sampling),)

    def check(self, sampler: Sampler, clients: int) -> None:
        """Refuse a run that draws its clients otherwise than was accounted for.

        >>> from fedslice.data import sampling
        >>> Central(6040, 50, 1.0, 200, "poisson").check(sampling.poisson(50), 6040)
        """
        if sampler.kind != self.sampling:
            raise InputError(
                f"the accounting is for {self.sampling} sampling and the clients are drawn by"
                f" {sampler.name}: account for sampling={sampler.kind!r}, or draw with"
                f" sampling.{self.sampling}"
            )
        cohort = clients if sampler.clients is None else sampler.clients
        if (cohort, clients) != (self.cohort, self.clients):
            raise InputError(
                f"the accounting is for {self.cohort:g} of {self.clients} clients and"
                f" {cohort:g} of {clients} take part: account for those"
            )


def factors(sampling: str, neighbours: str) -> tuple[float, str]:
    """How far a sum moves between neighbours, in units of the clipping bound, and the sampling
    whose pair of distributions dominates (see above)."""
    if neighbours == ADD_OR_REMOVE:
        return (2.0, "poisson") if sampling == "uniform" else (1.0, sampling)
    if sampling == "poisson":
        raise InputError(
            "Poisson sampling is accounted for under add-or-remove-one, and with replace-one it"
            " is not: leave neighbours out"
        )
    return 2.0, sampling


def positive(**numbers: float) -> None:
    """Refuse what is not a finite number above zero."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise InputError(
                f"{name}={number:g}: without noise there is no guarantee; give a number above 0"
                if name == "noise"
                else f"{name}={number:g}: give a number above 0"
            )


def enough(noise: float) -> None:
    """Refuse noise so small that epsilon is in the hundreds, which takes an accountant for ever and
    protects nobody."""
    if noise < LEAST:
        raise InputError(
            f"a noise multiplier of {noise:g} protects nobody: epsilon is in the hundreds and more;"
            f" take {LEAST:g} at the very least, mostly 0.5 and more"
        )


def whole(**numbers: int) -> None:
    """Refuse what is not a whole number from 1 on."""
    for name, number in numbers.items():
        if number < 1 or number != int(number):
            raise InputError(f"{name}={number:g}: give a whole number, 1 or more")


def drawn(clients: int, cohort: float, rounds: int, sampling: str) -> None:
    """Refuse cohorts that cannot be, or that nobody can account for."""
    whole(clients=clients, rounds=rounds)
    positive(cohort=cohort)
    if sampling == "weighted":
        raise InputError(
            "sampling in proportion to examples draws some clients far more often than others, and"
            " how often is itself private: draw with sampling.poisson or sampling.uniform"
        )
    if sampling not in ("poisson", "uniform", "full"):
        raise InputError(
            f"sampling={sampling!r} cannot be accounted for: use 'poisson', 'uniform' or 'full'"
        )
    if cohort > clients:
        raise InputError(
            f"a cohort of {cohort:g} out of {clients} clients: make it smaller, or take all of"
            " them with sampling='full'"
        )
    if sampling == "full" and cohort != clients:
        raise InputError(
            f"with sampling='full' the cohort is all {clients} clients, not {cohort:g}: say so, or"
            " name the sampling"
        )
    if sampling == "uniform" and cohort != int(cohort):
        raise InputError(f"cohort={cohort:g}: a cohort of fixed size is a whole number of clients")


def cohorts(clients: int, cohort: float, sampling: str) -> str:
    """How the clients are drawn."""
    if sampling == "full":
        return f"all {clients} clients in each"
    if sampling == "poisson":
        return f"each client drawn by itself with probability {cohort:g}/{clients}"
    return f"{cohort:g} of {clients} clients drawn without replacement"


def spoken(rounds: int) -> str:
    """So many rounds."""
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def often(times: int) -> str:
    """So many times."""
    return "once" if times == 1 else f"{times} times"
