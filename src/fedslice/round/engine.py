"""Rounds of stacked clients: the protocol, compiled.

Clients run under ``vmap`` when they are tiny.  Small ones run one after the other (``lax.map``)
within the one program of a round (``"scan"``), so that the next rounds are planned meanwhile; large
ones, in as many threads as there are cores (``"map"``).  All was measured, see docs/design.md.
Nothing here knows a row id.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.round.adding import PART, Sums, cut
from fedslice.round.plan import Own, Plan, Shared
from fedslice.round.program import Compiled, once
from fedslice.round.protocol import (
    SERVER,
    Stacked,
    Tags,
    answer,
    conclude,
    find,
    gather,
    invite,
    key_of,
    look,
    receive,
    surveyor,
)
from fedslice.round.store import put, take
from fedslice.stage.codes import is_code
from fedslice.types import Algorithm, Array, ClientReport, Data, Key, Message, Phase, PyTree, State

LARGE_CLIENT = 16384  # numbers a client holds from which one after the other beats vectorising
LARGE_COHORT = 1 << 19  # the same for a whole cohort: side by side it no longer fits a cache
UNEVEN_COHORT = 1 << 18  # the same where side by side some would wait for those with more steps
LONG_ROUND = 1 << 20  # up to here one thread that nobody waits for beats several
PER_CLIENT = "/client"  # tag of memory leaves with one entry for each client; no table's name
REPORT = ("loss", "start_loss", "failed", "update_norm")


Items: TypeAlias = tuple[Array, ...]


class Figures(NamedTuple):
    """What a round reports: one number for each name in ``REPORT``, and for each code of a message
    how many numbers each client kept."""

    values: Array
    items: Items


class Steps(NamedTuple):
    """The steps of a round for a whole cohort, traced into one program or compiled one by one."""

    look: Callable[[State, Shared, Own, Key], Message]
    find: Callable[[Message, Shared, Own], PyTree]
    train: Callable[[State, PyTree, PyTree, Shared, Own, Key], tuple[Message, Items, PyTree]]
    finish: Callable[
        [State, PyTree, Message, Items, Shared, dict[str, Any], Key], tuple[State, Figures]
    ]
    keep: Callable[[PyTree, PyTree, Own], PyTree]


class Programs(NamedTuple):
    """The same, compiled; ``whole`` is several rounds, ``middle`` one on a working set that
    ``begin`` takes from the state and ``end`` puts back."""

    look: Callable[..., Any]
    find: Callable[..., Any]
    train: Callable[..., Any]
    finish: Callable[..., Any]
    keep: Callable[..., Any]
    whole: Callable[..., Any]
    middle: Callable[..., Any]
    begin: Callable[..., Any]
    end: Callable[..., Any]


class Engine:
    """Compiles and runs rounds.  ``mode`` is ``"vmap"``, ``"scan"``, ``"map"`` or a number of
    clients to vectorise at a time; ``alone`` says that there is never more than one client.  A
    client holds so many ``numbers``: messages of a large cohort are added as they come."""

    def __init__(
        self,
        algorithm: Algorithm,
        tags: Tags,
        key: Key,
        mode: str | int,
        threads: int,
        alone: bool = False,
        numbers: int = 0,
    ) -> None:
        known = mode in ("vmap", "scan", "map", "debug") or (isinstance(mode, int) and mode > 0)
        if not known or threads < 1:
            raise InputError(
                f"engine={mode!r} with {threads} threads is not possible: use 'auto', 'vmap',"
                " 'scan', 'map', 'debug' or a number of clients to vectorise at a time"
            )
        if mode == "scan" and threads > 1:
            raise InputError(
                f"engine='scan' is one program on one thread: leave out threads={threads}, or use"
                " 'map'"
            )
        self.algorithm, self.tags, self.key = algorithm, tags, key
        self.mode, self.threads = mode, threads
        # in one piece if said so or if there is but one client, else in parts whatever the threads:
        # the same bits
        self.fused = mode != "debug" and threads == 1 and (mode in ("vmap", "scan") or alone)
        self.unit = mode if isinstance(mode, int) else 1  # clients that stay together
        adds = numbers and algorithm.reduce.plain and (mode == "map" or isinstance(mode, int))
        self.most = max(1, PART // numbers) if adds else 0  # clients of a part
        self.plain = Steps(self._look, self._find, self._train, self._finish, self._keep)
        leaves, tree = jax.tree.flatten(tags)
        kind = ("engine", type(self), mode, self.fused, tree, tuple(leaves))
        programs = once(algorithm, kind, copy(self)._programs)
        self.compiled = Steps(
            lambda working, shared, own, key: self.in_parts(
                lambda part: programs.look(working, shared, part, key), own
            ),
            programs.find,
            lambda working, memory, found, shared, own, key: self.in_parts(
                lambda part: programs.train(working, memory, found, shared, part, key), own
            ),
            programs.finish,
            programs.keep,
        )
        self._train_part = programs.train
        self.whole, self.middle = programs.whole, programs.middle
        self.begin, self.end = programs.begin, programs.end
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def _programs(self) -> "Programs":
        """All that engines of this kind compile: a function of algorithm, tags and mode alone."""
        return Programs(
            Compiled(self._look),
            Compiled(self._find),
            Compiled(self._train),
            Compiled(self._finish),
            Compiled(self._keep, donate=(0,)),
            Compiled(self._whole, (0, 1), around=_in_turn, like=_one),
            Compiled(self._fused, donate=(1,)),
            jax.jit(lambda state, union: take(self.tags.state, state, union)),
            jax.jit(
                lambda state, union, working: put(self.tags.state, state, union, working),
                donate_argnums=(0,),
            ),
        )

    # -- a round -----------------------------------------------------------------------------------

    def several(
        self, state: State, memory: PyTree, plans: Plan, start: int, stop: int
    ) -> tuple[State, PyTree, Figures]:
        """The rounds from ``start`` to ``stop`` of those planned, on a state in device memory, in
        one call; figures are those of all of them.  One program serves any number, so results are
        the same bits however rounds are divided into calls."""
        span = np.array([start, stop], np.int32)
        return self.whole(state, memory, plans, span, self.key)

    def in_memory(self, state: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Figures]:
        """A round on a state in device memory, one step after the other."""
        working = self.begin(state, plan.shared.union)
        working, memory, figures = self._round(self.compiled, working, memory, plan, self.key)
        return self.end(state, plan.shared.union, working), memory, figures

    def on_working_set(
        self, working: State, memory: PyTree, plan: Plan
    ) -> tuple[State, PyTree, Figures]:
        """A round on a working set that was taken, and will be put back, elsewhere."""
        if self.fused:
            return self.middle(working, memory, plan, self.key)
        return self._round(self.compiled, working, memory, plan, self.key)

    def _whole(
        self, state: State, memory: PyTree, plan: Plan, key: Key
    ) -> tuple[State, PyTree, Figures]:
        working = take(self.tags.state, state, plan.shared.union)
        working, memory, figures = self._fused(working, memory, plan, key)
        return put(self.tags.state, state, plan.shared.union, working), memory, figures

    def _fused(
        self, working: State, memory: PyTree, plan: Plan, key: Key
    ) -> tuple[State, PyTree, Figures]:
        return self._round(self.plain, working, memory, plan, key)

    def _round(
        self, steps: Steps, working: State, memory: PyTree, plan: Plan, key: Key
    ) -> tuple[State, PyTree, Figures]:
        """The one place where a round is put together."""
        shared, own = plan
        found: PyTree = ()
        if self.algorithm.survey is not None:
            found = steps.find(steps.look(working, shared, own, key), shared, own)
        given = working, memory, found, shared, own, key
        if steps is not self.plain and (size := self._size(len(own.place))):
            messages, items, memories, places = self._added(size, *given)
        else:
            messages, items, memories = steps.train(*given)
            places = own.sent or own.places
        working, figures = steps.finish(working, found, messages, items, shared, places, key)
        return working, steps.keep(memory, memories, own), figures

    def _size(self, clients: int) -> int:
        """How many clients train at a time where messages are added as they come; 0: the cohort is
        small enough for all, or their sum would not do."""
        size = cut(clients, self.threads, self.most, self.unit) if self.most else 0
        return size if size * self.threads < clients else 0

    def _added(
        self,
        size: int,
        working: State,
        memory: PyTree,
        found: PyTree,
        shared: Shared,
        own: Own,
        key: Key,
    ) -> tuple[Message, Items, PyTree, dict[str, Any]]:
        """The cohort in parts of ``size`` clients: messages with the same sum as all of them, what
        else there is of each client, and the places of the messages' rows."""
        clients = len(own.place)
        parts = _parts(own, size, -(-clients // size))
        sums = Sums(self.tags.values, _sizes(shared))
        trained = self._each_part(
            lambda part: self._train_part(working, memory, found, shared, part, key), parts
        )
        rest = []
        for number, (messages, *others) in enumerate(trained):
            part = parts[number]
            count = min(size, clients - number * size)
            rest.append((sums.add(messages, part.sent or part.places, count), *others))
        few, items, memories = _joined(rest, clients)
        return sums.messages(few), items, memories, sums.places()

    def in_parts(self, train: Callable[[Own], Any], own: Own) -> Any:
        """The cohort in equal parts, one thread each: compiled code runs without the interpreter's
        lock.

        The last client stands in where the cohort is no multiple of the threads, and its copies are
        dropped, so the results, and the order of their sum, do not know how many threads there
        were.
        """
        clients = len(own.place)
        size = -(-clients // (self.threads * self.unit)) * self.unit
        return _joined(list(self._each_part(train, _parts(own, size, self.threads))), clients)

    def _each_part(self, train: Callable[[Own], Any], parts: list[Own]) -> Iterator[Any]:
        each = map if self.pool is None else self.pool.map
        return iter(each(lambda part: jax.block_until_ready(train(part)), parts))

    # -- its steps ---------------------------------------------------------------------------------

    def _look(self, working: State, shared: Shared, own: Own, key: Key) -> Message:
        count = len(surveyor(self.algorithm).work)

        def one(client: Own, phases: tuple[Phase, ...]) -> Message:
            data, own_key = self._given(client, phases[:count], shared, key)
            invitation = invite(self.algorithm, self.tags, working, client.places)
            message = look(self.algorithm, invitation, data, own_key)
            return receive(message, client.repeats)

        return self._each(one, own)

    def _find(self, messages: Message, shared: Shared, own: Own) -> PyTree:
        return find(self.algorithm, self.tags, messages, _stacked(shared, own))

    def _train(
        self, working: State, memory: PyTree, found: PyTree, shared: Shared, own: Own, key: Key
    ) -> tuple[Message, Items, PyTree]:
        skip = len(self.algorithm.survey.work) if self.algorithm.survey else 0

        def one(client: Own, phases: tuple[Phase, ...]) -> tuple[Message, Items, PyTree]:
            data, own_key = self._given(client, phases[skip:], shared, key)
            invitation = invite(self.algorithm, self.tags, working, client.places)
            told = take(self.tags.found, found, client.places)
            remembered = take(self.tags.memory, memory, _drawers(client))
            message, after = answer(self.algorithm, invitation, told, remembered, data, own_key)
            items = self._items(message, _stacked(shared, client))
            return receive(message, client.repeats), items, after

        return self._each(one, own)

    def _finish(
        self,
        working: State,
        found: PyTree,
        messages: Message,
        items: Items,
        shared: Shared,
        places: dict[str, Any],
        key: Key,
    ) -> tuple[State, Figures]:
        stacked = Stacked(places, _sizes(shared))
        total = gather(self.algorithm, self.tags.values, messages, stacked)
        own_key = key_of(key, shared.round, SERVER)
        working, size = conclude(self.algorithm, working, found, total, own_key)
        report = {**_summary(messages.report), "update_norm": size}
        return working, Figures(jnp.stack([report[name] for name in REPORT]), items)

    def _keep(self, memory: PyTree, memories: PyTree, own: Own) -> PyTree:
        """Every client's memory after the round."""
        return put(self.tags.memory, memory, _drawers(own), memories)

    def _given(
        self, client: Own, phases: tuple[Phase, ...], shared: Shared, key: Key
    ) -> tuple[Data, Key]:
        data = Data(phases, client.weight, shared.round.astype(jnp.int32))
        return data, key_of(key, shared.round, client.number)

    def _items(self, message: Message, stacked: Stacked) -> Items:
        """How many numbers each code of a message keeps, of the rows that are sent."""
        leaves = jax.tree.leaves(message.update, is_leaf=is_code)
        tags = jax.tree.leaves(self.tags.values["update"])
        real = {name: rows < stacked.sizes[name] for name, rows in stacked.places.items()}
        pairs = zip(leaves, tags, strict=True)
        return tuple(leaf.items(real.get(tag)) for leaf, tag in pairs if is_code(leaf))

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


def _parts(own: Own, size: int, count: int) -> list[Own]:
    """A cohort in parts of ``size`` clients, filled up with copies of the last one."""
    spare = size * count - len(own.place)
    if spare:
        own = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[-1:], spare, axis=0)]), own)
    starts = range(0, size * count, size)
    return [jax.tree.map(lambda x, a=start: x[a : a + size], own) for start in starts]


