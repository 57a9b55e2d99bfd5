"""Runs of one task, and what is chosen among them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedslice.errors import InputError
from fedslice.report.records import Cell, Record, cells, check_alike, figures
from fedslice.report.selection import Chosen, Judge, budgets, choose, judge_of, rounds_to

TEST_LOSS = "test_loss"


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
        """The figures of the test set, the loss first; none that is the loss by another name."""
        names = [
            name
            for name in figures(self.records[0].lines[-1])
            if name != "train_loss" and not name.startswith(("validation_", "gain_"))
        ]
        return [name for name in names if name == TEST_LOSS or not self.is_loss(name)]

    def is_loss(self, name: str) -> bool:
        """Whether a figure is the test loss by another name."""
        lines = [line for record in self.records for line in record.lines]
        return all(line.get(name, 0) == line.get(TEST_LOSS, 1) for line in lines)


def study(records: Sequence[Record], figure: str | None = None) -> Study:
    """Choose among runs of one task."""
    check_alike(records)
    measured = [record for record in records if record.lines]
    judge, limits = judge_of(measured, figure), budgets(measured)
    groups = cells(measured)
    chosen = {limit: choose(groups, judge, limit) for limit in limits}
    limits = [limit for limit in limits if chosen[limit]]
    if not limits:
        raise InputError("no cell has come far enough with all its seeds: let them train first")
    return Study(measured, groups, judge, limits, chosen)


def target_of(known: Study) -> Mapping[str, Any] | None:
    """The task's target, if it has one."""
    found = (record.evaluation.get("target") for record in known.records)
    return next((target for target in found if target), None)


def rounds_of(cell: Cell, target: Mapping[str, Any]) -> list[int | None]:
    """The rounds to a target, seed by seed; None: not reached."""
    return [rounds_to(run, target["metric"], target["value"], target["below"]) for run in cell.runs]
