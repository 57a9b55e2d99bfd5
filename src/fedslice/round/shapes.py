"""What an algorithm's pytrees are made of for one population: first values, row-shaped leaves, what
travels.

All of it is found by tracing the protocol with made-up numbers of rows, so no part has to declare
anything.
"""

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.data.submodel import Submodels
from fedslice.round.program import once
from fedslice.round.protocol import (
    Invitation,
    Memory,
    Tags,
    answer,
    conclude,
    data_with_noise,
    look,
    offered,
    receive,
    shaken,
)
from fedslice.round.store import PER_CLIENT, row_shapes
from fedslice.round.wire import Layout, Wire
from fedslice.types import Algorithm, Array, Data, Key, Message, Params, Phase, PyTree, State, Work

Sizes = dict[str, int]  # rows of each space
Found = TypeVar("Found")
TRACED_ROWS = 256  # of each space, whose first values and heat are in a program's fingerprint
ADDRESS = re.compile("0x[0-9a-f]+")  # of Python functions, in the text of a traced program


class Trees(NamedTuple):
    """All that moves between the store and a client."""

    state: State
    invitation: Invitation
    found: PyTree
    memory: Memory
    message: Message  # as it travels
    arrived: Message  # as it is added up


class Shapes:
    """``tags`` for the engine, ``wire`` for what travels, ``numbers`` that a client holds on
    average, and how to make first states."""

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        spaces: Mapping[str, Submodels],
        key: Key,
    ) -> None:
        self.algorithm, self.population, self.spaces, self.key = algorithm, population, spaces, key
        self.model = algorithm.client.model
        columns = tuple(
            (name, column.shape[1:], _kind(column)) for name, column in population.columns.items()
        )
        known: dict[Hashable, Any] = {}  # what is found later
        (tags, likes), self._known = once(
            algorithm,
            ("shapes", columns, *spaces),
            lambda: (row_shapes(self.trees, list(spaces), partial(self.trees, still=True)), known),
        )
        memory = jax.tree.map(lambda tag: tag or PER_CLIENT, tags.memory)
        values = _values(tags.arrived)
        self.tags = Tags(tags.state, tags.invitation, tags.found, values, memory)
        self.wire = Wire(
            {name: self.model.tables[name].rows for name in spaces},
            Layout(tags.invitation, likes.invitation),
            Layout(tags.found, likes.found),
            Layout(_values(tags.message), _values(likes.message)),
            room_of(algorithm, spaces),
            algorithm.rows,
        )
        mean = {name: int(np.ceil(space.sizes.mean())) for name, space in spaces.items()}
        offer = Layout(tags.invitation.offer, likes.invitation.offer).size(mean)
        self.numbers = int(offer + self.wire.found.size(mean)) // 4

    def make(self, ids: Mapping[str, np.ndarray]) -> State:
        """The server's first state for these rows of each space."""
        return first_state(self.algorithm, self.key, ids)

    def first_memory(self) -> PyTree:
        """Every client's memory as it starts: dense leaves one a client, row leaves one a held
        row."""
        if not jax.tree.leaves(self.tags.memory):
            return self.tags.memory
        first = self._remembered({name: space.ids for name, space in self.spaces.items()})

        def all_clients(tag: str, leaf: jax.Array) -> jax.Array:
            first = np.asarray(leaf)
            if tag == PER_CLIENT:
                return jax.device_put(np.repeat(first[None], len(self.population), axis=0))
            slots = self.spaces[tag].slots
            return jax.device_put(first[slots if len(slots) else np.zeros(1, np.int32)])

        return jax.tree.map(all_clients, self.tags.memory, first)

    def first_memory_of(self, tag: str, entries: np.ndarray) -> PyTree:
        """The same for some clients or, of a space, for some rows of the list of all S(i); other
        leaves are of no meaning."""
        ids = {name: np.zeros(0, np.int64) for name in self.spaces}
        if tag == PER_CLIENT:
            return jax.tree.map(
                lambda x: np.repeat(np.asarray(x)[None], len(entries), 0), self.memory_like()
            )
        space = self.spaces[tag]
        return self._remembered({**ids, tag: space.ids[space.slots[entries]]})

    def memory_like(self) -> PyTree:
        """The memory of a client without rows."""
        return self._remembered({name: np.zeros(0, np.int64) for name in self.spaces})

    def memory_counts(self) -> Sizes:
        """How many entries there may be of each tag."""
        rows = {name: len(space.slots) for name, space in self.spaces.items()}
        return {PER_CLIENT: len(self.population), **rows}

    def _remembered(self, ids: Mapping[str, np.ndarray]) -> PyTree:
        """The first memory of a client that holds these rows."""
        return self.remember(self.algorithm.server.params(self.make(ids).server))

    def program(self) -> str:
        """A fingerprint of what a round computes: its traced operations with every rate, factor and
        first value in them, which no part could be asked for otherwise."""

        def found() -> str:
            traced = jax.make_jaxpr(lambda: self._round(dict.fromkeys(self.spaces, TRACED_ROWS)))()
            return _fingerprint(traced, self.algorithm.reduce.name)

        return self._once("program", found)

    def client_program(self) -> str:
        """The same of what a client computes: from an invitation to its messages, and its first
        memory from the first model.  What the server keeps to itself (heat, its rates, its noise)
        is not in it, so that a client need not know."""
        traced = self.alone(dict.fromkeys(self.spaces, TRACED_ROWS))
        answers = self.algorithm.answers
        return _fingerprint(traced, f"{self.algorithm.rows}{answers or ''}")

    def _once(self, what: str, find: Callable[[], Found]) -> Found:
        """What tracing finds for an algorithm and its first values, once for all runs of them."""
        key = what, np.asarray(jax.random.key_data(self.key)).tobytes()
        if key not in self._known:
            self._known[key] = find()
        found: Found = self._known[key]
        return found

    def alone(self, sizes: Sizes) -> Any:
        """All that a client with so many rows computes, traced."""
        trees = jax.eval_shape(lambda: self.trees(sizes, still=True))
        params = jax.eval_shape(self.algorithm.server.params, trees.state.server)
        return jax.make_jaxpr(self._alone)(trees.invitation, trees.found, trees.memory, params)

    def weighed(self, examples: Array, fill: float) -> Array:
        """What the message of a client with so many examples weighs when all else that its stages
        read (update, report, offers, memory) is ``fill``: the same for any, if weights go by
        examples alone."""

        def raw() -> tuple[Message, Trees]:
            trees = self.trees(dict.fromkeys(self.spaces, 1), still=True)
            data, key = self._blank(self.algorithm.client.work, still=True), jax.random.key(0)
            survey = self.algorithm.survey
            offer = (
                trees.invitation.offer if survey is None else (trees.invitation.offer, trees.found)
            )
            message, _ = self.algorithm.client.run(
                offer, trees.memory[0], data_with_noise(self.algorithm.client, data, key), key
            )
            return message, trees

        message, trees = jax.tree.map(
            lambda like: jnp.full(like.shape, fill).astype(like.dtype), jax.eval_shape(raw)
        )
        message = message._replace(weight=examples)
        for place, stage in enumerate(self.algorithm.stages):
            given = trees.invitation.stages[place], trees.memory[1][place]
            message, _ = stage.encode(*given, message, jax.random.key(0))
        return message.weight

    def restless(self) -> bool:
        """Whether the server's step moves rows whose update is zero, as momentum does."""

        def rows(fills: Sequence[float]) -> Params:
            trees = self.trees(dict.fromkeys(self.spaces, 1), still=True)
            state, key = trees.state, jax.random.key(0)
            for fill in fills:
                total = jax.tree.map(lambda leaf: jnp.full_like(leaf, fill), trees.arrived)
                total = total._replace(weight=jnp.ones(()))
                state, _ = conclude(self.algorithm, state, trees.found, total, key)
            params = self.algorithm.server.params(state.server)
            return {name: params[name] for name in self.model.tables}

        def found() -> bool:
            one, two = jax.jit(lambda: (rows([1.0]), rows([1.0, 0.0])))()
            pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
            return not all(np.array_equal(before, after) for before, after in pairs)

        return self._once("restless", found)

    # -- tracing -----------------------------------------------------------------------------------

    def trees(self, sizes: Sizes, still: bool = False) -> Trees:
        """Everything that moves in a round, for so many rows.  When clients are ``still`` their
        steps are not looked at: they leave all shapes as they are."""
        state = self._state(sizes)
        invitation = offered(self.algorithm, state)
        found = self._found(invitation, still)
        memory = self.remember(self.algorithm.server.params(state.server))
        data, key = self._blank(self.algorithm.client.work, still), jax.random.key(0)
        message, _ = answer(self.algorithm, invitation, found, memory, data, key)
        return Trees(state, invitation, found, memory, message, receive(message))

    def _state(self, sizes: Sizes) -> State:
        return self.make({name: np.arange(size) for name, size in sizes.items()})

    def _found(self, invitation: Invitation, still: bool = False) -> PyTree:
        """What a survey finds is shaped as the update of its messages."""
        if self.algorithm.survey is None:
            return ()
        data = self._blank(self.algorithm.survey.work, still)
        return look(self.algorithm, invitation, data, jax.random.key(0)).update

    def remember(self, params: Params) -> Memory:
        """The first memory of the client part and of each stage."""
        stages = self.algorithm.stages
        kept = tuple(stage.remember(params, self.model.tables) for stage in stages)
        return self.algorithm.client.init(params), kept

    def _round(self, sizes: Sizes) -> State:
        """The first round with one client, whose message stands for the sum."""
        trees, key = self.trees(sizes), jax.random.key(0)
        return conclude(self.algorithm, trees.state, trees.found, trees.arrived, key)[0]

    def _alone(
        self, invitation: Invitation, found: PyTree, memory: Memory, params: Params
    ) -> tuple[PyTree, Message, PyTree, Memory, Memory]:
        """All that a client computes."""
        data, key = self._blank(self.algorithm.client.work), jax.random.key(0)
        message, after = answer(self.algorithm, invitation, found, memory, data, key)
        noisy = shaken(self.algorithm, message.update, key)
        return self._found(invitation), message, noisy, after, self.remember(params)

    def _blank(self, works: Sequence[Work], still: bool = False) -> Data:
        """One empty batch for each phase; and no step for it, when a client is ``still``."""
        zero, phases = jnp.int32(0), []
        for work in works:
            batches = {
                name: jnp.zeros((1, work.batch, *column.shape[1:]), _kind(column))
                for name, column in self.population.columns.items()
            }
            sizes, limit = jnp.zeros(1, jnp.int32), 0 if still else zero
            phases.append(Phase(batches, sizes, zero, limit, jnp.zeros(())))
        return Data(tuple(phases), jnp.zeros(()), zero)


