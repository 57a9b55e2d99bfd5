"""What a report shows: its tables and pictures, section by section."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedslice.report import figures as draw
from fedslice.report.picture import Picture
from fedslice.report.records import Cell
from fedslice.report.selection import Judge, over_seeds
from fedslice.report.study import TEST_LOSS, Study, rounds_of, target_of
from fedslice.report.tables import Table
from fedslice.report.words import aim, cell_text, given, plus_minus, words


class Section(NamedTuple):
    """A heading with what stands under it."""

    title: str
    text: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def results(known: Study) -> Section:
    """What was chosen, and what it is worth on the test set."""
    shown, target = known.shown, target_of(known)
    head = ["algorithm", "settings chosen", f"{words(known.judge.figure)}"]
    head += [f"rounds to {aim(target)}"] if target else []
    head += [*map(words, shown), "MB a round"]
    rows, values = [], []
    for name, one in known.final.items():
        mean, spread = over_seeds(one.best, known.judge.figure, known.budgets[-1])
        figures_of = [over_seeds(one.best, figure, known.budgets[-1]) for figure in shown]
        goal = [_reached(rounds_of(one.best, target), known.budgets[-1])] if target else []
        cells_of = [plus_minus(m, s, one.best) for m, s in figures_of]
        chosen = given(one.best, "as published")
        judged = plus_minus(mean, spread, one.best)
        rows.append([name, chosen, judged, *goal, *cells_of, _megabytes(one.best)])
        values.append([mean, *(m for m, _ in figures_of)])
    rising = {name for record in known.records for name in record.evaluation.get("more", ())}
    best = _best(values, [known.judge.more, *(figure in rising for figure in shown)], bool(target))
    rows += _baseline(known, shown, bool(target))
    note = (
        "Mean ± standard deviation over seeds. Settings were chosen by"
        f" {words(known.judge.figure)}; the other figures are of the test set."
    )
    table = Table("results", f"After {known.budgets[-1]} rounds", head, rows, note, 2, best)
    pictures = [_rounds_picture(known, target)] if target else []
    return Section("Results", "", [table, _by_budget(known)], pictures)


def _by_budget(known: Study) -> Table:
    head = ["algorithm", *(f"{limit} rounds" for limit in known.budgets)]
    names = dict.fromkeys(name for each in known.chosen.values() for name in each)
    rows, values = [], []
    for name in names:
        found = [
            over_seeds(known.chosen[limit][name].best, known.judge.figure, limit)
            if name in known.chosen[limit]
            else (math.nan, math.nan)
            for limit in known.budgets
        ]
        last = known.chosen[known.budgets[-1]].get(name)
        rows.append([name, *(plus_minus(m, s, last.best if last else None) for m, s in found)])
        values.append([mean for mean, _ in found])
    best = frozenset(
        (row, column + 1)
        for row, column in columns_best(values, [known.judge.more] * len(known.budgets))
    )
    title = f"{words(known.judge.figure, first=True)} by budget"
    note = "For each budget the best cell is chosen anew."
    return Table("budgets", title, head, rows, note, 1, best)


def _rounds_picture(known: Study, target: Mapping[str, Any]) -> Picture:
    values = {}
    for name, one in known.final.items():
        found = rounds_of(one.best, target)
        met = [number for number in found if number is not None]
        all_met = len(met) == len(found)
        values[name] = (sum(met) / len(met) if all_met else known.budgets[-1], all_met)
    caption = "Mean over seeds; pale: not reached by all seeds within the budget."
    return draw.bars(values, "rounds", "rounds-to-target", f"Rounds to {aim(target)}", caption)


def curves(known: Study) -> Section:
    """Figures against rounds, examples, bytes and estimated time."""
    lines = [line for record in known.records for line in record.lines[:1]]
    wanted = list(dict.fromkeys([known.judge.figure, *known.shown[:2]]))
    pictures = [
        draw.curves(known.final, figure, "rounds", f"curve-{figure}".replace("_", "-"))
        for figure in wanted
        if any(figure in line for line in lines)
    ]
    main = known.shown[0]
    for axis in ("examples", "bytes", "time"):
        if any(draw.AXES[axis][1] in line for line in lines):
            pictures.append(draw.curves(known.final, main, axis, f"curve-{axis}"))
    return Section("Learning curves", "", (), pictures)


def tuning(known: Study) -> Section:
    """The figure that cells were chosen by, over the grid."""
    pictures = [
        picture
        for name in known.final
        if (picture := draw.grid(known.cells, name, known.judge, known.budgets[-1])) is not None
    ]
    if not pictures:
        return Section("Tuning", "")
    keys = list(dict.fromkeys(key for cell in known.cells for key in cell.varied))
    rows = []
    for cell in known.cells:
        mean, spread = over_seeds(cell, known.judge.figure, known.budgets[-1])
        text = "diverged" if math.isnan(mean) else plus_minus(mean, spread, cell)
        rows.append([cell.algorithm, *(cell_text(cell.varied.get(key)) for key in keys), text])
    head = ["algorithm", *map(words, keys), words(known.judge.figure)]
    table = Table("cells", "Every cell of the grid", head, rows, "", 1)
    return Section("Tuning", "", [table], pictures)


def heat(known: Study) -> Section:
    """The test loss by the heat of what examples read."""
    thirds, tenths = (
        {
            name: [run.evaluation[kind] for run in one.best.runs if run.evaluation.get(kind)]
            for name, one in known.final.items()
        }
        for kind in ("by_heat", "by_heat_fine")
    )
    if not any(thirds.values()):
        return Section("Cold and hot", "")
    picture = draw.by_heat(tenths)
    data = next((r.evaluation["heat"] for r in known.records if r.evaluation.get("heat")), None)
    pictures = [*([picture] if picture else []), *([draw.heat_histogram(data)] if data else [])]
    text = (
        "An average over all examples hides what heat correction is for: rows that few clients"
        " hold."
    )
    return Section("Cold and hot", text, [heat_table(thirds)], pictures)


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}–{high}"


def heat_table(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The loss of cold, warm and hot examples, for the runs of each algorithm."""
    known = {name: each for name, each in measured.items() if each}
    groups = next(iter(known.values()))[0]
    labels = [
        name if name == "unseen" else f"{name} ({_span(low, high)} clients)"
        for name, (low, high) in zip(groups["names"], groups["spans"], strict=True)
    ]
    rows, values = [], []
    for name, each in known.items():
        losses = [[one["figures"]["loss"][place] for one in each] for place in range(len(labels))]
        means = [sum(some) / len(some) for some in losses]
        rows.append([name, *(f"{mean:.4f}" for mean in means)])
        values.append(means)
    best = frozenset((r, c + 1) for r, c in columns_best(values, [False] * len(labels)))
    note = (
        "Mean test loss of the examples whose coldest row is held by so many training clients:"
        " thirds of the test set, and examples with a row that no training client holds."
    )
    return Table("by-heat", "Held-out loss by heat", ["algorithm", *labels], rows, note, 1, best)


