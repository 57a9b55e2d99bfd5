"""Clients that do not all count the same: q-FFL, AFL, superquantiles, clusters."""

from collections.abc import Sequence

import optax

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS, check_rate
from fedslice.compose import algorithm
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, check_heat, compose
from fedslice.reduce import worst
from fedslice.stage import agnostic
from fedslice.stage import qffl as weighing_by_loss
from fedslice.types import Algorithm, Reduce, Stage, Work


def qffl(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    q: float = 1.0,
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
) -> Algorithm:
    """Clients with a higher loss count more.

        Delta_i = F_i^q L (x - y_i),   h_i = q F_i^(q-1) ||L (x - y_i)||^2 + L F_i^q
        x <- x - sum Delta_i / sum h_i

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020.

    A more even quality over clients; q = 0 is FedAvg with uniform weights. L = 1 / client rate.
    F_i is the loss of the client's first batch, a choice that costs no extra pass: the paper's is
    that of all its examples, and a power of an estimate is not unbiased.

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD, and L = 1 / rate.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        q: power of the loss (our choice).
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default ``"uniform"``;
            ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    Cannot be combined with: robust reductions (its denominator is a sum of its own).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = qffl(task.model, 0.1, fs.Work(steps=1, batch=1), q=2.0)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)  # client 0 has the larger loss: its row goes farther
    >>> print((1 - run.table("w", [0, 1])).round(3))  # than with q=0, which is 0.05 and 0.2
    [0.063 0.111]
    """
    check_rate(rate)
    check_heat(model, heat)
    local = clients.sgd(model, optax.sgd(rate), work)
    weighing = weighing_by_loss(q, rate, heat, coefficient)
    return algorithm(local, [*stages, weighing], servers.optimize(), name="qffl")


def afl(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    weight_rate: float = 0.1,
    server: Optimizer | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Weights that ascend on the worst mixture of clients.

        x <- x + sum_i lambda_i delta_i / sum_i lambda_i,   then
        lambda_i <- lambda_i exp(rate (F_i - last round's mean F))
        (a constant in place of F's mean changes no normalised lambda; 0 in the first round)

    Mohri et al., Agnostic Federated Learning, ICML 2019 (mirror ascent, over the clients that take
    part).

    A guarantee for the worst group of few clients.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        weight_rate: of the ascent (our choice).
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: one number.

    Cannot be combined with: heat correction and weights of other kinds (its weights change as it
    goes).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = afl(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1), weight_rate=1.0)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(3, progress=False)
    >>> run.table("w", [0])  # FedAvg's mean over four clients has it at 0.86
    array([0.74090594], dtype=float32)
    """
    local = clients.sgd(model, optimizer, work)
    ascent = [*stages, agnostic(weight_rate)]
    return compose("afl", local, servers.optimize(server), stages=ascent, reduce=reduce)


def superquantile(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    share: float = 0.5,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
) -> Algorithm:
    """The worst share of the cohort only.

        x <- x + mean of delta_i over the clients whose loss is among the worst share

    Laguel et al., A Superquantile Approach to Federated Learning with Heterogeneous Devices, CISS
    2021.

    A better tail of the clients' losses (of their first batches).

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        share: of the cohort that counts (our choice).
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    Cannot be combined with: other reductions.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = superquantile(task.model, optax.sgd(0.5), share=0.25)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)  # the worst of four clients is the one with the cold row
    >>> print(run.table("w", [0]))  # with share=1, of all clients, 0.75
    [0.]
    """
    local, reduce = clients.sgd(model, optimizer, work), worst(share)
    server_part = servers.optimize(server)
    return compose("superquantile", local, server_part, weights, heat, coefficient, stages, reduce)


def ifca(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    models: int = 2,
    spread: float = 0.1,
    weights: Weights = "examples",
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Each client trains the best of k models.

        j = argmin_j F_i(x_j);   x_j <- x_j + mean of delta_i over the clients that chose j

    Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020; Mansour et
    al., Three Approaches for Personalization, 2020 (HypCluster).

    Groups of clients with different tasks. ``fedslice.evaluation.clusters`` tells who is where;
    run and compare score every client with the model that suits its training data.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        models: k (our choice).
        spread: size of the noise that makes them differ at first.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients: ``fs.reduce.worst(share)``, if any.

    A round sends (k + 1) d, d the numbers of a client's slice; gradients of tau b examples a
    client, and k losses of |D_i|, tau steps of batch b; client memory: none.

    Cannot be combined with: heat correction (it divides a row's holders between its models, so N /
    n_m would be wrong), compression, robust reductions but worst (a client updates one of the
    models only).

    >>> import jax.numpy as jnp, optax, fedslice as fs
    >>> from fedslice.evaluation import clusters
    >>> model = fs.Model(lambda key: {"x": jnp.zeros(())}, lambda p, b: (p["x"] - b["a"]) ** 2)
    >>> people = fs.Population.from_arrays([0, 1, 2, 3], a=[-1.0, -1.0, 1.0, 1.0])  # two groups
    >>> run = fs.simulate(ifca(model, optax.sgd(0.5)), people, sampler=fs.sampling.full())
    >>> [round(report.loss, 2) for report in run.rounds(2)]
    [0.87, 0.0]
    """
    local = clients.cluster(model, optimizer, work)
    server = servers.cluster(model, models, spread)
    return compose("ifca", local, server, weights, stages=stages, reduce=reduce)
