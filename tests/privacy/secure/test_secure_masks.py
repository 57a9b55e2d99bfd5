"""Masks: the law of rows, that they look random, and that they cancel in the sum alone."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from people import PARTS, Room, source, vector

from fedslice.errors import InputError
from fedslice.privacy.secure import masks
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.participant import Participant
from fedslice.privacy.secure.parts import MOST, Part, Parts, dense, rows
from fedslice.privacy.secure.primitives import derive
from fedslice.privacy.secure.run import secure_sum

SECRET = b"k" * 32


def _mask(parts: Parts, secret: bytes = SECRET, use: bytes = b"pair") -> dict[str, np.ndarray]:
    flat = np.zeros(parts.size, np.uint32)
    masks.add(flat, secret, use, b"session", parts)
    return parts.named(flat)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 16])
def test_the_mask_of_a_row_is_the_same_whatever_rows_are_with_it(width: int) -> None:
    everything = _mask(Parts([rows("item", np.arange(200), width)]))["item"]
    rng = np.random.default_rng(width)
    for count in (1, 2, 17, 199):
        ids = np.sort(rng.choice(200, count, replace=False))
        parts = Parts([dense("bias", 3), rows("item", ids, width), rows("word", [5], 2)])
        assert np.array_equal(_mask(parts)["item"], everything[ids])


def test_the_mask_of_a_row_is_counter_mode_at_its_position() -> None:
    ids, width = np.array([0, 3, 2**40, 2**40 + 1, 2**40 + 9]), 3
    found = _mask(Parts([rows("item", ids, width)]))["item"]
    key = derive(SECRET, b"pair\0item", b"session")
    for row, number in zip(found, ids.tolist(), strict=True):
        block, word = divmod(number * width, 4)
        mode = modes.CTR(block.to_bytes(16))
        stream = Cipher(algorithms.AES(key), mode).encryptor().update(bytes(32))
        assert np.array_equal(row, np.frombuffer(stream, "<u4")[word : word + width])


def test_masks_hang_on_secret_use_name_and_place() -> None:
    found = [
        _mask(Parts([rows("item", np.arange(64), 4)]))["item"],
        _mask(Parts([rows("word", np.arange(64), 4)]))["word"],
        _mask(Parts([rows("item", np.arange(64), 4)]), use=b"own")["item"],
        _mask(Parts([rows("item", np.arange(64), 4)]), b"j" * 32)["item"],
        _mask(Parts([rows("item", np.arange(64, 128), 4)]))["item"],
    ]
    numbers = np.concatenate([each.reshape(-1) for each in found])
    assert len(np.unique(numbers)) == len(numbers)  # 1,280 of 2^32: a repeat has chance 2^-13


def test_a_mask_that_is_taken_off_leaves_nothing() -> None:
    flat = PARTS.flat(vector(3))
    before = flat.copy()
    masks.add(flat, SECRET, b"pair", b"session", PARTS)
    assert not np.any(flat == before)
    masks.add(flat, SECRET, b"pair", b"session", PARTS, -1)
    assert np.array_equal(flat, before)


def _bytes_are_uniform(numbers: np.ndarray) -> bool:
    """Chi-square of the bytes: 255 degrees of freedom, 0.001 and 0.999 quantiles."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return 189.0 < ((counts - expected) ** 2 / expected).sum() < 330.6


def test_masked_vectors_look_uniform_and_only_their_sum_does_not() -> None:
    size, clients = 20_000, 5
    parts = Parts([dense("w", size)])
    seen: list[np.ndarray] = []
    mask = Participant.mask

    def spying(self: Participant, message: bytes, parts: Parts, vector: dict) -> bytes:
        answer = mask(self, message, parts, vector)
        seen.append(np.frombuffer(answer[-64 - 4 * size : -64], "<u4"))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Participant, "mask", spying)
        vectors = [{"w": np.full(size, number, np.int32)} for number in range(clients)]
        found = secure_sum(vectors, parts, Degree(4, 3), random=source(5)).total["w"]
    assert len(seen) == clients
    assert np.all(found == 10)
    assert not _bytes_are_uniform(found)
    for number, masked in enumerate(seen):
        assert _bytes_are_uniform(masked)
        assert np.mean(masked == number) < 1e-3
    # Pairs, triples and all five together are still under the own masks.
    for count in range(2, clients + 1):
        assert _bytes_are_uniform(sum(seen[:count]).astype(np.uint32))


def test_own_masks_alone_do_not_open_a_vector() -> None:
    room = Room(6, Degree(5, 3)).until(2)
    masked = np.frombuffer(room.answer(2, room.inbox[2])[-64 - 4 * PARTS.size : -64], "<u4").copy()
    own = room.people[2]._own_secret
    masks.add(masked, own, b"own mask", room.session.tag, PARTS, -1)
    assert not np.any(masked == PARTS.flat(vector(2)))


def test_parts_travel_as_bytes() -> None:
    parts = Parts([dense("a", 3), rows("größe", [0, 7, 2**40], 2), rows("none", [], 1)])
    packed = parts.pack()
    again = Parts.unpack(packed)
    assert again.digest == parts.digest
    assert again.pack() == packed
    assert [part.shape for part in again.parts] == [(3,), (3, 2), (0, 1)]
    for size in range(len(packed)):
        with pytest.raises(InputError):
            Parts.unpack(packed[:size])
    with pytest.raises(InputError, match="too many"):
        Parts.unpack(packed + b"x")
    with pytest.raises(InputError, match="no packed parts"):
        Parts.unpack(b"x" + packed[1:])


def test_the_digest_is_of_everything_that_parts_are() -> None:
    several = [
        [dense("a", 3)],
        [dense("a", 4)],
        [dense("b", 3)],
        [rows("a", [0], 3)],
        [rows("a", [1], 3)],
        [rows("a", [0, 1], 3)],
        [dense("a", 3), dense("b", 3)],
    ]
    assert len({Parts(parts).digest for parts in several}) == len(several)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [dense("a", 1), dense("a", 2)],
        [dense("", 1)],
        [dense("x" * 65, 1)],
        [dense("a\0", 1)],
        [dense("a", 0)],
        [rows("a", [1, 1], 1)],
        [rows("a", [2, 1], 1)],
        [rows("a", [-1, 1], 1)],
        [rows("a", [[1]], 1)],
        [rows("a", [2**62], 2**10)],
        [dense("a", MOST + 1)],
    ],
)
def test_impossible_parts_are_refused(parts: list[Part]) -> None:
    with pytest.raises(InputError):
        Parts(parts)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"bias": np.zeros(5, np.int32)},
        {"bias": np.zeros(5, np.int32), "item": np.zeros((3, 3), np.int32), "x": np.zeros(1)},
        {"bias": np.zeros(5, np.float32), "item": np.zeros((3, 3), np.int32)},
        {"bias": np.zeros(5, np.int64), "item": np.zeros((3, 3), np.int32)},
        {"bias": np.zeros(5, np.int32), "item": np.zeros(9, np.int32)},
    ],
)
def test_vectors_of_another_kind_are_refused(values: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError):
        PARTS.flat(values)
