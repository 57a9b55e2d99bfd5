"""From a cohort to dense arrays: the rows of the round, each client's place in them, padded
batches.

Host code, on the hot path: every line runs each round, so it does no sorting and no look-up by id.
All randomness is a hash of (seed, round, client, draw): a client's batches do not depend on who
else takes part."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fedslice.arrays import Numbers
from fedslice.data.hashing import GOLDEN, MIX1, MIX2, splitmix
from fedslice.data.population import Population, numeric
from fedslice.data.submodel import Submodels
from fedslice.round.answers import Taken, take_part
from fedslice.round.batches import Drawn, fresh, pools
from fedslice.types import Answers, Work

HALVES = MIX2 * np.array([0x68616C766573], np.uint64)  # a domain beyond the numbers of phases


class Shared(NamedTuple):
    """What all clients of a round share."""

    round: Numbers  # uint32: rounds done before this one
    union: dict[str, Numbers]  # per space int32 [U]: slots of the round's rows


class Own(NamedTuple):
    """What each client of a round has of its own: the first axis of every leaf is the cohort, until
    one of its clients is picked.

    Padding: place N, rows past the end, sizes and steps zero.
    """

    number: Numbers  # uint32 [K]: what the client's randomness hangs on, wherever it trains
    place: Numbers  # int32 [K]: where it stands in this population; what memory is indexed by
    weight: Numbers  # float32 [K]: |D_i|
    phases: tuple["PhasePlan", ...]
    places: dict[str, Numbers]  # per space int32 [K, R]: where its rows stand in the union
    held: dict[str, Numbers]  # the same in the list of all S(i), for client memory
    sent: dict[str, Numbers]  # as places, without the rows only read; empty: all are sent
    repeats: Numbers | None = None  # float32 [K]: how often it was drawn; None: once


class Plan(NamedTuple):
    """One round on the working set: NumPy arrays on the host, traced ones in the compiled round."""

    shared: Shared
    own: Own


class PhasePlan(NamedTuple):
    """The batches of one phase of the clients' work."""

    steps: Numbers  # int32 [K]
    sizes: Numbers  # int32 [K, S]
    batches: dict[str, Numbers]  # [K, S, B, ...]; index fields: positions among the client's rows
    examples: Numbers  # float32 [K]: the examples that they are drawn from

    @property
    def real(self) -> np.ndarray:
        """bool [K, S, B]: which examples of the batches are no padding."""
        width = next(iter(self.batches.values())).shape[2]
        return np.arange(width) < self.sizes[:, :, None]


class RoundRows(NamedTuple):
    """The rows of one space in a round."""

    fields: list[dict[str, np.ndarray]]  # of each phase: positions among the client's rows
    union: np.ndarray
    places: np.ndarray
    held: np.ndarray  # for client memory; where there is none, of no meaning
    sent: np.ndarray | None
    trained: np.ndarray  # rows that each client sends


class Traffic(NamedTuple):
    """What a round moves: real clients and examples, and for each client its rows down (S(i)) and
    up (trained); with answers both are the rows that it took of the ``union``."""

    clients: int
    examples: int
    rows_down: dict[str, np.ndarray]
    rows_up: dict[str, np.ndarray]
    union: dict[str, int]


