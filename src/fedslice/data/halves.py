"""Support and query: a client's examples in two parts, one to adapt to the client, one to learn
from or to judge by.

    half            a random half of each client's examples is support, fixed by a hash of client
                    and example
    fresh           another random half in every round of training; where there is no round, in
                    evaluation, as half
    time            the earlier half by the column ``time``; ``time:COLUMN`` by another one
    f(population)   for each example true (support) or false (query); or 1, 0, and -1 for neither

Of an odd number support has the larger half: a client with one example has no query (Singhal et al.
2021, FedRecon).
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fedslice.data.hashing import GOLDEN, MIX1, splitmix
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model

Split: TypeAlias = str | Callable[[Population], np.ndarray]
SUPPORT, QUERY, NEITHER = 1, 0, -1
RANDOM = ("half", "fresh")


def assign(population: Population, split: Split, most: int | None = None) -> np.ndarray:
    """The part of each example, 1 for support and 0 for query; a client's support beyond ``most``
    examples is in neither, -1, so that its query stays the same.

    >>> people = Population.from_arrays([7, 7, 7, 9], time=[30, 10, 20, 5])
    >>> assign(people, "time").tolist(), assign(people, "time", most=1).tolist()
    ([0, 1, 1, 1], [0, 1, -1, 1])
    """
    if callable(split):
        part, rank = _checked(split(population), population), np.arange(population.examples)
    else:
        rank = _ranks(population, split)
        part = (2 * rank < population.counts[population.owners]).astype(np.int8)
    if most is not None:
        chosen = np.flatnonzero(part == SUPPORT)
        order = chosen[np.lexsort((rank[chosen], population.owners[chosen]))]
        counts = np.bincount(population.owners[order], minlength=len(population))
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        part[order[place >= most]] = NEITHER
    return part


def support(population: Population, split: Split) -> Population:
    """The support examples of all clients.

    >>> support(Population.from_arrays([7, 7, 7, 9], time=[30, 10, 20, 5]), "time").counts.tolist()
    [2, 1]
    """
    return population.select(assign(population, split) == SUPPORT)


def query(population: Population, split: Split) -> Population:
    """The query examples of all clients.  Its heat is that of what clients send when they train on
    query alone.

    >>> query(Population.from_arrays([7, 7, 7, 9], time=[30, 10, 20, 5]), "time").counts.tolist()
    [1, 0]
    """
    return population.select(assign(population, split) == QUERY)


def heat(
    population: Population,
    split: Split,
    model: Model,
    *,
    all_rows: bool = False,
    drawn: bool = False,
) -> Heat:
    """The heat of what clients send who train on query examples and weigh by them: the rows of
    those examples, or with ``all_rows`` (full MAML) and with ``"fresh"`` halves any of a client's
    rows.  Clients ``drawn`` in proportion to their examples count for all of them, if they have a
    query.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> heat(Population.from_arrays([0, 0, 0], rows=[[0], [0], [1]]), "fresh", task.model).examples
    1.0
    """
    asked = None if split == "fresh" else query(population, split)
    # support has the larger half
    counts = population.counts // 2 if asked is None else asked.counts
    if drawn:
        counts = np.where(counts > 0, population.counts, 0)
    return (population if asked is None or all_rows else asked).heat(model, counts)


def check(split: Split) -> None:
    """Refuse a split that is not one."""
    if callable(split) or (
        isinstance(split, str) and (split in RANDOM or split.partition(":")[0] == "time")
    ):
        return
    raise InputError(
        f"split={split!r} is not known here: use 'half', 'fresh', 'time', 'time:COLUMN' or a"
        " function of a population that gives true for the support examples; only training takes"
        " 'none', where all examples are both"
    )


def _ranks(population: Population, split: str) -> np.ndarray:
    """The place of each example among its client's, in the order in which they become support."""
    check(split)
    owners = population.owners
    position = np.arange(population.examples) - population.offsets[owners]
    if split in RANDOM:
        numbers = population.numbers[owners].astype(np.uint64)
        stream = splitmix(numbers * MIX1 + GOLDEN)
        by = splitmix(stream + position.astype(np.uint64) * GOLDEN)
    else:
        column = split.partition(":")[2] or "time"
        if column not in population.columns or population.columns[column].ndim != 1:
            raise InputError(
                f"split={split!r} goes by the column {column!r}, one number for each example; there"
                f" is {sorted(population.columns)}: name one of them as split='time:COLUMN', or use"
                " split='half'"
            )
        by = population.columns[column]
    order = np.lexsort((by, owners))
    rank = np.empty(population.examples, np.int64)
    rank[order] = position
    return rank


def _checked(given: np.ndarray, population: Population) -> np.ndarray:
    part = np.asarray(given)
    if part.shape != (population.examples,) or not np.isin(part, (SUPPORT, QUERY, NEITHER)).all():
        raise InputError(
            f"a split function must give true, false or -1 for each of the {population.examples}"
            f" examples, got {part.dtype} of shape {part.shape}"
        )
    return part.astype(np.int8)
