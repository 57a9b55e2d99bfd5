"""Letters out, replies in: with a nonce each, counted, and in a round of turns written down."""

import secrets
import struct
from collections.abc import Mapping

from fedslice.deploy.cohort import Tally
from fedslice.deploy.journal import Journal
from fedslice.deploy.letter import NONE, Letter
from fedslice.deploy.link import Link

_ENTRY = struct.Struct("<II")


class Post:
    """The way of a coordinator that runs ``program`` to its nodes; ``accepted`` has the nonces of
    the answers that counted last."""

    def __init__(
        self, link: Link, deadline: float | None, program: str, accepted: Mapping[str, bytes]
    ) -> None:
        self.link, self.deadline, self.program, self.accepted = link, deadline, program, accepted

    def send(
        self,
        kind: int,
        round: int,
        bodies: Mapping[str, bytes],
        tally: Tally,
        journal: Journal | None = None,
        step: str = "",
    ) -> dict[str, bytes]:
        """The replies of those who were written to, in the order in which they came.  With a
        ``journal`` the same letters go out after a restart, or none if the replies were there."""
        if not bodies:
            return {}
        kept = journal or Journal()
        size = len(NONE)
        drawn = kept.once(f"nonces {step}", lambda: secrets.token_bytes(size * len(bodies)))
        sent = {}
        for place, (name, body) in enumerate(bodies.items()):
            tally.nonces[name] = drawn[place * size : (place + 1) * size]
            accepted = self.accepted.get(name, NONE)
            letter = Letter(kind, round, tally.nonces[name], accepted, self.program, body)
            sent[name] = letter.pack()

        def exchange() -> bytes:
            replies = self.link.exchange(sent, self.deadline)
            return _pack({name: reply for name, reply in replies.items() if name in sent})

        replies = _unpack(kept.once(f"replies {step}", exchange))
        tally.down += sum(map(len, sent.values()))
        tally.up += sum(map(len, replies.values()))
        tally.late += [name for name in sent if name not in replies]
        return replies


def _pack(replies: Mapping[str, bytes]) -> bytes:
    each = [(name.encode(), reply) for name, reply in replies.items()]
    return b"".join(_ENTRY.pack(len(name), len(reply)) + name + reply for name, reply in each)


def _unpack(data: bytes) -> dict[str, bytes]:
    found, start = {}, 0
    while start < len(data):
        named, size = _ENTRY.unpack_from(data, start)
        start += _ENTRY.size
        name = data[start : start + named].decode()
        found[name] = data[start + named : start + named + size]
        start += named + size
    return found
