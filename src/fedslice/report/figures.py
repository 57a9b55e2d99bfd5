"""What a report shows: curves on several axes, grids, figures by heat and by client."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedslice.report.picture import COLOURS, DASHES, HEIGHT, Picture
from fedslice.report.records import Cell, Line
from fedslice.report.selection import Chosen, Judge, over_seeds
from fedslice.report.words import words as words

# -- curves ----------------------------------------------------------------------------------------

# its label, what a line must have for it, and the place of a line on it
AXES: dict[str, tuple[str, str, Callable[[Line], float]]] = {
    "rounds": ("rounds", "round", lambda line: line["round"]),
    "examples": ("examples gone through", "examples", lambda line: line["examples"]),
    "bytes": (
        "MB sent, both ways, by all clients",
        "bytes_up",
        lambda line: (line["bytes_down"] + line["bytes_up"]) / 1e6,
    ),
    "time": ("estimated hours on devices", "seconds", lambda line: line["seconds"] / 3600),
}


def curves(chosen: Mapping[str, Chosen], figure: str, axis: str, name: str) -> Picture:
    """A figure against rounds, examples, bytes or time: the best cell of every algorithm, mean over
    seeds; the band goes to the second-best cell, or, without a grid, over the seeds."""
    label, needs, place = AXES[axis]
    looks = {name: _look(number) for number, name in enumerate(chosen)}  # the same on every axis
    chosen = {
        name: one
        for name, one in chosen.items()
        if all(needs in line for run in one.best.runs for line in run.lines)
    }
    gap = any(one.second is not None for one in chosen.values())
    seeds = max(len(one.best.runs) for one in chosen.values())

    def draw(axes: Any) -> None:
        for algorithm, one in chosen.items():
            look = looks[algorithm]
            xs, ys, low, high = _mean(one.best, figure, place)
            axes.plot(xs, ys, label=algorithm, **look)
            if one.second is not None:
                _, other, _, _ = _mean(one.second, figure, place)
                size = min(len(ys), len(other))
                low, high = ys[:size], other[:size]
                xs = xs[:size]
            axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.set(xlabel=label, ylabel=words(figure))
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.6g}")
        axes.legend(loc="best")

    band = (
        "The band reaches to the second-best cell of its grid."
        if gap
        else f"The band spans {seeds} seeds."
        if seeds > 1
        else "One seed."
    )
    return Picture(
        name,
        f"{words(figure, first=True)} by {axis}",
        f"Mean over {seeds} seed{'s' if seeds > 1 else ''} of each algorithm's best cell. {band}",
        draw,
    )


def _mean(
    cell: Cell, figure: str, place: Callable[[Line], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, mean, lowest and highest over seeds, where all of them were measured."""
    seen = [{line["round"]: line for line in run.lines if figure in line} for run in cell.runs]
    rounds = sorted(set.intersection(*map(set, seen))) if seen else []
    xs = np.array([[place(one[number]) for number in rounds] for one in seen], float)
    ys = np.array([[one[number][figure] for number in rounds] for one in seen], float)
    if not len(rounds):
        return (np.zeros(0),) * 4
    return xs.mean(0), ys.mean(0), ys.min(0), ys.max(0)


# -- the grid --------------------------------------------------------------------------------------


def grid(cells: Sequence[Cell], algorithm: str, judge: Judge, budget: int) -> Picture | None:
    """The figure that cells are chosen by over the one or two numbers that a grid varied most;
    over others it is the best.  None where nothing was varied."""
    own = [cell for cell in cells if cell.algorithm == algorithm]
    keys = [
        key
        for key in (own[0].varied if own else {})
        if len({cell.varied[key] for cell in own}) > 1
        and all(isinstance(cell.varied[key], int | float) for cell in own)
    ]
    if not keys:
        return None
    keys = sorted(keys, key=lambda key: -len({cell.varied[key] for cell in own}))[:2]
    values = [sorted({cell.varied[key] for cell in own}) for key in keys]
    best = np.full([len(each) for each in values], np.nan)
    for cell in own:
        at = tuple(values[i].index(cell.varied[key]) for i, key in enumerate(keys))
        mean = over_seeds(cell, judge.figure, budget)[0]
        if judge.better(mean, best[at]):
            best[at] = mean
    draw = (
        _surface(keys, values, best, judge) if len(keys) == 2 else _line(keys, values, best, judge)
    )
    return Picture(
        f"grid-{algorithm}",
        f"{algorithm}: {words(judge.figure)} over {' and '.join(map(words, keys))}",
        f"After {budget} rounds, mean over seeds; the best cell is framed. Empty: diverged.",
        draw,
    )


def _line(keys: Any, values: Any, best: np.ndarray, judge: Judge) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        axes.plot(values[0], best, marker="o", color=COLOURS[0])
        if min(values[0]) > 0:
            axes.set_xscale("log")
        axes.set(xlabel=words(keys[0]), ylabel=words(judge.figure))

    return draw


