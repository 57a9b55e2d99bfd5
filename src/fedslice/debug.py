"""The slow engine: clients one by one, each looked at, so that the one that goes wrong can be named."""

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.engine import Engine, Tags
from fedslice.errors import DivergedError
from fedslice.plan import Plan
from fedslice.types import Algorithm, Array, Message, PyTree, State


class DebugEngine(Engine):
    """Stops at the first client whose update is not finite and says which, and at which local step."""

    def __init__(self, algorithm: Algorithm, tags: Tags, key: Array, names: np.ndarray) -> None:
        super().__init__(algorithm, tags, key, "debug", 1)
        self.names, self.one = names, jax.jit(self.client)

    def in_parts(self, working: State, memory: PyTree, plan: Plan) -> tuple[Message, PyTree]:
        """Every client by itself."""
        results = []
        for k in range(len(plan.clients)):
            part = jax.tree.map(lambda leaf, k=k: leaf[k], plan._replace(round=(), union={}))
            part = part._replace(round=plan.round)
            message, kept = self.one(working, memory, part)
            if bool(message.metrics["failed"]):
                raise DivergedError(self._diagnose(working, memory, part))
            results.append((message, kept))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    def _diagnose(self, working: State, memory: PyTree, part: Plan) -> str:
        def after(steps: int) -> Message:
            return self.one(working, memory, part._replace(steps=np.int32(steps)))[0]

        number, steps = int(part.clients), int(part.steps)
        bad = next((s for s in range(1, steps + 1) if after(s).metrics["failed"]), 0)
        loss = float(after(max(0, bad - 1)).metrics["loss"])
        return (
            f"client {self.names[number]} (number {number}, {int(part.weights)} examples) sent an update that is not "
            f"finite in round {int(part.round) + 1}: it goes wrong at local step {bad} of {steps}; its mean loss "
            f"before that was {loss:.4g}. Look at its examples, or lower the client learning rate."
        )
