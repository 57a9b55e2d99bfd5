"""How much a run tells about one client: (epsilon, delta), said with all that it rests on.

    P[M(D) in S] <= e^epsilon P[M(D') in S] + delta    for all S and all neighbours D, D'

Dwork, Kenthapadi, McSherry, Mironov, Naor 2006.  Which accountant reads what:

    sampling    neighbours           accountant
    poisson     add-or-remove-one    PLD
    uniform     replace-one          RDP (or PLD under add-or-remove-one, if asked for)
    full        add-or-remove-one    exact: all rounds are one Gaussian
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

from fedslice.errors import InputError
from fedslice.privacy.accounting.composition import (
    accounting,
    exact,
    exact_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from fedslice.privacy.accounting.mechanism import (
    ADD_OR_REMOVE,
    REPLACE,
    Gaussians,
    Mechanism,
    Part,
    Skellams,
)

ALWAYS = (
    "losses, counts and whatever else clients report without noise",
    "settings, rounds or models that are chosen by looking at results on the clients' data",
    "floating-point numbers, which are not exactly Gaussian",
)
MEANING = {
    ADD_OR_REMOVE: "a client's data are in, or are not",
    REPLACE: "a client's data are in, or another's in their stead",
}


class Accountant(NamedTuple):
    """How it is called, and what it finds."""

    name: str
    epsilon: Callable[[Sequence[Part], float], float]


ACCOUNTANTS = {
    "exact": Accountant("the exact formula for Gaussians", exact_epsilon),
    "pld": Accountant("PLD", pld_epsilon),
    "rdp": Accountant("RDP", rdp_epsilon),
}


@dataclass(frozen=True)
class Guarantee:
    """What holds for every client, by which accountant, and what does not.

    >>> from fedslice.privacy.accounting.mechanism import Central
    >>> print(guarantee(Central(6040, 50, noise=1.0, rounds=200)))  # doctest: +ELLIPSIS
    Each client has epsilon = 0.7501 at delta = 1e-05 under add-or-remove-one (a client's ...
    """

    epsilon: float
    delta: float
    neighbours: str
    accountant: str
    mechanisms: tuple[str, ...]
    not_covered: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Each client has epsilon = {shown(self.epsilon)} at delta = {self.delta:.3g} under"
            f" {self.neighbours} ({MEANING[self.neighbours]}), by {self.accountant}.\n"
            f"Accounted for: {'; and '.join(self.mechanisms)}. Each client's whole update is"
            " clipped, all weigh the same, and the sum is divided by a fixed number.\n"
            f"Not covered: {'; '.join(self.not_covered)}."
        )

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> "Guarantee":
        """From what ``as_dict`` gave.

        >>> from fedslice.privacy.accounting.mechanism import Central
        >>> found = guarantee(Central(10, 10, 2.0, 4, "full"), delta=1e-5)
        >>> Guarantee.of(found.as_dict()) == found
        True
        """
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in known.items()
        }
        return cls(**given)

    def as_dict(self) -> dict[str, Any]:
        """For JSON.

        >>> from fedslice.privacy.accounting.mechanism import Central
        >>> guarantee(Central(10, 10, 2.0, 4, "full"), delta=1e-5).as_dict()["neighbours"]
        'add-or-remove-one'
        """
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }


def default_delta(clients: int) -> float:
    """min(1e-5, 1 / (N ln N)).

    A mechanism that publishes each client's data with chance delta is (0, delta)-private, so N
    delta, the number of clients that may be laid bare, must be well below one: here it is at most
    1 / ln N and, below 100,000 clients or so, N / 100,000.

    >>> default_delta(6040), round(default_delta(1_000_000), 10)
    (1e-05, 7.24e-08)
    """
    return 1e-5 if clients < 3 else min(1e-5, 1 / (clients * math.log(clients)))


def guarantee(
    mechanism: Mechanism,
    *others: Mechanism,
    delta: float | None = None,
    accountant: str | None = None,
    neighbours: str | None = None,
) -> Guarantee:
    """What ``mechanism`` and ``others``, all on the same clients, tell together.

    ``accountant`` is ``"exact"``, ``"pld"`` or ``"rdp"``; by default the tightest that holds.
    ``neighbours`` is the strictest of the mechanisms' relations, unless given.  ``delta`` is that
    of ``default_delta``, for mechanisms that know their number of clients, else it must be given.

    >>> from fedslice.privacy.accounting.mechanism import Central
    >>> from fedslice.privacy.accounting.release import HeatCounts
    >>> training = Central(6040, 50, noise=1.0, rounds=200)
    >>> heat = HeatCounts(std=100.0, rows=100)
    >>> round(guarantee(training).epsilon, 4), round(guarantee(training, heat).epsilon, 4)
    (0.7501, 0.8186)
    """
    together = (mechanism, *others)
    level = level_of(delta, together)
    relation = relation_of(neighbours, together)
    parts = parts_of(together, relation)
    chosen = known(accountant or best(parts))
    accounting()  # or what to install
    exposed = dict.fromkeys(ALWAYS + tuple(text for each in together for text in each.exposed))
    return Guarantee(
        _epsilon(chosen, parts, level),
        level,
        relation,
        f"{ACCOUNTANTS[chosen].name} (dp_accounting {version('dp-accounting')})",
        tuple(each.words for each in together),
        tuple(exposed),
    )


@lru_cache(maxsize=256)
def _epsilon(accountant: str, parts: tuple[Part, ...], delta: float) -> float:
    """Kept, since a run asks before it trains, at every checkpoint and at its end."""
    return ACCOUNTANTS[accountant].epsilon(parts, delta)


def level_of(delta: float | None, together: tuple[Mechanism, ...]) -> float:
    """The delta to use, which must be small among so many clients."""
    clients = max((getattr(each, "clients", 0) for each in together), default=0)
    if delta is None:
        if not clients:
            raise InputError(
                "the number of clients is not known here: give delta, far below one over it"
            )
        return default_delta(clients)
    if not 0 < delta < 1:
        raise InputError(f"delta={delta:g}: give a number above 0, far below 1")
    if clients and delta >= 1 / clients:
        warnings.warn(
            f"delta {delta:g} is not below 1/{clients}: a mechanism that publishes the data of a"
            f" whole client satisfies it. Take {default_delta(clients):.2g}",
            stacklevel=3,
        )
    return delta


def relation_of(neighbours: str | None, together: tuple[Mechanism, ...]) -> str:
    """The relation to use: the strictest of all, unless one is asked for."""
    if neighbours is not None and neighbours not in MEANING:
        raise InputError(f"neighbours={neighbours!r}: use {' or '.join(map(repr, MEANING))}")
    strict = any(each.neighbours == REPLACE for each in together)
    return neighbours or (REPLACE if strict else ADD_OR_REMOVE)


def parts_of(together: tuple[Mechanism, ...], relation: str) -> tuple[Part, ...]:
    """All releases of all mechanisms."""
    return tuple(part for each in together for part in each.parts(relation))


def best(parts: tuple[Part, ...]) -> str:
    """The tightest accountant that reads all parts."""
    if exact(parts) is not None:
        return "exact"
    loose = any(isinstance(part, Skellams) or _fixed(part) for part in parts)
    return "rdp" if loose else "pld"


def known(accountant: str) -> str:
    """The name of an accountant, if it is one."""
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant={accountant!r}: use {', '.join(ACCOUNTANTS)}")
    return accountant


def _fixed(part: Part) -> bool:
    return isinstance(part, Gaussians) and part.sampling == "uniform"


def ceiling(number: float) -> float:
    """Four digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 3)
    return float(f"{math.ceil(number / unit - 1e-9) * unit:.4g}")


def shown(epsilon: float) -> str:
    """Four digits, rounded up: never less than it is."""
    return "0" if epsilon == 0 else str(epsilon) if math.isinf(epsilon) else f"{ceiling(epsilon):g}"
