"""Every recipe client by client, each alone with its own rows, through bytes: the same as in the
simulation, to the bit.

A ``Device`` is made of a population of one.  An ``Office`` has the server's state and no data.  All
that passes between them is bytes.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from laws import MODEL, RECIPES, sampler_of
from problems import people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.round import protocol
from fedslice.round.engine import PER_CLIENT
from fedslice.round.plan import Planner
from fedslice.round.shapes import Shapes, works
from fedslice.round.store import row_leaves
from fedslice.round.wire import Wire
from fedslice.simulation.run import Report, Run
from fedslice.types import Algorithm, Data, Message, Phase, State

ROUNDS = 3
SEED = 5


def lazy_noise(model: fs.Model, population: fs.Population) -> Algorithm:
    """Noise that the server adds to the rows that are read."""
    heat = fs.privacy.heat.public(population.heat(model))
    parts = fs.privacy.lazy(1.0, 2.0, sampler_of("lazy-noise"), heat=heat, rounds=ROUNDS)
    return fs.algorithm(fs.client.sgd(model, optax.sgd(0.3), fs.Work(steps=3, batch=4)), *parts)


METHODS = {**RECIPES, "lazy-noise": lazy_noise}
NAMES = [name for name in METHODS if name != "central"]  # which no client ever runs


def take(tags: Any, tree: Any, places: Any) -> Any:
    """Rows of all row-shaped leaves, zeros for places past the end, as ``store.take`` without
    compiling anything for the sizes of each client."""

    def rows(tag: str, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if not tag:
            return leaf
        inside = np.asarray(places[tag]) < len(leaf)
        found = leaf[np.where(inside, places[tag], 0)]
        return np.where(inside.reshape(inside.shape + (1,) * (leaf.ndim - 1)), found, found * 0)

    return jax.tree.map(rows, tags, tree)


def put(tags: Any, tree: Any, places: Any, rows: Any) -> Any:
    """Likewise ``store.put``: places past the end are dropped."""

    def write(tag: str, leaf: Any, new: Any) -> np.ndarray:
        leaf, new = np.array(leaf), np.asarray(new)
        if not tag:
            return new
        inside = np.asarray(places[tag]) < len(leaf)
        leaf[np.asarray(places[tag])[inside]] = new[inside]
        return leaf

    return jax.tree.map(write, tags, tree, rows)


class Software:
    """What all devices run: the algorithm, compiled, and the shapes of its trees.  It is made where
    one client is in sight."""

    def __init__(self, method: Algorithm, alone: fs.Population) -> None:
        self.method, self.model = method, method.client.model
        spaces = alone.spaces(self.model)
        self.shapes = Shapes(method, alone, spaces, jax.random.key(0))
        trees = row_leaves(self.shapes._trees, list(spaces))
        self.sent = {"update": trees.message.update, **trees.message.extra}
        self.look = jax.jit(lambda *given: _alone(_looked, method, *given))
        self.answer = jax.jit(lambda *given: _alone(_answered, method, *given))
        self.remember = jax.jit(self.shapes._remember)


class Device:
    """One client: its data, its memory, and the software.  It knows nobody else."""

    def __init__(self, software: Software, alone: fs.Population) -> None:
        self.software, self.population = software, alone
        self.method, self.model, self.shapes = software.method, software.model, software.shapes
        self.spaces = alone.spaces(self.model)
        self.memory: Any = None
        self.held = {name: len(space.slots) for name, space in self.spaces.items()}
        fields = self.model.fields(alone.columns)
        todo, rows = works(self.method), self.method.client.rows
        self.planner = Planner(alone, self.spaces, todo, SEED, rows, memory=True, fields=fields)

    def slice(self) -> dict[str, np.ndarray]:
        """The rows that it holds, as it names them once."""
        return {name: space.ids[space.slots] for name, space in self.spaces.items()}

    def start(self, first: Any) -> None:
        """Its first memory, from the first model; of a real deployment the first invitation.  Rows
        beyond its own are zeros, and cut off."""
        if self.memory is None:
            real = {name: np.arange(count) for name, count in self.held.items()}
            self.memory = jax.tree.map(
                lambda tag, leaf: np.asarray(leaf)[None if tag == PER_CLIENT else real[tag]],
                self.shapes.tags.memory,
                self.software.remember(first),
            )

    def prepare(self, letter: bytes) -> None:
        """Read an invitation and draw the batches of its round."""
        wire = self.shapes.wire
        self.round, seed, room, invitation = wire.unpack_invitation(letter, self.held)
        assert seed == SEED
        self.planner.capacity = {**self.planner.capacity, **room, "clients": 1}
        self.plan, _ = self.planner.plan(self.round, np.array([0]))
        self.invitation = take(self.shapes.tags.invitation, invitation, self._mine())
        own_key = jax.random.fold_in(jax.random.key(seed), 1)
        number = int(self.population.numbers[0])
        self.key = protocol.key_of(own_key, np.uint32(self.round), np.uint32(number))

    def looks(self) -> bytes:
        """Its message of the first trip."""
        message = self.software.look(
            self._phases()[0], self.plan.own.weight, self.round, self.key, self.invitation
        )
        return self._pack(message, survey=True)

    def answers(self, letter: bytes | None) -> bytes:
        """Its message, and what it remembers."""
        found: Any = ()
        if letter is not None:
            found = self.shapes.wire.unpack_found(letter, self.held)
            found = take(self.shapes.tags.found, found, self._mine())
        drawers = {PER_CLIENT: np.int32(0), **self._mine()}
        remembered = take(self.shapes.tags.memory, self.memory, drawers)
        message, after = self.software.answer(
            self._phases()[1],
            self.plan.own.weight,
            self.round,
            self.key,
            self.invitation,
            found,
            remembered,
        )
        self.memory = put(self.shapes.tags.memory, self.memory, drawers, after)
        return self._pack(message, survey=False)

    def _mine(self) -> dict[str, np.ndarray]:
        return {name: places[0] for name, places in self.plan.own.held.items()}

    def _phases(self) -> tuple[Any, Any]:
        skip = len(self.method.survey.work) if self.method.survey else 0
        return self.plan.own.phases[:skip], self.plan.own.phases[skip:]

    def _pack(self, message: Message, survey: bool) -> bytes:
        own, rows, ids = self.plan.own, {}, {}
        for name, space in self.spaces.items():
            past = len(self.plan.shared.union[name])
            rows[name] = np.flatnonzero((own.sent or own.places)[name][0] < past)
            ids[name] = space.ids[space.slots[own.held[name][0][rows[name]]]]
        data = self.shapes.wire.pack_message(self.round, message, rows, ids, survey)
        self._comes_back(data, message, rows, survey)
        return data

    def _comes_back(self, data: bytes, message: Message, rows: Any, survey: bool) -> None:
        """unpack(pack(m)) == m: every array of every leaf, for the rows that were sent."""
        room = {name: places.shape[1] for name, places in self.plan.own.places.items()}
        _, again, _ = self.shapes.wire.unpack_message(data, room, survey)
        tags = self.shapes.tags.found if survey else self.software.sent["update"]
        pairs = [(tags, message.update, again.update)]
        if not survey:
            pairs += [
                (self.software.sent[n], message.extra[n], again.extra[n]) for n in message.extra
            ]
        for names, before, after in pairs:
            leaves = map(jax.tree.leaves, (names, before, after))
            for name, left, right in zip(*leaves, strict=True):
                expected = np.asarray(left)[rows[name]] if name else np.asarray(left)
                found = np.asarray(right)[: len(rows[name])] if name else np.asarray(right)
                assert expected.dtype == found.dtype
                assert np.array_equal(expected, found)
        assert bits((message.weight, message.report)) == bits((again.weight, again.report))


def _alone(act: Any, method: Algorithm, phases: Any, weight: Any, round: Any, *given: Any) -> Any:
    """``lax.map`` over a cohort of one: how the simulation's engine "map" runs every client."""

    def one(stacked: Any) -> Any:
        phases, weight = stacked
        ready = tuple(Phase(p.batches, p.sizes, p.steps, p.steps, p.examples) for p in phases)
        data = Data(ready, weight, jnp.int32(round))
        return act(method, data, *given)

    return jax.tree.map(lambda leaf: leaf[0], jax.lax.map(one, (phases, weight)))