def _surface(keys: Any, values: Any, best: np.ndarray, judge: Judge) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        good = best if judge.more else -best
        shown = np.where(np.isfinite(good), good, np.nan)
        # ranks, for one bad corner would make all else look alike
        order = np.full(shown.shape, np.nan)
        flat = np.flatnonzero(np.isfinite(shown))
        order.flat[flat] = np.argsort(np.argsort(shown.flat[flat])) / max(1, len(flat) - 1)
        across, up = (np.arange(len(each) + 1) - 0.5 for each in values)
        axes.pcolormesh(across, up, order.T, cmap="viridis", vmin=0, vmax=1)
        axes.grid(visible=False)
        for (row, column), value in np.ndenumerate(best):
            if np.isfinite(value):
                light = order[row, column] > 0.6
                axes.text(
                    row,
                    column,
                    f"{value:.4g}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="#101010" if light else "#f4f4f4",
                )
        if len(flat):
            row, column = np.unravel_index(np.nanargmax(shown), shown.shape)
            from matplotlib.patches import Rectangle

            frame = Rectangle((row - 0.5, column - 0.5), 1, 1, fill=False, edgecolor="#d55e00")
            frame.set_linewidth(2.5)
            axes.add_patch(frame)
        for which, each in zip("xy", values, strict=True):
            getattr(axes, f"set_{which}ticks")(range(len(each)), [f"{value:.3g}" for value in each])
        axes.set(xlabel=words(keys[0]), ylabel=words(keys[1]))

    return draw


# -- by heat, by client, by algorithm --------------------------------------------------------------


def by_heat(
    measured: Mapping[str, Sequence[Mapping[str, Any]]], figure: str = "loss"
) -> Picture | None:
    """A held-out figure by the heat of the coldest row that an example reads, for the runs of each
    algorithm; None where nothing was measured."""
    known = {name: each for name, each in measured.items() if each and figure in each[0]["figures"]}
    if not known:
        return None
    first = next(iter(known.values()))[0]
    labels = [
        group if group == "unseen" else f"{low}" if low == high else f"{low}–{high}"
        for group, (low, high) in zip(first["names"], first["spans"], strict=True)
    ]

    def draw(axes: Any) -> None:
        xs = np.arange(len(labels))
        for number, (name, each) in enumerate(known.items()):
            values = np.array([one["figures"][figure] for one in each], float)
            look = _look(number)
            axes.plot(xs, values.mean(0), marker="o", markersize=4, label=name, **look)
            axes.fill_between(
                xs, values.min(0), values.max(0), color=look["color"], alpha=0.18, linewidth=0
            )
        axes.set_xticks(xs, labels, rotation=35, ha="right")
        axes.set(
            xlabel="clients that hold the coldest row of an example",
            ylabel=f"test {words(figure)}",
        )
        axes.legend(loc="best")

    seeds = max(map(len, known.values()))
    return Picture(
        "by-heat",
        f"Held-out {words(figure)} by heat",
        "Test examples in groups of about equal size, by the training clients that hold the"
        " coldest row that an example reads. "
        + ("Mean over seeds; the band spans them." if seeds > 1 else "One seed."),
        draw,
        HEIGHT + 0.4,
    )


def by_client(chosen: Mapping[str, Chosen], figure: str) -> Picture | None:
    """The distribution of a figure over clients, as its quantiles."""
    known = {
        name: [
            run.evaluation["clients"][figure]["percentiles"]
            for run in one.best.runs
            if figure in run.evaluation.get("clients", {})
        ]
        for name, one in chosen.items()
    }
    known = {name: each for name, each in known.items() if each}
    if not known:
        return None

    def draw(axes: Any) -> None:
        for number, (name, each) in enumerate(known.items()):
            values = np.array(each, float).mean(0)
            look = _look(number)
            axes.plot(np.linspace(0, 100, len(values)), values, label=name, **look)
        axes.set(
            xlabel="percent of clients with at most this",
            ylabel=f"test {words(figure)} of a client",
        )
        axes.legend(loc="best")

    return Picture(
        f"clients-{figure}",
        f"{words(figure, first=True)}, client by client",
        "Quantiles over the clients of the test set, mean over seeds.",
        draw,
    )


def heat_histogram(heat: Mapping[str, Any]) -> Picture:
    """How many rows have which heat."""
    edges, rows = np.array(heat["edges"], float), np.array(heat["rows"], float)

    def draw(axes: Any) -> None:
        axes.bar(
            edges[:-1], rows, width=np.diff(edges), align="edge", color=COLOURS[0], linewidth=0
        )
        axes.set(
            xscale="log", yscale="symlog", xlabel="clients that hold a row (heat)", ylabel="rows"
        )

    return Picture(
        "heat",
        "Heat of the data",
        f"{heat['clients']:,} clients; the hottest row has {heat['dispersion']:,.0f} times the"
        " clients of the coldest.",
        draw,
    )


def bars(
    values: Mapping[str, tuple[float, bool]], label: str, name: str, title: str, caption: str
) -> Picture:
    """One bar an algorithm; a value that was not reached is pale."""

    def draw(axes: Any) -> None:
        places = np.arange(len(values))[::-1]
        for place, (number, (_, (value, reached))) in zip(
            places, enumerate(values.items()), strict=True
        ):
            axes.barh(
                place,
                value,
                color=COLOURS[number % 8],
                alpha=1.0 if reached else 0.35,
                edgecolor=COLOURS[number % 8],
                linewidth=0.8,
            )
            shown = f"{value:,.0f}" if reached else f"more than {value:,.0f}"
            axes.annotate(
                shown,
                (value, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        axes.set_yticks(places, list(values))
        axes.margins(x=0.22)
        axes.grid(visible=False, axis="y")
        axes.set(xlabel=label)

    return Picture(name, title, caption, draw, max(1.6, 0.8 + 0.42 * len(values)))


def _look(number: int) -> dict[str, str]:
    """Lines that can be told apart, also without colours from the ninth on."""
    return {"color": COLOURS[number % 8], "linestyle": DASHES[number // 8 % 4]}
