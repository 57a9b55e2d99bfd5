"""Masks: key streams that are added to a vector, and taken off again.

    pair mask   +PRG(k_uv) for the smaller identity, -PRG(k_uv) for the larger: zero in the sum
    own mask    +PRG(b_u), which the neighbours of a participant that stayed give away

PRG(k) of a part is AES-256-CTR under HKDF(k, part's name); see :mod:`fedslice.privacy.secure.parts`
for which word of it masks which number.
"""

import numpy as np
from numpy.typing import NDArray

from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import derive, key_stream


def add(
    flat: NDArray[np.uint32], secret: bytes, use: bytes, salt: bytes, parts: Parts, sign: int = 1
) -> None:
    """Add the mask of a secret to a flat vector in place, or take it off (``sign`` -1).

    ``use`` and ``salt`` say what the secret masks: of one secret, other uses have other masks.

    >>> from fedslice.privacy.secure.parts import dense
    >>> parts, flat = Parts([dense("bias", 3)]), np.zeros(3, np.uint32)
    >>> add(flat, b"k" * 32, b"pair", b"session", parts)
    >>> flat.any()
    np.True_
    >>> add(flat, b"k" * 32, b"pair", b"session", parts, -1)
    >>> flat.any()
    np.False_
    """
    for stream in parts.streams:
        key = derive(secret, use + b"\0" + stream.name, salt)
        words = np.frombuffer(key_stream(key, stream.counters), "<u4")
        own = flat[stream.start : stream.stop]
        words = words[: len(own)] if stream.take is None else words[stream.take]
        (np.add if sign > 0 else np.subtract)(own, words, out=own)
