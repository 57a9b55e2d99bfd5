"""What is released once beside the training: how many clients hold each row, with noise.

A client holds at most B rows of all tables together, so its indicators have at most B ones.  Their
sum moves by sqrt(B) in L2 norm when a client comes or goes, by sqrt(2 B) when it is replaced.
Randomised response (Warner 1965; as in Ding et al., NeurIPS 2022, appendix F): each client says
"held" of a row with chance p if it holds it, with chance q if not, once and for all.
"""

import math
from dataclasses import dataclass

from fedslice.errors import InputError
from fedslice.privacy.accounting.mechanism import (
    ADD_OR_REMOVE,
    REPLACE,
    THE_SERVER,
    Bits,
    Gaussians,
    Part,
    enough,
    positive,
    whole,
)


@dataclass(frozen=True)
class HeatCounts:
    """The number of clients that hold each row, plus Gaussian noise of standard deviation ``std``.

    A client's ``rows`` are bounded: one that holds more must leave some out.

    >>> HeatCounts(std=40.0, rows=400).noise
    2.0
    """

    std: float
    rows: int
    kind: str = "gaussian"

    neighbours = ADD_OR_REMOVE
    exposed = (THE_SERVER,)

    def __post_init__(self) -> None:
        positive(std=self.std)
        whole(rows=self.rows)
        enough(self.noise)

    @property
    def noise(self) -> float:
        """Its noise multiplier under add-or-remove-one."""
        return self.std / math.sqrt(self.rows)

    @property
    def words(self) -> str:
        """What it is."""
        return (
            f"counts of the rows' holders with {self._named} of {self.std:g}, for clients of at"
            f" most {self.rows} rows"
        )

    @property
    def _named(self) -> str:
        if self.kind == "gaussian":
            return "Gaussian noise"
        return f"{self.kind.capitalize()} noise (taken for Gaussian)"

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """One release."""
        moved = 2 * self.rows if neighbours == REPLACE else self.rows
        return (Gaussians(self.std / math.sqrt(moved)),)


@dataclass(frozen=True)
class HeatAnswers:
    """Randomised response about each row: "held" with chance ``held`` of those that a client
    holds, with chance ``other`` of the others.

    Under add-or-remove-one a client without data still answers, as one that holds nothing.

    >>> answers = HeatAnswers(held=0.75, other=0.25, rows=20)
    >>> round(answers.epsilon_row, 4), round(answers.epsilon_client(ADD_OR_REMOVE), 2)
    (1.0986, 21.97)
    """

    held: float
    other: float
    rows: int

    neighbours = ADD_OR_REMOVE
    exposed = ()

    def __post_init__(self) -> None:
        whole(rows=self.rows)
        if not 0 < self.other < self.held < 1:
            raise InputError(
                f"answers of chances {self.held:g} and {self.other:g}: they must be above 0 and"
                " below 1, and that of a row that is held the larger one"
            )

    @property
    def epsilon_row(self) -> float:
        """Of one row: ln max(p / q, (1 - q) / (1 - p)), with delta zero."""
        return math.log(max(self.held / self.other, (1 - self.other) / (1 - self.held)))

    def epsilon_client(self, neighbours: str) -> float:
        """Of all rows of a client, in the worst case and with delta zero."""
        return self.epsilon_row * (2 if neighbours == REPLACE else 1) * self.rows

    @property
    def words(self) -> str:
        """What it is."""
        return (
            f"randomised answers about each row, yes with chances {self.held:g} and"
            f" {self.other:g}, from clients of at most {self.rows} rows"
        )

    def parts(self, neighbours: str) -> tuple[Part, ...]:
        """The rows that one has; and those that the other has, if one replaces the other."""
        mine = Bits(self.held, self.other, self.rows)
        theirs = Bits(self.other, self.held, self.rows)
        return (mine, theirs) if neighbours == REPLACE else (mine,)
