"""What happened in one round of a deployment, by name."""

from collections.abc import Mapping
from math import isnan
from typing import NamedTuple


class Report(NamedTuple):
    """Who was asked, who counted and who did not and why, and the bytes that were really sent.

    ``late`` nodes sent nothing in time, ``spare`` ones were asked to be on the safe side and not
    needed.  A round that is not ``accepted`` changed nothing, and is tried again.

    In a secure sum a node may have counted and be left out of later turns, and ``why`` says what
    ended a sum that was not opened; where noise protects nodes their loss is not told, and is nan.

    >>> report = Report(3, True, ("a", "b"), ("a",), {"b": "numbers that are not finite"})
    >>> print(report)
    round 3: 1 of 2 nodes counted, loss 0.0000; left out: b (numbers that are not finite)
    """

    round: int
    accepted: bool
    asked: tuple[str, ...]
    counted: tuple[str, ...]
    excluded: Mapping[str, str] = {}
    late: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    loss: float = 0.0
    update_norm: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    why: str = ""

    def __str__(self) -> str:
        done = f"{len(self.counted)} of {len(self.asked)} nodes counted"
        text = f"round {self.round}: {done}"
        if not isnan(self.loss):
            text += f", loss {self.loss:.4f}"
        if not self.accepted:
            text = f"round {self.round} is not accepted: {done}"
        if self.why:
            text += f" ({self.why})"
        if self.excluded:
            named = [f"{name} ({why})" for name, why in self.excluded.items()]
            text += f"; left out: {', '.join(named)}"
        return text + (f"; late: {', '.join(self.late)}" if self.late else "")
