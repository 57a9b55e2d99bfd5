"""The command line's tasks by name, and who takes part in a round."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedslice import sampling
from fedslice.catalogue import Method
from fedslice.errors import InputError
from fedslice.sampling import Sampler
from fedslice.settings import Settings
from fedslice.tasks import movielens_lr, quadratic
from fedslice.tasks.base import Task


class Workload(NamedTuple):
    """A task by name."""

    summary: str
    synthetic: Callable[..., Task]
    load: Callable[[Path], Task] | None = None


TASKS: dict[str, Workload] = {
    "movielens-lr": Workload(
        "will a user rate a film 4 or better; logistic regression, 37,069 features, 6,040 clients",
        movielens_lr.synthetic,
        movielens_lr.load,
    ),
    "example1": Workload(
        "two parameters, one held by all clients and one by a single client (FedSubAvg paper, Example 1)",
        lambda scale=1.0: quadratic.example1(max(2, round(100 * scale))),
    ),
    "quadratic": Workload(
        "random quadratics on random slices, with known optimum",
        lambda scale=1.0: quadratic.random_quadratic(clients=max(2, round(50 * scale))).task,
    ),
}


def sampler_for(method: Method, settings: Settings) -> Sampler:
    """Who takes part in a round."""
    if method.pooled or settings.sampler == "full":
        return sampling.full()
    kinds = {"uniform": sampling.uniform, "weighted": sampling.weighted, "poisson": sampling.poisson}
    if settings.sampler not in kinds:
        raise InputError(f"there is no sampler {settings.sampler!r}; there are {', '.join(kinds)}, full")
    return kinds[settings.sampler](settings.cohort)
