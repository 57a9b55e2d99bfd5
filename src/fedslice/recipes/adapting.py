"""Models that clients make their own by adapting: FedRecon, MAML and Reptile."""

from collections.abc import Sequence

import optax

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.data.halves import Split
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, compose
from fedslice.types import Algorithm, Reduce, Stage, Work


def fedrecon(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    reconstruction: Optimizer,
    recover: Work | None = None,
    split: Split = "half",
    joint: bool = False,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Local leaves rebuilt each round, global ones trained with them; nothing is kept.

        R: l <- l - eta_r grad_l F(g, l; support), k_r times from a fresh l, g frozen
        U: g <- g - eta grad_g F(g, l; query), k_u times, l frozen
        delta_i = change of g,   w_i = |query|

    Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021.

    Models with local leaves (a user's vector, embeddings of private words) and so many clients
    that none comes twice. First-order meta-learning: with k_u = 1 the update is minus the rate
    times the query gradient at the rebuilt l. run and compare judge it by ReconEval: an unseen
    client rebuilds l on its support examples and is scored on its query examples. On the command
    line ``steps`` and ``reconstruct_steps`` are the most batches of one pass, and of a few, as in
    the paper.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: U's, on the global leaves; corrections and schedules as for ``fedavg``.
        work: U's, on the query examples: k_u; by default one pass in batches of 32.
        reconstruction: R's optimizer, on the local leaves, such as ``optax.sgd(0.1)``.
        recover: R's work, on the support examples: k_r; by default one pass in batches of the same
            size.
        split: support and query: half (random, fixed), fresh (random in each round), time or
            time:COLUMN (earlier, later), none (all for both).
        joint: U trains l too.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, their query ``"examples"`` or ``"uniform"``.
        heat: the heat of the query part, by which clients count: ``halves.heat(population, split,
            model)``.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2 |g|, g without the local leaves; gradients of (k_r + k_u) b examples a client,
    in batches of b; client memory: none.

    >>> import jax.numpy as jnp, optax, fedslice as fs
    >>> first = {"item": jnp.zeros(()), "user": jnp.zeros(())}
    >>> loss = lambda p, b: (p["item"] + p["user"] - b["stars"]) ** 2
    >>> model = fs.Model(lambda key: first, loss, local="user")
    >>> people = fs.Population.from_arrays([0, 0, 1, 1], stars=[1.0, 1.0, 5.0, 5.0])
    >>> method = fedrecon(model, optax.sgd(0.5), reconstruction=optax.sgd(0.25))
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> [round(report.loss, 2) for report in run.rounds(3)]
    [3.25, 1.56, 1.14]
    """
    local = clients.reconstruct(
        model,
        optimizer,
        work,
        reconstruction=reconstruction,
        recover=recover,
        split=split,
        joint=joint,
    )
    return compose(
        "fedrecon", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def maml(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    inner_rate: float = 0.1,
    first_order: bool = True,
    split: Split = "half",
    server: Optimizer | None = None,
    weights: Weights = "uniform",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """A model that one gradient step makes a client's own (Per-FedAvg).

        w' = w - alpha grad f(w; s),   w <- w - eta grad f(w'; q),   support batch s, query batch q
        full: (I - alpha H) grad f(w'; q), H the Hessian of f(w; s);   delta_i = change of w

    Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach, NeurIPS 2020; Finn et al., ICML 2017.

    Clients, new ones too, that will adapt by a step or a few before they use the model; run and
    compare judge it after adapting. Its global model alone is not meant to be good. Full MAML
    needs a loss that is twice differentiable.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: batches of query examples, each with a support batch beside it; by default one pass.
        inner_rate: alpha (our choice).
        first_order: leave the Hessian out (FOMAML).
        split: support and query, as for fedrecon; the paper draws both from all: none.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"uniform"`` or their query ``"examples"``.
        heat: as clients count for their query examples, ``halves.heat(population, split, model)``;
            in full, which changes support rows too, with ``all_rows=True``.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice (first order: of tables, up the query rows
    only); gradients of 2 tau b examples a client, tau steps of batch b (full: and as many Hessian
    products); client memory: none.

    >>> import jax.numpy as jnp, optax, fedslice as fs
    >>> model = fs.Model(lambda key: {"x": jnp.array(4.0)}, lambda p, b: (p["x"] - b["a"]) ** 2)
    >>> people = fs.Population.from_arrays([0, 0, 1, 1], a=[-1.0, -1.0, 1.0, 1.0])
    >>> method = maml(model, optax.sgd(0.25), inner_rate=0.25)
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> _ = run.train(5, progress=False)
    >>> print(fs.adapted(run, people))  # a step on their own data helps
    loss 1.9010 to 0.4753
    """
    local = clients.maml(
        model, optimizer, work, inner_rate=inner_rate, first_order=first_order, split=split
    )
    return compose(
        "maml", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def reptile(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    server_rate: float | optax.Schedule = 1.0,
    split: Split | None = None,
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """FedAvg with uniform weights and a server rate, fine-tuned by each client.

        delta_i = (tau local steps from x) - x
        x <- x + epsilon mean_i delta_i,   epsilon = server_rate

    Nichol et al., On First-Order Meta-Learning Algorithms, 2018.

    As ``maml``, without pairs of batches; with one local step it is joint training. run and
    compare judge it after fine-tuning by the same local work.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        server_rate: epsilon, a number or a schedule by round.
        split: which of a client's examples it adapts on: its support; by default a random half.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = reptile(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1), server_rate=0.5)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)
    >>> run.table("w", [1])  # half of the way to the mean of the clients' models, 0
    array([0.5], dtype=float32)
    """
    tuning = clients.finetune(model, optimizer, work, split="half" if split is None else split)
    local = clients.sgd(model, optimizer, work)._replace(adapt=tuning)
    server = servers.optimize(optax.sgd(server_rate))
    return compose("reptile", local, server, "uniform", heat, coefficient, stages, reduce)
