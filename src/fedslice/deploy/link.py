"""How letters reach nodes: a link names them, and exchanges letters for replies.

A transport is a file with one class that has these two methods.  :class:`InProcess` is the one for
tests and for trying things: nodes in this process, everything through bytes, with faults on demand.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias


class Link(Protocol):
    """Nodes, and the way to them."""

    def nodes(self) -> Sequence[str]:
        """The names of the nodes that there are; a transport vouches for who has which."""
        ...

    def exchange(self, letters: Mapping[str, bytes], deadline: float | None) -> dict[str, bytes]:
        """Deliver each letter and give the replies that came within ``deadline`` seconds (None:
        wait for all), in the order in which they came, one for each node.  Later ones are dropped.
        """
        ...


class Answers(Protocol):
    """What a node is to a link."""

    def receive(self, letter: bytes) -> bytes:
        """The reply to a letter."""
        ...


Fault: TypeAlias = Callable[[Callable[[], bytes], Sequence[bytes]], bytes | None]
"""What happens on the way: from a function that lets the node answer, and its earlier replies, to
what arrives in time; None: nothing."""


def silent(answer: Callable[[], bytes], earlier: Sequence[bytes]) -> bytes | None:
    """The letter is lost: the node never knows.

    >>> silent(lambda: b"reply", []) is None
    True
    """
    return None


def late(answer: Callable[[], bytes], earlier: Sequence[bytes]) -> bytes | None:
    """The node answers, and its reply comes too late or never.

    >>> late(lambda: b"reply", []) is None
    True
    """
    answer()
    return None


def replayed(answer: Callable[[], bytes], earlier: Sequence[bytes]) -> bytes | None:
    """The node's last reply comes again, in the place of its new one.

    >>> replayed(lambda: b"new", [b"old"])
    b'old'
    """
    answer()
    return earlier[-1]


def tampered(change: Callable[[bytes], bytes]) -> Fault:
    """The reply is changed on the way, or made up.

    >>> tampered(lambda reply: reply[:3])(lambda: b"reply", [])
    b'rep'
    """
    return lambda answer, earlier: change(answer())


class InProcess:
    """Nodes in this process, by name.  ``faults`` may be set for a node at any time.

    >>> class Echo:
    ...     def receive(self, letter):
    ...         return letter
    >>> link = InProcess({"a": Echo(), "b": Echo()})
    >>> link.faults["b"] = silent
    >>> link.exchange({"a": b"1", "b": b"2"}, None)
    {'a': b'1'}
    """

    def __init__(self, nodes: Mapping[str, Answers]) -> None:
        self.members = dict(nodes)
        self.faults: dict[str, Fault] = {}
        self.earlier: dict[str, list[bytes]] = {name: [] for name in nodes}

    def nodes(self) -> Sequence[str]:
        """Their names."""
        return list(self.members)

    def exchange(self, letters: Mapping[str, bytes], deadline: float | None) -> dict[str, bytes]:
        """One after the other."""
        begin, replies = time.monotonic(), {}
        for name, letter in letters.items():
            reply = self._deliver(name, letter)
            if deadline is not None and time.monotonic() - begin > deadline:
                continue
            if reply is not None:
                replies[name] = reply
        return replies

    def _deliver(self, name: str, letter: bytes) -> bytes | None:
        said: list[bytes] = []

        def answer() -> bytes:
            said.append(self.members[name].receive(letter))
            return said[-1]

        fault = self.faults.get(name)
        arrived = answer() if fault is None else fault(answer, self.earlier[name])
        self.earlier[name] = said or self.earlier[name]  # one is enough, and messages may be large
        return arrived
