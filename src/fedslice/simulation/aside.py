"""A thread beside the host's own: a round whose clients run in threads, or whose rows are on disk,
keeps the thread that started it busy, and the next one could not be planned meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Aside(Generic[Found]):
    """Does one thing at a time, in the order in which they are given.

    >>> aside = Aside()
    >>> first = aside.start(lambda: 1)
    >>> second = aside.start(lambda: 1 / 0)  # the first one is through by now
    >>> first()
    1
    >>> aside.settle()
    Traceback (most recent call last):
    ...
    ZeroDivisionError: division by zero
    >>> aside.settle()  # told once
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[Found] | None = None

    def start(self, work: Callable[[], Found]) -> Callable[[], Found]:
        """Once what was started before is through; gives a function that waits for the result."""
        self.settle()
        self._last = started = self._thread.submit(work)

        def wait() -> Found:
            if self._last is started:
                self.settle()
            return started.result()

        return wait

    def settle(self) -> None:
        """Wait until nothing is under way.  If what was failed, its error is raised, once."""
        if self._last is None:
            return
        error = self._last.exception()  # while it is waited for, it is the last one
        self._last = None
        if error is not None:
            raise error
