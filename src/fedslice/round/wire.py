"""Invitations and messages as bytes: what really travels, and how much that is.

Both sides know the algorithm, so they know the structure of all that they send each other; it is
found by tracing (:mod:`fedslice.round.shapes`) and never travels.  What travels is a short head,
how many rows of each table follow, their ids where the other side cannot know them, and the leaves
one after the other, of row-shaped ones the rows at hand: little-endian, without gaps, without
pickle.

    invitation   MAGIC round seed | rows of each table | room | leaves, for all of S(i)
    found        MAGIC round      | rows of each table | leaves, for all of S(i)   after a survey
    message      MAGIC round      | rows of each table | ids | weight, report | leaves
    slice        MAGIC            | rows of each table | ids     a newcomer names its S(i), once

Where clients must not tell which rows are theirs, nobody names any and there is no slice: with
``travel="all"`` "rows of each table" are all of them, both ways, with ``"union"`` those that a
client took of the cohort's union, which both sides know.

``room`` are the padded sizes of the client's arrays.  They are the same for all clients, so that a
client alone computes with the shapes, and so to the bit as, in a simulation.

Whoever reads bytes checks them: lengths, counts, ids, whether numbers are finite.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.stage.codes import is_code
from fedslice.types import ClientReport, Message, PyTree

MAGIC = b"fsl1"
HEAD = struct.Struct("<4sI")  # magic, round
COUNT = 4  # bytes of a number of rows, and of a padded size
TOLD = struct.Struct(f"<{1 + len(ClientReport._fields)}f")  # weight, report

Rows = Mapping[str, np.ndarray]
"""For each space, which of a client's rows: their positions among those at hand."""


class Leaf(NamedTuple):
    """One leaf of a tree that travels: whose rows it follows, and its shape and type (or those of a
    code) with one row."""

    tag: str
    like: Any

    def size(self, rows: Any, items: Any = 0) -> Any:
        """Of so many rows; with so many numbers kept, if it is a code that keeps some."""
        if is_code(self.like):
            return self.like.size(rows if self.tag else None, items)
        row = int(np.prod(self.like.shape[1:] if self.tag else self.like.shape))
        return self.like.dtype.itemsize * row * (rows if self.tag else 1)

    def pack(self, leaf: Any, rows: Rows) -> bytes:
        """The bytes of the rows."""
        chosen = rows[self.tag] if self.tag else None
        if is_code(self.like):
            return leaf.pack(chosen)
        array = np.asarray(leaf)
        return np.ascontiguousarray(array if chosen is None else array[chosen]).tobytes()

    def padded(self, room: Mapping[str, int]) -> Any:
        """Its shape with room for so many rows."""

        def wide(like: Any) -> Any:
            return jax.ShapeDtypeStruct((room[self.tag], *like.shape[1:]), like.dtype)

        if not self.tag:
            return self.like
        if not is_code(self.like):
            return wide(self.like)
        return jax.tree.map(lambda like: wide(like) if like.shape else like, self.like)

    def unpack(self, data: bytes, rows: Rows, room: Mapping[str, int]) -> Any:
        """The leaf with these rows in their places, zeros elsewhere."""
        like = self.padded(room)
        chosen = rows[self.tag] if self.tag else None
        if is_code(like):
            return like.unpack(data, chosen)
        flat = np.frombuffer(data, like.dtype)
        if chosen is None:
            return flat.reshape(like.shape)
        found = np.zeros(like.shape, like.dtype)
        found[chosen] = flat.reshape(len(chosen), *like.shape[1:])
        return found


class Layout:
    """How a tree of a client's leaves lies in bytes.  ``shapes`` has one row of each space."""

    def __init__(self, tags: PyTree, shapes: PyTree) -> None:
        likes, self.tree = _flat(shapes)
        names = self.tree.flatten_up_to(tags)
        self.leaves = [Leaf(_tag(name), like) for name, like in zip(names, likes, strict=True)]
        self.codes = [leaf for leaf in self.leaves if is_code(leaf.like)]
        self.fixed, self.widths = 0, dict.fromkeys({leaf.tag for leaf in self.leaves} - {""}, 0)
        for leaf in self.leaves:  # of plain ones so many bytes, and so many a row
            if leaf.tag and not is_code(leaf.like):
                self.widths[leaf.tag] += leaf.size(1)
            elif not is_code(leaf.like):
                self.fixed += leaf.size(0)

    def size(self, rows: Mapping[str, Any], items: Sequence[Any] = ()) -> Any:
        """Of so many rows of each space; ``items`` as many numbers as each code keeps."""
        size: Any = self.fixed
        for tag, width in self.widths.items():
            size = size + width * rows[tag]
        for leaf, kept in zip(self.codes, items or [0] * len(self.codes), strict=True):
            size = size + leaf.size(rows.get(leaf.tag, 0), kept)
        return size

    def pack(self, tree: PyTree, rows: Rows) -> bytes:
        """The leaves' bytes, each with its length where that is not known from its shape."""
        leaves = self.tree.flatten_up_to(tree)
        return b"".join(leaf.pack(x, rows) for leaf, x in zip(self.leaves, leaves, strict=True))

    def unpack(self, data: bytes, rows: Rows, room: Mapping[str, int]) -> PyTree:
        """The tree again; refuses bytes that are too many or too few."""
        found, start = [], 0
        counts = {name: len(places) for name, places in rows.items()}
        for leaf in self.leaves:
            items = _items(leaf.like, data, start)
            size = int(leaf.size(counts.get(leaf.tag, 0), items))
            if start + size > len(data):
                raise InputError(f"a message of {len(data)} bytes ends before its last leaf")
            try:
                found.append(leaf.unpack(data[start : start + size], rows, room))
            except ValueError as error:
                raise InputError(f"a message has a leaf that cannot be read: {error}") from error
            start += size
        if start != len(data):
            raise InputError(f"a message has {len(data) - start} bytes more than its leaves need")
        return self.tree.unflatten(found)


