"""A participant between two turns, as bytes: for devices that start a new process for every turn.

They hold its secrets: keep them where nobody else reads, and delete them when the sum is over.
Whoever puts an older copy back makes a participant that does a turn twice, against which nothing
here can help: keep the last one only.
"""

import json
import os
from collections.abc import Callable

from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.primitives import private_key
from fedslice.privacy.secure.session import Session


def pack(participant: Participant) -> bytes:
    """All that it must know to go on.

    >>> from fedslice.privacy.secure.degree import Degree
    >>> from fedslice.privacy.secure.primitives import identity_of
    >>> keys = {number: bytes([number]) * 32 for number in range(4)}
    >>> roster = {number: identity_of(key) for number, key in keys.items()}
    >>> session = Session(roster, b"s" * 32, Degree(3, 2))
    >>> participant = Participant(session, 1, keys[1])
    >>> again = unpack(session, 1, keys[1], pack(participant))
    >>> again.advertise() == participant.advertise()
    True
    """
    own = participant
    kept = {
        "turn": own._turn,
        "secrets": [
            own._seal_key.private_bytes_raw().hex(),
            own._pair_key.private_bytes_raw().hex(),
            own._own_secret.hex(),
        ],
        "keys": _texts(own._keys),
        "sealing": _texts(own._sealing),
        "shares": _texts(own._shares),
        "sharers": sorted(own._sharers),
        "set": own._set.hex(),
        "refused": {str(each): why for each, why in own.refused.items()},
    }
    return json.dumps(kept).encode()


def unpack(
    session: Session,
    identity: int,
    private: bytes,
    data: bytes,
    random: Callable[[int], bytes] = os.urandom,
) -> Participant:
    """The participant again, at the turn at which it was packed."""
    kept, found = json.loads(data), Participant(session, identity, private, random)
    seal, pair, own = (bytes.fromhex(secret) for secret in kept["secrets"])
    found._seal_key, found._pair_key, found._own_secret = private_key(seal), private_key(pair), own
    found._turn, found._set = kept["turn"], bytes.fromhex(kept["set"])
    found._keys, found._sealing = _entries(kept["keys"]), _entries(kept["sealing"])
    found._shares, found._sharers = _entries(kept["shares"]), frozenset(kept["sharers"])
    found.refused = {int(each): why for each, why in kept["refused"].items()}
    return found


def _texts(entries: dict[int, bytes]) -> dict[str, str]:
    return {str(each): value.hex() for each, value in entries.items()}


def _entries(texts: dict[str, str]) -> dict[int, bytes]:
    return {int(each): bytes.fromhex(value) for each, value in texts.items()}
