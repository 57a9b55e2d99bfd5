"""Models of their own that clients keep between rounds: Ditto and FedPer."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, compose
from fedslice.types import Algorithm, Reduce, Stage, Work


def ditto(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    pull: float = 1.0,
    personal: Optimizer | None = None,
    personal_work: Work | None = None,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """FedAvg, and on each client a model of its own that is pulled to the global one.

        w as in FedAvg
        v_i <- v_i - eta_p (grad F_i(v_i) + lambda (v_i - w_t)),   kept by client i

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

    Clients that come again and differ. lambda 0 is training alone, a large one the global model
    (eta_p lambda must stay below 2). v_i starts as the first global model and has only the
    client's own rows, all of which are pulled, so that it works on all of S(i). ``fs.kept(run,
    population)`` tells what the clients' own models gain; run and compare judge them where the
    test set has the clients of the training.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the global model's, as for ``fedavg``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        pull: lambda (one of the values the paper chooses from).
        personal: the optimizer of the clients' own models; by default the same.
        personal_work: the work on them; by default the same batches.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of 2 tau b examples a client,
    tau steps of batch b; client memory: v_i, one model of the client's slice.

    >>> import jax.numpy as jnp, optax, fedslice as fs
    >>> model = fs.Model(lambda key: {"x": jnp.zeros(())}, lambda p, b: (p["x"] - b["a"]) ** 2)
    >>> people = fs.Population.from_arrays([0, 1], a=[-1.0, 1.0])
    >>> method = ditto(model, optax.sgd(0.25), fs.Work(steps=9), pull=0.0)
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)
    >>> print(fs.kept(run, people))  # the mean of both suits neither, their own models do
    loss 1.0000 to 0.0000
    """
    local = clients.ditto(
        model, optimizer, work, personal=personal, pull=pull, personal_work=personal_work
    )
    return compose(
        "ditto", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def fedper(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Global leaves averaged, local ones kept by each client between its rounds.

        (g, l_i) <- (g, l_i) - eta grad F_i(g, l_i), tau times
        delta_i = change of g,   l_i is kept

    Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

    Few, stable clients and a model with local leaves, such as movielens-mf; where hardly any
    client comes twice use ``fedrecon``. ``fs.kept(run, population)`` tells what the kept leaves
    gain.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2 |g|, g without the local leaves; gradients of tau b examples a client, tau
    steps of batch b; client memory: the local leaves l_i.

    Cannot be combined with: models without local leaves.

    >>> import jax.numpy as jnp, optax, fedslice as fs
    >>> first = {"item": jnp.zeros(()), "user": jnp.zeros(())}
    >>> loss = lambda p, b: (p["item"] + p["user"] - b["stars"]) ** 2
    >>> model = fs.Model(lambda key: first, loss, local="user")
    >>> people = fs.Population.from_arrays([0, 0, 1, 1], stars=[1.0, 1.0, 5.0, 5.0])
    >>> method = fedper(model, optax.sgd(0.2))
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> [round(report.loss, 2) for report in run.rounds(3)]
    [13.0, 1.8, 0.53]
    """
    local = clients.keep(model, optimizer, work)
    return compose(
        "fedper", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )
