"""From cohorts to dense arrays: the rows of a round, each client's place in them, padded batches.

Several rounds are planned at once, in one set of NumPy calls: their clients stand one after the
other, as those of one large cohort would, but each round has a union of its own.  All randomness is
a hash of (seed, round, client, draw): a client's batches do not depend on who else takes part, nor
on which rounds are planned along."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.arrays import Numbers
from fedslice.data.hashing import GOLDEN, MIX1, MIX2, splitmix
from fedslice.data.population import Population, numeric
from fedslice.data.submodel import Submodels
from fedslice.round.answers import Taken, take_part
from fedslice.round.batches import Drawn, fresh, pools, steps_of
from fedslice.round.store import PER_CLIENT
from fedslice.round.touched import Touched, Toucher, Turns
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

    @property
    def drawers(self) -> dict[str, Any]:
        """Where memory is kept, by its tags."""
        return {PER_CLIENT: self.place, **self.held}


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


class Traffic(NamedTuple):
    """What rounds move: real clients and examples of each round, and for each client, one round
    after the other, its rows down (S(i)) and up (trained); with answers both are the rows that it
    took of the ``union``."""

    clients: list[int]
    examples: list[int]
    rows_down: dict[str, np.ndarray]
    rows_up: dict[str, np.ndarray]
    union: dict[str, list[int]]
    turns: Turns

    def rows_sent(self, turn: int) -> dict[str, np.ndarray]:
        """Of the clients of one round."""
        span = slice(*self.turns.ends[turn : turn + 2])
        return {name: rows[span] for name, rows in self.rows_up.items()}


class Block(NamedTuple):
    """Rounds that were planned together.  The first axis of all leaves of ``plans`` is the round;
    there may be room for more than the ``rounds``."""

    plans: Plan
    rounds: int
    traffic: Traffic


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
        reads_only = [work.part == "support" for work in works]
        self.touch = {
            name: Toucher(space, rows == "held", whole, reads_only)
            for name, space in spaces.items()
        }

    def plan(self, round: int, cohort: np.ndarray) -> tuple[Plan, Traffic]:
        """The plan of one round; ``cohort`` is ascending."""
        block = self.block(round, [cohort])
        return Plan(*_first(block.plans)), block.traffic

    def block(self, first: int, cohorts: Sequence[np.ndarray], room: int = 1) -> Block:
        """Plans of rounds from ``first`` on, laid out for ``room`` of them: of as many as fit the
        padded sizes that the first one has or asks for.  So sizes grow in the same rounds, however
        many are planned at once, and results do not know it."""
        needed = [max(1, len(cohort)) for cohort in cohorts]
        fit = self._fit("clients", needed, needed[0])
        repeats = None
        if self.repeats:
            pairs = [np.unique(cohort, return_counts=True) for cohort in cohorts[:fit]]
            cohorts = [each for each, _ in pairs]
            repeats = np.concatenate([times for _, times in pairs]).astype(np.float32)
        turns = Turns.of(first, cohorts[:fit])
        counts = [pool.counts[turns.who] for pool in self.pools]
        for place, work in enumerate(self.works):
            if work.epochs is not None:
                steps = turns.most(steps_of(counts[place], self._work(place)), 1)
                fit = min(fit, self._fit(f"steps {place}", steps))
        turns, counts = turns.cut(fit), [count[: turns.ends[fit]] for count in counts]
        rounds = turns.first + turns.turn
        drawn = [
            self._examples(place, rounds, turns.who, count) for place, count in enumerate(counts)
        ]
        real = [None if np.all(count > 0) else count > 0 for count in counts]
        taken = {name: self._taken(place, turns) for place, name in enumerate(self.spaces)}
        found = {
            name: touch(turns, [examples for examples, _, _ in drawn], real, taken[name])
            for name, touch in self.touch.items()
        }
        for name, touched in found.items():
            rows = turns.most(touched.counts, 1)
            fit = min(fit, self._fit(f"{name} rows", rows, self.touch[name].most))
            if not self.whole:
                unions = [len(union) for union in touched.unions]
                fit = min(fit, self._fit(f"{name} union", unions))
        turns = turns.cut(fit)
        found = {name: touched.cut(turns) for name, touched in found.items()}
        lay = _Lay(turns, self.capacity["clients"], room)
        own = Own(
            lay.clients(self.population.numbers[turns.who].astype(np.uint32)),
            lay.clients(turns.who.astype(np.int32), len(self.population)),
            lay.clients(self.population.counts[turns.who].astype(np.float32)),
            tuple(
                self._phase(place, lay, *each, count, found)
                for place, (each, count) in enumerate(zip(drawn, counts, strict=True))
            ),
            {name: self._places(name, lay, each) for name, each in found.items()},
            {name: self._held(name, lay, each) for name, each in found.items() if self.memory},
            {
                name: self._places(name, lay, each, each.sends)
                for name, each in found.items()
                if each.sends is not None
            },
            None if repeats is None else lay.clients(repeats[: len(turns.who)]),
        )
        union = {name: self._union(name, each.unions, room) for name, each in found.items()}
        numbers = np.arange(first, first + room, dtype=np.uint32)
        sizes = sum(sizes.sum(axis=1) for _, sizes, _ in drawn)
        return Block(
            Plan(Shared(numbers, union), own), fit, self._traffic(turns, sizes, found, taken)
        )

    def _work(self, phase: int) -> Work:
        work = self.works[phase]
        return work._replace(batch=min(work.batch, self.capacity[f"batch {phase}"]))

    def _examples(
        self, phase: int, rounds: np.ndarray | int, who: np.ndarray, counts: np.ndarray
    ) -> Drawn:
        """The batches of one phase, of clients that take part in these ``rounds``."""
        work, numbers = self._work(phase), self.population.numbers[who].astype(np.uint64)
        turn = np.atleast_1d(rounds).astype(np.uint64)
        first = splitmix(self.key + turn * GOLDEN) + numbers * MIX1
        stream = first
        if phase:  # a domain of its own, apart from epochs
            stream = splitmix(stream + np.array([phase], np.uint64) * MIX2)
        room = partial(self._grow, f"steps {phase}")
        if work.part != "all" and work.split == "fresh":
            halves = splitmix(first + HALVES)
            return fresh(self.population, who, halves, counts, stream, work, room)
        return self.pools[phase].draw(who, counts, stream, work, room)

    def _taken(self, place: int, turns: Turns) -> Taken | None:
        """Which rows clients take, of the space at this place, where they answer about rows."""
        if self.answers is None:
            return None
        space = list(self.spaces.values())[place]
        each = [
            take_part(
                self.answers,
                self.key,
                space,
                self.population,
                turns.who[start:stop],
                turns.first + turn,
                place,
            )
            for turn, (start, stop) in enumerate(pairwise(turns.ends))
        ]
        return Taken(
            np.concatenate([one.yes for one in each]),
            np.concatenate([one.rows for one in each]),
            [one.union[0] for one in each],
        )

    def _phase(
        self,
        phase: int,
        lay: "_Lay",
        examples: np.ndarray,
        sizes: np.ndarray,
        steps: np.ndarray,
        counts: np.ndarray,
        found: Mapping[str, Touched],
    ) -> PhasePlan:
        real = len(lay.turns.who)
        batches = {
            name: lay.clients(_wide(column.take(examples[:real], axis=0)))
            for name, column in self.plain.items()
        }
        for touched in found.values():
            fields = touched.fields[phase]
            batches.update({name: lay.clients(values) for name, values in fields.items()})
        return PhasePlan(
            lay.clients(steps[:real]),
            lay.clients(sizes[:real]),
            batches,
            lay.clients(counts[:real].astype(np.float32)),
        )

    def _places(
        self, name: str, lay: "_Lay", touched: Touched, some: np.ndarray | None = None
    ) -> np.ndarray:
        """Where the clients' rows, or some of them, stand in the union."""
        past = len(self.spaces[name].ids) if self.whole else self.capacity[f"{name} union"]
        place = np.minimum(touched.place, past) if self.answers is not None else touched.place
        return lay.rows(touched, self.capacity[f"{name} rows"], place, past, some)

    def _held(self, name: str, lay: "_Lay", touched: Touched) -> np.ndarray:
        """The same in the list of all S(i)."""
        width, past = self.capacity[f"{name} rows"], len(self.spaces[name].slots)
        return lay.rows(touched, width, touched.held, past)

    def _union(self, name: str, unions: Sequence[np.ndarray], room: int) -> np.ndarray:
        past = len(self.spaces[name].ids)
        union = np.full((room, past if self.whole else self.capacity[f"{name} union"]), past, "i4")
        for row, distinct in zip(union, unions, strict=False):
            row[: len(distinct)] = distinct
        return union

    def _traffic(
        self,
        turns: Turns,
        sizes: np.ndarray,
        found: Mapping[str, Touched],
        taken: Mapping[str, Taken | None],
    ) -> Traffic:
        real = len(turns.who)
        went = {name: each for name, each in taken.items() if each is not None}
        down = {name: space.sizes_of(turns.who) for name, space in self.spaces.items()}
        up = {name: touched.trained for name, touched in found.items()}
        answered = {name: each.rows[:real] for name, each in went.items()}
        return Traffic(
            np.diff(turns.ends).tolist(),
            turns.total(sizes[:real]),
            down | answered,
            up | answered,
            {name: each.union for name, each in went.items()},
            turns,
        )

    def _fit(self, name: str, needs: Sequence[int], most: int | None = None) -> int:
        """How many of these rounds fit, once there is room for the first one."""
        size = self._grow(name, needs[0], most)
        return next((turn for turn, need in enumerate(needs) if need > size), len(needs))

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


