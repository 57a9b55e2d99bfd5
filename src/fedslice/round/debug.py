"""The slow engine: clients one by one, each looked at, so that the one that goes wrong can be
named."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import DivergedError
from fedslice.round.engine import Engine, Tags
from fedslice.round.plan import Plan
from fedslice.types import Algorithm, Array, Message


class DebugEngine(Engine):
    """Stops at the first client whose update or loss is not finite and says which, and at which
    local step."""

    def __init__(self, algorithm: Algorithm, tags: Tags, key: Array, names: np.ndarray) -> None:
        super().__init__(algorithm, tags, key, "debug", 1)
        self.names = names

    def in_parts(self, train: Any, plan: Plan) -> Any:
        """Every client by itself."""
        results = []
        for k in range(len(plan.clients)):
            part = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], plan.alone()).shared(plan)
            result = train(part)
            if _failed(result):
                raise DivergedError(self._diagnose(train, part))
            results.append(result)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)

    def _diagnose(self, train: Any, part: Plan) -> str:
        def after(steps: int) -> Any:
            phases = tuple(
                phase._replace(steps=np.minimum(phase.steps, np.int32(steps)))
                for phase in part.phases
            )
            return train(part._replace(phases=phases))

        number, steps = int(part.clients[0]), max(int(phase.steps[0]) for phase in part.phases)
        bad = next((s for s in range(1, steps + 1) if _failed(after(s))), 0)
        before = f", its mean loss before that was {_loss(after(bad - 1)):.4g}" if bad > 1 else ""
        who = f"client {self.names[number]} (number {number}, {int(part.weights[0])} examples)"
        return (
            f"{who} has an update or a loss that is not finite in round {int(part.round) + 1}: it"
            f" goes wrong at local step {bad} of {steps}{before}. Look at its examples, or lower"
            " the client learning rate."
        )


def _loss(result: Any) -> float:
    return float(_message(result).metrics["loss"][0])


def _message(result: Any) -> Message:
    return result if isinstance(result, Message) else result[0]


def _failed(result: Any) -> bool:
    return bool(_message(result).metrics["failed"][0])