def privacy(known: Study) -> Section:
    """What each algorithm guarantees, where one is private."""
    rows = []
    for name, one in known.final.items():
        told = next((run.privacy for run in one.best.runs if run.privacy), None)
        if told:
            rows.append([name, cell_text(told.get("epsilon")), cell_text(told.get("delta"))])
    note = "User-level differential privacy of the whole run, as its accountant says."
    table = Table("privacy", "Privacy", ["algorithm", "epsilon", "delta"], rows, note, 1)
    return Section("Privacy", "", [table] if rows else ())


def runs(known: Study) -> Section:
    """Settings, data and versions."""
    rows = []
    for record in known.records:
        versions = record.about.get("versions", {})
        last = record.lines[-1]["round"]
        state = "diverged" if record.diverged else f"{last} rounds"
        shown = ", ".join(f"{name} {number}" for name, number in versions.items())
        about = record.about.get("data", {})
        data = cell_text(about.get("hash", ""))[:12]
        rows.append([str(record.folder), state, data, record.about.get("commit", ""), shown])
    settings = [
        [
            name,
            ", ".join(
                f"{key} {cell_text(value)}" for key, value in one.best.runs[0].settings.items()
            ),
        ]
        for name, one in known.final.items()
    ]
    chosen = Table(
        "settings", "Settings of the chosen cells", ["algorithm", "ran with"], settings, "", 2
    )
    head = ["folder", "state", "data", "commit", "versions"]
    note = "Data: the first digits of a hash. Commit: of the repository that it was run in."
    return Section("Runs", "", [chosen, Table("runs", "Every run", head, rows, note, 5)])


def _reached(found: Sequence[int | None], budget: int) -> str:
    return ", ".join(f"{budget}+" if number is None else str(number) for number in found)


def _megabytes(cell: Cell) -> str:
    last = [run.lines[-1] for run in cell.runs]
    moved = [(line["bytes_down"] + line["bytes_up"]) / max(1, line["round"]) for line in last]
    return f"{sum(moved) / len(moved) / 1e6:.3f}"


def _baseline(known: Study, shown: Sequence[str], target: bool) -> list[list[str]]:
    first = known.records[0].lines[0]
    given = {
        key.removeprefix("baseline_"): value
        for key, value in first.items()
        if key.startswith("baseline_")
    }
    if not given:
        return []
    loss = next((given[name] for name in given if name == "loss" or known.is_loss(name)), None)
    given |= {} if loss is None else {TEST_LOSS: loss}
    cells_of = [f"{given[name]:.4f}" if name in given else "" for name in shown]
    return [["baseline", "no training", "", *([""] if target else []), *cells_of, ""]]


def _best(
    values: Sequence[Sequence[float]], more: Sequence[bool], target: bool
) -> frozenset[tuple[int, int]]:
    """Places in the table of results of the best of each column of figures."""
    skip = 1 if target else 0
    return frozenset(
        (row, 2 if column == 0 else 2 + column + skip) for row, column in columns_best(values, more)
    )


def columns_best(values: Sequence[Sequence[float]], more: Sequence[bool]) -> list[tuple[int, int]]:
    """(row, column) of the best of each column; none where there is nothing to compare."""
    if len(values) < 2:
        return []
    found = []
    for column, rising in enumerate(more):
        judge = Judge("", rising)
        best = 0
        for row in range(1, len(values)):
            if judge.better(values[row][column], values[best][column]):
                best = row
        if not math.isnan(values[best][column]):
            found.append((best, column))
    return found
