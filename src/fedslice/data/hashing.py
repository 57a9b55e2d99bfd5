"""Random numbers without a generator: a 64-bit hash of what they are for."""

import numpy as np

GOLDEN, MIX1, MIX2 = (
    np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
S27, S30, S31 = (np.uint64(s) for s in (27, 30, 31))


def splitmix(x: np.ndarray) -> np.ndarray:
    """A 64-bit hash (Steele et al., SplitMix), vectorised.

    >>> splitmix(np.array([0, 1], np.uint64)).tolist()
    [0, 6238072747940578789]
    """
    x = x ^ (x >> S30)  # a new array, which changes in place from here on
    x *= MIX1
    x ^= x >> S27
    x *= MIX2
    x ^= x >> S31
    return np.asarray(x)


def uniform(who: np.ndarray, *what: int) -> np.ndarray:
    """A number from 0 up to 1 for each of ``who``, by whole numbers that say what it is for, such
    as a seed and a round.

    >>> all_three, last = uniform(np.arange(3), 7, 3), uniform(np.array([2]), 7, 3)
    >>> float(all_three[2]) == float(last[0])
    True
    """
    stream = np.zeros(1, np.uint64)
    for number in what:
        stream = splitmix(stream * MIX1 + np.array([number % (1 << 64)], np.uint64) + GOLDEN)
    hashed = splitmix(stream + (who.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return np.asarray((hashed >> np.uint64(11)) / 2.0**53)
