"""The picture of ``fedslice privacy attack``: on the left what is guessed right, on the right what
noise leaves of it, under the bound."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.cli.report import picture
from fedslice.evaluation.attack import Measured, Share, largest_advantage
from fedslice.files.writing import writing

PLAIN, NOISY, MARK = ("#1f4e79", "#4a86b8", "#9dc3e0"), "#d9822b", "0.15"
KNOWN = {
    "everyone": ("knows its data and everyone else's", "o", "#8c2d04"),
    "data": ("knows its data", "s", "#d9822b"),
    "rows": ("knows which rows it holds", "^", "#4a86b8"),
}


class Bar(NamedTuple):
    """Right guesses, their error, and those without having seen anything; in per cent."""

    right: float
    error: float
    base: float


def bar(found: Measured | Share) -> Bar:
    """Whether a coin fell on one side is guessed right in (1 + advantage) / 2 of the cases.

    >>> bar(Measured(0.5, 0.02, 0.8, 0.01, 100))
    Bar(right=75.0, error=1.0, base=50.0)
    """
    if isinstance(found, Share):
        return Bar(100 * found.right, 100 * found.error, 100 * found.base)
    return Bar(50 * (1 + found.advantage), 50 * found.error, 50.0)


def draw(
    messages: Mapping[str, Share],
    sums: Mapping[str, Mapping[str, Measured | Share]],
    noisy: Mapping[float, Mapping[str, Measured]],
    file: Path,
) -> Path:
    """``sums`` are, for each kind of sum, the figures by question; the last kind has noise.
    ``noisy`` are, for each amount of noise, those of "did it take part?" by what is known."""
    figure, (left, right) = picture(file, 12, 5, columns=2)
    _bars(left, messages, sums)
    _bound(right, noisy)
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file):
        figure.savefig(file, dpi=110)
    return file


def _bars(
    axis: Any, messages: Mapping[str, Share], sums: Mapping[str, Mapping[str, Measured | Share]]
) -> None:
    place, ticks = 0.0, list[tuple[float, str]]()
    for name, found in messages.items():
        _one(axis, place, 0.62, bar(found), "0.45", "one message" if not ticks else None)
        ticks.append((place, name))
        place += 1
    colours = [*PLAIN[: len(sums) - 1], NOISY]
    height = 0.86 / len(sums)
    for question in next(iter(sums.values())):
        place += 0.15
        for number, (kind, figures) in enumerate(sums.items()):
            where = place + (number - (len(sums) - 1) / 2) * height
            first = question == next(iter(figures))
            colour = colours[number]
            _one(axis, where, height, bar(figures[question]), colour, kind if first else None)
        ticks.append((place, question))
        place += 1
    axis.plot([], [], color=MARK, linewidth=2, label="without seeing anything")
    axis.set_yticks([where for where, _ in ticks], [name for _, name in ticks])
    axis.set(xlim=(0, 101), xlabel="guessed right (%)")
    axis.set_ylim(place - 0.35, -0.6)
    axis.axhline(len(messages) - 0.42, color="0.8", linewidth=0.8)
    axis.set_title("What an attacker guesses right", loc="left", fontsize=11)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    _bare(axis)
    axis.legend(
        loc="upper center", bbox_to_anchor=(0.35, -0.12), ncols=3, fontsize=8, frameon=False
    )


def _one(axis: Any, place: float, height: float, one: Bar, colour: str, label: str | None) -> None:
    axis.barh(place, one.right, height * 0.9, color=colour, label=label)
    if one.error > 0.25:  # less than a bar's edge is wide
        axis.errorbar(one.right, place, xerr=2 * one.error, color=MARK, linewidth=1, capsize=0)
    half = height * 0.45
    axis.plot([one.base, one.base], [place - half, place + half], color=MARK, linewidth=2)


def _bound(axis: Any, noisy: Mapping[float, Mapping[str, Measured]]) -> None:
    low, high = min(noisy) / 1.25, max(noisy) * 1.25
    grid = np.geomspace(low, high, 200)
    limit = [largest_advantage(float(z)) for z in grid]
    axis.fill_between(grid, limit, 1.0, color="0.92", linewidth=0)
    axis.plot(grid, limit, color=MARK, linewidth=1.6, label="no attacker can do better")
    for place, (knowing, (text, marker, colour)) in enumerate(KNOWN.items()):
        found = [figures[knowing] for figures in noisy.values()]
        axis.errorbar(
            [1.05**place * z for z in noisy],  # side by side, to be told apart
            [one.advantage for one in found],
            yerr=[2 * one.error for one in found],
            fmt=marker,
            color=colour,
            markersize=6,
            linewidth=1.2,
            capsize=2.5,
            label=text,
        )
    axis.set(xscale="log", xlim=(low, high), ylim=(-0.08, 1))
    axis.set_xticks(list(noisy), [f"{z:g}" for z in noisy])
    axis.minorticks_off()
    axis.set(xlabel="noise multiplier z", ylabel="advantage: 0 a guess, 1 certain")
    axis.set_title(
        "Did this client take part? One sum of about 50, with noise", loc="left", fontsize=11
    )
    axis.grid(alpha=0.25)
    _bare(axis)
    axis.legend(fontsize=9, frameon=False)


def _bare(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
