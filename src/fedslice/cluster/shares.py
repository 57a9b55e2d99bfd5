"""Which worker has which clients, and who of a cohort trains where.

Clients are in ascending order everywhere: a worker has a range of them, and trains a range of the
cohort.  Where clients remember nothing, ranges overlap, so that the cohort can be cut where it is
even: the places of K clients drawn from N scatter, and without room to move the cut the largest of
W parts would be about sqrt(W / K) too large.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population

OVERLAP = 0.3  # of a worker's own range, on either side


class Range(NamedTuple):
    """Clients whose data a worker has, by their places."""

    start: int
    stop: int


def ranges(eligible: np.ndarray, clients: int, workers: int, remember: bool) -> list[Range]:
    """The ranges of the workers: as many clients with data each, and some of the neighbours' unless
    clients ``remember``; at most one worker for each client with data.

    >>> ranges(np.arange(10), 10, 2, remember=True)
    [Range(start=0, stop=5), Range(start=5, stop=10)]
    >>> ranges(np.arange(10), 10, 2, remember=False)
    [Range(start=0, stop=6), Range(start=4, stop=10)]
    """
    workers = min(workers, len(eligible))
    firsts = [int(eligible[len(eligible) * n // workers]) for n in range(workers)]
    bounds = [0, *firsts[1:], clients]
    own = [Range(start, stop) for start, stop in pairwise(bounds)]
    if remember:
        return own
    more = [int(OVERLAP * (stop - start)) for start, stop in own]
    return [
        Range(max(0, start - extra), min(clients, stop + extra))
        for (start, stop), extra in zip(own, more, strict=True)
    ]


def cuts(places: np.ndarray, real: int, held: list[Range]) -> list[Range]:
    """Which clients of a plan train where: even parts, as far as the data are there.  ``places``
    are ascending, ``real`` of them no padding, which goes to the last worker.

    >>> cuts(np.array([0, 1, 2, 6, 10]), 4, [Range(0, 6), Range(4, 10)])
    [Range(start=0, stop=3), Range(start=3, stop=5)]
    """
    bounds = [0]
    for number, (left, right) in enumerate(pairwise(held), 1):
        ideal = round(number * real / len(held))
        low = int(np.searchsorted(places[:real], right.start))
        high = int(np.searchsorted(places[:real], left.stop))
        bounds.append(max(bounds[-1], min(max(ideal, low), high)))
    bounds.append(len(places))
    return [Range(*each) for each in pairwise(bounds)]


def cut_out(population: Population, held: Range) -> Population:
    """The clients of a range, without a copy of their data."""
    offsets = population.offsets[held.start : held.stop + 1]
    columns = {n: c[offsets[0] : offsets[-1]] for n, c in population.columns.items()}
    return Population(
        columns,
        offsets - offsets[0],
        population.clients[held.start : held.stop],
        {},
        population.numbers[held.start : held.stop],
    )
