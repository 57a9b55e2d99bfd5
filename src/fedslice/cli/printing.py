"""What is said to the person, on standard error, and what is printed for others to read."""

import shutil
import sys
import textwrap
from typing import Any, TextIO

from fedslice.cli.experiment import Experiment
from fedslice.cli.folder import Line
from fedslice.files.strict import as_json
from fedslice.simulation.progress import show

KEPT = "\N{NO-BREAK SPACE}"  # where a line must not be folded


def figures_of(line: Line) -> str:
    """The figures of an evaluated round, for a person: of the validation set the loss alone, for
    that is what is chosen by; the log has all.

    >>> figures_of({"round": 5, "test_loss": 0.61, "validation_loss": 0.6, "validation_auc": 0.7})
    'round 5: test loss 0.6100, validation loss 0.6000'
    """
    known = Experiment.figures(line)
    chosen = [k for k in known if k == "validation_loss" or not k.startswith("validation_")]
    if known.get("log_loss") == known.get("test_loss"):  # the same under another name
        chosen = [key for key in chosen if key not in ("log_loss", "baseline_log_loss")]
    figures = ", ".join(f"{key.replace('_', ' ')} {known[key]:.4f}" for key in chosen)
    return f"round {line['round']}: {figures}"


def print_line(line: Line) -> None:
    """An evaluated round, for a person; on a terminal, folded between figures."""
    if "done" not in line:
        figures = [part.replace(" ", KEPT) for part in figures_of(line).split(", ")]
        show(folded(", ".join(figures), sys.stdout).replace(KEPT, " "), sys.stdout)


def folded(text: str, stream: TextIO) -> str:
    """Long lines as a terminal should show them; elsewhere they stay, for those who read lines."""
    if not stream.isatty():
        return text
    width = max(20, shutil.get_terminal_size().columns - 1)
    how: Any = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    return "\n".join(textwrap.fill(line, width, **how) for line in text.split("\n"))


def print_json(line: Line) -> None:
    """The same for a program."""
    show(as_json(line), sys.stdout)


def say(text: str) -> None:
    """A line for the person, on standard error."""
    show(folded(text, sys.stderr), sys.stderr)


def listing(summaries: dict[str, str]) -> None:
    """Names with one line about each."""
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")
