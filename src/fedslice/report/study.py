"""Runs of one task, and what is chosen among them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedslice.report.records import Cell, Record, cells, check_alike, figures
from fedslice.report.selection import Chosen, Judge, budgets, choose, judge_of, rounds_to


class Study(NamedTuple):
    """Runs of one task, what was chosen among them for every budget, and by which figure."""

    records: Sequence[Record]
    cells: Sequence[Cell]
    judge: Judge
    budgets: Sequence[int]
    chosen: Mapping[int, Mapping[str, Chosen]]

    @property
    def final(self) -> Mapping[str, Chosen]:
        """The choice for the largest budget."""
        return self.chosen[self.budgets[-1]]

    @property
    def shown(self) -> list[str]:
        """The figures of the test set, the loss first."""
        last = self.records[0].lines[-1]
        return [
            name
            for name in figures(last)
            if name != "train_loss" and not name.startswith(("validation_", "gain_"))
        ]


def study(records: Sequence[Record], figure: str | None = None) -> Study:
    """Choose among runs of one task."""
    check_alike(records)
    measured = [record for record in records if record.lines]
    judge, limits = judge_of(measured, figure), budgets(measured)
    groups = cells(measured)
    return Study(
        measured, groups, judge, limits, {limit: choose(groups, judge, limit) for limit in limits}
    )


def target_of(known: Study) -> Mapping[str, Any] | None:
    """The task's target, if it has one."""
    found = (record.evaluation.get("target") for record in known.records)
    return next((target for target in found if target), None)


def rounds_of(cell: Cell, target: Mapping[str, Any]) -> list[int | None]:
    """The rounds to a target, seed by seed; None: not reached."""
    return [rounds_to(run, target["metric"], target["value"], target["below"]) for run in cell.runs]
