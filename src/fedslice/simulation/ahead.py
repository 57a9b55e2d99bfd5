"""Rounds that were planned together, are asked for one by one, and computed when somebody looks;
and how many those are."""

from collections.abc import Callable

import jax
import numpy as np

from fedslice.round.figures import Figures
from fedslice.round.plan import Block, Plan
from fedslice.simulation.counting import Moved
from fedslice.simulation.report import Report

LAG = 8  # rounds, or one block, that may be under way before the oldest one's report is checked,
UNDER_WAY = 1 << 25  # bytes of their plans, of two rounds at least: those are long enough
BLOCK = 1 << 21  # bytes of the plans of a block: what a cache holds,
LONGEST = 16  # and the most rounds of one, so that a run that goes wrong is soon stopped

Wait = Callable[[], Figures]
Step = Callable[[Plan, int, int], Wait]
"""Has the rounds from one number to another of a block computed; what it gives waits for them, and
has the figures of all."""


class Ahead:
    """A block of rounds.  Of its rounds the first ``asked`` have been asked for, and the first
    ``done`` have been handed to the device."""

    def __init__(self, first: int, block: Block, moved: list[Moved], step: Step) -> None:
        self.first, self.traffic, self.moved, self.step = first, block.traffic, moved, step
        self.rounds, self._plans = block.rounds, [block.plans]
        self.asked = self.done = 0
        self._found: list[tuple[int, Wait]] = []  # of each call the end, and its figures
        self._read: dict[int, list[Figures]] = {}

    @property
    def full(self) -> bool:
        """Whether all rounds have been asked for."""
        return self.asked == self.rounds

    def ask(self) -> Report:
        """The next round's report; the round itself is computed by :meth:`compute`, at the latest
        when a figure is read."""
        turn = self.asked
        self.asked += 1
        traffic, moved = self.traffic, self.moved[turn]
        return Report(
            self.first + turn + 1,
            traffic.clients[turn],
            traffic.examples[turn],
            moved.down,
            lambda: self.figures(turn),
            moved.up,
        )

    def compute(self) -> None:
        """Hand all rounds that were asked for to the device, in one call.  After the last of them
        the plans, which are large, are let go: whoever keeps a report keeps none of them."""
        if self.done < self.asked:
            wait = self.step(self._plans[0], self.done, self.asked)
            self.done = self.asked
            if self.done == self.rounds:
                self._plans.clear()
            self._found.append((self.done, wait))

    def figures(self, turn: int) -> Figures:
        """Of one round; waits for it.  Those of all rounds of a call are read at once."""
        self.compute()
        call = next(place for place, (stop, _) in enumerate(self._found) if turn < stop)
        if call not in self._read:
            found = jax.tree.map(np.asarray, self._found[call][1]())
            rows = zip(found.values, *found.items, strict=True)
            self._read[call] = [Figures(values, tuple(items)) for values, *items in rows]
        return self._read[call][turn]


def pace(plan: Plan, blocks: bool) -> tuple[int, int]:
    """How many rounds with plans of this size make a block, where rounds are computed in
    ``blocks``, and how many may be under way."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(plan))
    room = max(1, min(LONGEST, BLOCK // size)) if blocks else 1
    return room, min(LAG, max(2, UNDER_WAY // size))
