"""What is said to the person, on standard error, and what is printed for others to read."""

import sys

from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import Line, as_json
from fedslice.simulation.progress import show


def figures_of(line: Line) -> str:
    """The figures of an evaluated round, for a person."""
    figures = ", ".join(
        f"{key.replace('_', ' ')} {value:.4f}" for key, value in Experiment.figures(line).items()
    )
    return f"round {line['round']}: {figures}"


def print_line(line: Line) -> None:
    """An evaluated round, for a person."""
    if "done" not in line:
        show(figures_of(line), sys.stdout)


def print_json(line: Line) -> None:
    """The same for a program."""
    show(as_json(line), sys.stdout)


def say(text: str) -> None:
    """A line for the person, on standard error."""
    show(text, sys.stderr)


def listing(summaries: dict[str, str]) -> None:
    """Names with one line about each."""
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")
