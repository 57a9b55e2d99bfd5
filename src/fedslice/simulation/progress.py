"""A live progress bar: rounds, time, time left, loss, in 60 columns; on standard error, only for a
person."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from tqdm import tqdm

from fedslice.simulation.report import Report

EVERY = 0.2  # seconds between looks at the loss, which costs a wait
FORM = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
MOST = 12  # letters of a label: 60 columns have to do


def show(text: str, file: TextIO) -> None:
    """Print a line above a bar that may be there."""
    tqdm.write(text, file=file)
    file.flush()


@contextmanager
def bar(count: int, visible: bool = True, label: str = "") -> Iterator[Callable[[Report], None]]:
    """``advance(report)`` moves the bar by one round.

    >>> with bar(3, visible=False) as advance:
    ...     pass
    """
    meter = tqdm(
        total=count,
        disable=None if visible else True,
        desc=label[:MOST] or None,
        mininterval=EVERY,
        dynamic_ncols=True,
        bar_format=FORM,
    )
    shown = [0.0]

    def advance(report: Report) -> None:
        with suppress(OSError):  # the terminal may close, and the run has still to be saved
            meter.update()
        if not meter.disable and meter.last_print_t > shown[0]:
            shown[0] = meter.last_print_t
            meter.set_postfix_str(f"loss {report.loss:.4f}", refresh=False)

    try:
        yield advance
    finally:
        with suppress(OSError):
            meter.close()
