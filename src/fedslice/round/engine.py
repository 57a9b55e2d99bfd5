"""Rounds of stacked clients: the protocol, compiled, in one program or step by step.

Which of the two, and in how many threads, follows from the mode (:mod:`fedslice.round.mode`).
Nothing here knows a row id.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, NamedTuple

import jax
import numpy as np

from fedslice.round.adding import PART, Sums, cut
from fedslice.round.dividing import joined, parted
from fedslice.round.figures import Figures, Items
from fedslice.round.mode import check_mode
from fedslice.round.plan import Own, Plan, Shared
from fedslice.round.program import Compiled, once
from fedslice.round.protocol import Tags
from fedslice.round.several import in_turn, one_of
from fedslice.round.steps import Steps, Traced, sizes
from fedslice.round.store import put, take
from fedslice.types import Algorithm, Key, Message, PyTree, State


class Programs(NamedTuple):
    """The steps of a round, compiled; ``whole`` is several rounds, ``middle`` one on a working set
    that ``begin`` takes from the state and ``end`` puts back."""

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
        check_mode(mode, threads)
        self.algorithm, self.tags, self.key = algorithm, tags, key
        self.mode, self.threads = mode, threads
        # in one piece if said so or if there is but one client, else in parts whatever the threads:
        # the same bits
        self.fused = mode != "debug" and threads == 1 and (mode in ("vmap", "scan") or alone)
        self.unit = mode if isinstance(mode, int) else 1  # clients that stay together
        adds = numbers and algorithm.reduce.plain and (mode == "map" or isinstance(mode, int))
        self.most = max(1, PART // numbers) if adds else 0  # clients of a part
        self.plain = Traced(algorithm, tags, mode).steps
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

    def _programs(self) -> Programs:
        """All that engines of this kind compile: a function of algorithm, tags and mode alone."""
        return Programs(
            Compiled(self.plain.look),
            Compiled(self.plain.find),
            Compiled(self.plain.train),
            Compiled(self.plain.finish),
            Compiled(self.plain.keep, donate=(0,)),
            Compiled(self._whole, (0, 1), around=in_turn, like=one_of),
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
        """The one place where a round in one process is put together; ``cluster`` and ``deploy``,
        whose rounds go from one to another, order the protocol's calls by themselves."""
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
        if not 0 < self.most < clients:
            return 0
        size = cut(clients, self.threads, self.most, self.unit)
        return size if size < clients else 0

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
        parts = parted(own, size, -(-clients // size))
        sums = Sums(self.tags.values, sizes(shared))
        trained = self._each_part(
            lambda part: self._train_part(working, memory, found, shared, part, key), parts
        )
        rest = []
        for number, (messages, *others) in enumerate(trained):
            part = parts[number]
            count = min(size, clients - number * size)
            rest.append((sums.add(messages, part.sent or part.places, count), *others))
        few, items, memories = joined(rest, clients)
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
        return joined(list(self._each_part(train, parted(own, size, self.threads))), clients)

    def _each_part(self, train: Callable[[Own], Any], parts: list[Own]) -> Iterator[Any]:
        each = map if self.pool is None else self.pool.map
        return iter(each(lambda part: jax.block_until_ready(train(part)), parts))
