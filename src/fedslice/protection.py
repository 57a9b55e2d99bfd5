"""What protects clients, as parts say it and accountants read it: noise, answers about rows, and
what goes around messages.
"""

from collections.abc import Callable, Mapping
from math import inf, log
from typing import Any, NamedTuple


class Noise(NamedTuple):
    """What a stage adds to sums so that they are differentially private, as an accountant reads it:
    ``multiplier`` is the standard deviation over the most that one client can change, for clients
    that are drawn as ``sampling`` says, ``clients`` of them on average (None: all).  ``kind`` is
    ``"gaussian"``, ``"skellam"``, ``"local"`` or ``"matrix"``; ``details`` are what such a
    mechanism has beside, ``rounds`` the most that it is made for (None: any number), ``cycle`` the
    rounds from one in which a client takes part to the next, at least.

    >>> Noise("gaussian", 1.0, "poisson", 50).multiplier
    1.0
    """

    kind: str
    multiplier: float
    sampling: str
    clients: float | None
    details: Mapping[str, Any] = {}
    rounds: int | None = None
    cycle: int = 1

    @property
    def made_by(self) -> str:
        """The function of ``fedslice.privacy`` that one gets it from.

        >>> Noise("skellam", 1.0, "uniform", 50).made_by
        'distributed'
        """
        ways = {"gaussian": "central", "skellam": "distributed"}
        return "lazy" if "stages" in self.details else ways.get(self.kind, self.kind)


class OwnNoise(NamedTuple):
    """Noise of the clients' own, where they are apart: ``add(update, key)`` is what each of them
    does to its update of all rows, also to one of zeros; ``decode`` is the server's half of the
    stage for a sum that has it.  A simulation draws the sum of it on the server's side, the same
    in law.
    """

    add: Callable[[Any, Any], Any]
    decode: Callable[[Any, Any, Any], tuple[Any, Any]]


HIDDEN = ("named", "union", "all")
"""Which rows travel, from what tells the most about a client to what tells nothing."""


class Answers(NamedTuple):
    """What a client says of each row of its cohort's union, so that its rows can be denied: yes for
    good with probability ``p1`` if it holds the row, ``p2`` if not, and on top of that in each
    round with ``p3`` after a yes, ``p4`` after a no (see :mod:`fedslice.privacy.rows`).  With all
    four 1 every client takes the whole union.

    >>> answers = Answers(7 / 8, 1 / 8, 7 / 8, 1 / 8)
    >>> round(answers.p5, 2), round(answers.eps_1, 2), round(answers.eps_inf, 2)
    (0.78, 1.27, 1.95)
    """

    p1: float = 1.0
    p2: float = 1.0
    p3: float = 1.0
    p4: float = 1.0

    @property
    def p5(self) -> float:
        """The probability of a yes in one round for a row that is held."""
        return self.p1 * (self.p3 - self.p4) + self.p4

    @property
    def p6(self) -> float:
        """The same for a row that is not."""
        return self.p2 * (self.p3 - self.p4) + self.p4

    @property
    def eps_1(self) -> float:
        """What one round's answer tells about a row."""
        return _deniable(self.p5, self.p6)

    @property
    def eps_inf(self) -> float:
        """What the answers of any number of rounds tell about a row, at most."""
        return _deniable(self.p1, self.p2)

    @property
    def everything(self) -> bool:
        """Whether all rows of the union are taken."""
        return self == Answers()


def _deniable(p: float, q: float) -> float:
    """The larger of the log ratios of two answers' probabilities."""
    ratios = [(p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)]
    return log(max(above / below if below > 0 else inf for above, below in ratios if above > 0))


class Around(NamedTuple):
    """What a cohort adds up: how many clients, and for each table its rows, those of the union and
    the numbers of a row; ``dense`` numbers beside."""

    clients: int
    rows: Mapping[str, int]
    union: Mapping[str, int]
    widths: Mapping[str, int]
    dense: int