def _flat(tree: PyTree) -> tuple[list[Any], Any]:
    """Leaves, codes as they are, and the tree without them."""
    return jax.tree.flatten(tree, is_leaf=is_code)


def _items(like: Any, data: bytes, start: int) -> int:
    """How many numbers a code keeps, which its first bytes tell."""
    if not is_code(like) or not like.counted:
        return 0
    if start + COUNT > len(data):
        raise InputError(f"a message of {len(data)} bytes ends before its last leaf")
    return int(np.frombuffer(data, np.uint32, 1, start)[0])


def _tag(names: Any) -> str:
    """The one space that the arrays of a leaf follow, if they follow any."""
    found = {name for name in jax.tree.leaves(names) if name}
    assert len(found) <= 1
    return found.pop() if found else ""


class Wire:
    """The bytes of one algorithm's trips.  ``spaces`` has the rows of each table, by which ids have
    four bytes or eight; ``travel`` says which rows do: ``"named"``, ``"union"`` or ``"all"``."""

    def __init__(
        self,
        spaces: Mapping[str, int],
        invitation: Layout,
        found: Layout,
        message: Layout,
        room: Sequence[str],
        travel: str = "named",
    ) -> None:
        self.spaces, self.room = dict(spaces), list(room)
        self.named, self.hides, self.travel = travel == "named", travel != "named", travel
        self.invitation, self.found, self.message = invitation, found, message
        self.ids = {name: 4 if rows <= 2**32 else 8 for name, rows in spaces.items()}
        self.counts = COUNT * len(self.spaces)

    # -- how many bytes ----------------------------------------------------------------------------

    def down(self, rows: Mapping[str, Any]) -> Any:
        """Of the invitation of clients that hold so many rows, and of what a survey found."""
        rows = self._travelling(rows)
        size = HEAD.size + COUNT + self.counts + COUNT * len(self.room)
        size += self.invitation.size(rows)
        if self.found.leaves:
            size += HEAD.size + self.counts + self.found.size(rows)
        return size

    def up(self, rows: Mapping[str, Any], items: Sequence[Any] = ()) -> Any:
        """Of the message of clients that send so many rows, and of their answer to a survey."""
        rows = self._travelling(rows)
        head = HEAD.size + self.counts + TOLD.size + self._ids(rows)
        size = head + self.message.size(rows, items)
        return size + (head + self.found.size(rows) if self.found.leaves else 0)

    def slice(self, rows: Mapping[str, Any]) -> Any:
        """Of naming so many rows of S(i); nothing if there are no tables, or all rows travel."""
        return HEAD.size + self.counts + self._ids(rows) if self.spaces and self.named else 0

    def _travelling(self, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.spaces if self.travel == "all" else rows

    def _ids(self, rows: Mapping[str, Any]) -> Any:
        return sum(size * rows[name] for name, size in self.ids.items()) if self.named else 0

    # -- the bytes ---------------------------------------------------------------------------------

    def pack_invitation(
        self, round: int, seed: int, room: Mapping[str, int], count: Mapping[str, int], tree: PyTree
    ) -> bytes:
        """An invitation, for the ``count`` rows of S(i) that the tree's leaves have."""
        sizes = [seed, *(count[name] for name in self.spaces), *(room[name] for name in self.room)]
        rows = {name: np.arange(count[name]) for name in self.spaces}
        head = HEAD.pack(MAGIC, round) + np.array(sizes, np.uint32).tobytes()
        return head + self.invitation.pack(tree, rows)

    def unpack_invitation(
        self, data: bytes, count: Mapping[str, int]
    ) -> tuple[int, int, dict[str, int], PyTree]:
        """Round, seed, room and the invitation itself, of a client that holds ``count`` rows."""
        round, rest = _begin(data)
        many = 1 + len(self.spaces) + len(self.room)
        sizes = _numbers(rest, many)
        told = dict(zip(self.spaces, sizes[1:], strict=False))
        if told != dict(count):
            raise InputError(f"an invitation is for {told} rows, this client holds {dict(count)}")
        room = dict(zip(self.room, sizes[1 + len(self.spaces) :], strict=True))
        rows = {name: np.arange(count[name]) for name in self.spaces}
        return round, sizes[0], room, self.invitation.unpack(rest[COUNT * many :], rows, count)

    def pack_found(self, round: int, count: Mapping[str, int], tree: PyTree) -> bytes:
        """What a survey found, for the rows of S(i)."""
        rows = {name: np.arange(count[name]) for name in self.spaces}
        sizes = np.array([count[name] for name in self.spaces], np.uint32)
        return HEAD.pack(MAGIC, round) + sizes.tobytes() + self.found.pack(tree, rows)

    def unpack_found(self, data: bytes, count: Mapping[str, int]) -> PyTree:
        """It again."""
        _, rest = _begin(data)
        sizes = _numbers(rest, len(self.spaces))
        if sizes != [count[name] for name in self.spaces]:
            raise InputError(f"it is for {sizes} rows, this client holds {dict(count)}")
        rows = {name: np.arange(count[name]) for name in self.spaces}
        return self.found.unpack(rest[self.counts :], rows, count)

    def pack_message(
        self, round: int, message: Message, rows: Rows, ids: Rows, survey: bool = False
    ) -> bytes:
        """A client's message with the rows at these positions, under these ids; they do not travel
        where all rows do."""
        sizes = np.array([len(rows[name]) for name in self.spaces], np.uint32).tobytes()
        named = self._pack_ids(ids) if self.named else b""
        told = TOLD.pack(float(message.weight), *map(float, message.report))
        layout, tree = (self.found, message.update) if survey else (self.message, _values(message))
        return HEAD.pack(MAGIC, round) + sizes + named + told + layout.pack(tree, rows)

    def unpack_message(
        self, data: bytes, room: Mapping[str, int], survey: bool = False
    ) -> tuple[int, Message, dict[str, np.ndarray]]:
        """Round, message, and the ids of its rows, which come first among its ``room`` rows."""
        round, rest = _begin(data)
        sizes = _numbers(rest, len(self.spaces))
        ids, start = self._unpack_ids(rest, sizes, room)
        if start + TOLD.size > len(rest):
            raise InputError("a message ends before its weight")
        weight, *report = (jnp.float32(x) for x in TOLD.unpack_from(rest, start))
        layout = self.found if survey else self.message
        rows = {name: np.arange(len(named)) for name, named in ids.items()}
        tree = layout.unpack(rest[start + TOLD.size :], rows, room)
        extra = {} if survey else dict(tree)
        update = tree if survey else extra.pop("update")
        return round, Message(update, weight, ClientReport(*report), extra), ids

    def pack_slice(self, ids: Rows) -> bytes:
        """The rows that a client holds."""
        sizes = np.array([len(ids[name]) for name in self.spaces], np.uint32).tobytes()
        return HEAD.pack(MAGIC, 0) + sizes + self._pack_ids(ids)

    def unpack_slice(self, data: bytes) -> dict[str, np.ndarray]:
        """They again."""
        _, rest = _begin(data)
        ids, end = self._unpack_ids(rest, _numbers(rest, len(self.spaces)), self.spaces)
        if end != len(rest):
            raise InputError(f"a slice has {len(rest) - end} bytes more than its rows need")
        return ids

    def _unpack_ids(
        self, data: bytes, sizes: Sequence[int], room: Mapping[str, int]
    ) -> tuple[dict[str, np.ndarray], int]:
        """The ids that follow the numbers of rows, and where they end."""
        start, ids = self.counts, {}
        for (name, most), size in zip(self.spaces.items(), sizes, strict=True):
            if self.travel == "all":
                ids[name] = self._every(name, size)
                continue
            if self.travel == "union":
                raise InputError("messages of a secure sum are added up, not read one by one")
            width = self.ids[name]
            if size > room[name] or start + width * size > len(data):
                raise InputError(f"a message names {size} rows of {name!r}, which is too many")
            named = np.frombuffer(data, f"<u{width}", size, start).astype(np.int64)
            if size and not ((np.diff(named) > 0).all() and named[0] >= 0 and named[-1] < most):
                raise InputError(f"a message's rows of {name!r} are not ascending ids below {most}")
            ids[name], start = named, start + width * size
        return ids, start

    def _pack_ids(self, ids: Rows) -> bytes:
        return b"".join(ids[name].astype(f"<u{self.ids[name]}").tobytes() for name in self.spaces)

    def _every(self, name: str, size: int) -> np.ndarray:
        """The ids of a message that has all rows."""
        if size != self.spaces[name]:
            raise InputError(
                f"a message has {size} rows of {name!r}, where all {self.spaces[name]} must come"
            )
        return np.arange(size)


def _values(message: Message) -> dict[str, PyTree]:
    return {"update": message.update, **message.extra}


def _begin(data: bytes) -> tuple[int, bytes]:
    """The round, and what follows."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise InputError(f"{len(data)} bytes that are no message of this version of fedslice")
    return HEAD.unpack_from(data)[1], data[HEAD.size :]


def _numbers(data: bytes, count: int) -> list[int]:
    if len(data) < 4 * count:
        raise InputError(f"a message of {len(data)} bytes is cut off")
    return [int(x) for x in np.frombuffer(data, "<u4", count)]