def _looked(method: Algorithm, data: Data, key: Any, invitation: Any) -> Message:
    return protocol.look(method, invitation, data, key)


def _answered(
    method: Algorithm, data: Data, key: Any, invitation: Any, found: Any, memory: Any
) -> Any:
    return protocol.answer(method, invitation, found, memory, data, key)


class Office:
    """The server: its state, the rows that each client named, padded sizes.  It has no data."""

    def __init__(self, run: Run) -> None:
        self.method, self.tags, self.wire = run.algorithm, run.shapes.tags, run.shapes.wire
        self.ids = {name: space.ids for name, space in run.spaces.items()}
        self.state: State = jax.tree.map(np.asarray, run.shapes.make(self.ids))
        self.room, self.key = run.planner.capacity, run.engine.key
        self.offered = jax.jit(lambda state: protocol.offered(self.method, state))
        self.finish = jax.jit(self._finish)

    def slots(self, ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.searchsorted(self.ids[name], rows) for name, rows in ids.items()}

    def filled(self, ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same, filled up with places past the end: programs of one shape serve all clients."""
        past = {name: len(known) for name, known in self.ids.items()}
        return {
            name: np.append(slots, np.full(past[name] - len(slots), past[name]))
            for name, slots in self.slots(ids).items()
        }

    def invite(self, round: int, named: dict[str, np.ndarray]) -> bytes:
        """For all rows that the client named."""
        count = {name: len(rows) for name, rows in named.items()}
        mine = self.offered(take(self.tags.state, self.state, self.filled(named)))
        real = {name: np.arange(rows) for name, rows in count.items()}
        invitation = take(self.tags.invitation, mine, real)
        return self.wire.pack_invitation(round, SEED, self.room, count, invitation)

    def collect(self, letters: list[bytes], survey: bool) -> tuple[Message, Any, dict[str, Any]]:
        """The messages stacked, where their rows belong, and the round's rows."""
        room = {name: self.room[f"{name} rows"] for name in self.ids}
        opened = [self.wire.unpack_message(letter, room, survey) for letter in letters]
        unions, places = {}, {}
        for name, known in self.ids.items():
            slots = [np.searchsorted(known, ids[name]) for _, _, ids in opened]
            union = _union(slots, self.room[f"{name} union"], len(known))
            where = {slot: place for place, slot in enumerate(union)}
            places[name] = np.full((len(opened), room[name]), len(union), np.int32)
            for k, mine in enumerate(slots):
                places[name][k, : len(mine)] = [where[slot] for slot in mine]
            unions[name] = union
        received = [protocol.receive(message) for _, message, _ in opened]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *received)
        sizes = {name: len(union) for name, union in unions.items()}
        return stacked, protocol.Stacked(places, sizes), unions

    def found_for(self, found: Any, unions: Any, round: int, named: dict[str, np.ndarray]) -> bytes:
        """What the survey found, for the rows that one client named; zeros where nobody looked."""
        places = {}
        for name, slots in self.slots(named).items():
            where = {slot: place for place, slot in enumerate(unions[name])}
            places[name] = np.array([where.get(slot, len(where) + 1) for slot in slots], np.int32)
        count = {name: len(rows) for name, rows in named.items()}
        return self.wire.pack_found(round, count, take(self.tags.found, found, places))

    def conclude(self, round: int, letters: list[bytes], found: Any) -> None:
        messages, stacked, unions = self.collect(letters, survey=False)
        working = take(self.tags.state, self.state, unions)
        given = working, found, messages, stacked.places, np.uint32(round), self.key
        working, _ = self.finish(*given)
        self.state = put(self.tags.state, self.state, unions, working)

    def _finish(
        self, working: State, found: Any, messages: Message, places: Any, round: Any, key: Any
    ) -> Any:
        sizes = {name: self.room[f"{name} union"] for name in self.ids}
        where = protocol.Stacked(places, sizes)
        total = protocol.gather(self.method, self.tags.values, messages, where)
        own_key = protocol.key_of(key, round, protocol.SERVER)
        return protocol.conclude(self.method, working, found, total, own_key)


