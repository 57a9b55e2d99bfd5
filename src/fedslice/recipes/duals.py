"""Dual variables on the clients: FedDyn and FedPD."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.data.population import Population
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, clients_of, compose
from fedslice.types import Algorithm, Reduce, Stage, Work


def feddyn(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    population: Population | Heat,
    mu: float = 0.1,
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Dynamic regularisation: a dual variable on each client.

        min_y F_i(y) + <lambda_i, y - x> + mu/2 ||y - x||^2,   lambda_i <- lambda_i + mu (y - x)
        lambda <- lambda + (K/N) mu mean(y_i - x),   x <- x + mean(y_i - x) + lambda / mu

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

    Few, stable clients: converges to a true stationary point with long local work. The mean is
    uniform, by definition. On tables it is lazy, a choice: rows outside the round wait with their
    lambda, where the paper moves all coordinates by lambda / mu in every round.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        population: the ``fs.Population`` that will be trained on, or its heat: tells N and the
            number of examples.
        mu: of the regulariser (our choice).
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        stages: what happens to messages before the mean, if it leaves the updates as they are.
        reduce: the plain sum, by default; all else is refused.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: one dual of the client's own slice.

    Cannot be combined with: robust reductions (its server state must stay the mean of the clients'
    memories); clip and compress (the duals must match the updates).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> work = fs.Work(steps=5, batch=1)
    >>> method = feddyn(task.model, optax.sgd(0.1), work, population=task.train, mu=1.0)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.6587, 0.0937, 0.0676]
    """
    local = clients.dynamic(model, optimizer, work, mu=mu)
    server = servers.dynamic(mu, clients_of(population))
    return compose("feddyn", local, server, "uniform", heat, None, stages, reduce)


def fedpd(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    mu: float = 0.1,
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """The primal-dual method, all clients in every round.

        as feddyn on the client;   x <- mean(y_i + lambda_i / mu)

    Zhang et al., FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data, 2021.

    Cross-silo with full participation: ``sampling.full()`` (--set sampler=full). The mean is
    uniform, by definition.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        mu: of the regulariser (our choice).
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        stages: what happens to messages before the mean, if it leaves the updates as they are.
        reduce: the plain sum, by default; all else is refused.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: one dual of the client's own slice.

    Cannot be combined with: samplers other than full; robust reductions, clip and compress (the
    duals must match the updates).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fedpd(task.model, optax.sgd(0.1), fs.Work(steps=5, batch=1), mu=1.0)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.6587, 0.0937, 0.0676]
    """
    local = clients.dynamic(model, optimizer, work, mu=mu, send_dual=True)
    return compose("fedpd", local, servers.optimize(), "uniform", heat, None, stages, reduce)
