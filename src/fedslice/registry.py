"""The command line's table of algorithms and tasks: a name, one line about it, and how to build it from settings."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import optax

from fedslice import recipes, sampling
from fedslice.errors import InputError
from fedslice.population import Population
from fedslice.sampling import Sampler
from fedslice.tasks import movielens_lr, quadratic
from fedslice.tasks.base import Task
from fedslice.types import Algorithm


@dataclass(frozen=True)
class Settings:
    """Everything about a run that ``--set key=value`` can change; the task's published values are the defaults.

    >>> Settings().change("cohort", "20").cohort
    20
    """

    cohort: int = 50
    sampler: str = "uniform"
    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    weights: str = "examples"
    client: str = "sgd"
    client_rate: float = 0.1
    server: str = "sgd"
    server_rate: float = 1.0
    engine: str = "auto"
    threads: int | None = None

    def change(self, key: str, value: str) -> "Settings":
        """A copy with one setting changed, from text."""
        kinds: dict[str, Any] = {entry.name: entry.type for entry in fields(self)}
        if key not in kinds:
            raise InputError(f"there is no setting {key!r}; there are {', '.join(kinds)}")
        parse = next((kind for kind in (int, float) if kind in (kinds[key], *get_args(kinds[key]))), str)
        try:
            parsed = parse(value)
        except ValueError:
            raise InputError(f"{key}={value!r}: this must be a {'whole ' if parse is int else ''}number") from None
        changes: dict[str, Any] = {key: parsed} | {"steps": {"epochs": None}, "epochs": {"steps": None}}.get(key, {})
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """For settings.json."""
        return asdict(self)


class Method(NamedTuple):
    """An algorithm by name; ``pooled`` ones train on all data at one place."""

    summary: str
    build: Callable[[Task, Settings], Algorithm]
    pooled: bool = False


def _fedavg(task: Task, s: Settings) -> Algorithm:
    client, server = optimizer(s.client, s.client_rate), optimizer(s.server, s.server_rate)
    return recipes.fedavg(
        task.model, client, steps=s.steps, epochs=s.epochs, batch=s.batch, weights=s.weights, server=server
    )


def _fedsubavg(task: Task, s: Settings) -> Algorithm:
    client, server, heat = (
        optimizer(s.client, s.client_rate),
        optimizer(s.server, s.server_rate),
        task.train.heat(task.model),
    )
    work = {"steps": s.steps, "epochs": s.epochs, "batch": s.batch}
    return recipes.fedsubavg(task.model, client, heat=heat, **work, weights=s.weights, server=server)


def _fedsgd(task: Task, s: Settings) -> Algorithm:
    return recipes.fedsgd(
        task.model, server=optimizer(s.server, s.server_rate), batch=max(32, s.batch), weights=s.weights
    )


def _central(task: Task, s: Settings) -> Algorithm:
    """As many examples a round as the cohort goes through."""
    clients = int((task.train.counts > 0).sum()) if s.sampler == "full" else s.cohort
    per_client = task.train.examples / max(1, int((task.train.counts > 0).sum()))
    steps = s.steps or max(1, round((s.epochs or 1) * per_client / s.batch))
    return recipes.central(task.model, optimizer(s.client, s.client_rate), steps=steps, batch=clients * s.batch)


ALGORITHMS: dict[str, Method] = {
    "fedavg": Method("mean of the clients' updates (McMahan et al. 2017); FedOpt with --set server=adam", _fedavg),
    "fedsubavg": Method("FedAvg with every row's update corrected by its heat N/n_m (Ding et al. 2022)", _fedsubavg),
    "fedsgd": Method("one full-batch gradient of each client, one server step (McMahan et al. 2017)", _fedsgd),
    "central": Method(
        "SGD on the pooled data, as many examples a round: what federation is compared with", _central, True
    ),
}


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


def optimizer(name: str, rate: float) -> optax.GradientTransformation:
    """An optax optimizer by name; momentum is 0.9, adam and yogi have the Field Guide's b2 and epsilon.

    >>> _ = optimizer("yogi", 0.01)
    """
    if not rate > 0:
        raise InputError(f"a learning rate of {rate} is not possible: give a positive number")
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](rate)


OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adagrad": optax.adagrad,
    "adam": lambda rate: optax.adam(rate, b1=0.9, b2=0.99, eps=1e-3),
    "yogi": lambda rate: optax.yogi(rate, b1=0.9, b2=0.99, eps=1e-3),
    "adamw": optax.adamw,
    "rmsprop": optax.rmsprop,
    "lion": optax.lion,
}


def settings_for(task: Task, algorithm: str, changes: list[str]) -> Settings:
    """The task's published settings for this algorithm, with the user's ``key=value`` changes."""
    rate = task.learning_rates.get(algorithm, task.learning_rates.get("", 0.1))
    settings = replace(Settings(client_rate=rate), **task.settings)
    if algorithm == "fedsgd":
        settings = replace(settings, server_rate=rate)
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise InputError(f"--set {change}: write key=value")
        settings = settings.change(key.strip(), value.strip())
    return settings


def find_method(name: str) -> Method:
    """The algorithm of this name."""
    if name not in ALGORITHMS:
        raise InputError(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def sampler_for(method: Method, settings: Settings, population: Population) -> Sampler:
    """Who takes part in a round."""
    if method.pooled or settings.sampler == "full":
        return sampling.full()
    kinds = {"uniform": sampling.uniform, "weighted": sampling.weighted, "poisson": sampling.poisson}
    if settings.sampler not in kinds:
        raise InputError(f"there is no sampler {settings.sampler!r}; there are {', '.join(kinds)}, full")
    return kinds[settings.sampler](settings.cohort)
