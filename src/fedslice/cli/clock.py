"""What the time of a run goes into, and when it is time to save."""

import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedslice.errors import InputError

SAVE_EVERY = 20.0  # seconds between checkpoints, unless FEDSLICE_SAVE_EVERY says otherwise


class Clock:
    """Steady-state time a round, from laps without the first round, which compiles; what took how
    long; and when to save."""

    def __init__(self, saves: bool) -> None:
        self.compile_s = 0.0
        self.compiled = False
        self.laps: list[tuple[float, int]] = []
        # computing is what training took beside the host's planning, for both go on at once
        parts = "compiling", "planning", "computing", "evaluating", "saving"
        self.time = dict.fromkeys(parts, 0.0)
        self.saved = time.perf_counter()
        text = os.environ.get("FEDSLICE_SAVE_EVERY", str(SAVE_EVERY))
        try:
            self.every = float(text) if saves else math.inf
        except ValueError:
            raise InputError(f"FEDSLICE_SAVE_EVERY={text!r} must be a number of seconds") from None

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Time spent on something beside the rounds."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.time[part] += time.perf_counter() - begun

    def lap(self, seconds: float, rounds: int, planning: float) -> None:
        """Some rounds, and how much of their time the host planned."""
        if self.compiled:
            self.laps.append((seconds, rounds))
            self.time["planning"] += planning
            self.time["computing"] += seconds - planning
        else:
            self.compiled, self.compile_s = True, seconds
            self.time["compiling"] += seconds

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.perf_counter() - self.saved >= self.every

    def ms_per_round(self) -> float | None:
        """The median over laps; None if the first round was the only one."""
        rates = [1e3 * seconds / rounds for seconds, rounds in self.laps if rounds]
        return statistics.median(rates) if rates else None


def shares(time: Mapping[str, float]) -> str:
    """What the time of a run, in seconds, went into.

    >>> shares({"planning": 1.0, "computing": 2.5, "evaluating": 0.5, "saving": 0.0})
    'planning 25 %, computing 62 %, evaluating 12 % of 4.0 s'
    """
    total = sum(time.values())
    each = [f"{name} {spent / total:.0%}" for name, spent in time.items() if spent]
    return f"{', '.join(each)} of {total:.1f} s".replace("%", " %") if total else ""
