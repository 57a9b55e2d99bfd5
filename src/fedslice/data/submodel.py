"""S(i): which rows of a table each client holds, and where in S(i) each of its examples' ids
stands.

An example belongs to one client for good, so the position of its ids inside S(i) is computed once,
here; a round then needs no look-up of ids."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedslice.errors import InputError

WHOLE = 1 << 27  # rows of a table that a round may go through one by one
CHUNK = 1 << 22  # ids sorted at once: bounds the memory, and short sorts are faster
LISTED = 1 << 24  # rows of a table up to which the slot of each is in a list
NEAR = 1 << 19  # entries of a list that stays in a core's cache: one with more is slow to read
NARROW = 1 << 15  # rows of a client up to which half as many bytes hold a position: a round reads
# positions all over the population, and waits for the memory more than it computes

Room: TypeAlias = Callable[[str, Any, tuple[int, ...]], np.ndarray]
"""Makes an array by what it is for, type and shape: in memory, or in a mapped file."""


def in_memory(name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Room for an array in memory."""
    return np.empty(shape, dtype)


class Submodels(NamedTuple):
    """All S(i) of one index space.  A *slot* is a row's place among the rows that any client holds
    (``ids``)."""

    ids: np.ndarray  # int64 [slots]: row ids, ascending
    slots: np.ndarray  # int32: the S(i), one after the other, each ascending
    offsets: np.ndarray  # int64 [clients + 1]: where each S(i) starts in slots
    # for each field, as its column: position inside S(i), -1 for padding; int16 or int32
    positions: Mapping[str, np.ndarray]

    @property
    def sizes(self) -> np.ndarray:
        """|S(i)| of each client."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: np.ndarray) -> np.ndarray:
        """|S(i)| of these clients, without a look at the others."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def whole(self, rows: int) -> "Submodels":
        """The same with a slot for each of the table's ``rows`` rows, whoever holds them.

        >>> one = index({"item": np.array([5, 2])}, np.array([0, 1, 2]), rows=6)
        >>> one.slots.tolist(), one.whole(6).slots.tolist(), len(one.whole(6).ids)
        ([1, 0], [5, 2], 6)
        """
        if rows > WHOLE:
            raise InputError(
                f"a table of {rows:,} rows is too large for rounds over all of its rows, which take"
                f" up to {WHOLE:,}: use rows='touched' or rows='held'"
            )
        return self._replace(ids=np.arange(rows), slots=self.ids[self.slots].astype(np.int32))

    def heat(self, counts: np.ndarray, room: Room = in_memory) -> np.ndarray:
        """float64 [slots, 2]: clients of more than no ``counts`` that hold a row, and their sum."""
        mass = room("heat", np.float64, (len(self.ids), 2))
        mass[:] = 0
        for start, stop in _chunks(self.offsets, 1, 1):
            slots = self.slots[self.offsets[start] : self.offsets[stop]]
            sizes = np.diff(self.offsets[start : stop + 1])
            for column, values in enumerate((counts[start:stop] > 0, counts[start:stop])):
                weight = np.repeat(values, sizes).astype(np.float64)
                if len(mass) <= CHUNK:
                    mass[:, column] += np.bincount(slots, weight, minlength=len(mass))
                else:  # a pass over all slots for each chunk would take longer
                    np.add.at(mass[:, column], slots, weight)
        return mass

    def global_slots(self, field: str, owners: np.ndarray, span: slice = slice(None)) -> np.ndarray:
        """A field's ids, for a span of examples, as slots; -1 for padding."""
        position = self.positions[field][span]
        start = self.offsets[owners[span]].reshape((-1,) + (1,) * (position.ndim - 1))
        if not len(self.slots):
            return np.full(position.shape, -1, np.int32)
        return np.where(position < 0, np.int32(-1), self.slots[np.maximum(start + position, 0)])


