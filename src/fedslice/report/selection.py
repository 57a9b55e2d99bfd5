"""Which cell of a grid, for which budget: chosen on validation, reported on test.

For every algorithm and every budget of rounds the cell with the best mean validation figure over
seeds is chosen; what is reported is its *test* figure (Wang et al., A Field Guide to Federated
Optimization, 2021, 4.1).  The second-best cell says how much the choice matters.  Rates are judged
jointly, as cells of one grid.  Where a chosen value is the first or last of those tried, the
optimum may lie outside, and that is said.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.report.records import Cell, Line, Record

VALIDATION = "validation_"


class Judge(NamedTuple):
    """By which figure cells are chosen; with ``more`` a larger one is better."""

    figure: str
    more: bool

    def better(self, one: float, two: float) -> bool:
        """Whether ``one`` is better than ``two``; what is no number is worst.

        >>> Judge("loss", False).better(0.5, 0.7), Judge("auc", True).better(math.nan, 0.1)
        (True, False)
        """
        if math.isnan(one) or math.isnan(two):
            return math.isnan(two) and not math.isnan(one)
        return one > two if self.more else one < two

    @property
    def held_out(self) -> bool:
        """Whether it was measured on validation data."""
        return self.figure.startswith(VALIDATION)


class Chosen(NamedTuple):
    """The best cell of an algorithm within a budget, and the second best, if there are two."""

    algorithm: str
    budget: int
    best: Cell
    second: Cell | None


class Edge(NamedTuple):
    """A grid's end at which an algorithm's best cell lies."""

    algorithm: str
    setting: str
    value: Any
    lowest: bool

    def __str__(self) -> str:
        end = "lowest" if self.lowest else "highest"
        return (
            f"{self.algorithm}: the best {self.setting}, {self.value:g}, is the {end} that was"
            " tried; the optimum may lie beyond (--extend tries it)"
        )


def judge_of(records: Sequence[Record], figure: str | None = None) -> Judge:
    """By the ``figure`` asked for, else by validation loss, and where there is no validation set by
    the training loss: never by the test set."""
    known = dict.fromkeys(key for record in records for line in record.lines for key in line)
    rising = {name for record in records for name in record.evaluation.get("more", ())}
    if figure is None:
        figure = f"{VALIDATION}loss" if f"{VALIDATION}loss" in known else "train_loss"
    if figure not in known:
        raise InputError(f"no run has the figure {figure!r}, they have {', '.join(known)}")
    return Judge(figure, figure.removeprefix(VALIDATION).removeprefix("test_") in rising)


def budgets(records: Sequence[Record]) -> list[int]:
    """A quarter, a half and all of the rounds that the longest run had, where it was measured."""
    rounds = sorted({line["round"] for record in records for line in record.lines})
    if not rounds or rounds[-1] < 1:
        raise InputError("these runs have no figures yet: let them train first")
    wanted = (rounds[-1] / 4, rounds[-1] / 2, rounds[-1])
    return list(
        dict.fromkeys(min((r for r in rounds if r > 0), key=lambda r: abs(r - w)) for w in wanted)
    )


def over_seeds(cell: Cell, figure: str, budget: int) -> tuple[float, float]:
    """Mean and standard deviation over seeds of a figure within a budget; NaN for a cell of which
    a run diverged or has not come so far."""
    found = [_figure(run.at(budget), figure) for run in cell.runs]
    if not found or any(math.isnan(value) for value in found):
        return math.nan, math.nan
    return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0


def _figure(line: Line | None, figure: str) -> float:
    return math.nan if line is None else float(line.get(figure, math.nan))


def choose(cells: Sequence[Cell], judge: Judge, budget: int) -> dict[str, Chosen]:
    """The best and second-best cell of every algorithm of which any cell came so far."""
    found = {}
    for name in dict.fromkeys(cell.algorithm for cell in cells):
        own = [
            (over_seeds(cell, judge.figure, budget)[0], cell)
            for cell in cells
            if cell.algorithm == name
        ]
        ranked = sorted(
            (pair for pair in own if not math.isnan(pair[0])),
            key=lambda pair: -pair[0] if judge.more else pair[0],
        )
        if ranked:
            second = ranked[1][1] if len(ranked) > 1 else None
            found[name] = Chosen(name, budget, ranked[0][1], second)
    return found


def winner(chosen: Mapping[str, Chosen], judge: Judge) -> str:
    """The algorithm whose best cell is best."""
    names = list(chosen)
    best = names[0]
    for name in names[1:]:
        one, two = (
            over_seeds(chosen[each].best, judge.figure, chosen[each].budget)[0]
            for each in (name, best)
        )
        if judge.better(one, two):
            best = name
    return best


def edges(cells: Sequence[Cell], chosen: Mapping[str, Chosen]) -> list[Edge]:
    """Where a chosen number is the first or last of at least two that were tried."""
    found = []
    for name, one in chosen.items():
        for key, value in one.best.varied.items():
            tried = sorted(
                {
                    cell.varied[key]
                    for cell in cells
                    if cell.algorithm == name and _number(cell.varied.get(key))
                }
            )
            if _number(value) and len(tried) > 1 and value in (tried[0], tried[-1]):
                found.append(Edge(name, key, value, bool(value == tried[0])))
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounds_to(run: Record, metric: str, value: float, below: bool) -> int | None:
    """The first evaluated round at which a target was met."""
    for line in run.lines:
        figure = float(line.get(metric, math.nan))
        if figure <= value if below else figure >= value:
            return int(line["round"])
    return None
