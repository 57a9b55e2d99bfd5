"""What happened in one round of a deployment, by name."""

from collections.abc import Mapping
from typing import NamedTuple


class Report(NamedTuple):
    """Who was asked, who counted and who did not and why, and the bytes that were really sent.

    ``late`` nodes sent nothing in time, ``spare`` ones were asked to be on the safe side and not
    needed.  A round that is not ``accepted`` changed nothing, and is tried again.

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

    def __str__(self) -> str:
        done = f"{len(self.counted)} of {len(self.asked)} nodes counted"
        text = f"round {self.round}: {done}, loss {self.loss:.4f}"
        if not self.accepted:
            text = f"round {self.round} is not accepted: {done}"
        if self.excluded:
            named = [f"{name} ({why})" for name, why in self.excluded.items()]
            text += f"; left out: {', '.join(named)}"
        return text + (f"; late: {', '.join(self.late)}" if self.late else "")
