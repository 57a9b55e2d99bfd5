"""A task: data, model, published settings and published results of one workload."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedslice.model import Model
from fedslice.population import Population


@dataclass(frozen=True, eq=False)
class Target:
    """A figure to reach: rounds to it are what the papers report."""

    metric: str
    value: float
    below: bool = True

    def reached(self, figures: Mapping[str, float]) -> bool:
        """Whether these figures meet the target.

        >>> Target("train_loss", 0.65).reached({"train_loss": 0.64})
        True
        """
        figure = figures[self.metric]
        return figure <= self.value if self.below else figure >= self.value


@dataclass(frozen=True, eq=False)
class Task:
    """One workload, ready to train: ``settings`` and each algorithm's ``learning_rates`` are the published ones."""

    name: str
    model: Model
    train: Population
    test: Population
    settings: Mapping[str, Any]
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    published: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
