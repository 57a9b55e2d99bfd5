"""Which clients take part: pure functions of (seed, round), so the same clients meet every
algorithm."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedslice.data.availability import Availability
from fedslice.data.devices import Devices, ending
from fedslice.errors import InputError


class Sampler(NamedTuple):
    """``draw(rng, counts)`` picks clients by their place; ``counts`` are their examples.  ``name``
    describes it.

    ``kind`` says how it draws: ``"uniform"`` so many without replacement, ``"weighted"`` so many
    with replacement in proportion to examples (a client that is named twice counts twice, as if it
    had sent its message twice), ``"poisson"`` each by itself, ``"full"`` all, or your own word.
    ``clients`` is how many take part, on average; None: all.  With a ``cycle`` clients are divided
    into so many groups, by the seed, which take turns: none takes part again before the others
    have had theirs.  With ``there`` it draws among those clients alone that can be asked in the
    round (:mod:`fedslice.data.availability`); ``answers(seed, round, drawn)`` says who of those
    drawn answers in time.
    """

    name: str
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    kind: str = "custom"
    clients: float | None = None
    cycle: int = 1
    there: Callable[[int, int, int], np.ndarray] | None = None
    answers: Callable[[int, int, np.ndarray], np.ndarray] | None = None

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round."""
        return self.kind == "full"

    @property
    def by_examples(self) -> bool:
        """Whether clients come as often as their examples say."""
        return self.kind == "weighted"

    def rate(self, clients: int) -> float:
        """The share of so many clients that takes part, on average.

        >>> poisson(5).rate(100), full().rate(100)
        (0.05, 1.0)
        """
        return 1.0 if self.clients is None else min(1.0, self.clients / max(1, clients))

    def cohort(self, seed: int, round: int, counts: np.ndarray) -> np.ndarray:
        """The clients of one round, ascending: the canonical order in which everything is summed.

        >>> uniform(3).cohort(0, 7, np.ones(10)), uniform(3).cohort(0, 8, np.ones(10))
        (array([0, 2, 6]), array([2, 6, 9]))
        """
        rng = np.random.default_rng((seed, round))
        members = self._members(seed, round, len(counts))
        if members is None:
            drawn = np.sort(self.draw(rng, counts))
        else:
            drawn = np.sort(members[self.draw(rng, counts[members])])
        return drawn if self.answers is None else drawn[self.answers(seed, round, drawn)]

    def _members(self, seed: int, round: int, clients: int) -> np.ndarray | None:
        """Those of the clients among which it draws; None: all."""
        if self.there is not None:
            return np.flatnonzero(self.there(seed, round, clients))
        if self.cycle == 1:
            return None
        group = np.random.default_rng((seed, 0, self.cycle)).permutation(clients) % self.cycle
        return np.flatnonzero(group == round % self.cycle)


def uniform(clients: int) -> Sampler:
    """This many clients without replacement, all equally likely.

    >>> len(uniform(5).cohort(0, 0, np.ones(100)))
    5
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        _enough(clients, counts)
        return rng.choice(len(counts), clients, replace=False, shuffle=False)

    return Sampler(f"uniform({clients})", draw, "uniform", clients)


def weighted(clients: int) -> Sampler:
    """This many draws *with replacement*, each in proportion to the clients' examples (Field Guide,
    3.2.4).

    Average them uniformly, ``weights="uniform"``: E[mean] = sum_i |D_i| delta_i / sum_i |D_i|, the
    pooled objective's, exactly (weights by examples under uniform sampling are a ratio of two sums,
    right only up to O(1/K)).  With heat the coefficient goes by examples,
    ``coefficient="examples"``, for |D_i| is how often a row's holders come.

    >>> weighted(3).cohort(0, 0, np.array([0.0, 5.0])).tolist()
    [1, 1, 1]
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        return rng.choice(len(counts), clients, p=counts / counts.sum())

    return Sampler(f"weighted({clients}, with replacement)", draw, "weighted", clients)


