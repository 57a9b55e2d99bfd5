"""A report: findings in sentences, and sections with tables and pictures."""

from collections.abc import Sequence

from fedslice.report import sections as show
from fedslice.report.findings import findings, warnings
from fedslice.report.page import Report
from fedslice.report.people import clients
from fedslice.report.records import Record
from fedslice.report.study import study


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