def first_state(algorithm: Algorithm, key: Key, ids: Mapping[str, np.ndarray]) -> State:
    """The server's first state for these rows of each space: a row's values hang on ``key`` and its
    id alone."""
    model = algorithm.client.model
    params = model.params(key, ids)
    rows = {table: ids[space] for table, space in model.space_of.items()}
    stages = tuple(stage.init(params, rows) for stage in algorithm.stages)
    return State(algorithm.server.init(params, rows), stages)


def _fingerprint(traced: Any, beside: str) -> str:
    """Of a traced program: its operations and its constants."""
    digest = hashlib.sha256(ADDRESS.sub("", str(traced)).encode())
    digest.update(beside.encode())
    for constant in traced.consts:
        key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(constant) if key else constant)
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _values(message: Message) -> PyTree:
    """Update and extra of a message."""
    return {"update": message.update, **message.extra}


def works(algorithm: Algorithm) -> list[Work]:
    """All that a client does in a round: for the survey, if there is one, and for its update."""
    survey = algorithm.survey.work if algorithm.survey else ()
    return [*survey, *algorithm.client.work]


def room_of(algorithm: Algorithm, spaces: Iterable[str]) -> list[str]:
    """The padded sizes that a client's own arrays have, by their names in a planner."""
    phases = range(len(works(algorithm)))
    shuffled = {n for n, work in enumerate(works(algorithm)) if work.epochs is not None}
    sizes = [f"batch {phase}" for phase in phases]
    sizes += [f"steps {phase}" for phase in phases if phase in shuffled]
    return sizes + [f"{name} rows" for name in spaces]


def _kind(column: np.ndarray) -> type:
    return jnp.int32 if column.dtype.kind in "iu" else jnp.float32
