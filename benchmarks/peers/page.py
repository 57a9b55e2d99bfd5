"""Fill the tables of docs/benchmarks.md from the results, and draw its figure.

    python benchmarks/peers/page.py [FOLDER]

A table stands between two comments, ``<!-- lr: made by benchmarks/peers/page.py -->`` and
``<!-- end -->``; all else on the page is written by hand.  Of a contestant's settings the fastest
counts."""

import json
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from contestants import ALL
from environments import PINS

ROOT = Path(__file__).parents[2]
PAGE, FIGURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images" / "peers.png"
MAIN = {"lr": "MovieLens LR", "lstm": "Sent140 LSTM", "din": "Amazon DIN"}
NAMES = [contestant.name for contestant in ALL]
TABLES = {f"table-1e{power}": 10**power for power in range(4, 10)}
BUSY = 3.5  # a load that two processes of one run after the other do not make
COHORTS = {f"cohort-{size}": size for size in (10, 100, 1_000, 10_000)}


def valid(found):
    """Whether its figure counts: it was measured, and it did the same work."""
    compared = found["same"] and found["workload"] != "mf"
    return bool(found.get("ms")) and (not compared or found.get("agrees", False))


def read(folder):
    """(contestant, workload) -> its results, the best one first."""
    results = {}
    for file in sorted((Path(folder) / "results").glob("*.json")):
        found = json.loads(file.read_text())
        results.setdefault((found["contestant"], found["workload"]), []).append(found)
    for each in results.values():
        each.sort(key=lambda found: found["ms"] if valid(found) else float("inf"))
    return results


def best(results, name, workload):
    each = results.get((name, workload))
    return each[0] if each else None


