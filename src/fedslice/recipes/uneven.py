"""Unequal local work: FedProx holds clients back, FedNova counts how far they went."""

from collections.abc import Sequence

import optax

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS, check_optimizer, check_rate
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, compose
from fedslice.stage import nova
from fedslice.types import Algorithm, Reduce, Stage, Work


def fedprox(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    mu: float = 0.01,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """FedAvg with a proximal term that pulls clients towards the global model.

        local loss F_i(y) + mu/2 ||y - x||^2

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (mu = 0.01 in Ding et
    al. 2022).

    Unequal or long local work that drifts apart. It is ``fedavg`` with the optimizer
    ``optax.chain(fs.client.proximal(mu), optimizer)``.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        mu: strength of the pull to the global model (Ding et al. 2022).
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fedprox(task.model, optax.sgd(0.1), fs.Work(steps=10, batch=1), mu=4.0)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)  # ten local steps towards 0, which the pull holds back
    >>> print(run.table("w", [1]).round(2))  # without it, mu=0, 0.11
    [0.67]
    """
    check_optimizer(optimizer)
    local = clients.sgd(model, optax.chain(clients.proximal(mu), optimizer), work)
    return compose(
        "fedprox", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def fednova(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    momentum: float = 0.0,
    mu: float = 0.0,
    schedule: optax.Schedule | None = None,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Updates divided by local progress, so that clients with more steps do not count more.

        x <- x - tau_eff sum_i p_i G_i / ||a_i||_1,   tau_eff = sum_i p_i ||a_i||_1

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, NeurIPS 2020.

    Local epochs over clients of unequal size. G_i is minus client i's update, p_i its share of the
    weights; ||a_i||_1 is tau for plain SGD and follows from momentum, mu and schedule otherwise,
    which is why the recipe builds the optimizer itself.

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        momentum: of the clients' SGD, from 0 to below 1.
        mu: proximal term, as in FedProx; rate x mu must be below 1.
        schedule: a factor on the clients' rate by the number of rounds done.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fednova(task.model, 0.2, fs.Work(epochs=2, batch=1), momentum=0.5)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.85, 0.1235, 0.0667]
    """
    check_rate(rate)
    pull = [clients.proximal(mu)] if mu else []
    factor = [] if schedule is None else [clients.by_round(schedule)]
    solver = optax.chain(*pull, optax.sgd(rate, momentum=momentum or None), *factor)
    stages = [*stages, nova(momentum, rate * mu, schedule)]
    local = clients.sgd(model, solver, work)
    return compose(
        "fednova", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )
