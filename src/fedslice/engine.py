"""One round as a compiled function on the working set.

    take -> train (every client, vectorised, mapped or in threads) -> finish (sum, decode, step) -> put

Clients run under ``vmap`` when they are tiny and one after the other (``lax.map``), in as many threads as there are
cores, when they are not; both were measured, see docs/design.md.  Nothing here knows a row id.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.plan import Plan
from fedslice.store import put, take
from fedslice.types import Algorithm, Array, Data, Message, PyTree, State

LARGE_CLIENT = 16384  # numbers a client holds from which one after the other beats vectorising


class Tags:
    """Which leaves are row-shaped, for everything that moves between the store and a client."""

    def __init__(self, state: State, offer: PyTree, message: Message, memory: PyTree) -> None:
        self.state, self.offer, self.message, self.memory = state, offer, message, memory


class Engine:
    """Compiles and runs rounds.  ``mode`` is ``"vmap"``, ``"map"`` or a number of clients to vectorise at a time."""

    def __init__(self, algorithm: Algorithm, tags: Tags, key: Array, mode: str | int, threads: int) -> None:
        if not (mode in ("vmap", "map", "debug") or (isinstance(mode, int) and mode > 0)) or threads < 1:
            raise InputError(
                f"engine={mode!r} with {threads} threads is not possible: use 'auto', 'vmap', 'map', 'debug' or a "
                "number of clients to vectorise at a time"
            )
        self.algorithm, self.tags, self.key, self.mode, self.threads = algorithm, tags, key, mode, threads
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.fused = threads == 1 and mode != "debug"
        self.whole = jax.jit(self._whole, donate_argnums=(0, 1))
        self.middle = jax.jit(self._middle, donate_argnums=(1,))
        self.part = jax.jit(self._train)
        self.begin = jax.jit(lambda state, union: take(self.tags.state, state, union))
        self.end = jax.jit(self._end, donate_argnums=(0, 1))
        self.close = jax.jit(self._finish)

    def in_memory(self, state: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        """A round on a state in device memory."""
        if self.fused:
            return self.whole(state, memory, plan)
        working = self.begin(state, plan.union)
        messages, memories = self.in_parts(working, memory, plan)
        return self.end(state, memory, working, messages, memories, plan)

    def on_working_set(self, working: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        """A round on a working set that was taken, and will be put back, elsewhere."""
        if self.fused:
            return self.middle(working, memory, plan)
        messages, memories = self.in_parts(working, memory, plan)
        working, report = self.close(working, messages, plan)
        return working, self.keep(memory, memories, plan), report

    def _whole(self, state: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        working, memory, report = self._middle(take(self.tags.state, state, plan.union), memory, plan)
        return put(self.tags.state, state, plan.union, working), memory, report

    def _middle(self, working: State, memory: PyTree, plan: Plan) -> tuple[State, PyTree, Any]:
        messages, memories = self._train(working, memory, plan)
        working, report = self._finish(working, messages, plan)
        return working, self.keep(memory, memories, plan), report

    def _end(
        self, state: State, memory: PyTree, working: State, messages: Message, memories: PyTree, plan: Plan
    ) -> tuple[State, PyTree, Any]:
        working, report = self._finish(working, messages, plan)
        return put(self.tags.state, state, plan.union, working), self.keep(memory, memories, plan), report

    def keep(self, memory: PyTree, memories: PyTree, plan: Plan) -> PyTree:
        """Every client's memory after the round."""
        return put(self.tags.memory, memory, {PER_CLIENT: plan.clients, **plan.held}, memories)

    def client(self, working: State, memory: PyTree, plan: Plan, limit: Any = None) -> tuple[Message, PyTree]:
        """One client, from the server's offer to its encoded message; ``plan`` without its client axis."""
        offer = take(self.tags.offer, self.algorithm.server.offer(working.server), plan.places)
        remembered = take(self.tags.memory, memory, {PER_CLIENT: plan.clients, **plan.held})
        key = jax.random.fold_in(jax.random.fold_in(self.key, plan.round), plan.clients)
        data = Data(plan.batches, plan.sizes, plan.steps, plan.steps if limit is None else limit, plan.weights)
        message, kept = self.algorithm.client.run(offer, remembered, data, key)
        message, kept = _guard(message, (kept, remembered))
        for stage, state, tags in zip(self.algorithm.stages, working.stages, self.tags.state.stages, strict=True):
            message = stage.encode(take(tags, state, plan.places), message, key)
        return message, kept

    def _train(self, working: State, memory: PyTree, plan: Plan) -> tuple[Message, PyTree]:
        limit = None if self.mode == "map" else jnp.max(plan.steps)

        def one(cohort: Plan) -> tuple[Message, PyTree]:
            return self.client(working, memory, cohort._replace(round=plan.round), limit)

        stacked = plan._replace(round=(), union={})
        if self.mode == "vmap":
            return jax.vmap(one)(stacked)
        return jax.lax.map(one, stacked, batch_size=self.mode if isinstance(self.mode, int) else None)

    def in_parts(self, working: State, memory: PyTree, plan: Plan) -> tuple[Message, PyTree]:
        """The cohort in equal parts, one thread each: compiled code runs without the interpreter's lock."""
        assert self.pool is not None
        size = len(plan.clients) // self.threads  # the planner pads the cohort to a multiple of the threads
        whole = plan._replace(round=(), union={})
        parts = [
            jax.tree.map(lambda x, a=start: x[a : a + size], whole)._replace(round=plan.round)
            for start in range(0, len(plan.clients), size)
        ]
        results = list(self.pool.map(lambda part: jax.block_until_ready(self.part(working, memory, part)), parts))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)

    def _finish(self, working: State, messages: Message, plan: Plan) -> tuple[State, Array]:
        """Sum in the order of the clients, decode, step, report."""
        total, report = self._reduce(messages, plan), _report(messages)
        kept = []
        for stage, state in zip(self.algorithm.stages[::-1], working.stages[::-1], strict=True):
            total, state = stage.decode(state, total)
            kept.append(state)
        server = self.algorithm.server.step(working.server, total)
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(total.update)]
        report["update_norm"] = jnp.sqrt(sum(squares, jnp.zeros(())))
        return State(server, tuple(kept[::-1])), jnp.stack([report[name] for name in REPORT])

    def _reduce(self, messages: Message, plan: Plan) -> Message:
        reduce = self.algorithm.reduce

        def one(tag: str, values: Array) -> Array:
            if not tag:
                return reduce.dense(values)
            return reduce.sparse(values, plan.places[tag], plan.union[tag].shape[0])

        update = jax.tree.map(one, self.tags.message.update, messages.update)
        return Message(update, jnp.sum(messages.weight), messages.metrics)