def _union(slots: list[np.ndarray], room: int, past: int) -> np.ndarray:
    """Distinct slots in the order in which the planner has them: by their last appearance."""
    every = np.concatenate(slots) if slots else np.zeros(0, np.int64)
    last = {slot: place for place, slot in enumerate(every.tolist())}
    distinct = sorted(last, key=lambda slot: last[slot])
    return np.array(distinct + [past] * (room - len(distinct)), np.int32)


@lru_cache(maxsize=1)
def simulated(name: str) -> tuple[Run, list[Report]]:
    population = people()
    method = METHODS[name](MODEL, population)
    settings: dict[str, Any] = {"engine": "map", "threads": 1, "seed": SEED}
    run = run_of(method, population, sampler=sampler_of(name), **settings)
    return run, list(run.rounds(ROUNDS))


@lru_cache(maxsize=1)
def apart(name: str) -> tuple[Office, list[Device], list[int], list[int]]:
    """The same rounds, on devices and in an office; with the bytes of each round, down and up."""
    (run, _), population = simulated(name), people()
    office = Office(run)
    clients = [population.subset(np.array([place])) for place in range(len(population))]
    software = Software(METHODS[name](MODEL, population), clients[3])
    devices = [Device(software, alone) for alone in clients]
    down, up, met = [], [], set()
    first = run.shapes.model.params(run.shapes.key, office.ids)
    for round in range(ROUNDS):
        cohort = [devices[i] for i in run.cohort(round)]
        named = [device.slice() for device in cohort]
        sent = sum(
            len(run.shapes.wire.pack_slice(rows))
            for device, rows in zip(cohort, named, strict=True)
            if id(device) not in met and run.spaces
        )
        met |= {id(device) for device in cohort}
        letters = [office.invite(round, rows) for rows in named]
        for device, letter, rows in zip(cohort, letters, named, strict=True):
            mine = device.model.space_of
            tags = {k: mine.get(k, "") for k in first}
            device.start(take(tags, first, office.filled(rows)))
            device.prepare(letter)
        found: Any = ()
        news: list[bytes | None] = [None] * len(cohort)
        if office.method.survey is not None:
            looks = [device.looks() for device in cohort]
            messages, stacked, unions = office.collect(looks, survey=True)
            found = jax.jit(
                lambda m, p: protocol.find(
                    office.method, office.tags, m, protocol.Stacked(p, stacked.sizes)
                )
            )(messages, stacked.places)
            news = [office.found_for(found, unions, round, rows) for rows in named]
            sent += sum(map(len, looks))
        answers = [device.answers(letter) for device, letter in zip(cohort, news, strict=True)]
        office.conclude(round, answers, found)
        down.append(sum(map(len, letters)) + sum(len(letter or b"") for letter in news))
        up.append(sent + sum(map(len, answers)))
    return office, devices, down, up


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