@partial(jax.jit, static_argnums=1)
def _joined(parts: list[Any], clients: int) -> Any:
    """One call for all leaves: one for each would cost more than the copies."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:clients], *parts)


Round: TypeAlias = Callable[[State, PyTree, Plan, Key], tuple[State, PyTree, Figures]]


def _in_turn(one: Round, out: Any) -> Callable[..., tuple[State, PyTree, Figures]]:
    """Some of the rounds of a block, one after the other; the state changes in place."""
    _, _, like = out

    def several(
        state: State, memory: PyTree, plans: Plan, span: Array, key: Key
    ) -> tuple[State, PyTree, Figures]:
        def planned(number: Array) -> Plan:
            return jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), plans
            )

        def step(number: Array, carry: Any) -> Any:
            state, memory, figures = carry
            state, memory, found = one(state, memory, planned(number), key)
            kept = jax.tree.map(
                lambda all, new: jax.lax.dynamic_update_index_in_dim(all, new, number, 0),
                figures,
                found,
            )
            return state, memory, kept

        rounds = plans.shared.round.shape
        figures = jax.tree.map(lambda x: jnp.zeros(rounds + x.shape, x.dtype), like)
        return jax.lax.fori_loop(span[0], span[1], step, (state, memory, figures))

    return several


def _one(state: State, memory: PyTree, plans: Plan, span: Any, key: Key) -> Any:
    """Of the arguments of several rounds those of one."""
    plan = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), plans)
    return state, memory, plan, key


def _stacked(shared: Shared, own: Own) -> Stacked:
    """Where the rows that clients send belong."""
    return Stacked(own.sent or own.places, _sizes(shared))


def _sizes(shared: Shared) -> dict[str, int]:
    """How many rows the round has."""
    return {name: union.shape[0] for name, union in shared.union.items()}


def _drawers(own: Own) -> dict[str, Any]:
    """Where a client's memory is kept."""
    return {PER_CLIENT: own.place, **own.held}


