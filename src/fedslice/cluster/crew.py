"""Who does the work: objects elsewhere, called by name, whose results are handed on unread.

A crew starts objects, calls their methods and gets results.  What a call gives is a *promise*,
which may be an argument of further calls: results then go from one object to another and never pass
the driver.  :class:`Here` has all of them in this process, for tests and for looking at what a
cluster would do; :mod:`fedslice.cluster.rays` has them on the machines of a Ray cluster.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedslice.errors import InputError


class Lost(Exception):
    """A process, or the machine it was on, is gone, and with it what was promised."""


class Crew(Protocol):
    """``workers`` train, ``shards`` have the tables; each worker has so many ``threads``."""

    workers: int
    shards: int
    threads: int

    def start(self, kind: Callable[..., Any], *given: Any, busy: bool, cores: int) -> Any:
        """Make an object elsewhere; one that is ``busy`` wants cores of its own.  XLA divides its
        work among so many ``cores`` (:mod:`fedslice.cluster.alike`)."""

    def call(self, member: Any, method: str, *given: Any, returns: int = 1) -> list[Any]:
        """Call a method that gives a list of ``returns`` results, or one result: their promises."""

    def share(self, value: Any) -> Any:
        """The promise of a value that is here, for many calls."""

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """What was promised; :class:`Lost` if that will never be."""

    def alive(self, member: Any) -> bool:
        """Whether a member still answers."""

    def end(self, member: Any) -> None:
        """Let a member go."""

    def close(self) -> None:
        """End all that was started for this crew alone."""


class Here:
    """Everything in this process, one after the other.

    >>> crew = Here(workers=2)
    >>> member = crew.start(list, [1, 2], busy=True, cores=1)
    >>> crew.get(crew.call(member, "count", 2))
    [1]
    """

    def __init__(self, workers: int = 2, shards: int = 2, threads: int = 1) -> None:
        self.workers, self.shards, self.threads = workers, shards, threads
        check_sizes(workers, shards, threads)
        self.gone: list[Any] = []  # members that were lost on purpose

    def start(self, kind: Callable[..., Any], *given: Any, busy: bool, cores: int) -> Any:
        """The object itself."""
        return kind(*given)

    def call(self, member: Any, method: str, *given: Any, returns: int = 1) -> list[Any]:
        """Call it now."""
        if any(member is each for each in self.gone):
            raise Lost(f"{type(member).__name__} was lost")
        result = getattr(member, method)(*given)
        return list(result) if returns > 1 else [sole(result, method)]

    def share(self, value: Any) -> Any:
        """The value."""
        return value

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """The same."""
        return list(promises)

    def alive(self, member: Any) -> bool:
        """Unless it was lost."""
        return not any(member is each for each in self.gone)

    def end(self, member: Any) -> None:
        """Lose it."""
        self.gone.append(member)

    def close(self) -> None:
        """Nothing is left over."""


def here(workers: int = 2, shards: int = 2, threads: int = 1) -> Here:
    """A crew in this process: slower than no crew, for trying out what a cluster would do.

    >>> here(workers=3).workers
    3
    """
    return Here(workers, shards, threads)


LISTS = ("push", "offer")  # methods that give a list of results, one of which may be all


def sole(result: Any, method: str) -> Any:
    """The one result of a call."""
    return result[0] if method in LISTS else result


def check_sizes(workers: int, shards: int, threads: int) -> None:
    """Refuse a crew of nobody."""
    if min(workers, shards, threads) < 1:
        raise InputError(
            f"a cluster of {workers} workers with {threads} threads and {shards} shards is not"
            " possible: all must be at least 1"
        )
