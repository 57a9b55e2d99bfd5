"""Letters between a coordinator and its nodes: a head of 52 bytes, and what the round's wire packs.

    MAGIC kind round | nonce | accepted | program | body

A coordinator puts a new *nonce* into each letter, and a reply must have it: bytes that were sent
before, or for another letter, are of no use to anybody.  ``accepted`` is the nonce of the last
letter whose answer was counted: by it a node knows which of its memories holds.  ``program`` is the
fingerprint of what clients compute.  All of it can be read before anything else is.
"""

import struct
from typing import NamedTuple

from fedslice.errors import InputError

MAGIC = b"fsd1"
HEAD = struct.Struct("<4sB3xI16s16s8s")
NONE = bytes(16)  # the nonce of no letter
LONGEST = 400  # characters of a reason that are believed

REGISTER, REGISTERED = 1, 2
INVITE, LOOK = 3, 4
FOUND, ANSWER = 5, 6
NEWS, NOTED = 7, 8
REFUSED = 9
MODEL = 10
HEAT, HEATED = 20, 21
TURN, TURNED = 22, 23  # of a secure sum: see deploy.turns


class Letter(NamedTuple):
    """A letter or a reply.

    >>> letter = Letter(INVITE, 3, b"n" * 16, NONE, "00ff00ff00ff00ff", b"rows")
    >>> len(letter.pack()), unpack(letter.pack()) == letter
    (56, True)
    """

    kind: int
    round: int
    nonce: bytes
    accepted: bytes
    program: str  # 16 hexadecimal digits
    body: bytes = b""

    def pack(self) -> bytes:
        """Its bytes."""
        own = bytes.fromhex(self.program)
        head = HEAD.pack(MAGIC, self.kind, self.round, self.nonce, self.accepted, own)
        return head + self.body

    def reply(self, kind: int, program: str, body: bytes = b"") -> "Letter":
        """To this one, by a node that runs ``program``."""
        return Letter(kind, self.round, self.nonce, NONE, program, body)


def unpack(data: bytes) -> Letter:
    """The letter in these bytes.

    >>> unpack(b"what")
    Traceback (most recent call last):
    fedslice.errors.InputError: 4 bytes that are no letter of this version of fedslice
    """
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise InputError(f"{len(data)} bytes that are no letter of this version of fedslice")
    _, kind, round, nonce, accepted, program = HEAD.unpack_from(data)
    return Letter(kind, round, nonce, accepted, program.hex(), data[HEAD.size :])


def reason(body: bytes) -> str:
    """Why a node refused, in its own words: short, and without anything that moves a cursor.

    >>> reason(b"no \\x1b[2J memory")
    'no ?[2J memory'
    """
    text = body[: 4 * LONGEST].decode("utf-8", "replace")[:LONGEST]
    return "".join(each if each.isprintable() else "?" for each in text)
