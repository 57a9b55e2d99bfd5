"""The server's half of a round, on the rows that nodes named: invite, stack, find, conclude.

Messages are put together in the order of the nodes' numbers, with the padded sizes of the
invitations, as a simulation has them: so the model after a round is, to the bit, that of a
simulation of the clients that counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.sampling import Sampler
from fedslice.deploy.checks import Checked
from fedslice.deploy.program import Program
from fedslice.deploy.rows import put, spread, take
from fedslice.deploy.schema import Schema
from fedslice.round import protocol
from fedslice.round.plan import bucket
from fedslice.round.store import RamStore
from fedslice.types import ClientReport, Message, PyTree, State

Sizes = tuple[tuple[str, int], ...]


class Stack(NamedTuple):
    """The messages of a cohort, where their rows belong among the round's, and which those are."""

    messages: Message
    places: dict[str, np.ndarray]
    unions: dict[str, np.ndarray]

    @property
    def sizes(self) -> Sizes:
        """How many rows the round has of each space, with padding."""
        return tuple((name, len(union)) for name, union in self.unions.items())


class Ended(NamedTuple):
    """A round that can be kept: its rows and their state after it, the norm of the update, the mean
    training loss (nan: not told), and the nonces of the letters whose answers counted."""

    unions: Mapping[str, np.ndarray]
    after: State
    size: float
    loss: float = 0.0
    nonces: Mapping[str, bytes] = {}