def milliseconds(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def figure_of(found, ours):
    """A cell: milliseconds and how many times ours; or why there are none."""
    if found is None:
        return ""
    if not valid(found):
        return found.get("stopped") or "another model"
    short = "" if found["complete"] or found["measurements"] >= 5 else "\\*"
    if ours is None or found is ours:
        return f"**{milliseconds(found['ms'])}**" if found is ours else milliseconds(found["ms"])
    times = found["ms"] / ours["ms"]
    return f"{milliseconds(found['ms'])}{short} ({times:,.{1 if times < 10 else 0}f}x)"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def speeds(results, workloads, first):
    """Contestants down, workloads across; a contestant without any figure only if it was tried."""
    shown = [name for name in NAMES if any((name, work) in results for work in workloads)]
    rows = []
    for name in shown:
        cells = [
            figure_of(best(results, name, work), best(results, "fedslice", work))
            for work in workloads
        ]
        rows.append([name, *cells])
    return table([first, *workloads.values()], rows)


def sharing(results):
    """A line that says so, where the machine was not quiet."""
    each = [best(results, name, work) for name in NAMES for work in MAIN]
    loads = [found.get("load", float("inf")) for found in each if found]
    busy = sum(load > BUSY for load in loads)
    if not busy:
        return ""
    return (
        f"\n\n{busy} of these {len(loads)} runs had to share the machine with other programs: read"
        " them as rough, and repeat them on a quiet one."
    )


def losses(results):
    rows = []
    for name in NAMES:
        cells = []
        for work in MAIN:
            found = best(results, name, work)
            if not found or "loss" not in found:
                cells.append("")
            elif "apart" in found:
                cells.append(f"{found['loss']:.6f} ({found['apart']:.0e})")
            else:
                cells.append(f"{found['loss']:.6f}")
        rows.append([name, *cells])
    return table(["loss (distance from fedslice's model)", *MAIN.values()], rows)


def costs(results):
    """Start-up and memory of the best setting."""
    rows = []
    for name in NAMES:
        cells = []
        for work in MAIN:
            found = best(results, name, work)
            good = found and valid(found)
            cells.append(f"{found['start_up_s']:.1f} s, {found['memory_mb']:,} MB" if good else "")
        rows.append([name, *cells])
    return table(["seconds to the end of the first round; memory", *MAIN.values()], rows)


def settings(results):
    """What was tried: every setting with its milliseconds, the best one in bold."""
    rows = []
    for name in NAMES:
        cells = []
        for work in MAIN:
            each = results.get((name, work), [])
            told = [
                f"{found['setting'] or 'no settings'}: "
                + (milliseconds(found["ms"]) if valid(found) else found.get("stopped") or "-")
                for found in each
            ]
            cells.append("<br>".join([f"**{told[0]}**", *told[1:]]) if told else "")
        rows.append([name, *cells])
    return table(["settings, ms a round", *MAIN.values()], rows)


def reconstruction(results):
    rows = []
    ours = best(results, "fedslice", "mf")
    for name in ("fedslice", "bare JAX"):
        for found in results.get((name, "mf"), []):
            rows.append([f"{name} {found['setting']}".strip(), figure_of(found, ours)])
    return table(["FedRecon, 100 clients", "ms a round"], rows)


def environments():
    return table(
        ["environment", "packages"],
        [[name, ", ".join(f"`{pin}`" for pin in pins)] for name, pins in PINS.items()],
    )


# -- the figure ------------------------------------------------------------------------------------


def draw(results):
    figure, (bars, rows, cohorts) = plt.subplots(1, 3, figsize=(13, 4.2))
    colours = dict(zip(NAMES, plt.get_cmap("tab10").colors, strict=False))
    for place, work in enumerate(MAIN):
        each = [(name, best(results, name, work)) for name in NAMES]
        each = [(name, found["ms"]) for name, found in each if found and valid(found)]
        for number, (name, value) in enumerate(each):
            at = place + 0.8 * (number + 0.5) / len(NAMES) - 0.4
            bars.bar(at, value, 0.8 / len(NAMES), color=colours[name])
    bars.set_xticks(range(len(MAIN)), list(MAIN.values()))
    bars.set_ylabel("ms a round")
    bars.set_title("a round")
    for axis, workloads, title in (
        (rows, TABLES, "rows of a table of 16 columns"),
        (cohorts, COHORTS, "clients a round, LR"),
    ):
        for name in NAMES:
            each = [(size, best(results, name, work)) for work, size in workloads.items()]
            line = [(size, found["ms"]) for size, found in each if found and valid(found)]
            if line:
                axis.plot(*zip(*line, strict=True), "o-", color=colours[name], markersize=4)
        axis.set_xscale("log")
        axis.set_title(title)
    for axis in (bars, rows, cohorts):
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    handles = [plt.Line2D([], [], color=colours[name], linewidth=5) for name in NAMES]
    figure.legend(handles, NAMES, loc="lower center", ncols=len(NAMES), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


def main():
    results = read(sys.argv[1] if len(sys.argv) > 1 else ".peers")
    if not results:
        sys.exit("no results: run benchmarks/peers/bench.py first, or give its --folder")
    by_power = {work: f"10^{work[-1]}" for work in TABLES}
    made = {
        "main": speeds(results, MAIN, "ms a round (times fedslice's)") + sharing(results),
        "losses": losses(results),
        "costs": costs(results),
        "tables": speeds(results, by_power, "rows"),
        "cohorts": speeds(results, {w: f"{n:,}" for w, n in COHORTS.items()}, "clients a round"),
        "mf": reconstruction(results),
        "settings": settings(results),
        "environments": environments(),
    }
    page = PAGE.read_text()
    for name, text in made.items():
        mark = f"<!-- {name}: made by benchmarks/peers/page.py -->"
        pattern = re.escape(mark) + r".*?<!-- end -->"
        if not re.search(pattern, page, re.DOTALL):
            sys.exit(f"{PAGE} has no place for the table {name!r}: {mark} ... <!-- end -->")
        whole = f"{mark}\n\n{text}\n\n<!-- end -->"
        page = re.sub(pattern, lambda _, whole=whole: whole, page, flags=re.DOTALL)
    PAGE.write_text(page)
    draw(results)
    print(f"{PAGE.relative_to(ROOT)} and {FIGURE.relative_to(ROOT)} are new")


if __name__ == "__main__":
    main()
