"""Ctrl-C, SIGTERM and SIGHUP as a wish that a run may finish its round and save before it ends.

Python raises ``KeyboardInterrupt`` anywhere, also between the moment at which a round gives its
buffers away and the one at which it gets new ones.  So while a round or a write is under way the
wish is noted and looked at afterwards."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end.  ``folder`` and ``round`` say what was saved, if a run was
    under way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        self.folder: Path | None = None
        self.round: int | None = None


class Stopping:
    """Signals are handled inside the ``with`` block, which only the command line opens; else
    nothing is ever asked.

    >>> Stopping().asked is None
    True
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._patient = False

    def __enter__(self) -> "Stopping":
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """What must not be torn apart: a signal is noted, and :meth:`check` acts on it later."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    def check(self) -> None:
        """End here if a signal has asked for it."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            if (
                number == signal.SIGINT
            ):  # somebody insists; a second SIGTERM or SIGHUP is often the same wish
                raise KeyboardInterrupt
            return
        self.asked = number
        if not self._patient:
            raise Stopped(number)
        with suppress(OSError):  # the terminal may have gone
            os.write(
                2,
                b"\nfedslice: saving after this round; Ctrl-C again ends at once\n",
            )
