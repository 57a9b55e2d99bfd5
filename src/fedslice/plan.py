"""From a cohort to dense arrays: the rows of the round, each client's place in them, padded batches.

Host code, on the hot path: every line runs each round, so it does no sorting and no look-up by id.  All randomness is a
hash of (seed, round, client, draw): a client's batches do not depend on who else takes part.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedslice.population import Population, numeric
from fedslice.submodel import Submodels
from fedslice.types import Work

GOLDEN, MIX1, MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
Drawn: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
S27, S30, S31, S32 = (np.uint64(s) for s in (27, 30, 31, 32))


class Plan(NamedTuple):
    """One round on the working set: NumPy arrays on the host, traced ones in the compiled round.

    Padding: client number N, slot and place past the end, sizes and steps zero.
    """

    round: Any  # uint32
    clients: Any  # int32 [K]
    weights: Any  # float32 [K]: |D_i|
    phases: Any  # a PhasePlan for each phase; in the compiled round a Phase of types
    union: dict[str, Any]  # per space int32 [U]: slots of the round's rows
    places: dict[str, Any]  # per space int32 [K, R]: where each client's rows stand in the union
    held: dict[str, Any]  # per space int32 [K, R]: where they stand in the list of all S(i); for client memory


class PhasePlan(NamedTuple):
    """The batches of one phase of the clients' work."""

    steps: Any  # int32 [K]
    sizes: Any  # int32 [K, S]
    batches: dict[str, Any]  # [K, S, B, ...]; index fields hold positions among the client's rows


class Traffic(NamedTuple):
    """What a round moves: real clients and examples, and for each client its rows down (S(i)) and up (trained)."""

    clients: int
    examples: int
    rows_down: dict[str, np.ndarray]
    rows_up: dict[str, np.ndarray]


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
        works: Sequence[Work],
        seed: int,
        rows: str = "touched",
        memory: bool = False,
        multiple: int = 1,
    ) -> None:
        self.population, self.spaces, self.works = population, spaces, works
        self.memory, self.multiple, self.all_rows = memory, multiple, rows == "held"
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
        drawn = [self._examples(place, work, round, cohort, counts) for place, work in enumerate(self.works)]
        real = None if np.all(counts > 0) else counts > 0
        batches = [
            {name: _pad(column.take(chosen, axis=0), clients) for name, column in self.plain.items()}
            for chosen, _, _ in drawn
        ]
        union, places, held, down, up = {}, {}, {}, {}, {}
        for name, space in self.spaces.items():
            found = self._rows(name, space, cohort, [chosen for chosen, _, _ in drawn], real)
            fields, union[name], places[name], kept, up[name] = found
            for batch, positions in zip(batches, fields, strict=True):
                batch.update({field: _pad(values, clients) for field, values in positions.items()})
            if self.memory:
                held[name] = kept
            down[name] = space.offsets[cohort + 1] - space.offsets[cohort]
        numbers = np.full(clients, len(self.population), np.int32)
        numbers[: len(cohort)] = cohort
        phases = tuple(
            PhasePlan(_pad(steps, clients), _pad(sizes, clients), batch)
            for (_, sizes, steps), batch in zip(drawn, batches, strict=True)
        )
        weights = _pad(counts.astype(np.float32), clients)
        plan = Plan(np.uint32(round), numbers, weights, phases, union, places, held)
        return plan, Traffic(len(cohort), sum(int(sizes.sum()) for _, sizes, _ in drawn), down, up)

    def _examples(self, phase: int, work: Work, round: int, cohort: np.ndarray, counts: np.ndarray) -> Drawn:
        """Example numbers [K, S, B], real examples a batch [K, S], steps a client [K]."""
        stream = splitmix(self.key + np.array([round], np.uint64) * GOLDEN) + cohort.astype(np.uint64) * MIX1
        if phase:
            stream = splitmix(stream + np.array([phase], np.uint64) * MIX2)  # a domain of its own, apart from epochs
        if work.steps is not None:
            return self._independent(stream, cohort, counts, work.steps, work.batch)
        return self._shuffled(f"steps {phase}", stream, cohort, counts, work.epochs or 1, work.batch)

    def _independent(self, stream: np.ndarray, cohort: np.ndarray, counts: np.ndarray, steps: int, batch: int) -> Drawn:
        draws = np.arange(1, 1 + steps * batch, dtype=np.uint64) * GOLDEN
        uniform = splitmix(stream[:, None] + draws) >> S32
        choice = ((uniform * counts[:, None].astype(np.uint64)) >> S32).astype(np.int64)
        examples = (choice + self._first(cohort)[:, None]).reshape(len(cohort), steps, batch)
        some = counts > 0
        sizes = np.where(some, batch, 0).astype(np.int32)[:, None].repeat(steps, 1)
        return examples, sizes, np.where(some, steps, 0).astype(np.int32)

    def _shuffled(
        self, name: str, stream: np.ndarray, cohort: np.ndarray, counts: np.ndarray, epochs: int, batch: int
    ) -> Drawn:
        clients = len(cohort)
        passes = -(-counts // batch)
        steps = (passes * epochs).astype(np.int32)
        shape = (clients, self._grow(name, int(steps.max(initial=1))), batch)
        examples = np.broadcast_to(self._first(cohort)[:, None, None], shape).copy()  # padding: the client's own data
        sizes = np.zeros(shape[:2], np.int32)
        owner = np.repeat(np.arange(clients), counts)
        first = np.cumsum(counts) - counts
        rank = np.arange(len(owner)) - first[owner]
        bits = np.uint64(max(1, clients - 1).bit_length())
        top = owner.astype(np.uint64) << (np.uint64(64) - bits)
        for epoch in range(epochs):
            draws = splitmix(stream + np.uint64(epoch))[owner] + rank.astype(np.uint64) * GOLDEN
            order = np.argsort(top | splitmix(draws) >> bits)
            where = (owner, epoch * passes[owner] + rank // batch, rank % batch)
            examples[where] = self.population.offsets[cohort][owner] + order - first[owner]
            np.add.at(sizes, where[:2], 1)
        return examples, sizes, steps

    def _first(self, cohort: np.ndarray) -> np.ndarray:
        """Each client's first example; some other one, never used, if it has none."""
        return np.minimum(self.population.offsets[cohort], max(0, self.population.examples - 1))

    def _rows(
        self, name: str, space: Submodels, cohort: np.ndarray, drawn: Sequence[np.ndarray], real: np.ndarray | None
    ) -> tuple[list[dict[str, np.ndarray]], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Renumber the rows that the cohort's batches touch: by client, then in the union of all clients."""
        begin = space.offsets[cohort]
        length = space.offsets[cohort + 1] - begin
        start = np.cumsum(length) - length
        total = int(length.sum())
        phases = [self._keys(space, examples, start, total, real) for examples in drawn]
        seen = np.zeros(total + 1, bool)
        for keys in phases:
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
        fields = [{field: renumber[key] for field, key in keys.items()} for keys in phases]
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
        return fields, union, places.reshape(clients, width), kept.reshape(-1, width), count

    def _keys(
        self, space: Submodels, examples: np.ndarray, start: np.ndarray, total: int, real: np.ndarray | None
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


def _pad(values: np.ndarray, clients: int) -> np.ndarray:
    """Rows of zeros up to ``clients`` rows."""
    if len(values) == clients:
        return values
    return np.concatenate([values, np.zeros((clients - len(values), *values.shape[1:]), values.dtype)])
