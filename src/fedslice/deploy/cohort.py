"""Who is asked in a round, and what came of it so far."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedslice.data.sampling import Sampler


class Cohort(NamedTuple):
    """The nodes that are asked, in the order of their numbers, how often each counts, and how many
    are wanted."""

    times: dict[str, int]
    wanted: int


class Tally:
    """What a round has come to so far."""

    def __init__(self) -> None:
        self.excluded: dict[str, str] = {}
        self.late: list[str] = []
        self.spare: list[str] = []
        self.nonces: dict[str, bytes] = {}  # of each node's last letter
        self.down = self.up = 0
        self.why = ""  # a secure sum was not opened


def draw(
    sampler: Sampler, seed: int, number: int, examples: Mapping[str, int], spare: int
) -> Cohort:
    """The cohort of a draw, as in a simulation, and ``spare`` nodes more.

    >>> from fedslice.data.sampling import uniform
    >>> draw(uniform(2), 0, 0, {"a": 5, "b": 5, "c": 5, "d": 5}, spare=1)
    Cohort(times={'b': 1, 'c': 1, 'd': 1}, wanted=2)
    """
    names, counts = list(examples), np.array(list(examples.values()))
    drawn, times = np.unique(sampler.cohort(seed, number, counts), return_counts=True)
    often = {names[i]: int(n) for i, n in zip(drawn, times, strict=True)}
    wanted = len(often)
    rest = [name for name in names if name not in often]
    rng = np.random.default_rng((seed, number, spare))
    for i in rng.permutation(len(rest))[:spare]:
        often[rest[i]] = 1
    return Cohort({name: often[name] for name in names if name in often}, wanted)
