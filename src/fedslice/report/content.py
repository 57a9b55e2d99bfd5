"""A report: findings in sentences, and sections with tables and pictures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedslice.report import sections as show
from fedslice.report.findings import findings, warnings
from fedslice.report.people import clients
from fedslice.report.picture import Picture
from fedslice.report.records import Record
from fedslice.report.sections import Section
from fedslice.report.study import study
from fedslice.report.tables import Table


class Report(NamedTuple):
    """All of it; ``repeat`` has the command of every run, if it is known."""

    title: str
    lead: str
    findings: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    repeat: Mapping[str, str]

    def _repr_html_(self) -> str:
        from fedslice.report.page import notebook  # which draws reports

        return notebook(self)

    @property
    def tables(self) -> list[Table]:
        """Every table."""
        return [table for section in self.sections for table in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        """Every picture."""
        return [picture for section in self.sections for picture in section.pictures]


def content(records: Sequence[Record], figure: str | None = None) -> Report:
    """The report of these runs; cells are chosen by ``figure``."""
    known = study(records, figure)
    first = known.records[0]
    seeds = sorted({record.seed for record in known.records})
    lead = (
        f"{first.known.get('data', '')}: {len(known.final)} algorithms,"
        f" {len(known.cells)} cells, {len(known.records)} runs of up to {known.budgets[-1]} rounds;"
        f" seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."
    )
    sections = [
        show.results(known),
        show.curves(known),
        show.tuning(known),
        show.heat(known),
        clients(known),
        show.privacy(known),
        show.runs(known),
    ]
    commands = {
        str(record.folder): str(record.about["command"])
        for record in known.records
        if record.about.get("command")
    }
    return Report(
        str(first.known["task"]),
        lead,
        findings(known),
        warnings(known),
        [section for section in sections if section.tables or section.pictures],
        commands,
    )
