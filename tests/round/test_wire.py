"""Messages as bytes at the edges of what fits: a small wire made by hand, nothing traced."""

from typing import Any

import jax
import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.round.wire import COUNT, HEAD, TOLD, Layout, Wire
from fedslice.types import ClientReport, Message

ROWS = 10
ROOM = {"w": 3}


def like(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def wire(rows: int = ROWS) -> Wire:
    """Of a table with two numbers a row, and a dense number; a survey finds one number a row."""
    both = Layout({"w": "w", "b": ""}, {"w": like(1, 2), "b": like()})
    update = {"update": {"w": "w", "b": ""}}
    message = Layout(update, {"update": {"w": like(1, 2), "b": like()}})
    return Wire({"w": rows}, both, Layout({"w": "w"}, {"w": like(1)}), message, ["w rows"])


def packed(ids: list[int], rows: int = ROWS) -> bytes:
    update = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.float32(7)}
    message = Message(update, np.float32(2), ClientReport(*map(np.float32, (1, 2, 3, 4, 0))), {})
    places = {"w": np.arange(len(ids))}
    return wire(rows).pack_message(5, message, places, {"w": np.array(ids, np.int64)})


@pytest.mark.parametrize("ids", [[], [9], [0, 4, 9]], ids=str)
def test_a_message_comes_back(ids: list[int]) -> None:
    """No row, the last row, as many rows as there is room for."""
    data = packed(ids)
    assert len(data) == wire().up({"w": len(ids)}) - HEAD.size - COUNT - TOLD.size - 8 * len(ids)
    round, message, named = wire().unpack_message(data, ROOM)
    assert (round, named["w"].tolist()) == (5, ids)
    expected = np.zeros((3, 2), np.float32)
    expected[: len(ids)] = np.arange(6).reshape(3, 2)[: len(ids)]
    assert np.array_equal(message.update["w"], expected)
    assert (float(message.update["b"]), float(message.weight)) == (7, 2)
    assert [float(x) for x in message.report] == [1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 4, ROWS], "not ascending ids below 10"),
        ([0, 4, 4], "not ascending ids below 10"),
        ([4, 0, 9], "not ascending ids below 10"),
        ([0, 1, 2, 3], "4 rows of 'w', which is too many"),
    ],
    ids=str,
)
def test_rows_that_are_not_there_or_come_twice_are_refused(ids: list[int], words: str) -> None:
    """A row that comes twice would be added twice; one past the end would be lost without a
    word."""
    room = {"w": 4}
    data = packed(ids[:3])
    if len(ids) == 4:  # it says so; how many follow does not matter
        data = data[: HEAD.size] + np.uint32(4).tobytes() + data[HEAD.size + COUNT :]
        room = ROOM
    with pytest.raises(InputError, match=words):
        wire().unpack_message(data, room)


@pytest.mark.parametrize(("rows", "width"), [(2**32, 4), (2**32 + 1, 8)])
def test_ids_have_four_bytes_as_long_as_they_fit(rows: int, width: int) -> None:
    """The last id of 2^32 rows is 2^32 - 1."""
    own = wire(rows)
    assert own.slice({"w": 5}) == HEAD.size + COUNT + 5 * width
    assert len(own.pack_slice({"w": np.arange(5)})) == HEAD.size + COUNT + 5 * width
    last = np.array([3, rows - 1])
    _, _, named = own.unpack_message(packed(last.tolist(), rows), ROOM)
    assert named["w"].tolist() == last.tolist()


def test_what_a_survey_found_is_for_the_rows_of_one_client() -> None:
    found = {"w": np.array([1.0, 2.0], np.float32)}
    data = wire().pack_found(5, {"w": 2}, found)
    assert wire().unpack_found(data, {"w": 2})["w"].tolist() == [1, 2]
    for other in (1, 3):
        with pytest.raises(InputError, match="this client holds"):
            wire().unpack_found(data, {"w": other})


def test_an_invitation_comes_back() -> None:
    tree: Any = {"w": np.ones((2, 2), np.float32), "b": np.float32(7)}
    data = wire().pack_invitation(5, 11, {"w rows": 8}, {"w": 2}, tree)
    assert len(data) + HEAD.size + COUNT + 4 * 2 == wire().down({"w": 2})  # and what was found
    round, seed, room, back = wire().unpack_invitation(data, {"w": 2})
    assert (round, seed, room) == (5, 11, {"w rows": 8})
    assert np.array_equal(back["w"], tree["w"])
    assert float(back["b"]) == 7
    with pytest.raises(InputError, match="more than its leaves need"):
        wire().unpack_invitation(data + b"x", {"w": 2})


def test_without_tables_there_is_nothing_to_name() -> None:
    dense = Layout({"b": ""}, {"b": like()})
    none = Wire({}, dense, Layout((), ()), dense, [])
    assert none.slice({}) == 0
    assert none.up({}) == HEAD.size + TOLD.size + 4
    assert none.down({}) == HEAD.size + COUNT + 4
