"""What happened in one round of a simulation."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedslice.round.figures import REPORT, Figures


class Report(NamedTuple):
    """What happened in one round.  Rounds are computed several at a time: reading a figure has this
    one computed, if it is not yet, and waits for it."""

    round: int
    clients: int
    examples: int
    bytes_down: int
    look: Callable[[], Figures]
    sent: Callable[[Figures], int]

    @property
    def figures(self) -> Figures:
        """What the round itself reports."""
        return self.look()

    @property
    def bytes_up(self) -> int:
        """What the clients sent; where codes leave numbers out, that is known after the round."""
        return self.sent(self.figures)

    @property
    def loss(self) -> float:
        """Mean training loss of the cohort during its local steps."""
        return self._value("loss")

    @property
    def start_loss(self) -> float:
        """Training loss of the cohort's first batches: the global model's before the round."""
        return self._value("start_loss")

    @property
    def failed(self) -> int:
        """Clients whose update or loss was not finite; they had weight zero."""
        return int(self._value("failed"))

    @property
    def update_norm(self) -> float:
        """L2 norm of the aggregated update."""
        return self._value("update_norm")

    def _value(self, name: str) -> float:
        return float(np.asarray(self.figures.values)[REPORT.index(name)])

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"round {self.round}: {self.clients} clients{failed}, loss {self.loss:.4f}"
