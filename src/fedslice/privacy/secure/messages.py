"""Messages as bytes: a header, a payload of fixed layout, from participants a signature.

    header      magic 4 | turn 1 | sender 4 | receiver 4 | bytes of the payload 4 | session 32
    signature   Ed25519 of header and payload by the sender's identity key, 64

Everything is little endian.  A payload is a list of entries (identity 4, then so many bytes),
ascending by identity, or a set of participants (one bit for each place of the roster), or both:

    turn   participant to coordinator                     coordinator to participant
    0      two public keys, commitment of the own mask    the same of each neighbour, with signature
    1      a sealed pair of shares for each neighbour     those that the neighbours made for it
    2      digest of the parts, masked numbers            the set of those whose numbers arrived
    3      the same set                                   it again, and the neighbours' signatures
    4      one share of each neighbour

Lengths are compared before anything is read, session, turn, receiver and sender before a signature
is verified.

>>> from fedslice.privacy.secure.degree import Degree
>>> from fedslice.privacy.secure.primitives import identity_of
>>> keys = {number: bytes([number]) * 32 for number in range(9)}
>>> roster = {number: identity_of(key) for number, key in keys.items()}
>>> session = Session(roster, b"s" * 32, Degree(8, 5))
>>> message = signed(session, 3, 7, b"payload", keys[7])
>>> len(message) == HEADER + 7 + SIGNATURE
True
>>> read(session, message, 3, COORDINATOR, most=7).sender
7
>>> read(session, message, 3, COORDINATOR, most=6)
Traceback (most recent call last):
fedslice.errors.InputError: participant 7 is refused: 7 bytes are too many, at most 6 are possible
>>> check_signature(session, 2, 7, b"payload", message[-SIGNATURE:])
Traceback (most recent call last):
fedslice.errors.InputError: participant 7 is refused: the signature of turn 2 is not by its identity
key
>>> read(session, addressed(session, 2, 7, b"for 7"), 2, receiver=7, most=10).payload
b'for 7'
>>> pack_set(session, {0, 2, 8}).hex(), set_size(session)
('0501', 2)
>>> sorted(unpack_set(session, bytes.fromhex("0501"), COORDINATOR))
[0, 2, 8]
"""

import struct
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.privacy.secure.primitives import GCM_TAG, KEY, SIGNATURE, sign, verified
from fedslice.privacy.secure.session import COORDINATOR, Session
from fedslice.privacy.secure.shamir import SHARE

MAGIC = b"fss1"
_HEADER, _NUMBER = struct.Struct("<4sBIII32s"), struct.Struct("<I")
HEADER, NUMBER = _HEADER.size, _NUMBER.size
KEYS, SEALED = 3 * KEY, 2 * SHARE + GCM_TAG
"""Bytes of what is advertised in turn 0, and of a sealed pair of shares."""
TURNS = ("advertise", "share", "mask", "agree", "unmask")


class Received(NamedTuple):
    """A message whose header is right."""

    sender: int
    payload: bytes
    signature: bytes


def header(session: Session, turn: int, sender: int, receiver: int, size: int) -> bytes:
    """What a message begins with; also what sealed shares are bound to."""
    return _HEADER.pack(MAGIC, turn, sender, receiver, size, session.tag)


def signed(session: Session, turn: int, sender: int, payload: bytes, private: bytes) -> bytes:
    """A participant's message to the coordinator."""
    message = header(session, turn, sender, COORDINATOR, len(payload)) + payload
    return message + sign(private, message)


def addressed(session: Session, turn: int, receiver: int, payload: bytes) -> bytes:
    """A coordinator's message to a participant."""
    return header(session, turn, COORDINATOR, receiver, len(payload)) + payload


def check_signature(
    session: Session, turn: int, sender: int, payload: bytes, signature: bytes
) -> None:
    """Refuse what the sender did not sign for this session and turn."""
    message = header(session, turn, sender, COORDINATOR, len(payload)) + payload
    if not verified(session.roster[sender], signature, message):
        raise refused(sender, f"the signature of turn {turn} is not by its identity key")


def read(session: Session, message: bytes, turn: int, receiver: int, most: int) -> Received:
    """Split a message for this receiver and turn, with a payload of at most ``most`` bytes; any
    other is refused."""
    tail = SIGNATURE if receiver == COORDINATOR else 0
    if len(message) < HEADER + tail:
        raise InputError(f"a message of {len(message)} bytes has no header: refused")
    magic, its_turn, sender, to, size, tag = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise InputError("these bytes are no message of a secure sum: refused")
    if receiver == COORDINATOR and sender not in session.roster:
        raise refused(sender, "it is not in the roster")
    if receiver != COORDINATOR and sender != COORDINATOR:
        raise refused(sender, "participants get messages from the coordinator alone")
    if tag != session.tag:
        raise refused(sender, "the message is of another session")
    if to != receiver:
        raise refused(sender, f"the message is for {_name(to)}")
    if its_turn != turn:
        raise refused(sender, f"the message is of turn {its_turn}, and this is turn {turn}")
    if size > most:
        raise refused(sender, f"{size:,} bytes are too many, at most {most:,} are possible")
    if len(message) != HEADER + size + tail:
        raise refused(sender, f"the message has {len(message):,} bytes and announces other lengths")
    return Received(sender, message[HEADER : HEADER + size], message[HEADER + size :])


def refused(sender: int, why: str) -> InputError:
    """The error that names who is refused, and why.

    >>> refused(7, "it is late")
    InputError('participant 7 is refused: it is late')
    """
    return InputError(f"{_name(sender)} is refused: {why}")


def _name(identity: int) -> str:
    return "the coordinator" if identity == COORDINATOR else f"participant {identity}"


def pack_entries(entries: Mapping[int, bytes]) -> bytes:
    """Entries one after the other, ascending by identity.

    >>> pack_entries({7: b"b", 1: b"a"}).hex()
    '01000000610700000062'
    """
    return b"".join(_NUMBER.pack(identity) + entries[identity] for identity in sorted(entries))


def unpack_entries(payload: bytes, size: int, sender: int) -> dict[int, bytes]:
    """Entries of ``size`` bytes each; their identities must ascend.

    >>> unpack_entries(bytes.fromhex("01000000610700000062"), 1, 5)
    {1: b'a', 7: b'b'}
    """
    step = NUMBER + size
    if len(payload) % step:
        raise refused(sender, f"{len(payload):,} bytes are no whole number of entries of {step}")
    found: dict[int, bytes] = {}
    last = -1
    for start in range(0, len(payload), step):
        (identity,) = _NUMBER.unpack_from(payload, start)
        if identity <= last:
            raise refused(sender, "the identities of its entries do not ascend")
        found[identity] = payload[start + NUMBER : start + step]
        last = identity
    return found


def set_size(session: Session) -> int:
    """Bytes of a set of participants."""
    return -(-len(session.roster) // 8)


def pack_set(session: Session, members: Collection[int]) -> bytes:
    """One bit for each place of the roster."""
    chosen = set(members)
    bits = [identity in chosen for identity in session.identities]
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_set(session: Session, payload: bytes, sender: int) -> frozenset[int]:
    """The participants of a packed set."""
    if len(payload) != set_size(session):
        raise refused(sender, f"a set of participants has {set_size(session)} bytes")
    bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little")
    if bits[len(session.roster) :].any():
        raise refused(sender, "a set of participants goes beyond the roster")
    return frozenset(session.identities[place] for place in np.flatnonzero(bits))
