"""Early stopping: a run ends when so many evaluations brought no better validation loss."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedslice.cli.folder import Line
from fedslice.errors import InputError


class Patience(NamedTuple):
    """With 0 ``evaluations`` a run goes on to its last round, and no round is the best one."""

    evaluations: int

    def check(self, validated: bool) -> None:
        """Refuse what cannot be waited for."""
        if self.evaluations < 0 or (self.evaluations and not validated):
            raise InputError(
                f"--patience {self.evaluations} waits for a better validation loss: give a whole"
                " number, and hold out a validation set, --validation 0.1"
            )

    def best(self, lines: Sequence[Line]) -> int | None:
        """The first of the rounds with the least validation loss; None without patience.

        >>> lines = [{"round": n, "validation_loss": x} for n, x in ((0, 0.7), (5, 0.5), (9, 0.5))]
        >>> Patience(2).best(lines), Patience(0).best(lines)
        (5, None)
        """
        known = [each for each in lines if math.isfinite(each.get("validation_loss", math.nan))]
        if not self.evaluations or not known:
            return None
        return int(min(known, key=lambda line: line["validation_loss"])["round"])

    def ended(self, lines: Sequence[Line]) -> bool:
        """Whether the last evaluations brought nothing better."""
        best = self.best(lines)
        later = [line for line in lines if best is not None and line["round"] > best]
        return bool(self.evaluations) and len(later) >= self.evaluations

    def told(self, lines: Sequence[Line], early: bool) -> Line:
        """What a run that has ended, perhaps ``early``, says of it."""
        best = self.best(lines)
        found: Line = {} if best is None else {"best_round": best}
        if early:
            found["stopped"] = f"no better validation loss in {self.evaluations} evaluations"
            found["patience"] = self.evaluations
        return found