def index(
    columns: Mapping[str, np.ndarray], offsets: np.ndarray, rows: int, room: Room = in_memory
) -> Submodels:
    """The submodels of clients whose ``columns`` hold ids below ``rows`` (below zero: padding)."""
    flat = {
        name: column.reshape(len(column), math.prod(column.shape[1:]))
        for name, column in columns.items()
    }
    for name, column in flat.items():
        _check_ids(name, column, rows)
    positions = {
        name: room(f"position-{number}", np.int32, column.shape)
        for number, (name, column) in enumerate(flat.items())
    }
    width = max(1, sum(column.shape[1] for column in flat.values()))
    most = sum(column.size for column in flat.values())
    held, total = room("held", np.int32 if rows < 2**31 else np.int64, (most,)), 0
    sizes = []
    for start, stop in _chunks(offsets, width, rows):
        found, count = _index_chunk(flat, offsets, start, stop, rows, positions)
        held[total : total + len(found)] = found
        total += len(found)
        sizes.append(count)
    ids, slots = _slots(held[:total], rows, room)
    ends = np.append(0, np.cumsum(np.concatenate(sizes))) if sizes else np.zeros(1, np.int64)
    if room is in_memory and np.diff(ends).max(initial=0) <= NARROW:
        positions = {name: place.astype(np.int16) for name, place in positions.items()}
    return Submodels(
        ids, slots, ends, {name: positions[name].reshape(columns[name].shape) for name in columns}
    )


