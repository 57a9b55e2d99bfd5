"""Which rows of a cohort's union its clients take, where they must not tell which are theirs.

A simulation draws by hashes of (seed, client, row, round) what a device draws by its own secret
(:mod:`fedslice.privacy.rows`): the same in law.
"""

from typing import NamedTuple

import numpy as np

from fedslice.data.hashing import GOLDEN, MIX1, MIX2, splitmix
from fedslice.data.population import Population
from fedslice.data.submodel import Submodels
from fedslice.types import Answers

ANSWERS = MIX1 * np.array([0x616E7377657273], np.uint64)


class Taken(NamedTuple):
    """Which entries of the cohort's S(i), one after the other, their clients take; how many rows
    each takes of the union in all, and how many those are in each round."""

    yes: np.ndarray
    rows: np.ndarray
    union: list[int]


def answered(
    answers: Answers, key: np.ndarray, ids: np.ndarray, held: np.ndarray, round: int
) -> np.ndarray:
    """bool [clients, rows]: what each client says of each row in this round, by hashes of its key:
    the first answer is for good, the second one of the round.

    >>> held = np.array([[True, False]])
    >>> key, ids = np.array([7], np.uint64), np.array([3, 8], np.uint64)
    >>> answered(Answers(1, 0, 1, 0), key, ids, held, 0).tolist()
    [[True, False]]
    """
    stream = splitmix(key[:, None] + ids * GOLDEN)
    good = _share(stream) < np.where(held, answers.p1, answers.p2)
    now = splitmix(stream + np.array([round + 1], np.uint64) * MIX2)
    return np.asarray(_share(now) < np.where(good, answers.p3, answers.p4))


def _share(hashed: np.ndarray) -> np.ndarray:
    """Uniform on [0, 1)."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keys_of(key: np.ndarray, place: int, numbers: np.ndarray) -> np.ndarray:
    """What the answers of clients with these numbers hang on, in the run with this key, for the
    table at a place among all.

    >>> key, numbers = np.array([7], np.uint64), np.array([0, 1], np.uint64)
    >>> bool((keys_of(key, 0, numbers) == keys_of(key, 1, numbers)).any())
    False
    """
    return splitmix(splitmix(key + ANSWERS) + np.array([place], np.uint64)) + numbers * MIX1


def take_part(
    answers: Answers,
    key: np.ndarray,
    space: Submodels,
    population: Population,
    cohort: np.ndarray,
    round: int,
    place: int,
) -> Taken:
    """Which rows of the union of the cohort's S(i) each client takes; ``place`` is that of the
    table among all, so that each has answers of its own."""
    numbers = population.numbers[cohort].astype(np.uint64)
    owner = np.repeat(np.arange(len(cohort)), space.sizes_of(cohort))
    entries = np.concatenate(
        [space.slots[space.offsets[i] : space.offsets[i + 1]] for i in cohort]
        or [np.zeros(0, np.int32)]
    )
    union, where = np.unique(entries, return_inverse=True)
    if answers.everything:
        yes = np.ones(len(entries), bool)
        return Taken(yes, np.full(len(cohort), len(union)), [len(union)])
    held = np.zeros((len(cohort), len(union)), bool)
    held[owner, where] = True
    own = keys_of(key, place, numbers)
    drawn = answered(answers, own, space.ids[union].astype(np.uint64), held, round)
    return Taken(drawn[owner, where], drawn.sum(axis=1), [len(union)])
