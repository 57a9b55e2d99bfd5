"""The slow engine: clients one by one, each looked at, so that the one that goes wrong can be
named."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import DivergedError
from fedslice.round.engine import Engine
from fedslice.round.plan import Own, Plan
from fedslice.round.protocol import Tags
from fedslice.types import Algorithm, Key, Message, PyTree, State


class DebugEngine(Engine):
    """Stops at the first client whose update or loss is not finite and says which, and at which
    local step."""

    def __init__(self, algorithm: Algorithm, tags: Tags, key: Key, names: np.ndarray) -> None:
        super().__init__(algorithm, tags, key, "debug", 1)
        self.names, self.round = names, 0

    def _round(self, steps: Any, working: State, memory: PyTree, plan: Plan, key: Key) -> Any:
        self.round = int(plan.shared.round) + 1
        return super()._round(steps, working, memory, plan, key)

    def in_parts(self, train: Callable[[Own], Any], own: Own) -> Any:
        """Every client by itself."""
        results = []
        for k in range(len(own.place)):
            part = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], own)
            result = train(part)
            if _failed(result):
                raise DivergedError(self._diagnose(train, part))
            results.append(result)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)

    def _diagnose(self, train: Callable[[Own], Any], part: Own) -> str:
        def after(steps: int) -> Any:
            phases = tuple(
                phase._replace(steps=np.minimum(phase.steps, np.int32(steps)))
                for phase in part.phases
            )
            return train(part._replace(phases=phases))

        place, steps = int(part.place[0]), max(int(phase.steps[0]) for phase in part.phases)
        bad = next((s for s in range(1, steps + 1) if _failed(after(s))), 0)
        before = f", its mean loss before that was {_loss(after(bad - 1)):.4g}" if bad > 1 else ""
        who = f"client {self.names[place]} (number {place}, {int(part.weight[0])} examples)"
        return (
            f"{who} has an update or a loss that is not finite in round {self.round}: it goes wrong"
            f" at local step {bad} of {steps}{before}. Look at its examples, or lower the client"
            " learning rate."
        )


def _loss(result: Any) -> float:
    return float(_message(result).report.loss[0])


def _message(result: Any) -> Message:
    return result if isinstance(result, Message) else result[0]


def _failed(result: Any) -> bool:
    return bool(_message(result).report.failed[0])
