"""What a coordinator did in the round under way, step by step, so that a restarted one goes on.

A secure sum cannot begin again: nodes give their numbers for a round once, since who could ask for
two sums with other partners would learn from their difference.  So every step whose outcome is not
a function of the checkpoint (nonces, seeds, replies) goes through ``once``: it is done, written to
the disk and given back; a coordinator that was killed gets the written one and sends the same
letters, to which nodes have the same replies.
"""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from fedslice.files.writing import atomic_write, writing

NAME = "journal"
_HEAD, _ENTRY = struct.Struct("<4sII"), struct.Struct("<III")
_MAGIC = b"fsj1"


class Journal:
    """The steps of one try of one round, in ``file`` (None: in memory alone).

    >>> file = getfixture("tmp_path") / "journal"
    >>> journal = Journal(file)
    >>> journal.begin(round=3)
    >>> journal.once("nonce", lambda: b"first")
    b'first'
    >>> again = Journal(file)
    >>> again.begin(round=3)
    >>> again.once("nonce", lambda: b"second")
    b'first'
    >>> again.again()
    >>> again.attempt, again.once("nonce", lambda: b"third")
    (1, b'third')
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file, self.round, self.attempt = file, -1, 0
        self.steps: dict[str, bytes] = {}
        if file is not None and file.exists():
            self._read(file.read_bytes())

    def begin(self, round: int) -> None:
        """Go on with the steps of this round, or begin it; what is of another one is dropped."""
        if self.round != round:
            self._start(round, 0)

    def again(self) -> None:
        """This try is over: the next one begins, and its number is never used again."""
        self._start(self.round, self.attempt + 1)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What ``make`` gives, the first time that this step is done."""
        if name not in self.steps:
            value = make()
            self._append(name.encode(), value)
            self.steps[name] = value
        return self.steps[name]

    def _start(self, round: int, attempt: int) -> None:
        self.round, self.attempt, self.steps = round, attempt, {}
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.file, _HEAD.pack(_MAGIC, round, attempt), private=True)

    def _append(self, name: bytes, value: bytes) -> None:
        if self.file is None:
            return
        with writing(self.file), self.file.open("ab") as handle:
            handle.write(_ENTRY.pack(len(name), len(value), zlib.crc32(name + value)))
            handle.write(name + value)
            handle.flush()
            os.fsync(handle.fileno())

    def _read(self, data: bytes) -> None:
        """All whole entries; one that was being written when the coordinator died is cut off."""
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            return
        _, self.round, self.attempt = _HEAD.unpack_from(data)
        start = _HEAD.size
        while start + _ENTRY.size <= len(data):
            named, size, check = _ENTRY.unpack_from(data, start)
            entry = data[start + _ENTRY.size : start + _ENTRY.size + named + size]
            if len(entry) < named + size or zlib.crc32(entry) != check:
                break
            self.steps[entry[:named].decode()] = entry[named:]
            start += _ENTRY.size + named + size
        assert self.file is not None
        if start < len(data):
            with writing(self.file):
                os.truncate(self.file, start)
