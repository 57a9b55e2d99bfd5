"""What an algorithm's pytrees are made of for one population: first values, row-shaped leaves,
bytes on the wire.

All of it is found by tracing the parts with made-up numbers of rows, so no part has to declare
anything."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.client.cluster import models_in
from fedslice.data.population import Population
from fedslice.data.submodel import Submodels
from fedslice.round.engine import PER_CLIENT, Tags
from fedslice.round.plan import Traffic
from fedslice.round.store import row_leaves
from fedslice.types import Algorithm, Data, Key, Message, Params, Parcel, Phase, PyTree, State, Work

Sizes = dict[str, int]  # rows of each space
TRACED_ROWS = 256  # of each space, whose first values and heat are in a program's fingerprint
ADDRESS = re.compile("0x[0-9a-f]+")  # of Python functions, in the text of a traced program


class Anatomy:
    """``tags`` for the engine, ``numbers`` that a client holds on average, and how to make and
    measure things."""

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        spaces: Mapping[str, Submodels],
        key: Key,
    ) -> None:
        self.algorithm, self.population, self.spaces, self.key = algorithm, population, spaces, key
        self.model = algorithm.client.model
        traced = (
            self._state,
            self._first_offer,
            self._survey,
            self._offer,
            self._values,
            self._memory,
        )
        tags = Tags(*(row_leaves(make, list(spaces)) for make in traced))
        self.tags = tags._replace(memory=jax.tree.map(lambda tag: tag or PER_CLIENT, tags.memory))
        self.survey_width = self._width(self._survey, tags.survey)
        self.offer_width = self._width(self._offer, tags.offer)
        self.values_width = self._width(self._values, tags.values)
        self.message_leaves = jax.tree_util.tree_leaves_with_path(self._shapes(self._values))
        if algorithm.server.several:  # a client sends the update of one of the models
            count = models_in(self._shapes(self._offer), set(self.model.tables))
            self.values_width = {name: width // count for name, width in self.values_width.items()}
        mean = {name: int(np.ceil(space.sizes.mean())) for name, space in spaces.items()}
        self.numbers = (
            sum(width * mean.get(name, 1) for name, width in self.offer_width.items()) // 4
        )
        self.compressed = any(stage.cost is not None for stage in algorithm.stages)

    def make(self, ids: Mapping[str, np.ndarray]) -> State:
        """The server's first state for these rows of each space."""
        params = self.model.params(self.key, ids)
        rows = {table: ids[space] for table, space in self.model.space_of.items()}
        stages = tuple(stage.init(params, rows) for stage in self.algorithm.stages)
        return State(self.algorithm.server.init(params, rows), stages)

    def first_memory(self) -> PyTree:
        """Every client's memory as it starts: dense leaves one a client, row leaves one a held row."""
        if not jax.tree.leaves(self.tags.memory):
            return self.tags.memory
        ids = {name: space.ids for name, space in self.spaces.items()}
        first = self._remember(self.algorithm.server.params(self.make(ids).server))
        return jax.tree.map(
            lambda tag, leaf: (
                jnp.broadcast_to(leaf, (len(self.population), *leaf.shape)) + 0
                if tag == PER_CLIENT
                else leaf[
                    self.spaces[tag].slots if len(self.spaces[tag].slots) else np.zeros(1, np.int32)
                ]
            ),
            self.tags.memory,
            first,
        )

    def bytes(self, traffic: Traffic) -> tuple[int, int]:
        """Down: the offer, with all rows of S(i).  Up: the message, with trained rows and 4 bytes a
        row for its number.

        A survey's answers go up too; what it offered is not sent again.  A client that takes part
        for the first time names its S(i), 4 bytes a row (Ding et al. 2022, algorithm 1, line 5); it
        does not change, so it does so once."""
        down, up = (
            {"": traffic.clients} | {name: int(rows.sum()) for name, rows in counts.items()}
            for counts in (traffic.rows_down, traffic.rows_up)
        )
        numbers = 4 * sum(rows for name, rows in up.items() if name)
        surveyed = sum(width * up[name] for name, width in self.survey_width.items())
        plain = sum(width * up[name] for name, width in self.values_width.items())
        sent = self._encoded(traffic) if self.compressed else plain + numbers
        sent += 4 * traffic.rows_new
        return sum(width * down[name] for name, width in self.offer_width.items()), surveyed + sent

    def _encoded(self, traffic: Traffic) -> int:
        """Bytes of the values of all messages after the stages that compress them."""
        wire = {}
        for tag, (path, leaf) in zip(
            jax.tree.leaves(self.tags.values), self.message_leaves, strict=True
        ):
            rows = traffic.rows_up[tag] if tag else np.ones(traffic.clients)
            numbers = rows * float(np.prod(leaf.shape))  # tables were traced with one row
            shape = None if tag else leaf.shape
            wire[jax.tree_util.keystr(path)] = Parcel(numbers, numbers * leaf.dtype.itemsize, shape)
        rows = sum(
            (counts.astype(np.float64) for counts in traffic.rows_up.values()),
            np.zeros(traffic.clients),
        )
        wire["rows"] = Parcel(rows, 4 * rows, None)
        for stage in self.algorithm.stages:
            wire = stage.cost(wire) if stage.cost is not None else wire
        return int(sum(parcel.bytes.sum() for parcel in wire.values()))

    def program(self) -> str:
        """A fingerprint of what a round computes: its traced operations with every rate, factor and
        first value in them, which no part could be asked for otherwise."""
        traced = jax.make_jaxpr(lambda: self._round(dict.fromkeys(self.spaces, TRACED_ROWS)))()
        digest = hashlib.sha256(
            ADDRESS.sub("", str(traced)).encode() + self.algorithm.reduce.name.encode()
        )
        for constant in traced.consts:
            key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
            digest.update(np.asarray(jax.random.key_data(constant) if key else constant).tobytes())
        return digest.hexdigest()[:16]

    # -- tracing -----------------------------------------------------------------------------------

    def _shapes(self, make: Callable[[Sizes], PyTree]) -> PyTree:
        return jax.eval_shape(lambda: make(dict.fromkeys(self.spaces, 1)))

    def _width(self, make: Callable[[Sizes], PyTree], tags: PyTree) -> dict[str, int]:
        """Bytes of one row of each space, and under "" of all dense leaves."""
        widths: dict[str, int] = {}
        for tag, leaf in zip(
            jax.tree.leaves(tags), jax.tree.leaves(self._shapes(make)), strict=True
        ):
            widths[tag] = widths.get(tag, 0) + int(np.prod(leaf.shape)) * leaf.dtype.itemsize
        return widths

    def _state(self, sizes: Sizes) -> State:
        return self.make({name: np.arange(size) for name, size in sizes.items()})

    def _first_offer(self, sizes: Sizes) -> PyTree:
        return self.algorithm.server.offer(self._state(sizes).server, ())

    def _survey(self, sizes: Sizes) -> PyTree:
        survey = self.algorithm.survey
        if survey is None:
            return ()
        data = self._blank(survey.work)
        return survey.run(self._first_offer(sizes), (), data, jax.random.key(0))[0].update

    def _offer(self, sizes: Sizes) -> PyTree:
        return self.algorithm.server.offer(self._state(sizes).server, self._survey(sizes))

    def _memory(self, sizes: Sizes) -> PyTree:
        return self._remember(self.algorithm.server.params(self._state(sizes).server))

    def _remember(self, params: Params) -> PyTree:
        """The first memory of the client part and of each stage."""
        return self.algorithm.client.init(params), tuple(
            stage.remember(params, self.model.tables) for stage in self.algorithm.stages
        )

    def _values(self, sizes: Sizes) -> PyTree:
        """Update and extra of a message, after all stages."""
        message = self._message(sizes)
        return {"update": message.update, **message.extra}

    def _message(self, sizes: Sizes) -> Message:
        own, kept = self._memory(sizes)
        client, key = self.algorithm.client, jax.random.key(0)
        message: Message = client.run(self._offer(sizes), own, self._blank(client.work), key)[0]
        for place, stage in enumerate(self.algorithm.stages):
            message, _ = stage.encode(self._state(sizes).stages[place], kept[place], message, key)
        return message

    def _round(self, sizes: Sizes) -> State:
        """The first round with one client, whose message stands for the sum."""
        state, total, kept = self._state(sizes), self._message(sizes), []
        for place, stage in reversed(list(enumerate(self.algorithm.stages))):
            total, left = stage.decode(state.stages[place], total)
            kept.append(left)
        if self.algorithm.survey is not None:
            total = total._replace(extra={**total.extra, "survey": self._survey(sizes)})
        return State(self.algorithm.server.step(state.server, total), tuple(kept[::-1]))

    def _blank(self, works: Sequence[Work]) -> Data:
        """One empty batch for each phase."""
        columns, zero = self.population.columns, jnp.int32(0)
        phases = []
        for work in works:
            batches = {
                name: jnp.zeros(
                    (1, work.batch, *c.shape[1:]),
                    jnp.int32 if c.dtype.kind in "iu" else jnp.float32,
                )
                for name, c in columns.items()
            }
            phases.append(Phase(batches, jnp.zeros(1, jnp.int32), zero, zero, jnp.zeros(())))
        return Data(tuple(phases), jnp.zeros(()), zero)
