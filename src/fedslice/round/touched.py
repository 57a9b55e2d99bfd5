"""The rows that rounds touch, renumbered: by client, then in the union of a round's clients.

Of several rounds at once, in one set of NumPy calls: host code on the hot path, so it does no
sorting and no look-up by id."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedslice.data.submodel import Submodels
from fedslice.round.answers import Taken

Keys = Mapping[str, np.ndarray]
"""For each field, places in the list of the clients' S(i); its length for padding."""


class Turns(NamedTuple):
    """The clients of several rounds, one round after the other: of turn t those from ``ends[t]`` to
    ``ends[t + 1]``."""

    first: int  # rounds done before
    who: np.ndarray  # int64: where each stands in the population
    ends: np.ndarray  # int64 [rounds + 1]
    turn: np.ndarray  # int64: the round that each is there for

    @classmethod
    def of(cls, first: int, cohorts: Sequence[np.ndarray]) -> "Turns":
        """Cohorts one after the other.

        >>> turns = Turns.of(5, [np.array([2, 7]), np.array([], int), np.array([1])])
        >>> turns.turn.tolist(), turns.total(np.array([10, 20, 5])), turns.most(turns.who, 0)
        ([0, 0, 2], [30, 0, 5], [7, 0, 1])
        """
        sizes = np.array([len(cohort) for cohort in cohorts])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        who = np.concatenate(cohorts) if len(cohorts) > 1 else cohorts[0]
        return cls(first, who, ends, np.repeat(np.arange(len(cohorts)), sizes))

    def cut(self, rounds: int) -> "Turns":
        """The first of them."""
        last = self.ends[rounds]
        return Turns(self.first, self.who[:last], self.ends[: rounds + 1], self.turn[:last])

    def total(self, values: np.ndarray) -> list[int]:
        """Sums of one value a client, round by round."""
        return np.diff(np.append(0, np.cumsum(values))[self.ends]).tolist()

    def most(self, values: np.ndarray, least: int) -> list[int]:
        """The largest of one value a client, round by round, but not below ``least``."""
        found = np.full(len(self.ends) - 1, least)
        some = np.flatnonzero(np.diff(self.ends))
        if len(some):
            found[some] = np.maximum(np.maximum.reduceat(values, self.ends[some]), least)
        return found.tolist()


class Touched(NamedTuple):
    """The rows of one space in several rounds: for each client of each round those that its batches
    touch, one after the other."""

    fields: list[dict[str, np.ndarray]]  # of each phase: positions among the client's rows
    counts: np.ndarray  # rows of each client
    trained: np.ndarray  # those of them that it sends
    owner: np.ndarray  # of each row, the client
    rank: np.ndarray  # its position among the client's
    held: np.ndarray  # its place in the list of all S(i)
    place: np.ndarray  # its place in the round's union; a large number if it is not taken
    sends: np.ndarray | None  # whether it is sent; None: all are
    unions: list[np.ndarray]  # of each round, distinct slots
    ends: np.ndarray  # where each round's rows end

    def cut(self, turns: Turns) -> "Touched":
        """The rows of the first rounds alone."""
        clients, rows = len(turns.who), self.ends[len(turns.ends) - 1]
        return Touched(
            [{name: field[:clients] for name, field in each.items()} for each in self.fields],
            self.counts[:clients],
            self.trained[:clients],
            self.owner[:rows],
            self.rank[:rows],
            self.held[:rows],
            self.place[:rows],
            None if self.sends is None else self.sends[:rows],
            self.unions[: len(turns.ends) - 1],
            self.ends[: len(turns.ends)],
        )


class Toucher:
    """Finds them, for one space.  With ``everything`` all of S(i) counts as touched; with ``whole``
    the union is all slots; phases that are ``reads_only`` send nothing."""

    def __init__(
        self, space: Submodels, everything: bool, whole: bool, reads_only: Sequence[bool]
    ) -> None:
        self.space, self.everything, self.whole = space, everything, whole
        self.reads_only = reads_only
        self.most = int(space.sizes.max(initial=1))  # rows of a client
        self.padded = {
            field for field, p in space.positions.items() if p.size and p.min(initial=0) < 0
        }
        self.scratch = np.zeros(len(space.ids) + 1, np.int32)

    def __call__(
        self,
        turns: Turns,
        drawn: Sequence[np.ndarray],
        real: Sequence[np.ndarray | None],
        taken: Taken | None,
    ) -> Touched:
        """The rows of the examples ``drawn`` in each phase; ``real`` says which clients have any,
        if not all."""
        begin, length = self.space.offsets[turns.who], self.space.sizes_of(turns.who)
        end = np.cumsum(length)
        start, total = end - length, int(end[-1]) if len(end) else 0
        phases = [
            self._keys(examples, start, total, some)
            for examples, some in zip(drawn, real, strict=True)
        ]
        touched = np.flatnonzero(self._marks(phases, total))
        first = np.append(np.searchsorted(touched, start), len(touched))
        count = np.diff(first)
        owner = np.repeat(np.arange(len(count)), count)
        rank = np.arange(len(touched), dtype=np.int32) - np.repeat(first[:-1].astype("i4"), count)
        renumber = np.full(total + 1, -1, np.int32)
        renumber[touched] = rank
        fields = [{field: renumber.take(key) for field, key in keys.items()} for keys in phases]
        held = touched + np.repeat(begin - start, count)
        ends = first[turns.ends]
        unions, place = self._unions(self.space.slots.take(held), ends)
        if taken is not None:
            place = np.where(taken.yes[touched], place, np.iinfo(np.int32).max)
        sends, trained = None, count
        if any(self.reads_only):
            writing = [
                keys for keys, reads in zip(phases, self.reads_only, strict=True) if not reads
            ]
            sends = self._marks(writing, total)[touched]
            trained = np.bincount(owner[sends], minlength=len(count))
        return Touched(fields, count, trained, owner, rank, held, place, sends, unions, ends)

    def _marks(self, phases: Sequence[Keys], total: int) -> np.ndarray:
        """Which of the clients' S(i), one after the other, the batches of these phases touch."""
        seen = np.full(total + 1, self.everything)
        for keys in phases:
            for key in keys.values():
                seen[key.reshape(-1)] = True
        return seen[:total]

    def _keys(
        self, examples: np.ndarray, start: np.ndarray, total: int, real: np.ndarray | None
    ) -> Keys:
        keys = {}
        for field, column in self.space.positions.items():
            place = column.take(examples, axis=0)
            key = place + start.reshape((-1,) + (1,) * (place.ndim - 1))
            if field in self.padded:
                key[place < 0] = total
            if real is not None:
                key[~real] = total
            keys[field] = key
        return keys

    def _unions(self, slots: np.ndarray, ends: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Of each round the distinct slots, and for each of ``slots`` its place among them; no
        sort, no pass over the table."""
        if self.whole:
            every = np.arange(len(self.space.ids), dtype=np.int32)
            return [every] * (len(ends) - 1), slots
        scratch, unions, places = self.scratch, [], np.empty(len(slots), np.int32)
        slots, counting = slots.astype(np.intp), np.arange(len(slots), dtype=np.int32)
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            some, number = slots[start:stop], counting[: stop - start]
            scratch[some] = number  # the last writer of a slot stands for it
            distinct = some.compress(scratch.take(some) == number)
            scratch[distinct] = counting[: len(distinct)]
            unions.append(distinct)
            scratch.take(some, out=places[start:stop], mode="clip")
        return unions, places
