"""Which rows does a cohort need?  The union of all S(i) and no S(i), and answers that blur one.

**Private set union** (Niu et al. 2020, "Billion-Scale Federated Learning on Mobile Clients: A
Submodel Design with Tunable Privacy", MobiCom).  Each participant has a vector with one number for
each row of the table: a random non-zero element of the ring where it holds the row, zero elsewhere.
Their secure sum is zero where nobody holds a row, and a random number where somebody does, which
does not tell how many.  Holders' numbers can cancel: a row of two or more holders is missed with
probability at most 1 / (2^32 - 1).

For a large table the vector is a **Bloom filter**: h cells for each held row, by public hashes.  A
row is taken for a member if none of its cells is zero, which happens to others with probability

    rate = (1 - exp(-h most / cells))^h        where the union has ``most`` rows

and a member is missed with probability at most h / (2^32 - 1).

**Tunable answers**.  To fetch the rows S(i) of the union would tell S(i).  So a client gives, for
each row of the union, a *permanent* answer once and for all (yes with probability p1 if it holds
the row, p2 if not), and each round an *instantaneous* one (yes with p3 if the permanent one is, p4
if not).  It fetches the rows with a yes, trains those of them that it holds, and sends zeros for
the others.  One round shows an answer of probabilities

    p5 = p1 (p3 - p4) + p4  if held,  p6 = p2 (p3 - p4) + p4  if not

and all rounds together not more than the permanent answer: plausible deniability of
eps = ln max(p/q, (1 - q)/(1 - p)) for each row, eps_1 of (p5, p6) and eps_inf of (p1, p2).
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedslice.data.hashing import GOLDEN, splitmix
from fedslice.errors import InputError
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.parts import Parts, counters, dense
from fedslice.privacy.secure.primitives import derive, key_stream
from fedslice.privacy.secure.run import Outcome, secure_sum
from fedslice.privacy.secure.sizes import Sizes, sizes
from fedslice.types import Answers

_NAME = "rows"
_HASHES = 64  # cells of a row: more would serve rates below 2^-64
_AT_ONCE = 1 << 20  # ids that the server tests together


class Plan(NamedTuple):
    """How a union over a table of so many ``rows`` is asked: one cell a row, or (``hashes`` > 0) a
    Bloom filter of so many ``cells`` with public hashes by ``seed``."""

    rows: int
    cells: int
    hashes: int = 0
    seed: int = 0

    @property
    def sound(self) -> bool:
        """Whether every row has a place, so that what becomes of a vector does not tell its rows.

        >>> Plan(10, 10).sound, Plan(10, 5).sound, Plan(10, 5, hashes=2).sound
        (True, False, True)
        """
        whole = self.hashes == 0 and self.cells == self.rows
        hashed = 0 < self.hashes <= _HASHES and 0 < self.cells <= self.rows
        return (whole or hashed) and 0 <= self.seed < 2**64

    @property
    def parts(self) -> Parts:
        """What is summed."""
        return Parts([dense(_NAME, self.cells)])

    def sizes(self, clients: int, neighbours: int) -> Sizes:
        """The bytes of one participant.

        >>> plan_union(1000, 20).sizes(50, 16).up[2]
        1297
        """
        return sizes(clients, neighbours, self.cells)

    def vector(
        self, held: object, random: Callable[[int], bytes] = os.urandom
    ) -> dict[str, NDArray[np.uint32]]:
        """A participant's vector, for the ids that it holds.

        >>> np.flatnonzero(Plan(10, 10).vector([3, 7])["rows"]).tolist()
        [3, 7]
        """
        ids = _ids(held, self.rows)
        hashes = range(max(1, self.hashes))
        places = np.unique(np.concatenate([self._place(ids, each) for each in hashes]))
        drawn = np.frombuffer(random(8 * len(places)), "<u8")
        found = np.zeros(self.cells, np.uint32)
        found[places] = drawn % np.uint64(2**32 - 1) + np.uint64(1)
        return {_NAME: found}

    def members(self, total: Mapping[str, np.ndarray]) -> NDArray[np.int64]:
        """The union, ascending, from the sum of all vectors.

        >>> Plan(10, 10).members({"rows": np.uint32([0, 5, 0, 0, 1, 0, 0, 0, 0, 0])})
        array([1, 4])
        """
        there = np.asarray(total[_NAME]) != 0
        if there.shape != (self.cells,):
            raise InputError(f"a total of shape {there.shape} is not of this plan's parts")
        found = [np.zeros(0, np.int64)]
        for start in range(0, self.rows, _AT_ONCE):
            ids = np.arange(start, min(start + _AT_ONCE, self.rows))
            for place in range(max(1, self.hashes)):
                ids = ids[there[self._place(ids, place)]]
            found.append(ids)
        return np.concatenate(found)

    def _place(self, ids: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        """One cell of each row."""
        if not self.hashes:
            return ids
        with np.errstate(over="ignore"):
            seeded = splitmix(ids.astype(np.uint64) + np.uint64(self.seed) * GOLDEN)
            hashed = splitmix(seeded + np.uint64(place + 1) * GOLDEN)
        return (hashed % np.uint64(self.cells)).astype(np.int64)


def plan_union(rows: int, most: int, rate: float = 1e-3, seed: int = 0) -> Plan:
    """The plan with the fewest bytes, for a table of so many rows and a union of at most ``most``:
    one cell a row, or a Bloom filter with false members at this ``rate``, if that is smaller.

    >>> plan_union(1000, 500)
    Plan(rows=1000, cells=1000, hashes=0, seed=0)
    >>> plan_union(10**6, 500)
    Plan(rows=1000000, cells=7189, hashes=10, seed=0)
    """
    if not 0 < rate < 1:
        raise InputError(f"rate={rate} is a probability of false members: give one between 0 and 1")
    if rows < 1 or not 0 < most <= rows:
        raise InputError(
            f"a union of at most {most} of {rows} rows is not possible: give positive numbers, the"
            " first not above the second"
        )
    if not 0 <= seed < 2**64:
        raise InputError(f"seed={seed} is not possible: give a number of 64 bits")
    sizes_by_hashes = {
        hashes: math.ceil(-hashes * most / math.log1p(-(rate ** (1 / hashes))))
        for hashes in range(1, _HASHES + 1)
    }
    hashes = min(sizes_by_hashes, key=sizes_by_hashes.__getitem__)
    cells = sizes_by_hashes[hashes]
    return Plan(rows, cells, hashes, seed) if cells < rows else Plan(rows, rows, 0, seed)


class Found(NamedTuple):
    """The ``ids`` of a union, how it was asked, and what the secure sum cost."""

    ids: NDArray[np.int64]
    plan: Plan
    outcome: Outcome


def union(
    held: Sequence[object],
    rows: int,
    most: int | None = None,
    rate: float = 1e-3,
    seed: int = 0,
    chosen: Degree | None = None,
    dropouts: Mapping[int, int] | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> Found:
    """The union of the rows that participants hold, by a secure sum in this process.

    ``most`` bounds the size of the union beforehand, for the Bloom filter; None: there is none.
    Rows of those who left before they sent anything are not in it.

    >>> union([[1, 2], [2, 7], [7], []], 10, chosen=Degree(3, 2)).ids
    array([1, 2, 7])
    """
    plan = plan_union(rows, rows if most is None else most, rate, seed)
    vectors = [plan.vector(ids, random) for ids in held]
    outcome = secure_sum(vectors, plan.parts, chosen, dropouts, random)
    return Found(plan.members(outcome.total), plan, outcome)


def answers(
    how: Answers, held: object, union: object, secret: bytes, round: int, table: str
) -> NDArray[np.int64]:
    """The ids of the union that a client fetches in a round, ascending.

    The permanent answers are a keyed hash (AES-256) of the client's 32 secret bytes, the table's
    name and the row: nothing has to be stored, and the same secret must be used for ever.  So are
    those of a round: whoever asks twice gets the same answer.  The rows that a client holds must
    stay the same, too: an answer that changes with them is another one.

    >>> answers(Answers(), [3], [1, 3, 5], b"s" * 32, 0, "item")
    array([1, 3, 5])
    >>> answers(Answers(1, 0, 1, 0), [3, 4], [1, 3, 5], b"s" * 32, 0, "item")
    array([3])
    """
    for name, value in zip(how._fields, how, strict=True):
        if not 0 <= value <= 1:
            raise InputError(f"{name}={value} is no probability: give a number from 0 to 1")
    if len(secret) != 32:
        raise InputError(f"a client's secret has 32 bytes, not {len(secret)}")
    ids, own = _ids(union), _ids(held)
    memo = uniform(ids, secret, f"permanent {table}")
    yes = memo < np.where(np.isin(ids, own), how.p1, how.p2)
    now = uniform(ids, secret, f"round {round} {table}")
    return ids[now < np.where(yes, how.p3, how.p4)]


def uniform(ids: NDArray[np.int64], secret: bytes, use: str) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, by the secret and what it is for."""
    words = np.frombuffer(key_stream(derive(secret, use.encode()), counters(ids)), "<u8")
    return (words[::2] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _ids(given: object, rows: int | None = None) -> NDArray[np.int64]:
    """Ids, ascending and each once."""
    ids = np.unique(np.asarray(given, np.int64))
    if len(ids) and (ids[0] < 0 or (rows is not None and ids[-1] >= rows)):
        raise InputError(
            f"row ids from {ids[0]} to {ids[-1]} are not in the table"
            f"{'' if rows is None else f' of {rows} rows'}: give ids from 0 on"
        )
    return ids
