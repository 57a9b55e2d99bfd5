"""What nodes and their coordinator run: one algorithm, traced and compiled, made without any data.

A node runs a cohort of one.  ``lax.map`` over it is how the simulation's engine ``"map"`` runs
every client, so a node computes the same bits.
"""

from collections.abc import Mapping
from copy import copy
from functools import cached_property, partial
from importlib.metadata import version
from math import inf
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.round import protocol
from fedslice.round.program import Compiled
from fedslice.round.shapes import Shapes, works
from fedslice.types import Algorithm, Data, Key, Message, Phase, PyTree, State

Columns: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""What batches are made of: of each column ``"int"`` or ``"float"``, and an example's shape."""
Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""How many rows the union of each space has."""
VERSIONS = f"fedslice {version('fedslice')}, jax {jax.__version__}"


def columns_of(model: Model, data: Population) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The columns that the model reads.

    >>> data = Population.from_arrays([0, 0], x=[[1.0, 2.0], [3.0, 4.0]], unread=[0, 1])
    >>> columns_of(Model(lambda key: {}, lambda params, batch: batch["x"].sum(1)), data)
    {'x': ('float', (2,))}
    """
    kinds = {True: "int", False: "float"}
    return {
        name: (kinds[data.columns[name].dtype.kind in "iu"], tuple(data.columns[name].shape[1:]))
        for name in sorted(model.fields(data.columns))
    }


