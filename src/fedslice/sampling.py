"""Which clients take part: pure functions of (seed, round), so the same clients meet every algorithm."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError


class Sampler(NamedTuple):
    """``draw(rng, counts)`` picks client numbers; ``counts`` are the clients' examples.  ``name`` describes it."""

    name: str
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray]

    def cohort(self, seed: int, round: int, counts: np.ndarray) -> np.ndarray:
        """The clients of one round, ascending: the canonical order in which everything is summed.

        >>> uniform(3).cohort(0, 7, np.ones(10)).tolist() == uniform(3).cohort(0, 7, np.ones(10)).tolist()
        True
        """
        return np.sort(self.draw(np.random.default_rng((seed, round)), counts))


def uniform(clients: int) -> Sampler:
    """This many clients without replacement, all equally likely.

    >>> len(uniform(5).cohort(0, 0, np.ones(100)))
    5
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        _enough(clients, counts)
        return rng.choice(len(counts), clients, replace=False, shuffle=False)

    return Sampler(f"uniform({clients})", draw)


def weighted(clients: int) -> Sampler:
    """This many clients without replacement, likely in proportion to their examples.  Average them uniformly then.

    >>> weighted(1).cohort(0, 0, np.array([0.0, 5.0])).tolist()
    [1]
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        _enough(clients, counts[counts > 0])
        return rng.choice(len(counts), clients, replace=False, p=counts / counts.sum())

    return Sampler(f"weighted({clients})", draw)


def poisson(clients: float) -> Sampler:
    """Each client by itself with the same probability, this many on average: what privacy accounting assumes.

    >>> poisson(100).cohort(0, 0, np.ones(100)).size
    100
    """
    _positive(clients)

    def draw(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
        _enough(clients, counts)
        return np.flatnonzero(rng.random(len(counts)) < clients / len(counts))

    return Sampler(f"poisson({clients:g})", draw)


def full() -> Sampler:
    """Every client in every round.

    >>> full().cohort(0, 0, np.ones(3)).tolist()
    [0, 1, 2]
    """
    return Sampler("full()", lambda rng, counts: np.arange(len(counts)))


def _positive(clients: float) -> None:
    if not clients > 0:
        raise InputError(f"a cohort of {clients} clients is not possible: give a positive number")


def _enough(clients: float, counts: np.ndarray) -> None:
    if clients > len(counts):
        raise InputError(
            f"a cohort of {clients:g} was asked of {len(counts)} clients with data: "
            "make the cohort smaller or take all of them (sampling.full(), --set sampler=full)"
        )
