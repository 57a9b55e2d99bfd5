"""What a person sees at the end: tables, a histogram in the terminal, pictures of the curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.experiment import Experiment
from fedslice.errors import InputError
from fedslice.files.writing import writing
from fedslice.heat import Heat


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns lined up: the first to the left, numbers to the right.

    >>> print(text_table(["a", "b"], [["x", "10"], ["yy", "9"]]))
    a    b
    x   10
    yy   9
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def text_histogram(heat: Heat, bins: int = 12, width: int = 40) -> str:
    """Heat of all rows as bars."""
    edges, rows = heat.histogram(bins)
    most = max(1, int(rows.max(initial=0)))
    lines = []
    for low, high, count in zip(edges[:-1], edges[1:], rows, strict=True):
        lines.append(
            f"{_span(low, high):>13} clients  {'#' * round(width * count / most):<{width}} "
            f" {count:>9,} rows"
        )
    return "\n".join(lines)


def _span(low: float, high: float) -> str:
    """The whole numbers from ``low`` to before ``high``."""
    return f"{low:.0f}" if high - low <= 1 else f"{low:.0f}-{high - 1:.0f}"


def comparison(groups: Mapping[str, Sequence[Experiment]]) -> str:
    """Rounds to target and final figures of each algorithm over its seeds, as Table 2 of the
    FedSubAvg paper."""
    rows = []
    metrics = list(
        dict.fromkeys(
            key for runs in groups.values() for key in Experiment.figures(runs[0].lines[-1])
        )
    )
    for name, runs in groups.items():
        last = [run.lines[-1] for run in runs]
        cells = [_spread([line[key] for line in last]) if key in last[0] else "" for key in metrics]
        megabytes = np.mean(
            [(line["bytes_down"] + line["bytes_up"]) / line["round"] / 1e6 for line in last]
        )
        rows.append(
            [name, *([_rounds(runs)] if runs[0].task.target else []), *cells, f"{megabytes:.3f}"]
        )
    task = next(iter(groups.values()))[0].task
    target = task.target
    if task.baseline:
        cells = [f"{task.baseline[key]:.4f}" if key in task.baseline else "" for key in metrics]
        rows.append(["baseline", *([""] if target else []), *cells, ""])
    goal = [f"rounds to {target.metric} {target.value:g}"] if target else []
    return text_table(
        ["algorithm", *goal, *(key.replace("_", " ") for key in metrics), "MB a round"], rows
    )


def lines_of(head: str, cells: Mapping[str, Sequence[str]]) -> str:
    """A heading and words in columns, all to the left.

    >>> print(lines_of("ran with", {"a": ["x", ""], "bc": ["yy", "z"]}))
    ran with
      a   x
      bc  yy  z
    """
    rows = [[key, *texts] for key, texts in cells.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([head, *(f"  {line}".rstrip() for line in shown)])


def _rounds(runs: Sequence[Experiment]) -> str:
    found = [run.rounds_to_target() for run in runs]
    shown = [f"{runs[0].rounds}+" if value is None else str(value) for value in found]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values):.4f}" if len(values) > 1 else "")


def curves(groups: Mapping[str, Sequence[Experiment]], file: Path, title: str) -> Path:
    """Training loss and a test figure by rounds: mean over seeds, band from lowest to highest."""
    figure, axes = picture(file, 11, 4.2, columns=2)
    first = next(iter(groups.values()))[0]
    keys = [
        "train_loss",
        next(
            (k for k in first.lines[0] if k not in ("round", "train_loss", "test_loss")),
            "test_loss",
        ),
    ]
    keys[1] = "test_loss" if keys[1] in ("examples", "bytes_down") else keys[1]
    for axis, key in zip(axes, keys, strict=True):
        for name, runs in groups.items():
            seen = [{line["round"]: line[key] for line in run.lines if key in line} for run in runs]
            rounds = sorted(set.intersection(*map(set, seen)))
            values = np.array([[one[number] for number in rounds] for one in seen])
            (line,) = axis.plot(rounds, values.mean(0), label=name, linewidth=1.8)
            axis.fill_between(
                rounds, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0
            )
        if first.task.target and first.task.target.metric == key:
            axis.axhline(
                first.task.target.value,
                color="0.4",
                linestyle=":",
                label=f"target {first.task.target.value:g}",
            )
        axis.set(xlabel="round", ylabel=key.replace("_", " ") if "loss" in key else f"test {key}")
        axis.grid(alpha=0.25)
    axes[0].legend()
    figure.suptitle(title)
    return _save(figure, file)


def heat_picture(heat: Heat, file: Path, title: str) -> Path:
    """Heat histogram on log scales."""
    figure, (axis,) = picture(file, 7, 4)
    edges, rows = heat.histogram(30)
    axis.bar(edges[:-1], rows, width=np.diff(edges), align="edge", edgecolor="white", linewidth=0.5)
    axis.set(
        xscale="log",
        yscale="symlog",
        xlabel="clients that hold a row (heat)",
        ylabel="rows",
        title=title,
    )
    return _save(figure, file)


def check_picture(file: Path) -> None:
    """Refuse at once a picture that could not be written in the end.

    >>> check_picture(Path("heat.png"))
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'fedslice[plot]'") from error
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        raise InputError(f"{file}: a picture's name ends in .{', .'.join(known)}")


def picture(file: Path, width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, side by side; not by pyplot, so that the user's backend and figures
    stay as they are."""
    check_picture(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Any, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file):
        figure.savefig(file, dpi=130)
    return file
