"""A few lines at the foot of a terminal that change, below what is told for good."""

import shutil
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from fedslice.cli.printing import folded

UP_AND_CLEAR = "\x1b[1A\x1b[2K"  # one line up, and nothing on it


class Live:
    """``tell`` says something for good, ``show`` puts other lines at the foot; where nobody looks
    at a terminal there is no foot.

    >>> import io
    >>> paper = io.StringIO()
    >>> live = Live(paper)
    >>> live.show(["running: a"])
    >>> live.tell("a has ended")
    >>> paper.getvalue()
    'a has ended\\n'
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.seen = self.stream.isatty()
        self.foot: list[str] = []
        self._drawn = 0
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._change(f"{folded(text, self.stream)}\n")

    def show(self, lines: Sequence[str]) -> None:
        """The lines at the foot from now on."""
        if not self.seen:
            return
        with self._lock:
            width = shutil.get_terminal_size().columns - 1
            self.foot = [line[:width] for line in lines]
            self._change("")

    def _change(self, text: str) -> None:
        foot = "".join(f"{line}\n" for line in self.foot)
        self.stream.write(UP_AND_CLEAR * self._drawn + text + foot)
        self._drawn = len(self.foot)
        self.stream.flush()
