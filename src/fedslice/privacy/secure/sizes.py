"""What one participant of a secure sum sends and gets, in bytes: the lengths of its messages.

With n invited, k neighbours each and nobody leaving (those who leave make messages shorter):

    up     0  209     1  113 + 86 k     2  145 + 4 numbers     3  113 + n/8     4  113 + 37 k
    down   0  49 + 164 k     1  49 + 86 k     2  49 + n/8     3  49 + n/8 + 68 k
"""

from typing import NamedTuple

from fedslice.privacy.secure.messages import HEADER, KEYS, NUMBER, SEALED
from fedslice.privacy.secure.parts import ENTRY, ID, START
from fedslice.privacy.secure.primitives import KEY, SIGNATURE
from fedslice.privacy.secure.shamir import SHARE


class Sizes(NamedTuple):
    """Bytes by turn; and what a participant is ``told`` before, the packed parts
    (:meth:`Parts.pack`)."""

    up: tuple[int, ...]
    down: tuple[int, ...]
    told: int

    @property
    def total(self) -> tuple[int, int]:
        """All that goes up, and all that comes down."""
        return sum(self.up), sum(self.down) + self.told


def sizes(clients: int, neighbours: int, numbers: int, ids: int = 0, parts: int = 1) -> Sizes:
    """The bytes of one participant, for a vector of so many numbers in so many parts, with so many
    row ids.

    >>> sizes(50, 16, 1000).up
    (209, 1489, 4145, 120, 705)
    >>> sizes(50, 16, 1000, ids=100).total
    (6668, 6186)
    """
    frame, bits = HEADER + SIGNATURE, -(-clients // 8)
    up = (
        frame + KEYS,
        frame + neighbours * (NUMBER + SEALED),
        frame + KEY + 4 * numbers,
        frame + bits,
        frame + neighbours * (NUMBER + SHARE),
    )
    down = (
        HEADER + neighbours * (NUMBER + KEYS + SIGNATURE),
        HEADER + neighbours * (NUMBER + SEALED),
        HEADER + bits,
        HEADER + bits + neighbours * (NUMBER + SIGNATURE),
        0,
    )
    return Sizes(up, down, START + parts * ENTRY + ids * ID)
