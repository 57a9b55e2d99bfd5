"""Taking the masks off a sum: secrets from shares, checked, and their key streams.

A secret that was rebuilt is compared with what its owner advertised: the public key, or the
commitment of its own mask.  So a wrong share cannot make a wrong sum.  Where there are more shares
than needed, others are tried, and those that do not fit are named.

>>> from fedslice.privacy.secure.degree import Degree
>>> from fedslice.privacy.secure.shamir import split
>>> session = Session({number: bytes(32) for number in range(4)}, b"s" * 32, Degree(3, 2))
>>> secret = b"k" * 32
>>> advertised = {0: bytes(64) + commitment(session, 0, secret)}
>>> opened = Opened(session, advertised, frozenset(range(4)), stayed=frozenset(range(4)))
>>> shares = dict(enumerate(split(secret, 2, [2, 3, 4], lambda size: b"r" * size), start=1))
>>> opened.secret(0, shares) == (secret, [])
True
>>> opened.secret(0, {**shares, 1: shares[2]}) == (secret, [1])
True
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError
from fedslice.privacy.secure import masks
from fedslice.privacy.secure.participant import OWN, PAIR, commitment
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import KEY, agree, private_key, public_of
from fedslice.privacy.secure.session import Session
from fedslice.privacy.secure.shamir import interpolate, join


class Opened(NamedTuple):
    """What is known when shares arrive: what was advertised, who had given shares, who stayed."""

    session: Session
    keys: dict[int, bytes]
    sharers: frozenset[int]
    stayed: frozenset[int]

    def secret(self, owner: int, shares: dict[int, bytes]) -> tuple[bytes, list[int]]:
        """The owner's secret, by shares of its neighbours, and whose shares are wrong: that of its
        own mask if it stayed, of its pair masks if not."""
        threshold = self.session.degree.threshold
        if len(shares) < threshold:
            raise InputError(
                f"the sum ends: {len(shares)} neighbours gave shares of participant {owner}'s"
                f" secret, and {threshold} are needed. Begin another session"
            )
        points = [(self.session.places[each] + 1, shares[each]) for each in shares]
        for start in range(len(points)):  # a wrong share is not in all of these
            chosen = dict((points[start:] + points[:start])[:threshold])
            found = join(list(chosen), list(chosen.values()))
            if found is not None and self.fits(owner, found):
                return found, self._wrong(shares, chosen) if start else []
            if len(points) == threshold:
                break
        raise InputError(
            f"the sum ends: the shares of participant {owner}'s secret do not give what it"
            " advertised. It or some of its neighbours"
            f" ({', '.join(map(str, sorted(shares)))}) sent wrong ones. Begin another session"
        )

    def fits(self, owner: int, secret: bytes) -> bool:
        """Whether this is the secret that its owner advertised."""
        advertised = self.keys[owner]
        if owner in self.stayed:
            return commitment(self.session, owner, secret) == advertised[2 * KEY :]
        return public_of(private_key(secret)) == advertised[KEY : 2 * KEY]

    def _wrong(self, shares: dict[int, bytes], chosen: dict[int, bytes]) -> list[int]:
        """Who gave a share that is not on the polynomial through the chosen ones."""
        places = {each: self.session.places[each] + 1 for each in shares}
        numbers = [int.from_bytes(share, "little") for share in chosen.values()]
        return [
            each
            for each, place in places.items()
            if place not in chosen
            and interpolate(list(chosen), numbers, place) != int.from_bytes(shares[each], "little")
        ]


def remove(
    flat: NDArray[np.uint32], opened: Opened, secrets: dict[int, bytes], parts: Parts
) -> None:
    """Take off, in place, the own masks of those who stayed and what remains of the pair masks of
    those who left."""
    tag = opened.session.tag
    for owner, secret in secrets.items():
        if owner in opened.stayed:
            masks.add(flat, secret, OWN, tag, parts, -1)
            continue
        key = private_key(secret)
        for other in opened.session.neighbours(owner):
            if other in opened.stayed:
                pair = agree(key, opened.keys[other][KEY : 2 * KEY])
                masks.add(flat, pair, PAIR, tag, parts, -1 if other < owner else 1)