def bucket(need: int) -> int:
    """The next of the sizes 8, 10, 12, 14, 16, 20, 24 ...: few sizes, at most a quarter wasted.

    >>> [bucket(need) for need in (1, 9, 100, 1000)]
    [8, 10, 112, 1024]
    """
    unit = max(1, 1 << ((need - 1).bit_length() - 3)) if need > 8 else 8
    return -(-max(1, need) // unit) * unit


class Planner:
    """Makes the plans of a run.  ``capacity`` holds the padded sizes; it only grows, and is part of
    a checkpoint.

    ``fields`` are the columns that batches have (default: all); ``rows`` and ``memory`` as in a
    client part.  With ``repeats`` a cohort may name a client several times; it is planned once, and
    counted.

    With ``whole`` the round's rows are all slots, whatever the data.  With ``answers`` a client
    reads zeros for those of its rows that it did not take, and does not train them.
    """

    def __init__(
        self,
        population: Population,
        spaces: Mapping[str, Submodels],
        works: Sequence[Work],
        seed: int,
        rows: str = "touched",
        memory: bool = False,
        fields: Iterable[str] | None = None,
        repeats: bool = False,
        whole: bool = False,
        answers: Answers | None = None,
    ) -> None:
        self.answers = answers
        self.population, self.spaces, self.works = population, spaces, works
        self.memory, self.rows, self.repeats, self.whole = memory, rows, repeats, whole
        self.key = splitmix(np.array([seed], np.uint64))
        indexed = {field for space in spaces.values() for field in space.positions}
        wanted = set(population.columns if fields is None else fields) - indexed
        self.plain = {k: _small(k, v) for k, v in population.columns.items() if k in wanted}
        self.pools = pools(population, works)
        # no batch has room for more than the examples of the client that has the most
        self.capacity = {
            f"batch {phase}": min(work.batch, pool.most)
            for phase, (work, pool) in enumerate(zip(works, self.pools, strict=True))
        }
        self.reads_only = [work.part == "support" for work in works]
        self.padded = {
            f for s in spaces.values() for f, p in s.positions.items() if p.size and p.min() < 0
        }
        self.most = {name: int(space.sizes.max(initial=1)) for name, space in spaces.items()}
        self.scratch = {
            name: np.zeros(len(space.ids) + 1, np.int32) for name, space in spaces.items()
        }

    def plan(self, round: int, cohort: np.ndarray) -> tuple[Plan, Traffic]:
        """The plan of one round; ``cohort`` is ascending."""
        needed = max(1, len(cohort))
        clients = self._grow("clients", needed, needed)
        repeats = None
        if self.repeats:
            cohort, times = np.unique(cohort, return_counts=True)
            repeats = _floats(times, clients)
        counts = [pool.counts[cohort] for pool in self.pools]
        drawn = [
            self._examples(place, work, round, cohort, counts[place])
            for place, work in enumerate(self.works)
        ]
        real = [None if np.all(count > 0) else count > 0 for count in counts]
        batches = [
            {
                name: _pad(_wide(column.take(chosen, axis=0)), clients)
                for name, column in self.plain.items()
            }
            for chosen, _, _ in drawn
        ]
        found, went = {}, {}
        for place, (name, space) in enumerate(self.spaces.items()):
            taken = (
                None
                if self.answers is None
                else take_part(self.answers, self.key, space, self.population, cohort, round, place)
            )
            rows = self._rows(name, space, cohort, [chosen for chosen, _, _ in drawn], real, taken)
            if taken is not None:
                went[name] = taken
            for batch, positions in zip(batches, rows.fields, strict=True):
                batch.update({field: _pad(values, clients) for field, values in positions.items()})
            found[name] = rows
        stands = np.full(clients, len(self.population), np.int32)
        stands[: len(cohort)] = cohort
        own = Own(
            _pad(self.population.numbers[cohort].astype(np.uint32), clients),
            stands,
            _floats(self.population.counts[cohort], clients),
            tuple(
                PhasePlan(
                    _pad(steps, clients), _pad(sizes, clients), batch, _floats(count, clients)
                )
                for (_, sizes, steps), batch, count in zip(drawn, batches, counts, strict=True)
            ),
            {name: rows.places for name, rows in found.items()},
            {name: rows.held for name, rows in found.items() if self.memory},
            {name: rows.sent for name, rows in found.items() if rows.sent is not None},
            repeats,
        )
        traffic = Traffic(
            len(cohort),
            sum(int(sizes.sum()) for _, sizes, _ in drawn),
            {
                name: went[name].rows if name in went else space.sizes_of(cohort)
                for name, space in self.spaces.items()
            },
            {
                name: went[name].rows if name in went else rows.trained
                for name, rows in found.items()
            },
            {name: taken.union for name, taken in went.items()},
        )
        union = {name: rows.union for name, rows in found.items()}
        return Plan(Shared(np.uint32(round), union), own), traffic

    def _examples(
        self, phase: int, work: Work, round: int, cohort: np.ndarray, counts: np.ndarray
    ) -> Drawn:
        """The batches of one phase."""
        work = work._replace(batch=min(work.batch, self.capacity[f"batch {phase}"]))
        numbers = self.population.numbers[cohort].astype(np.uint64)
        first = splitmix(self.key + np.array([round], np.uint64) * GOLDEN) + numbers * MIX1
        stream = first
        if phase:  # a domain of its own, apart from epochs
            stream = splitmix(stream + np.array([phase], np.uint64) * MIX2)
        room = partial(self._grow, f"steps {phase}")
        if work.part != "all" and work.split == "fresh":
            halves = splitmix(first + HALVES)
            return fresh(self.population, cohort, halves, counts, stream, work, room)
        return self.pools[phase].draw(cohort, counts, stream, work, room)

    def _rows(
        self,
        name: str,
        space: Submodels,
        cohort: np.ndarray,
        drawn: Sequence[np.ndarray],
        real: Sequence[np.ndarray | None],
        taken: Taken | None,
    ) -> RoundRows:
        """Renumber the rows that the cohort's batches touch: by client, then in the union of all
        clients."""
        begin, length = space.offsets[cohort], space.sizes_of(cohort)
        start = np.cumsum(length) - length
        total = int(length.sum())
        phases = [
            self._keys(space, examples, start, total, some)
            for examples, some in zip(drawn, real, strict=True)
        ]
        touched = np.flatnonzero(self._marks(phases, total))
        first = np.searchsorted(touched, start)
        count = np.diff(np.append(first, len(touched)))
        owner = np.repeat(np.arange(len(cohort)), count)
        rank = np.arange(len(touched), dtype=np.int32) - first.astype(np.int32)[owner]
        renumber = np.full(total + 1, -1, np.int32)
        renumber[touched] = rank
        fields = [{field: renumber[key] for field, key in keys.items()} for keys in phases]
        held = touched + (begin - start)[owner]
        union, place = self._union(name, space.slots[held])
        if taken is not None:
            place = np.where(taken.yes[touched], place, len(union))
        width = self._grow(f"{name} rows", int(count.max(initial=1)), self.most[name])
        where = owner * width + rank
        places = self._spread(where, width, place, len(union))
        kept = self._spread(where, width, held, len(space.slots)) if self.memory else places
        sent = None
        if any(self.reads_only):
            each = zip(phases, self.reads_only, strict=True)
            writing = [keys for keys, reads_only in each if not reads_only]
            trained = self._marks(writing, total)[touched]
            sent = self._spread(where[trained], width, place[trained], len(union))
            count = np.bincount(owner[trained], minlength=len(cohort))
        return RoundRows(fields, union, places, kept, sent, count)

    def _spread(self, where: np.ndarray, width: int, values: np.ndarray, past: int) -> np.ndarray:
        """``values`` at their places of an array [clients, width], elsewhere ``past`` the end."""
        found = np.full(self.capacity["clients"] * width, past, np.int32)
        found[where] = values
        return found.reshape(-1, width)

    def _marks(self, phases: Sequence[Mapping[str, np.ndarray]], total: int) -> np.ndarray:
        """Which of the cohort's S(i), one after the other, the batches of these phases touch."""
        seen = np.full(total + 1, self.rows == "held")
        for keys in phases:
            for key in keys.values():
                seen[key.reshape(-1)] = True
        return seen[:total]

    def _keys(
        self,
        space: Submodels,
        examples: np.ndarray,
        start: np.ndarray,
        total: int,
        real: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """For each field, places in the list of the cohort's S(i); ``total`` for padding."""
        keys = {}
        for field, column in space.positions.items():
            place = column.take(examples, axis=0)
            key = place + start.astype(np.int32).reshape((-1,) + (1,) * (place.ndim - 1))
            if field in self.padded:
                key[place < 0] = total
            if real is not None:
                key[~real] = total
            keys[field] = key
        return keys

    def _union(self, name: str, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct slots, padded, and for each of ``slots`` its place among them; no sort, no pass
        over the table."""
        if self.whole:
            return np.arange(len(self.spaces[name].ids), dtype=np.int32), slots
        scratch = self.scratch[name]
        number = np.arange(len(slots), dtype=np.int32)
        scratch[slots] = number  # the last writer of a slot stands for it
        distinct = slots[scratch[slots] == number]
        scratch[distinct] = number[: len(distinct)]
        union = np.full(
            self._grow(f"{name} union", len(distinct)), len(self.spaces[name].ids), np.int32
        )
        union[: len(distinct)] = distinct
        return union, scratch[slots]

    def _grow(self, name: str, need: int, most: int | None = None) -> int:
        """The padded size for ``need``, with room to spare so that shapes, and so compilations,
        stay few; never beyond ``most``, the largest that can be needed."""
        if name not in self.capacity or need > self.capacity[name]:
            spare = bucket(need + need // 8)
            self.capacity[name] = spare if most is None else min(spare, most)
        return self.capacity[name]


def _small(name: str, column: np.ndarray) -> np.ndarray:
    """A column as it is kept: as the model computes with it, or smaller (images are bytes, and may
    be on disk)."""
    return (
        column
        if column.dtype.itemsize < 4 and column.dtype.kind in "iub"
        else numeric(name, column)
    )


def _wide(values: np.ndarray) -> np.ndarray:
    """A batch of such a column as the model computes with it."""
    if values.dtype.itemsize == 4:
        return values
    return values.astype(np.float32 if values.dtype.kind == "b" else np.int32)


def _pad(values: np.ndarray, clients: int) -> np.ndarray:
    """Rows of zeros up to ``clients`` rows."""
    if len(values) == clients:
        return values
    return np.concatenate(
        [values, np.zeros((clients - len(values), *values.shape[1:]), values.dtype)]
    )


def _floats(values: np.ndarray, clients: int) -> np.ndarray:
    return _pad(values.astype(np.float32), clients)
