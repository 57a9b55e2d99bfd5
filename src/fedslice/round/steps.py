"""The steps of a round for a whole cohort: the protocol's functions over stacked clients.

Clients run side by side (``vmap``), one after the other (``lax.map``), or so many at a time.
Nothing here knows a row id, or when it is compiled.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedslice.round import protocol
from fedslice.round.figures import REPORT, Figures, Items, items_of, summary
from fedslice.round.plan import Own, Shared
from fedslice.round.protocol import SERVER, Stacked, Tags, key_of, surveyor
from fedslice.round.store import put, take
from fedslice.types import Algorithm, Data, Key, Message, Phase, PyTree, State


class Steps(NamedTuple):
    """The steps of a round for a whole cohort, traced into one program or compiled one by one."""

    look: Callable[[State, Shared, Own, Key], Message]
    find: Callable[[Message, Shared, Own], PyTree]
    train: Callable[[State, PyTree, PyTree, Shared, Own, Key], tuple[Message, Items, PyTree]]
    finish: Callable[
        [State, PyTree, Message, Items, Shared, dict[str, Any], Key], tuple[State, Figures]
    ]
    keep: Callable[[PyTree, PyTree, Own], PyTree]


class Traced:
    """The steps as functions to be traced, clients by the ``mode`` of the
    engine (:mod:`fedslice.round.mode`)."""

    def __init__(self, algorithm: Algorithm, tags: Tags, mode: str | int) -> None:
        self.algorithm, self.tags, self.mode = algorithm, tags, mode

    @property
    def steps(self) -> Steps:
        """All of them."""
        return Steps(self.look, self.find, self.train, self.finish, self.keep)

    def look(self, working: State, shared: Shared, own: Own, key: Key) -> Message:
        """The messages of a survey."""
        count = len(surveyor(self.algorithm).work)

        def one(client: Own, phases: tuple[Phase, ...]) -> Message:
            given = self._given(client, phases[:count], shared, key)
            invitation = protocol.invite(self.algorithm, self.tags, working, client.places)
            message = protocol.look(self.algorithm, invitation, *given)
            return protocol.receive(message, client.repeats)

        return self._each(one, own)

    def find(self, messages: Message, shared: Shared, own: Own) -> PyTree:
        """What the survey found."""
        return protocol.find(self.algorithm, self.tags, messages, stacked_at(shared, own))

    def train(
        self, working: State, memory: PyTree, found: PyTree, shared: Shared, own: Own, key: Key
    ) -> tuple[Message, Items, PyTree]:
        """The messages, the numbers that their codes keep, and memories after the round."""
        skip = len(self.algorithm.survey.work) if self.algorithm.survey else 0

        def one(client: Own, phases: tuple[Phase, ...]) -> tuple[Message, Items, PyTree]:
            given = self._given(client, phases[skip:], shared, key)
            invitation = protocol.invite(self.algorithm, self.tags, working, client.places)
            told = take(self.tags.found, found, client.places)
            remembered = take(self.tags.memory, memory, client.drawers)
            message, after = protocol.answer(self.algorithm, invitation, told, remembered, *given)
            items = items_of(message, self.tags.values["update"], stacked_at(shared, client))
            return protocol.receive(message, client.repeats), items, after

        return self._each(one, own)

    def finish(
        self,
        working: State,
        found: PyTree,
        messages: Message,
        items: Items,
        shared: Shared,
        places: dict[str, Any],
        key: Key,
    ) -> tuple[State, Figures]:
        """The server's half of the round."""
        stacked = Stacked(places, sizes(shared))
        total = protocol.gather(self.algorithm, self.tags.values, messages, stacked)
        own_key = key_of(key, shared.round, SERVER)
        working, size = protocol.conclude(self.algorithm, working, found, total, own_key)
        report = {**summary(messages.report), "update_norm": size}
        return working, Figures(jnp.stack([report[name] for name in REPORT]), items)

    def keep(self, memory: PyTree, memories: PyTree, own: Own) -> PyTree:
        """Every client's memory after the round."""
        return put(self.tags.memory, memory, own.drawers, memories)

    def _given(
        self, client: Own, phases: tuple[Phase, ...], shared: Shared, key: Key
    ) -> tuple[Data, Key]:
        data = Data(phases, client.weight, shared.round.astype(jnp.int32))
        return data, key_of(key, shared.round, client.number)

    def _each(self, one: Callable[[Own, tuple[Phase, ...]], Any], own: Own) -> Any:
        """``one(client, its data)`` for every client of the cohort."""
        limits = [jnp.max(phase.steps) for phase in own.phases]

        def run(client: Own) -> Any:
            phases = tuple(
                Phase(
                    p.batches,
                    p.sizes,
                    p.steps,
                    p.steps if self.mode in ("map", "scan") else limit,
                    p.examples,
                )
                for p, limit in zip(client.phases, limits, strict=True)
            )
            return one(client, phases)

        if self.mode == "vmap":
            return jax.vmap(run)(own)
        together = self.mode if isinstance(self.mode, int) else None
        return jax.lax.map(run, own, batch_size=together)


def stacked_at(shared: Shared, own: Own) -> Stacked:
    """Where the rows that clients send belong."""
    return Stacked(own.sent or own.places, sizes(shared))


def sizes(shared: Shared) -> dict[str, int]:
    """How many rows the round has."""
    return {name: union.shape[0] for name, union in shared.union.items()}