class _Lay:
    """Lays what clients have out as [rounds, clients, ...], padded, with room for more rounds."""

    def __init__(self, turns: Turns, clients: int, rounds: int) -> None:
        self.turns, self.shape = turns, (rounds, clients)
        self.full = len(turns.who) == clients * (len(turns.ends) - 1)
        # where each client stands; one after the other if no cohort has padding
        own = np.arange(len(turns.who))
        self.stand = own if self.full else turns.turn * clients + own - turns.ends[turns.turn]

    def clients(self, values: np.ndarray, past: int = 0) -> np.ndarray:
        """One value, or array, a client; ``past`` elsewhere."""
        rounds, clients = self.shape
        if len(values) < rounds * clients:
            own = values
            values = np.full((rounds * clients, *own.shape[1:]), past, own.dtype)
            values[slice(len(own)) if self.full else self.stand] = own
        return values.reshape(*self.shape, *values.shape[1:])

    def rows(
        self,
        touched: Touched,
        width: int,
        values: np.ndarray,
        past: int,
        some: np.ndarray | None = None,
    ) -> np.ndarray:
        """One value for each row, or ``some`` rows, of a client; ``past`` elsewhere."""
        where = np.repeat(self.stand * width, touched.counts) + touched.rank
        found = np.full(self.shape[0] * self.shape[1] * width, past, np.int32)
        if some is None:
            found[where] = values
        else:
            found[where[some]] = values[some]
        return found.reshape(*self.shape, width)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)
