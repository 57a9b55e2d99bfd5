"""The slow engine: clients one by one, each looked at, so that the one that goes wrong can be named."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import DivergedError
from fedslice.plan import Plan
from fedslice.simulate import Run
from fedslice.store import RamStore, put, take


class DebugRun(Run):
    """A run that stops at the first client whose update is not finite and says which, and at which local step."""

    def _step(self, plan: Plan) -> Any:
        store = self.store
        in_memory = isinstance(store, RamStore)
        working = take(self.tags.state, store.state, plan.union) if in_memory else store.take(plan.union)  # type: ignore[union-attr]
        results = []
        one = jax.jit(self.engine.client)
        for k in range(len(plan.clients)):
            part = jax.tree.map(lambda leaf, k=k: leaf[k], plan._replace(round=(), union={}))
            part = part._replace(round=plan.round)
            message, memory = one(working, self.memory, part)
            if bool(message.metrics["failed"]):
                raise DivergedError(self._diagnose(one, working, part))
            results.append((message, memory))
        messages, memories = jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
        working, values = self.engine.close(working, messages, plan)
        if isinstance(store, RamStore):
            store.state = put(self.tags.state, store.state, plan.union, working)
        else:
            store.put(plan.union, working)
        self.memory = self.engine.keep(self.memory, memories, plan)
        return values

    def _diagnose(self, one: Any, working: Any, part: Plan) -> str:
        number = int(part.clients)
        steps = range(1, int(part.steps) + 1)
        bad = next(
            (s for s in steps if one(working, self.memory, part._replace(steps=np.int32(s)))[0].metrics["failed"]), 0
        )
        before, _ = one(working, self.memory, part._replace(steps=np.int32(max(0, bad - 1))))
        name = self.population.clients[number]
        return (
            f"client {name} (number {number}, {int(part.weights)} examples) sent an update that is not finite in round "
            f"{self.round + 1}: it goes wrong at local step {bad} of {int(part.steps)}, its mean loss before that was "
            f"{float(before.metrics['loss']):.4g}. Look at its examples, or lower the client learning rate."
        )