each_recipe = pytest.mark.parametrize("name", NAMES, scope="module")


@each_recipe
def test_clients_alone_through_bytes_are_the_simulation(name: str) -> None:
    (run, _), (office, devices, _, _) = simulated(name), apart(name)
    paths = jax.tree_util.tree_leaves_with_path(office.state)
    for (path, mine), theirs in zip(paths, jax.tree.leaves(run.store.state), strict=True):
        assert np.array_equal(mine, theirs), jax.tree_util.keystr(path)
    for i, device in enumerate(devices):
        if device.memory is None:
            continue  # never drawn
        drawer = {PER_CLIENT: np.array([i])}
        for space, all_rows in run.spaces.items():
            drawer[space] = np.arange(all_rows.offsets[i], all_rows.offsets[i + 1])
        assert bits(device.memory) == bits(take(run.shapes.tags.memory, run.memory, drawer))


@each_recipe
def test_counted_bytes_are_packed_bytes(name: str) -> None:
    (_, reports), (_, _, down, up) = simulated(name), apart(name)
    assert [report.bytes_down for report in reports] == down
    assert [report.bytes_up for report in reports] == up


def test_bytes_that_are_wrong_are_refused() -> None:
    """Cut off, too long, of another kind, with rows that are not ascending or not there."""
    run, _ = simulated("fedavg-topk")
    wire: Wire = run.shapes.wire
    alone = people().subset(np.array([3]))
    device = Device(Software(run.algorithm, alone), alone)
    office = Office(run)
    device.start(run.shapes.model.params(run.shapes.key, device.slice()))
    letter = office.invite(0, device.slice())
    device.prepare(letter)
    answer = device.answers(None)
    room = {name: run.planner.capacity[f"{name} rows"] for name in run.spaces}
    assert wire.unpack_message(answer, room)[0] == 0
    for cut in range(len(answer)):
        with pytest.raises(InputError):
            wire.unpack_message(answer[:cut], room)
    for cut in range(len(letter)):
        with pytest.raises(InputError):
            wire.unpack_invitation(letter[:cut], device.held)
    with pytest.raises(InputError, match="more than its leaves need"):
        wire.unpack_message(answer + b"x", room)
    with pytest.raises(InputError, match="no message of this version"):
        wire.unpack_message(b"what" + answer[4:], room)
    with pytest.raises(InputError, match="this client holds"):
        wire.unpack_invitation(letter, {"w": 1})
    ids = np.frombuffer(answer, "<u4", len(device.slice()["w"]) and 2, 12).copy()
    for wrong in (ids[::-1], np.array([0, 10**6], "<u4")):
        with pytest.raises(InputError, match="not ascending ids below"):
            wire.unpack_message(answer[:12] + wrong.astype("<u4").tobytes() + answer[20:], room)
    with pytest.raises(InputError, match="too many"):
        wire.unpack_message(answer[:8] + np.uint32(10**6).tobytes() + answer[12:], room)