def poisson(clients: float) -> Sampler:
    """Each client by itself with the same probability, this many on average: what privacy
    accounting assumes.

    >>> poisson(100).cohort(0, 0, np.ones(100)).size
    100
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        _enough(clients, counts)
        return np.flatnonzero(rng.random(len(counts)) < clients / len(counts))

    return Sampler(f"poisson({clients:g})", draw, "poisson", clients)


def cyclic(clients: int, cycle: int) -> Sampler:
    """This many clients of one of ``cycle`` groups, which take turns: a client takes part at most
    once in ``cycle`` rounds.  For noise that is correlated over rounds (``privacy.matrix``).

    >>> turns = [set(cyclic(3, 2).cohort(0, round, np.ones(10)).tolist()) for round in range(3)]
    >>> turns[0] & turns[1], len(turns[0] | turns[2]) <= 5
    (set(), True)
    """
    _positive(clients)
    if cycle < 2 or int(cycle) != cycle:
        raise InputError(f"cycle={cycle}: give a whole number of groups, 2 or more")
    drawn = uniform(clients)
    return Sampler(f"cyclic({clients}, {cycle})", drawn.draw, "cyclic", clients, int(cycle))


def available(sampler: Sampler, when: Availability) -> Sampler:
    """``sampler`` among the clients that are there (:mod:`fedslice.data.availability`); where it
    asks for more than come, all of those.  A round in which nobody is there passes with nobody.

    >>> from fedslice.data import availability
    >>> night = available(uniform(5), availability.diurnal(zones=0.0))
    >>> [len(night.cohort(0, hour, np.ones(100))) for hour in (0, 12)]
    [5, 0]
    """
    if sampler.kind not in ("uniform", "poisson", "full"):
        raise InputError(
            f"{sampler.name} among the clients that are there would no longer draw as it promises:"
            " use uniform, poisson or full, with weights='examples' where clients count by their"
            " examples"
        )

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        if sampler.clients is not None and len(counts) <= sampler.clients:
            return np.arange(len(counts))
        return sampler.draw(rng, counts)

    name = f"available({sampler.name}, {when.name})"
    return Sampler(name, draw, "available", sampler.clients, there=when.there)


def punctual(
    clients: int,
    seconds: Callable[[int, int, np.ndarray], np.ndarray],
    spare: int = 0,
    deadline: float | None = None,
    among: Sampler | None = None,
) -> Sampler:
    """The first ``clients`` to answer of ``spare`` more that are asked, within the ``deadline``:
    what a server does that does not wait for stragglers.  ``seconds(seed, round, who)`` is how
    long each of them takes (:func:`fedslice.evaluation.cost.durations`).

    The fast come more often than the slow, so the mean is not the mean over all; who is asked is
    still drawn uniformly, or as ``among`` draws (:func:`available`).

    >>> slow = punctual(2, lambda seed, round, who: who + 1.0, spare=8, deadline=5.0)
    >>> slow.cohort(0, 0, np.ones(10)).tolist()
    [0, 1]
    """
    _positive(clients)
    if spare < 0 or int(spare) != spare or (deadline is not None and not deadline > 0):
        raise InputError(
            f"spare={spare}, deadline={deadline}: ask more clients, wait for some time"
        )
    asked = uniform(clients + spare) if among is None else among

    def answers(seed: int, round: int, drawn: np.ndarray) -> np.ndarray:
        return ending(Devices(), seconds(seed, round, drawn), clients, deadline).counted

    name = f"punctual({clients}, {asked.name}, {spare}, {deadline})"
    return Sampler(name, asked.draw, "punctual", clients, asked.cycle, asked.there, answers)


def full() -> Sampler:
    """Every client in every round.

    >>> full().cohort(0, 0, np.ones(3)).tolist()
    [0, 1, 2]
    """
    return Sampler("full()", lambda rng, counts: np.arange(len(counts)), "full")


def _positive(clients: float) -> None:
    if not clients > 0:
        raise InputError(f"a cohort of {clients} clients is not possible: give a positive number")


def _enough(clients: float, counts: np.ndarray) -> None:
    if clients > len(counts):
        raise InputError(
            f"a cohort of {clients:g} was asked of {len(counts)} clients with data: "
            "make the cohort smaller or take all of them (sampling.full(), --set sampler=full)"
        )