def _index_chunk(
    flat: Mapping[str, np.ndarray],
    offsets: np.ndarray,
    start: int,
    stop: int,
    rows: int,
    positions: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Row ids of S(start) ... S(stop - 1) and their sizes; fills in the examples' positions."""
    span = slice(int(offsets[start]), int(offsets[stop]))
    clients = stop - start
    if clients == 1 and rows <= CHUNK:
        return _index_one(
            {name: column[span] for name, column in flat.items()}, rows, span, positions
        )
    kind = np.int32 if clients * rows < 2**31 else np.int64
    base = np.repeat((np.arange(clients) * rows).astype(kind), np.diff(offsets[start : stop + 1]))[
        :, None
    ]
    pads = {name: column[span] < 0 for name, column in flat.items() if np.any(column[span] < 0)}
    keys = {name: column[span].astype(kind) + base for name, column in flat.items()}
    kept = [key[~pads[name]] if name in pads else key.reshape(-1) for name, key in keys.items()]
    ordered = np.sort(np.concatenate(kept))
    held = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    bounds = np.searchsorted(held, np.arange(clients + 1, dtype=np.int64) * rows)
    find = _near if rows <= NEAR else _sought
    for name, key in keys.items():
        place = positions[name][span]
        find(key, held, bounds, offsets[start : stop + 1] - span.start, rows, place)
        if name in pads:
            place[pads[name]] = -1
    return (held % rows).astype(np.int64), np.diff(bounds)


def _near(
    keys: np.ndarray,
    held: np.ndarray,
    bounds: np.ndarray,
    offsets: np.ndarray,
    rows: int,
    place: np.ndarray,
) -> None:
    """Where each key stands in its client's part of ``held``, by a list of all rows of a few
    clients at a time: a look-up where a search would take twenty steps."""
    step = max(1, NEAR // rows)
    listed = np.empty(min(step, len(bounds) - 1) * rows, np.int32)
    begin = np.repeat(bounds[:-1].astype(np.int32), np.diff(bounds))
    rank = np.arange(len(held), dtype=np.int32) - begin
    for first in range(0, len(bounds) - 1, step):
        last = min(first + step, len(bounds) - 1)
        some, mine = slice(bounds[first], bounds[last]), slice(offsets[first], offsets[last])
        listed[held[some] - first * rows] = rank[some]
        # padding is a little below its client's rows, and is overwritten by the caller
        np.take(listed, keys[mine] - first * rows, out=place[mine], mode="clip")


def _sought(
    keys: np.ndarray,
    held: np.ndarray,
    bounds: np.ndarray,
    offsets: np.ndarray,
    rows: int,
    place: np.ndarray,
) -> None:
    """The same by search: in a large table no list of its rows is small."""
    place[:] = np.searchsorted(held, keys) - np.repeat(bounds[:-1], np.diff(offsets))[:, None]


def _index_one(
    flat: Mapping[str, np.ndarray], rows: int, span: slice, positions: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """One client, by a table of marks instead of a sort: pooled data may be long."""
    seen = np.zeros(rows + 1, bool)
    for column in flat.values():
        seen[np.maximum(column.reshape(-1), -1)] = True  # padding, -1, marks the spare last entry
    held = np.flatnonzero(seen[:rows])
    place = np.full(rows + 1, -1, np.int32)
    place[held] = np.arange(len(held), dtype=np.int32)
    for name, column in flat.items():
        positions[name][span] = place[np.maximum(column, -1)]
    return held, np.array([len(held)])


def _chunks(offsets: np.ndarray, width: int, rows: int) -> list[tuple[int, int]]:
    """Ranges of clients with at most CHUNK ids each, or one client; so few that clients times rows
    has 63 bits."""
    cuts, clients, most = [0], len(offsets) - 1, (2**63 - 1) // rows
    while cuts[-1] < clients:
        limit = offsets[cuts[-1]] + CHUNK // width
        stop = min(int(np.searchsorted(offsets, limit, side="right")) - 1, cuts[-1] + most)
        cuts.append(max(cuts[-1] + 1, stop))
    return list(pairwise(cuts))


def _slots(held: np.ndarray, rows: int, room: Room) -> tuple[np.ndarray, np.ndarray]:
    """Distinct row ids, ascending, and for each entry of ``held`` its place among them."""
    slots = room("slots", np.int32, held.shape)
    if rows > 16 * len(held):  # a table of marks is faster than sorting while it is small
        ids = np.unique(held)
        find: Callable[[np.ndarray], np.ndarray] = lambda some: np.searchsorted(ids, some)  # noqa: E731
        count = len(ids)
    else:
        seen = np.zeros(rows, bool)
        for part in _parts(len(held)):
            seen[held[part]] = True
        count = int(np.count_nonzero(seen))
        find = _listed(seen) if rows <= LISTED else _counted(seen)
    for part in _parts(len(held)):
        slots[part] = find(held[part])
    known = room("ids", np.int64, (count,))
    if rows > 16 * len(held):
        known[:] = ids
        return known, slots
    done = 0
    for part in _parts(rows):
        some = np.flatnonzero(seen[part]) + part.start
        known[done : done + len(some)] = some
        done += len(some)
    return known, slots


def _listed(seen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """From ids to places among those seen, by a list of all."""
    place = np.cumsum(seen, dtype=np.int32) - 1
    return lambda ids: np.asarray(place[ids])


def _counted(seen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The same by counting bits, in a twentieth of the memory: those of whole words before, and
    those below in its own word."""
    bits = np.packbits(seen, bitorder="little")
    words = np.concatenate([bits, np.zeros(-len(bits) % 8, np.uint8)]).view("<u8")
    each = np.bitwise_count(words)
    before = np.cumsum(each, dtype=np.int32) - each

    def find(ids: np.ndarray) -> np.ndarray:
        word = ids >> 6
        below = (np.uint64(1) << (ids & 63).astype(np.uint64)) - np.uint64(1)
        return np.asarray(before[word] + np.bitwise_count(words[word] & below))

    return find


def _parts(length: int) -> Iterator[slice]:
    for start in range(0, length, CHUNK):
        yield slice(start, min(length, start + CHUNK))


def _check_ids(name: str, column: np.ndarray, rows: int) -> None:
    if column.dtype.kind not in "iu":
        raise InputError(
            f"column {name!r} indexes a table and must hold integers, got {column.dtype}"
        )
    if column.size and int(column.max()) >= rows:
        where = int(np.argwhere(column >= rows)[0][0])
        raise InputError(
            f"column {name!r} has id {int(column.max())} (first too large in example {where}), "
            f"but its table has {rows} rows: ids go from 0 to rows - 1"
        )