class Office:
    """The server's state and padded sizes (``room``); ``secret`` is what its own randomness hangs
    on.  It has no data."""

    def __init__(
        self,
        program: Program,
        schema: Schema,
        sampler: Sampler,
        spare: int,
        seed: int,
        secret: int,
        room: Mapping[str, int] | None,
    ) -> None:
        self.program, self.tags, self.seed = program, program.tags, seed
        model, shapes = program.model, program.keyed(seed)
        population = schema.population(model)
        spaces = population.spaces(model)
        # noise on the sum falls on all rows of all tables
        self.whole = any(stage.noise for stage in program.algorithm.stages)
        self.hides = program.wire.hides
        if self.whole or self.hides:
            spaces = {name: each.whole(model.tables[name].rows) for name, each in spaces.items()}
        self.ids = {name: space.ids for name, space in spaces.items()}
        self.most = {
            name: len(space.ids) if self.hides else int(space.sizes.max(initial=1))
            for name, space in spaces.items()
        }
        self.store = RamStore(shapes.make, self.tags.state, self.ids)
        clients = int(np.ceil(sampler.clients or len(population)))
        self.room = dict(room) if room else self._first_room(population.counts, clients)
        self._grow("clients", clients + spare)
        words = jnp.array([secret >> 32, secret & 0xFFFFFFFF], jnp.uint32)
        self.key = jax.random.fold_in(jax.random.wrap_key_data(words), 1)
        self.own()

    def own(self) -> None:
        """Make the store's leaves arrays that are written in place."""
        self.store.state = jax.tree.map(np.array, self.store.state)

    def _first_room(self, counts: np.ndarray, clients: int) -> dict[str, int]:
        """Padded sizes from what nodes registered: the most that any of them can need.  Of nodes
        that hide theirs nothing is known, and they make room for themselves."""
        if self.hides:
            return dict.fromkeys(self.program.wire.room, 0)
        room, largest = {}, max(1, int(counts.max(initial=1)))
        for phase, work in enumerate(self.program.works):
            room[f"batch {phase}"] = batch = min(work.batch, largest)
            if work.epochs is not None:
                passes = -(-largest // batch) * work.epochs
                room[f"steps {phase}"] = bucket(min(work.steps or passes, passes))
        for name, ids in self.ids.items():
            room[f"{name} rows"] = max(1, self.most[name])
            room[f"{name} union"] = bucket(min(len(ids), clients * self.most[name]))
        return room

    def _grow(self, name: str, need: int) -> int:
        if need > self.room.get(name, 0):
            self.room[name] = need if name == "clients" else bucket(need + need // 8)
        return self.room[name]

    # -- letters -----------------------------------------------------------------------------------

    def invitation(self, round: int, named: Mapping[str, np.ndarray]) -> bytes:
        """For all rows that a node named."""
        count = {name: len(rows) for name, rows in named.items()}
        filled = {}  # up to one size with places past the end, for programs of one shape
        for name, slots in self._slots(named).items():
            past = len(self.ids[name])
            size = min(bucket(len(slots)), past) if self.hides else self.most[name]
            filled[name] = np.append(slots, np.full(size - len(slots), past))
        mine = self.program.offered(take(self.tags.state, self.store.state, filled))
        real = {name: np.arange(rows) for name, rows in count.items()}
        invitation = take(self.tags.invitation, mine, real)
        return self.program.wire.pack_invitation(round, self.seed, self.room, count, invitation)

    def found_for(
        self, found: PyTree, stack: Stack, round: int, named: Mapping[str, np.ndarray]
    ) -> bytes:
        """What the survey found, for the rows that a node named; zeros where nobody looked."""
        places = {}
        for name, slots in self._slots(named).items():
            union = stack.unions[name]
            where = np.full(len(self.ids[name]) + 1, len(union))
            where[union] = np.arange(len(union))
            where[-1] = len(union)
            places[name] = where[slots]
        count = {name: len(rows) for name, rows in named.items()}
        told = take(self.tags.found, found, places)
        return self.program.wire.pack_found(round, count, told)

    def _slots(self, ids: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.searchsorted(self.ids[name], rows) for name, rows in ids.items()}

    def rows_room(self) -> dict[str, int]:
        """How many rows of each space a message is unpacked into."""
        if self.hides:
            return dict(self.most)
        return {name: self.room[f"{name} rows"] for name in self.ids}

    # -- a round -----------------------------------------------------------------------------------

    def stack(self, replies: Sequence[Checked], times: Sequence[int], survey: bool) -> Stack:
        """Messages in the order given, each as often as it counts, filled up with empty ones."""
        clients = self._grow("clients", len(replies))
        unions, places = {}, {}
        for name, known in self.ids.items():
            slots = [np.searchsorted(known, reply.ids[name]) for reply in replies]
            union = self._union(name, slots)
            where = np.zeros(len(known) + 1, np.int32)
            where[union] = np.arange(len(union))
            shape = clients, self.rows_room()[name]
            places[name] = np.full(shape, len(union), np.int32)
            for k, mine in enumerate(slots):
                places[name][k, : len(mine)] = where[mine]
            unions[name] = union
        messages = [
            _times(reply.message, count) for reply, count in zip(replies, times, strict=True)
        ]
        empty = self._empty(survey)
        messages += [empty] * (clients - len(messages))
        return Stack(jax.tree.map(lambda *leaves: np.stack(leaves), *messages), places, unions)

    def _union(self, name: str, slots: list[np.ndarray]) -> np.ndarray:
        """Distinct slots in the order in which the planner has them, by their last appearance; or
        all of them."""
        past = len(self.ids[name])
        if self.whole:
            return np.arange(past, dtype=np.int32)
        every = np.concatenate(slots) if slots else np.zeros(0, np.int64)
        _, last = np.unique(every[::-1], return_index=True)
        distinct = every[::-1][np.sort(last)][::-1]
        union = np.full(self._grow(f"{name} union", len(distinct)), past, np.int32)
        union[: len(distinct)] = distinct
        return union

    def _empty(self, survey: bool) -> Message:
        """A message of weight zero and update zero, which counts for nothing."""
        wire, room = self.program.wire, self.rows_room()
        layout = wire.found if survey else wire.message
        padded = [leaf.padded(room) for leaf in layout.leaves]
        tree: Any = layout.tree.unflatten(padded)
        extra = {} if survey else dict(tree)
        update = tree if survey else extra.pop("update")
        number: Any = jax.ShapeDtypeStruct((), np.float32)
        report = ClientReport(*[number] * len(ClientReport._fields))
        like = jax.eval_shape(protocol.receive, Message(update, number, report, extra))
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)

    def find(self, stack: Stack) -> PyTree:
        """What a survey found."""
        return self.program.find(stack.messages, stack.places, stack.sizes)

    def finish(self, stack: Stack, found: PyTree, round: int) -> Ended | None:
        """The round's rows after the server's step; None if they are not finite.  Nothing is
        changed yet."""
        working = take(self.tags.state, self.store.state, stack.unions)
        given = working, found, stack.messages, stack.places, np.uint32(round), self.key
        after, size = self.program.finish(*given, stack.sizes)
        loss = float("nan") if self.hides else _loss(stack)
        return _sound(working, Ended(stack.unions, after, float(size), loss))

    def conclude(
        self, values: PyTree, clients: int, rows: Mapping[str, np.ndarray], round: int
    ) -> Ended | None:
        """The same from the sum of so many clients' values on these rows, none of whom it saw."""
        unions, places = {}, {}
        for name, ids in rows.items():
            unions[name] = self._union(name, [ids])
            places[name] = ids if self.whole else np.arange(len(ids))
        sizes = {name: len(union) for name, union in unions.items()}
        extra = spread(self.tags.values, values, places, sizes)
        nothing = ClientReport(*[jnp.zeros(1)] * len(ClientReport._fields))
        total = Message(extra.pop("update"), jnp.float32(clients), nothing, extra)
        working = take(self.tags.state, self.store.state, unions)
        after, size = self.program.conclude(working, (), total, np.uint32(round), self.key)
        return _sound(working, Ended(unions, after, float(size)))

    def keep(self, ended: Ended) -> None:
        """Write the round's rows into the state."""
        self.store.state = put(self.tags.state, self.store.state, ended.unions, ended.after)


def _times(message: Message, count: int) -> Message:
    """A message of a node that was drawn several times counts as often."""
    if count == 1:
        return message
    return jax.tree.map(np.asarray, protocol.receive(message, jnp.float32(count)))


def _sound(before: State, ended: Ended) -> Ended | None:
    """What ended, if its numbers are finite."""
    good = np.isfinite(ended.size) and _endless(ended.after) <= _endless(before)
    return ended if good else None


def _loss(stack: Stack) -> float:
    """Mean training loss of the counted nodes during their local steps."""
    report = stack.messages.report
    return float(np.sum(report.loss * report.examples) / max(np.sum(report.examples), 1))


def _endless(tree: PyTree) -> int:
    """How many numbers are not finite."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return sum(int((~np.isfinite(x)).sum()) for x in leaves if x.dtype.kind == "f")
