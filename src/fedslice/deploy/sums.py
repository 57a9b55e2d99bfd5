"""A secure sum over a link, on the coordinator's side: five exchanges of letters, one a turn.

Whoever does not reply in time has left; whoever replies with something wrong is named, and has
left, too.  A node's numbers are in the sum from the third turn on, whatever becomes of it later.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.checks import Asked, head
from fedslice.deploy.cohort import Tally
from fedslice.deploy.journal import Journal
from fedslice.deploy.post import Post
from fedslice.deploy.turns import Opening, Turn
from fedslice.errors import InputError
from fedslice.privacy.secure import messages
from fedslice.privacy.secure.coordinator import Coordinator
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.session import COORDINATOR
from fedslice.privacy.secure.sizes import sizes


class Summed(NamedTuple):
    """The ``total`` of those who ``stayed``, of so many that were ``asked``, and the nonces of the
    letters in which they gave their numbers; without a total ``why`` not, and whether any numbers
    had left (``masked``)."""

    total: dict[str, np.ndarray] | None
    stayed: tuple[str, ...] = ()
    nonces: Mapping[str, bytes] = {}
    asked: int = 0
    why: str = ""
    masked: bool = False


def nobody(turn: int, name: str) -> bytes:
    """Nothing beside the messages."""
    return b""


def ignore(name: str, beside: bytes) -> None:
    """What comes beside the first reply must be nothing."""
    if beside:
        raise InputError("a reply with more than its turn has")


def add_up(
    post: Post,
    journal: Journal,
    tally: Tally,
    opening: Opening,
    names: Mapping[int, str],
    parts: Callable[[], Parts],
    beside: Callable[[int, str], bytes] = nobody,
    seen: Callable[[str, bytes], None] = ignore,
    room: int = 0,
) -> Summed:
    """The sum of the nodes' vectors.

    ``names`` has the name of each participant, ``beside(turn, name)`` what goes along with a letter
    of turn 0 or 2, ``seen`` gets what comes along with the first reply, at most ``room`` bytes.
    """
    session, shape = opening.session, parts()
    server = Coordinator(session, shape)
    known = sizes(len(names), session.degree.neighbours, shape.size)
    numbers = {name: number for number, name in names.items()}
    sent: dict[int, bytes] = dict.fromkeys(names, b"")
    nonces: dict[str, bytes] = {}
    for number in range(5):
        bodies = {
            names[each]: Turn(
                number,
                opening.pack() if number == 0 else b"",
                message,
                beside(number, names[each]) if number in (0, 2) else b"",
            ).pack()
            for each, message in sorted(sent.items())
        }
        step = f"{opening.purpose} {number}"
        replies = post.send(letters.TURN, opening.round, bodies, tally, journal, step)
        if number == 2:
            nonces = {name: tally.nonces[name] for name in bodies}
        most = letters.HEAD.size + Turn(0).size + known.up[number] + (0 if number else room)
        for name, reply in sorted(replies.items(), key=lambda item: numbers[item[0]]):
            asked = Asked(letters.TURNED, opening.round, tally.nonces[name])
            try:
                turn = Turn.unpack(head(reply, asked, post.program, most).body)
                if number == 0:
                    seen(name, turn.beside)
                _take(server, turn.message, numbers[name])
            except InputError as error:
                tally.excluded[name] = str(error)
        try:
            if number < 4:
                sent = server.close()
        except InputError as error:
            return Summed(None, why=str(error), masked=number >= 2)
    try:
        total = server.total()
    except InputError as error:
        return Summed(None, why=str(error), masked=True)
    for each, why in server.excluded.items():
        tally.excluded.setdefault(names[each], why)
    stayed = tuple(names[each] for each in sorted(server.stayed))
    return Summed(total, stayed, {name: nonces[name] for name in stayed}, len(names), masked=True)


def _take(server: Coordinator, message: bytes, sender: int) -> None:
    """Receive a node's message, if it is signed by no other."""
    found = messages.read(server.session, message, server.turn, COORDINATOR, server.most())
    if found.sender != sender:
        raise InputError(f"it sent a message of participant {found.sender}")
    server.receive(message)