class Program:
    """An algorithm for examples of these ``columns``.  Nodes in one process may share one.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5))
    >>> program = Program(method, columns_of(task.model, task.train))
    >>> len(program.fingerprint)
    16
    """

    def __init__(self, algorithm: Algorithm, columns: Columns) -> None:
        self.columns, self.model = columns, algorithm.client.model
        self.algorithm = algorithm = apart(algorithm)
        kinds: dict[str, Any] = {"int": np.int32, "float": np.float32}
        blank = {
            name: np.zeros((1, *shape), kinds[kind]) for name, (kind, shape) in columns.items()
        }
        one = Population(blank, np.array([0, 1]), np.array(["nobody"]))
        self.shapes = Shapes(algorithm, one, one.spaces(self.model), jax.random.key(0))
        self.tags, self.wire = self.shapes.tags, self.shapes.wire
        self.works = works(algorithm)
        # whole numbers are for a secure sum, which adds them up unseen
        kinds_sent = {leaf.like.dtype for leaf in self.wire.message.leaves if self.wire.hides}
        self.summed = kinds_sent == {np.dtype(np.int32)}
        self._check_hidden()
        self.remembers = bool(jax.tree.leaves(self.tags.memory))
        # compiled as a simulation compiles them, for the same bits
        self.look = Compiled(partial(_alone, self._look))
        self.answer = Compiled(partial(_alone, self._answer))
        self.remember = jax.jit(self.shapes.remember)
        self._weights: dict[int, float] = {}
        self._weigh = jax.jit(lambda n: [self.shapes.weighed(n, fill) for fill in (0.25, 0.75)])
        self.offered = Compiled(lambda state: protocol.offered(algorithm, state))
        self.shake = Compiled(lambda update, key: protocol.shaken(algorithm, update, key))
        self.conclude = Compiled(self._conclude)
        self._sized: dict[Sizes, tuple[Compiled, Compiled]] = {}

    def _check_hidden(self) -> None:
        """What hides rows is a secure sum, or noise of the nodes' own on all rows."""
        own = any(stage.own for stage in self.algorithm.stages)
        if self.wire.hides and not (self.summed or own):
            raise InputError(
                f"{self.algorithm.name} hides which rows are a client's (rows="
                f"{self.algorithm.rows!r}) and sends numbers that a secure sum cannot add up: use"
                " stage.secure(...), privacy.distributed(...) or privacy.local(...)"
            )
        told = self.wire.message.tree.unflatten(self.wire.message.leaves)
        if own and set(told) != {"update"}:
            raise InputError(
                f"{self.algorithm.name} sends {', '.join(sorted(told))}, and the nodes' own noise"
                " is for updates alone: leave an adaptive clip out, as privacy.distributed(...) and"
                " privacy.local(...) do"
            )

    @cached_property
    def fingerprint(self) -> str:
        """Of what clients compute."""
        return self.shapes.client_program()

    def most(self, examples: int) -> float:
        """The weight of a message of a node with so many examples; infinite where it depends on
        more than them, as q-FFL's does.  That is asked, not declared: all else is two different
        numbers."""
        if examples not in self._weights:
            one, two = (float(each) for each in self._weigh(jnp.float32(examples)))
            self._weights[examples] = one if one == two else inf
        return self._weights[examples]

    def keyed(self, seed: int) -> Shapes:
        """The shapes with the first values of a run."""
        shapes = copy(self.shapes)
        shapes.key = jax.random.fold_in(jax.random.key(seed), 0)
        return shapes

    # -- a client ----------------------------------------------------------------------------------

    def _look(self, data: Data, key: Key, invitation: Any) -> Message:
        return protocol.look(self.algorithm, invitation, data, key)

    def _answer(
        self, data: Data, key: Key, invitation: Any, found: PyTree, memory: Any
    ) -> tuple[Message, Any]:
        return protocol.answer(self.algorithm, invitation, found, memory, data, key)

    # -- the server --------------------------------------------------------------------------------

    def find(self, messages: Message, places: Any, sizes: Sizes) -> PyTree:
        """What a survey found."""
        return self._steps(sizes)[0](messages, places)

    def finish(
        self,
        working: State,
        found: PyTree,
        messages: Message,
        places: Any,
        round: Any,
        key: Key,
        sizes: Sizes,
    ) -> tuple[State, Any]:
        """The rows of the round after the server's step, and the norm of the update."""
        return self._steps(sizes)[1](working, found, messages, places, round, key)

    def _steps(self, sizes: Sizes) -> tuple[Compiled, Compiled]:
        """Both, for unions of these sizes."""
        if sizes not in self._sized:
            both = partial(self._find, sizes), partial(self._finish, sizes)
            self._sized[sizes] = Compiled(both[0]), Compiled(both[1])
        return self._sized[sizes]

    def _find(self, sizes: Sizes, messages: Message, places: Any) -> PyTree:
        stacked = protocol.Stacked(places, dict(sizes))
        return protocol.find(self.algorithm, self.tags, messages, stacked)

    def _finish(
        self,
        sizes: Sizes,
        working: State,
        found: PyTree,
        messages: Message,
        places: Any,
        round: Any,
        key: Key,
    ) -> tuple[State, Any]:
        stacked = protocol.Stacked(places, dict(sizes))
        total = protocol.gather(self.algorithm, self.tags.values, messages, stacked)
        return self._conclude(working, found, total, round, key)

    def _conclude(
        self, working: State, found: PyTree, total: Message, round: Any, key: Key
    ) -> tuple[State, Any]:
        own_key = protocol.key_of(key, round, protocol.SERVER)
        return protocol.conclude(self.algorithm, working, found, total, own_key)


def apart(algorithm: Algorithm) -> Algorithm:
    """The algorithm as it is where clients are apart, each with noise of its own, and the server
    adds none in their place.

    >>> import optax, fedslice as fs
    >>> model, drawn = fs.tasks.quadratic.example1(clients=4).model, fs.sampling.uniform(3)
    >>> stages = fs.privacy.local(1.0, 4.0, drawn)
    >>> method = fs.recipes.fedavg(model, optax.sgd(0.1), weights="uniform", stages=stages)
    >>> apart(method).stages[-1].decode is method.stages[-1].own.decode
    True
    """
    if all(stage.own is None for stage in algorithm.stages):
        return algorithm  # the very same: what was traced for it is kept by its identity
    stages = [
        stage if stage.own is None else stage._replace(decode=stage.own.decode)
        for stage in algorithm.stages
    ]
    return algorithm._replace(stages=tuple(stages))


def _alone(act: Any, phases: Any, weight: Any, round: Any, *given: Any) -> Any:
    """``act`` for a cohort of one."""

    def one(stacked: Any) -> Any:
        phases, weight = stacked
        ready = tuple(Phase(p.batches, p.sizes, p.steps, p.steps, p.examples) for p in phases)
        return act(Data(ready, weight, jnp.int32(round)), *given)

    return jax.tree.map(lambda leaf: leaf[0], jax.lax.map(one, (phases, weight)))