def _summary(report: ClientReport) -> dict[str, Array]:
    seen = report.examples
    share = seen / jnp.maximum(jnp.sum(seen), 1)
    losses = {"loss": report.loss, "start_loss": report.start_loss}
    means = {name: jnp.sum(share * loss) for name, loss in losses.items()}
    return {**means, "failed": jnp.sum(report.failed)}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(
    mode: str | int,
    threads: int | None,
    numbers: int,
    clients: int,
    whole: bool = False,
    uneven: bool = False,
) -> tuple[str | int, int]:
    """Mode and threads for a cohort of ``clients`` that hold ``numbers`` numbers each, unless the
    user said them; ``"scan"`` only where rounds are computed ``whole``, by one program.  How many
    steps a client does may be ``uneven``.

    >>> choose("auto", None, numbers=200, clients=50)
    ('vmap', 1)
    >>> choose("auto", None, numbers=6000, clients=50, whole=True, uneven=True)
    ('scan', 1)
    """
    if mode == "debug":
        return "debug", 1
    chosen = mode
    if mode == "auto":
        cohort = clients * numbers
        chosen = "map" if numbers >= LARGE_CLIENT or cohort >= LARGE_COHORT else "vmap"
        least = UNEVEN_COHORT if uneven else LARGE_COHORT
        if whole and threads is None and numbers < LARGE_CLIENT and least <= cohort < LONG_ROUND:
            chosen = "scan"
    elif chosen == "scan" and not whole:
        chosen = "map"
    cores = 1 if chosen in ("vmap", "scan") else min(_cores(), max(1, clients))
    return chosen, cores if threads is None else threads
