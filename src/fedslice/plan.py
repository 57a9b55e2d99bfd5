"""From a cohort to dense arrays: the rows of the round, each client's place in them, padded batches.

Host code, on the hot path: every line runs each round, so it does no sorting and no look-up by id.  All randomness is a
hash of (seed, round, client, draw): a client's batches do not depend on who else takes part.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedslice.population import Population, numeric
from fedslice.submodel import Submodels
from fedslice.types import Work

GOLDEN, MIX1, MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S27, S30, S31, S32 = (np.uint64(s) for s in (27, 30, 31, 32))


class Plan(NamedTuple):
    """One round on the working set: NumPy arrays on the host, traced ones in the compiled round.

    Padding: client number N, slot and place past the end, sizes and steps zero.
    """

    round: Any  # uint32
    clients: Any  # int32 [K]
    weights: Any  # float32 [K]: |D_i|
    steps: Any  # int32 [K]
    sizes: Any  # int32 [K, S]
    batches: dict[str, Any]  # [K, S, B, ...]; index fields hold positions among the client's rows
    union: dict[str, Any]  # per space int32 [U]: slots of the round's rows
    places: dict[str, Any]  # per space int32 [K, R]: where each client's rows stand in the union
    held: dict[str, Any]  # per space int32 [K, R]: where they stand in the list of all S(i); for client memory


class Traffic(NamedTuple):
    """What a round moves: real clients and examples, rows down (all of S(i)) and up (those that trained)."""

    clients: int
    examples: int
    rows_down: dict[str, int]
    rows_up: dict[str, int]


def splitmix(x: np.ndarray) -> np.ndarray:
    """A 64-bit hash (Steele et al., SplitMix), vectorised."""
    x = (x ^ (x >> S30)) * MIX1
    x = (x ^ (x >> S27)) * MIX2
    return np.asarray(x ^ (x >> S31))


def bucket(need: int) -> int:
    """The next of the sizes 8, 10, 12, 14, 16, 20, 24 ...: few sizes, at most a quarter wasted.

    >>> [bucket(need) for need in (1, 9, 100, 1000)]
    [8, 10, 112, 1024]
    """
    unit = max(1, 1 << ((need - 1).bit_length() - 3)) if need > 8 else 8
    return -(-max(1, need) // unit) * unit


class Planner:
    """Makes the plans of a run.  ``capacity`` holds the padded sizes; it only grows, and is part of a checkpoint."""

    def __init__(
        self,
        population: Population,
        spaces: Mapping[str, Submodels],
        work: Work,
        seed: int,
        rows: str,
        memory: bool,
        multiple: int = 1,
    ) -> None:
        self.population, self.spaces, self.work, self.memory, self.multiple = population, spaces, work, memory, multiple
        self.all_rows = rows == "held"
        self.capacity: dict[str, int] = {}
        self.key = splitmix(np.array([seed], np.uint64))
        indexed = {field for space in spaces.values() for field in space.positions}
        self.plain = {k: numeric(k, v) for k, v in population.columns.items() if k not in indexed}
        self.padded = {f for s in spaces.values() for f, p in s.positions.items() if p.size and p.min() < 0}
        self.scratch = {name: np.zeros(len(space.ids) + 1, np.int32) for name, space in spaces.items()}

    def plan(self, round: int, cohort: np.ndarray) -> tuple[Plan, Traffic]:
        """The plan of one round; ``cohort`` is ascending."""
        clients = self._grow("clients", -(-len(cohort) // self.multiple) * self.multiple, exact=True)
        counts = self.population.counts[cohort]
        examples, sizes, steps, full = self._examples(round, cohort, counts)
        batches, union, places, held, down, up = {}, {}, {}, {}, {}, {}
        for name, column in self.plain.items():
            batches[name] = _pad(column.take(examples, axis=0), clients)
        for name, space in self.spaces.items():
            fields, union[name], places[name], kept, up[name] = self._rows(name, space, cohort, examples, full)
            if self.memory:
                held[name] = kept
            batches.update({field: _pad(values, clients) for field, values in fields.items()})
            down[name] = int(space.offsets[cohort + 1].sum() - space.offsets[cohort].sum())
        numbers = np.full(clients, len(self.population), np.int32)
        numbers[: len(cohort)] = cohort
        weights = _pad(counts.astype(np.float32), clients)
        plan = Plan(
            np.uint32(round), numbers, weights, _pad(steps, clients), _pad(sizes, clients), batches, union, places, held
        )
        return plan, Traffic(len(cohort), int(sizes.sum()), down, up)

    def _examples(
        self, round: int, cohort: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Example numbers [K, S, B], real examples a batch, steps a client, and which entries are real (None: all)."""
        stream = splitmix(self.key + np.array([round], np.uint64) * GOLDEN) + cohort.astype(np.uint64) * MIX1
        if self.work.steps is not None:
            return self._independent(stream, cohort, counts, self.work.steps)
        return self._shuffled(stream, cohort, counts, self.work.epochs or 1)

    def _independent(
        self, stream: np.ndarray, cohort: np.ndarray, counts: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        shape = (len(cohort), steps, self.work.batch)
        draws = np.arange(1, 1 + steps * self.work.batch, dtype=np.uint64) * GOLDEN
        uniform = splitmix(stream[:, None] + draws) >> S32
        choice = ((uniform * counts[:, None].astype(np.uint64)) >> S32).astype(np.int64)
        examples = (choice + self.population.offsets[cohort][:, None]).reshape(shape)
        some = counts > 0
        sizes = np.where(some, self.work.batch, 0).astype(np.int32)[:, None].repeat(steps, 1)
        examples[~some] = 0
        return examples, sizes, np.where(some, steps, 0).astype(np.int32), _real(counts, shape)

    def _shuffled(
        self, stream: np.ndarray, cohort: np.ndarray, counts: np.ndarray, epochs: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        batch, clients = self.work.batch, len(cohort)
        passes = -(-counts // batch)
        steps = (passes * epochs).astype(np.int32)
        width = self._grow("steps", int(steps.max(initial=1)))
        start = np.minimum(self.population.offsets[cohort], max(0, self.population.examples - 1))
        examples = np.broadcast_to(start[:, None, None], (clients, width, batch)).copy()  # padding: own first example
        sizes = np.zeros((clients, width), np.int32)
        owner = np.repeat(np.arange(clients), counts)
        first = np.cumsum(counts) - counts
        rank = np.arange(len(owner)) - first[owner]
        bits = np.uint64(max(1, clients - 1).bit_length())
        top = owner.astype(np.uint64) << (np.uint64(64) - bits)
        for epoch in range(epochs):
            draws = (np.arange(len(owner), dtype=np.uint64) - first.astype(np.uint64)[owner]) * GOLDEN
            order = np.argsort(top | splitmix(splitmix(stream + np.uint64(epoch))[owner] + draws) >> bits)
            where = (owner, epoch * passes[owner] + rank // batch, rank % batch)
            examples[where] = self.population.offsets[cohort][owner] + order - first[owner]
            np.add.at(sizes, where[:2], 1)
        return examples, sizes, steps, _real(counts, examples.shape)

    def _rows(
        self, name: str, space: Submodels, cohort: np.ndarray, examples: np.ndarray, real: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, int]:
        """Renumber the rows that the cohort's batches touch: by client, then in the union of all clients."""
        begin = space.offsets[cohort]
        length = space.offsets[cohort + 1] - begin
        start = np.cumsum(length) - length
        total = int(length.sum())
        positions = {field: column.take(examples, axis=0) for field, column in space.positions.items()}
        keys = {}
        for field, place in positions.items():
            shape = (-1,) + (1,) * (place.ndim - 1)
            key = place + start.astype(np.int32).reshape(shape)
            if field in self.padded:
                key[place < 0] = total
            if real is not None:
                key[~real] = total
            keys[field] = key
        seen = np.zeros(total + 1, bool)
        for key in keys.values():
            seen[key.reshape(-1)] = True
        if self.all_rows:
            seen[:] = True
        touched = np.flatnonzero(seen[:total])
        first = np.searchsorted(touched, start)
        count = np.diff(np.append(first, len(touched)))
        owner = np.repeat(np.arange(len(cohort)), count)
        rank = np.arange(len(touched), dtype=np.int32) - first.astype(np.int32)[owner]
        renumber = np.full(total + 1, -1, np.int32)
        renumber[touched] = rank
        fields = {field: renumber[key] for field, key in keys.items()}
        held = touched + (begin - start)[owner]
        slots = space.slots[held]
        union, place = self._union(name, slots)
        width = self._grow(f"{name} rows", int(count.max(initial=1)))
        where = owner * width + rank
        clients = self.capacity["clients"]
        places = np.full(clients * width, len(union), np.int32)
        places[where] = place
        kept = np.full(clients * width if self.memory else 0, len(space.slots), np.int32)
        if self.memory:
            kept[where] = held
        return fields, union, places.reshape(clients, width), kept.reshape(-1, width), len(touched)

    def _union(self, name: str, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct slots, padded, and for each of ``slots`` its place among them; no sort, no pass over the table."""
        scratch = self.scratch[name]
        number = np.arange(len(slots), dtype=np.int32)
        scratch[slots] = number  # the last writer of a slot stands for it
        distinct = slots[scratch[slots] == number]
        scratch[distinct] = number[: len(distinct)]
        union = np.full(self._grow(f"{name} union", len(distinct)), len(self.spaces[name].ids), np.int32)
        union[: len(distinct)] = distinct
        return union, scratch[slots]

    def _grow(self, name: str, need: int, exact: bool = False) -> int:
        """The padded size for ``need``, with room to spare so that shapes, and so compilations, stay few."""
        if name not in self.capacity or need > self.capacity[name]:
            self.capacity[name] = max(self.multiple, need) if exact else bucket(need + need // 8)
        return self.capacity[name]


def _real(counts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which entries belong to the client: all (None), but for clients without examples."""
    some = counts > 0
    return None if some.all() else np.broadcast_to(some[:, None, None], shape)


def _pad(values: np.ndarray, clients: int) -> np.ndarray:
    """Rows of zeros up to ``clients`` rows."""
    if len(values) == clients:
        return values
    return np.concatenate([values, np.zeros((clients - len(values), *values.shape[1:]), values.dtype)])
