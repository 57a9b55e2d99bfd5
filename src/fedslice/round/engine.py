"""One round as a compiled function on the working set.

    take -> train (every client, vectorised, mapped or in threads) -> finish (sum, decode, step) -> put

Clients run under ``vmap`` when they are tiny and one after the other (``lax.map``), in as many
threads as there are cores, when they are not; both were measured, see docs/design.md.  Nothing here
knows a row id."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.reduce.holders import expand
from fedslice.round.plan import Plan
from fedslice.round.store import put, take
from fedslice.stage.clip import norm
from fedslice.stage.mean import scale
from fedslice.types import Algorithm, Array, Client, Cohort, Data, Message, Phase, PyTree, State

LARGE_CLIENT = 16384  # numbers a client holds from which one after the other beats vectorising
LARGE_COHORT = (
    1 << 19
)  # the same for all clients of a round together: side by side they no longer fit a cache
PER_CLIENT = (  # tag of memory leaves with one entry for each client; not the name of any table
    "/client"
)
REPORT = ("loss", "start_loss", "failed", "update_norm")


class Tags(NamedTuple):
    """Which leaves are row-shaped, for everything that moves between the store and a client."""

    state: State
    first_offer: PyTree
    survey: PyTree  # the survey's mean update; () without a survey
    offer: PyTree
    values: PyTree  # update and extra of a message
    memory: PyTree  # of the client, and of each stage


class Engine:
    """Compiles and runs rounds.  ``mode`` is ``"vmap"``, ``"map"`` or a number of clients to
    vectorise at a time; ``alone`` says that there is never more than one client."""

    def __init__(
        self,
        algorithm: Algorithm,
        tags: Tags,
        key: Array,
        mode: str | int,
        threads: int,
        alone: bool = False,
    ) -> None:
        if (
            not (mode in ("vmap", "map", "debug") or (isinstance(mode, int) and mode > 0))
            or threads < 1
        ):
            raise InputError(
                f"engine={mode!r} with {threads} threads is not possible: use 'auto', 'vmap',"
                " 'map', 'debug' or a number of clients to vectorise at a time"
            )
        self.algorithm, self.tags, self.key, self.mode, self.threads = (
            algorithm,
            tags,
            key,
            mode,
            threads,
        )
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        # in one piece if vectorised or if there is but one client, else in parts whatever the
        # threads: the same bits
        self.fused = mode != "debug" and threads == 1 and (mode == "vmap" or alone)
        self.unit = mode if isinstance(mode, int) else 1  # clients that stay together
        self.whole = jax.jit(self._whole, donate_argnums=(0, 1))
        self.middle = jax.jit(self._middle, donate_argnums=(1,))
        self.begin = jax.jit(lambda state, union: take(self.tags.state, state, union))
        self.survey_part = jax.jit(
            lambda working, plan: self._each(lambda one: self.survey(working, one), plan)
        )
        self.survey_mean = jax.jit(self._survey_mean)
        self.part = jax.jit(self._train)
        self.end = jax.jit(self._end, donate_argnums=(0, 1))
        self.close = jax.jit(self._finish)

    # -- a round, in one piece or in parts ---------------------------------------------------------

    def in_memory(self, state: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        """A round on a state in device memory."""
        plan = plan._replace(key=self.key)
        if self.fused:
            return self.whole(state, memory, plan)
        working = self.begin(state, plan.union)
        found, messages, memories = self._parts(working, memory, plan)
        return self.end(state, memory, working, found, messages, memories, plan)

    def on_working_set(
        self, working: State, memory: PyTree, plan: Plan
    ) -> tuple[State, PyTree, Any]:
        """A round on a working set that was taken, and will be put back, elsewhere."""
        plan = plan._replace(key=self.key)
        if self.fused:
            return self.middle(working, memory, plan)
        found, messages, memories = self._parts(working, memory, plan)
        working, report = self.close(working, found, messages, plan)
        return working, self._keep(memory, memories, plan), report

    def _whole(self, state: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        working, memory, report = self._middle(
            take(self.tags.state, state, plan.union), memory, plan
        )
        return put(self.tags.state, state, plan.union, working), memory, report

    def _middle(self, working: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        found: PyTree = ()
        if self.algorithm.survey is not None:
            found = self._survey_mean(self._each(lambda one: self.survey(working, one), plan), plan)
        messages, memories = self._train(working, memory, found, plan)
        working, report = self._finish(working, found, messages, plan)
        return working, self._keep(memory, memories, plan), report

    def _end(
        self,
        state: State,
        memory: PyTree,
        working: State,
        found: PyTree,
        messages: Message,
        memories: PyTree,
        plan: Plan,
    ) -> tuple[State, PyTree, Any]:
        working, report = self._finish(working, found, messages, plan)
        return (
            put(self.tags.state, state, plan.union, working),
            self._keep(memory, memories, plan),
            report,
        )

    def _parts(self, working: State, memory: PyTree, plan: Plan) -> tuple[PyTree, Message, PyTree]:
        """Both trips, client by client or thread by thread: what the survey found, messages,
        memories."""
        found: PyTree = ()
        if self.algorithm.survey is not None:
            surveyed = self.in_parts(lambda part: self.survey_part(working, part), plan)
            found = self.survey_mean(surveyed, plan)
        return found, *self.in_parts(lambda part: self.part(working, memory, found, part), plan)

    def in_parts(self, train: Any, plan: Plan) -> Any:
        """The cohort in equal parts, one thread each: compiled code runs without the interpreter's
        lock.

        The last client stands in where the cohort is no multiple of the threads, and its copies are
        dropped, so the results, and the order of their sum, do not know how many threads there
        were."""
        clients = len(plan.clients)
        size = -(-clients // (self.threads * self.unit)) * self.unit
        spare = size * self.threads - clients
        whole = plan.alone()
        if spare:
            whole = jax.tree.map(
                lambda x: np.concatenate([x, np.repeat(x[-1:], spare, axis=0)]), whole
            )
        parts = [
            jax.tree.map(lambda x, a=start: x[a : a + size], whole).shared(plan)
            for start in range(0, size * self.threads, size)
        ]
        each = map if self.pool is None else self.pool.map
        results = list(each(lambda part: jax.block_until_ready(train(part)), parts))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:clients], *results)

    # -- clients -----------------------------------------------------------------------------------

    def _each(self, one: Any, plan: Plan) -> Any:
        """``one(client's plan)`` for every client of the cohort."""
        stacked = plan.alone()
        limits = [jnp.max(phase.steps) for phase in plan.phases]

        def run(client: Plan) -> Any:
            phases = tuple(
                Phase(
                    p.batches,
                    p.sizes,
                    p.steps,
                    p.steps if self.mode == "map" else limit,
                    p.examples,
                )
                for p, limit in zip(client.phases, limits, strict=True)
            )
            return one(client._replace(phases=phases).shared(plan))

        if self.mode == "vmap":
            return jax.vmap(run)(stacked)
        return jax.lax.map(
            run, stacked, batch_size=self.mode if isinstance(self.mode, int) else None
        )

    def _data(self, plan: Plan, phases: tuple[Phase, ...]) -> tuple[Data, Array]:
        key = jax.random.fold_in(jax.random.fold_in(plan.key, plan.round), plan.clients)
        if self.algorithm.client.model.noisy:
            noise = jax.random.fold_in(key, 0)  # stages use the numbers from 1
            phases = tuple(
                p._replace(key=jax.random.fold_in(noise, place)) for place, p in enumerate(phases)
            )
        return Data(phases, plan.weights, plan.round.astype(jnp.int32)), key

    def survey(self, working: State, plan: Plan) -> Message:
        """One client of the first trip."""
        survey = _client(self.algorithm.survey)
        offer = take(
            self.tags.first_offer, self.algorithm.server.offer(working.server, ()), plan.places
        )
        data, key = self._data(plan, plan.phases[: len(survey.work)])
        message = survey.run(offer, (), data, key)[0]._replace(extra={})
        message = _guard(message, _sound(message))
        message = message._replace(
            extra={"held": {name: jnp.ones(rows.shape) for name, rows in plan.places.items()}}
        )
        place = next(place for place, stage in enumerate(self.algorithm.stages) if stage.weighs)
        state = take(self.tags.state.stages[place], working.stages[place], plan.places)
        return _times(plan.repeats, self.algorithm.stages[place].encode(state, (), message, key)[0])

    def _survey_mean(self, messages: Message, plan: Plan) -> PyTree:
        """Of a row, the mean over the clients of the cohort that hold it.  Heat is for the update
        that follows alone: corrected by it too, the survey would meet the same cohort twice, and
        E[update] be up to N/K times too large."""
        total = self._reduce(
            messages,
            {"update": self.tags.survey, "held": {name: name for name in plan.places}},
            plan,
        )

        def mean(tag: str, leaf: Array) -> Array:
            weight = total.extra["held"][tag] if tag else total.weight
            return leaf / expand(jnp.where(weight > 0, weight, 1), leaf)

        return jax.tree.map(mean, self.tags.survey, total.update)

    def client(
        self, working: State, memory: PyTree, found: PyTree, plan: Plan
    ) -> tuple[Message, PyTree]:
        """One client, from the server's offer to its encoded message; ``plan`` without its client
        axis."""
        tags, places = self.tags, plan.places
        offer = take(tags.offer, self.algorithm.server.offer(working.server, found), places)
        remembered = take(tags.memory, memory, {PER_CLIENT: plan.clients, **plan.held})
        skip = len(self.algorithm.survey.work) if self.algorithm.survey else 0
        data, key = self._data(plan, plan.phases[skip:])
        message, own = self.algorithm.client.run(offer, remembered[0], data, key)
        good, kept = _sound(message), []
        for place, stage in enumerate(self.algorithm.stages):
            state = take(tags.state.stages[place], working.stages[place], places)
            stage_key = jax.random.fold_in(key, place + 1)
            message, stage_memory = stage.encode(state, remembered[1][place], message, stage_key)
            kept.append(stage_memory)
        good &= _sound(message)
        memories = jax.tree.map(
            lambda new, old: jnp.where(good, new, old), (own, tuple(kept)), remembered
        )
        return _times(plan.repeats, _guard(message, good)), memories

    def _train(
        self, working: State, memory: PyTree, found: PyTree, plan: Plan
    ) -> tuple[Message, PyTree]:
        return self._each(lambda one: self.client(working, memory, found, one), plan)

    def _keep(self, memory: PyTree, memories: PyTree, plan: Plan) -> PyTree:
        """Every client's memory after the round."""
        return put(self.tags.memory, memory, {PER_CLIENT: plan.clients, **plan.held}, memories)

    # -- the server --------------------------------------------------------------------------------

    def _finish(
        self, working: State, found: PyTree, messages: Message, plan: Plan
    ) -> tuple[State, Array]:
        """Sum in the order of the clients, decode, step, report."""
        total, report = self._reduce(messages, self.tags.values, plan), _report(messages)
        kept = []
        for stage, state in zip(self.algorithm.stages[::-1], working.stages[::-1], strict=True):
            total, state = stage.decode(state, total)
            kept.append(state)
        if self.algorithm.survey is not None:
            total = total._replace(extra={**total.extra, "survey": found})
        server = self.algorithm.server.step(working.server, total)
        report["update_norm"] = norm(total.update)
        return State(server, tuple(kept[::-1])), jnp.stack([report[name] for name in REPORT])

    def _reduce(self, messages: Message, tags: PyTree, plan: Plan) -> Message:
        values = {"update": messages.update, **messages.extra}
        sizes = {name: union.shape[0] for name, union in plan.union.items()}
        cohort = Cohort(
            values, messages.weight, messages.metrics, tags, plan.sent or plan.places, sizes
        )
        total, weight = self.algorithm.reduce.apply(cohort)
        update = total.pop("update")
        return Message(update, weight, messages.metrics, total)


def _client(client: Client | None) -> Client:
    assert client is not None
    return client


def _sound(message: Message) -> Array:
    """Whether all of a message is finite: the loss too, for stages weigh by it, and a client that
    cannot score its own examples has learned nothing from them."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(message)]))


def _guard(message: Message, good: Array) -> Message:
    """A message that is not ``good`` becomes one of weight zero, and is counted."""
    clean: Message = jax.tree.map(lambda leaf: jnp.where(good, leaf, 0), message)
    return clean._replace(metrics={**clean.metrics, "failed": ~good})


def _times(repeats: Any, message: Message) -> Message:
    """The message of a client that was drawn so often (empty: once), as if it had come so often."""
    if isinstance(repeats, tuple):
        return message
    metrics = {**message.metrics, "examples": repeats * message.metrics["examples"]}
    return scale(message, repeats)._replace(weight=repeats * message.weight, metrics=metrics)


def _report(messages: Message) -> dict[str, Array]:
    seen = messages.metrics["examples"]
    share = seen / jnp.maximum(jnp.sum(seen), 1)
    losses = {name: jnp.sum(share * messages.metrics[name]) for name in ("loss", "start_loss")}
    return {**losses, "failed": jnp.sum(messages.metrics["failed"].astype(jnp.float32))}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(
    mode: str | int, threads: int | None, numbers: int, clients: int
) -> tuple[str | int, int]:
    """Mode and threads for a cohort of ``clients`` that hold ``numbers`` numbers each, unless the
    user said them.

    >>> choose("auto", None, numbers=200, clients=50)
    ('vmap', 1)
    """
    if mode == "debug":
        return "debug", 1
    large = numbers >= LARGE_CLIENT or clients * numbers >= LARGE_COHORT
    chosen = ("map" if large else "vmap") if mode == "auto" else mode
    cores = 1 if chosen == "vmap" else min(_cores(), max(1, clients))
    return chosen, cores if threads is None else threads
