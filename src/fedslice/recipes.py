"""The named algorithms: a few lines each, made only of public parts."""

from typing import TypeAlias

import optax

from fedslice import client as clients
from fedslice import server as servers
from fedslice import stage as stages
from fedslice.algorithm import algorithm
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.types import Algorithm

Optimizer: TypeAlias = optax.GradientTransformation


def fedavg(
    model: Model,
    client: Optimizer,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    weights: str = "examples",
    server: Optimizer | None = None,
) -> Algorithm:
    """FedAvg (McMahan et al. 2017); with a ``server`` optimizer FedOpt (Reddi et al. 2021).

    >>> from fedslice.tasks import quadratic
    >>> fedavg(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).name
    'fedavg'
    """
    local = clients.sgd(model, client, steps=steps, epochs=epochs, batch=batch)
    return algorithm(local, [stages.mean(weights)], servers.optimize(server), name="fedavg")


def fedsubavg(
    model: Model,
    client: Optimizer,
    *,
    heat: Heat,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    weights: str = "examples",
    server: Optimizer | None = None,
) -> Algorithm:
    """FedSubAvg (Ding et al. 2022): FedAvg with each row's mean update corrected by its heat.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> fedsubavg(task.model, optax.sgd(0.5), heat=task.train.heat(task.model), steps=1, batch=1).name
    'fedsubavg'
    """
    local = clients.sgd(model, client, steps=steps, epochs=epochs, batch=batch)
    return algorithm(local, [stages.mean(weights, heat)], servers.optimize(server), name="fedsubavg")


def fedsgd(
    model: Model, *, server: Optimizer, batch: int = 32, weights: str = "examples", heat: Heat | None = None
) -> Algorithm:
    """FedSGD (McMahan et al. 2017): one full-batch gradient of each client, one step of the server's optimizer.

    >>> from fedslice.tasks import quadratic
    >>> fedsgd(quadratic.example1(clients=4).model, server=optax.sgd(0.5)).name
    'fedsgd'
    """
    local = clients.gradient(model, batch=batch)
    return algorithm(local, [stages.mean(weights, heat)], servers.optimize(server), name="fedsgd")


def central(model: Model, client: Optimizer, *, steps: int, batch: int) -> Algorithm:
    """CentralSGD: run it on ``population.pool()`` with ``sampling.full()`` and a batch of cohort x local batch, so that
    it sees as many examples a round as the federated algorithms.

    >>> from fedslice.tasks import quadratic
    >>> central(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=4).name
    'central'
    """
    local = clients.sgd(model, client, steps=steps, batch=batch)
    return algorithm(local, [stages.mean("uniform")], servers.optimize(), name="central")
