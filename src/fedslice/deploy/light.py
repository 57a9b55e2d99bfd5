"""Turns of a secure sum that need neither a node's data nor its algorithm.

In turn 0 a node decides by its algorithm whether it takes part, and in turn 2 it trains.  To share
keys (1), to agree on who is left (3) and to unmask (4) it needs only the seat that lies in its
folder.  Where a node is a new process for every letter, reading the data and tracing the program
would be most of what these turns cost.
"""

from pathlib import Path
from typing import NoReturn

from fedslice.deploy import letter as letters
from fedslice.deploy.alone import alone
from fedslice.deploy.given import Given
from fedslice.deploy.sitting import Acts, Sitting
from fedslice.deploy.turns import Turn
from fedslice.deploy.vault import SECRET, Vault
from fedslice.errors import FedsliceError, InputError
from fedslice.privacy.secure.primitives import identity_of

TURNS = (1, 3, 4)


def reply(folder: Path, letter: bytes) -> bytes | None:
    """What the node with this folder says to such a turn; None to all else, and where it does not
    sit."""
    try:
        head = letters.unpack(letter)
        light = head.kind == letters.TURN and Turn.unpack(head.body).number in TURNS
    except InputError:
        return None
    if not light or not (folder / SECRET).exists():
        return None
    try:
        with alone(folder):
            sitting = _sitting(folder)
            return None if sitting is None else sitting.answer(head, letter, NEITHER).pack()
    except FedsliceError as error:
        return head.reply(letters.REFUSED, head.program, str(error).encode()).pack()


def _sitting(folder: Path) -> Sitting | None:
    """Its place in the sum under way; its number is that of its key in the roster."""
    vault = Vault(folder)
    opening = Sitting(folder, 0, vault.identity, Given(folder)).opening()
    public = identity_of(vault.identity)
    mine = [] if opening is None else [n for n, key in opening.roster.items() if key == public]
    return Sitting(folder, mine[0], vault.identity, Given(folder)) if mine else None


def _unasked(*given: object) -> NoReturn:
    raise InputError("a turn that needs the node's data")


NEITHER = Acts(_unasked, _unasked, _unasked, _unasked)