PER_CLIENT = "/client"  # tag of memory leaves with one entry for each client; not the name of any table
REPORT = ("loss", "start_loss", "failed", "update_norm")


def _guard(message: Message, memory: tuple[PyTree, PyTree]) -> tuple[Message, PyTree]:
    """A client whose update is not finite gets weight zero, keeps its old memory and is counted."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((message.update, message.weight))]
    good = jnp.all(jnp.stack(leaves))
    new, old = memory
    update = jax.tree.map(lambda leaf: jnp.where(good, leaf, 0), message.update)
    metrics = {name: jnp.where(good, value, 0) for name, value in message.metrics.items()}
    kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)
    return Message(update, jnp.where(good, message.weight, 0), {**metrics, "failed": ~good}), kept


def _report(messages: Message) -> dict[str, Array]:
    seen = messages.metrics["examples"]
    share = seen / jnp.maximum(jnp.sum(seen), 1)
    losses = {name: jnp.sum(share * messages.metrics[name]) for name in ("loss", "start_loss")}
    return {**losses, "failed": jnp.sum(messages.metrics["failed"].astype(jnp.float32))}


def choose(mode: str | int, threads: int | None, numbers: int, clients: int) -> tuple[str | int, int]:
    """Mode and threads for a cohort of ``clients`` that hold ``numbers`` numbers each, unless the user said them.

    >>> choose("auto", None, numbers=200, clients=50)
    ('vmap', 1)
    """
    if mode == "debug":
        return "debug", 1
    chosen = ("map" if numbers >= LARGE_CLIENT else "vmap") if mode == "auto" else mode
    cores = 1 if chosen == "vmap" else min(os.cpu_count() or 1, max(1, clients))
    return chosen, threads or cores
