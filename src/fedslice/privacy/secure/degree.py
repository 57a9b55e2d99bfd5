"""How many neighbours a participant needs, and how many of them can rebuild its masks.

n clients stand on a ring in random order; each is joined to the k/2 before and the k/2 after it (a
random Harary graph; Bell et al. 2020, section 3).  Of the n at most c = floor(gamma n) are corrupt
and at most d = floor(delta n) drop out, whoever they are; the order is drawn after that.  Three
things must hold (their definition of a good graph), each up to a small probability:

    E1  no honest client has t corrupt neighbours, who could rebuild its masks on their own
    E2  the honest clients that stay are connected, or else sums of single components come to light
    E3  every client has t neighbours that stay, who can rebuild its masks

The neighbours of one client are k out of the n - 1 others, all sets equally likely.  So the number
of corrupt ones is hypergeometric, X ~ H(n - 1, c, k), and of those that stay
Y ~ H(n - 1, n - d - 1, k); a union bound over n clients gives (their lemmas bound the same tails by
exponentials)

    n P[X >= t] <= 2^-(security + 1)        n P[Y < t] <= 2^-correctness

To part a ring, two runs of k/2 clients each must be gone, with somebody on either side of them:
n (n - k - 1) / 2 pairs of runs, each gone with probability C(c + d, k) / C(n, k).  The sum is at
most 2^-(security + 1), too.  All is computed in whole numbers.

With ``active`` the server may lie about who dropped out, and it knows the graph.

It may tell some neighbours of u that u stayed and others that it did not, and so ask for both of
its secrets.  Both need t answers; honest neighbours answer once, so that at most k + X are to be
had.  Hence 2 t > k + X (Bonawitz et al. 2017, section 6.2: k = n and t > (n + corrupt) / 2).

It may say that just those dropped out who hold the ring together.  But a participant answers only
if t of its neighbours stayed.  Take two honest ones, each the first after a gap: of the k/2 before
each at most k - t dropped out, the others are corrupt, at least t - k/2.  So the ring can be parted
only where two disjoint runs have 2 t - k corrupt clients together, and

    n (n - k - 1) / 2 P[H(n, c, k) >= 2 t - k] <= 2^-(security + 1)

stands in the place of E2.  Where the graph is complete, nothing is random and nothing comes apart.
"""

from fractions import Fraction
from functools import cache
from math import comb
from typing import NamedTuple

from fedslice.errors import InputError

COMPLETE = 32
"""Up to so many clients everybody is everybody's neighbour: a sparse graph saves little, and its
probabilities are coarse."""


class Degree(NamedTuple):
    """So many ``neighbours`` for everybody, of whom ``threshold`` can rebuild a mask."""

    neighbours: int
    threshold: int


@cache
def degree(
    clients: int,
    corrupt: float = 0.1,
    dropout: float = 0.1,
    security: int = 40,
    correctness: int = 30,
    active: bool = True,
    complete: bool = False,
) -> Degree:
    """The fewest neighbours, with the smallest threshold, for shares of ``corrupt`` clients and of
    clients that ``dropout``.

    With probability 2^-``security`` privacy can fail (beyond the cryptography), with
    2^-``correctness`` the sum cannot be opened.  ``active``: the server may lie about who dropped
    out.  ``complete``: everybody is everybody's neighbour.

    >>> degree(1000), degree(1000, active=False)
    (Degree(neighbours=120, threshold=83), Degree(neighbours=52, threshold=28))
    >>> degree(20)
    Degree(neighbours=19, threshold=11)
    """
    _check(clients, corrupt, dropout, security, correctness)
    bad, gone = _share(corrupt, clients), _share(dropout, clients)
    sparse = range(2, clients - 1, 2) if clients > COMPLETE and not complete else ()
    for neighbours in (*sparse, clients - 1):
        threshold = secure_threshold(clients, neighbours, bad, gone, security, active)
        if threshold is None:
            continue
        tail = lower_tail(clients - 1, clients - 1 - gone, neighbours, threshold)
        if clients * tail <= Fraction(1, 2**correctness):
            return Degree(neighbours, threshold)
    raise InputError(
        f"no graph of {clients} clients withstands {bad} that are corrupt and {gone} that drop out"
        f"{', with a server that may lie' if active else ''}: take more clients, or smaller shares"
    )


def secure_threshold(
    clients: int, neighbours: int, corrupt: int, gone: int, security: int, active: bool
) -> int | None:
    """The smallest threshold with which E1 and E2 hold for this graph, or None if there is none.

    >>> secure_threshold(1000, 52, 100, 100, 40, active=False)
    28
    """
    most = Fraction(1, 2 ** (security + 1))
    beyond = quantile(clients - 1, corrupt, neighbours, most / clients)
    pairs = Fraction(clients * (clients - neighbours - 1), 2)
    if active:
        if pairs:
            beyond = max(beyond, quantile(clients, corrupt, neighbours, most / pairs))
        threshold = -(-(neighbours + beyond) // 2)
    else:
        run = Fraction(comb(corrupt + gone, neighbours), comb(clients, neighbours))
        if pairs * run > most:
            return None
        threshold = beyond
    # With one share a neighbour alone would know a mask.
    return max(2, threshold) if threshold <= neighbours else None


def quantile(population: int, marked: int, drawn: int, probability: Fraction) -> int:
    """The smallest x with P[X >= x] <= probability, where X counts the marked among so many drawn
    without replacement.

    >>> quantile(4, 2, 2, Fraction(1, 6)), quantile(4, 2, 2, Fraction(1, 7))
    (2, 3)
    """
    most = probability * comb(population, drawn)
    found, ways = min(marked, drawn) + 1, 0
    while found > 0:
        ways += comb(marked, found - 1) * comb(population - marked, drawn - found + 1)
        if ways > most:
            break
        found -= 1
    return found


def lower_tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[X < least] of the same X.

    >>> lower_tail(4, 2, 2, 1)
    Fraction(1, 6)
    """
    first = max(0, drawn - (population - marked))
    counts = range(first, min(least, marked + 1, drawn + 1))
    ways = sum(comb(marked, each) * comb(population - marked, drawn - each) for each in counts)
    return Fraction(ways, comb(population, drawn))


def _share(part: float, clients: int) -> int:
    """floor(part * clients) with the part as it is written: 0.29 of 100 is 29."""
    return int(Fraction(repr(float(part))) * clients)


def _check(clients: int, corrupt: float, dropout: float, security: int, correctness: int) -> None:
    if clients < 3:
        raise InputError(
            f"a secure sum of {clients} clients hides nothing from one of them: take 3 or more"
        )
    if not (0 <= corrupt < 1 and 0 <= dropout < 1):
        raise InputError(
            f"corrupt={corrupt} and dropout={dropout} are shares of the clients: give numbers from"
            " 0 to below 1"
        )
    if security < 1 or correctness < 1:
        raise InputError(
            f"security={security} and correctness={correctness} are exponents, 40 for 2^-40: give"
            " positive whole numbers"
        )
