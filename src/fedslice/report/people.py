"""What a report shows of clients: how figures are spread over them, and over groups of them."""

import math
from collections.abc import Mapping
from typing import Any

from fedslice.report import figures as draw
from fedslice.report.records import Record
from fedslice.report.sections import Section, columns_best
from fedslice.report.study import Study
from fedslice.report.tables import Table
from fedslice.report.words import words

DECILES = tuple(range(10, 100, 10))


def clients(known: Study) -> Section:
    """The spread over clients, and groups of them."""
    names = list(
        dict.fromkeys(
            figure for record in known.records for figure in record.evaluation.get("clients", {})
        )
    )
    names = [name for name in names if name == "loss" or not _is_loss(known, name)]
    tables, pictures = [], []
    for figure in names:
        tables.append(_deciles(known, figure))
        picture = draw.by_client(known.final, figure)
        pictures += [picture] if picture else []
    tables += [
        table for figure in names[:2] for table in _group_tables(known, figure) if table.rows
    ]
    return Section("Client by client", "", tables, pictures)


def _is_loss(known: Study, figure: str) -> bool:
    """Whether it is the loss by another name."""
    each = [record.evaluation.get("clients", {}) for record in known.records]
    return all(one.get(figure) == one.get("loss") for one in each)


def _deciles(known: Study, figure: str) -> Table:
    rows = []
    for name, one in known.final.items():
        each = [
            run.evaluation["clients"][figure]
            for run in one.best.runs
            if figure in run.evaluation.get("clients", {})
        ]
        if each:
            found = [[e["mean"], e["worst"], *(e["percentiles"][d] for d in DECILES)] for e in each]
            means = [sum(some) / len(some) for some in zip(*found, strict=True)]
            rows.append([name, *(f"{mean:.4f}" for mean in means)])
    head = ["algorithm", "mean", "worst client", *(f"{decile} %" for decile in DECILES)]
    title = f"{words(figure, first=True)} over clients"
    note = "Mean over seeds. 10 %: a tenth of the clients have this figure or a smaller one."
    return Table(f"clients-{figure}", title, head, rows, note, 1)


def _group_tables(known: Study, figure: str) -> list[Table]:
    """One figure by the size of clients, and by what the data tell of them."""
    columns = [name for run in known.records for name in run.evaluation.get("by_group", {})]
    kinds = dict.fromkeys(["size", "turns", *columns])
    rising = {name for record in known.records for name in record.evaluation.get("more", ())}
    found = []
    for kind in kinds:
        labels: list[str] = []
        rows, values = [], []
        for name, one in known.final.items():
            told = [group for run in one.best.runs if (group := _groups(run, kind))]
            told = [group for group in told if figure in group["figures"]]
            if not told:
                continue
            labels = labels or [
                f"{word} ({count:,} clients)"
                for word, count in zip(told[0]["names"], told[0]["clients"], strict=True)
            ]
            each = [group["figures"][figure] for group in told]
            means = [sum(some) / len(some) for some in zip(*each, strict=True)]
            rows.append([name, *("" if math.isnan(mean) else f"{mean:.4f}" for mean in means)])
            values.append(means)
        best = frozenset(
            (row, column + 1)
            for row, column in columns_best(values, [figure in rising] * len(labels))
        )
        by = {"size": "the client's size", "turns": "how often a client took part"}.get(kind, kind)
        title = f"{words(figure, first=True)} by {words(by)}"
        note = "Mean over the clients of a group, and over seeds."
        head = ["algorithm", *labels]
        found.append(Table(f"clients-{figure}-by-{kind}", title, head, rows, note, 1, best))
    return found


def _groups(run: Record, kind: str) -> Mapping[str, Any] | None:
    if kind in ("size", "turns"):
        return run.evaluation.get(f"by_{kind}")
    found: Mapping[str, Any] | None = run.evaluation.get("by_group", {}).get(kind)
    return found
