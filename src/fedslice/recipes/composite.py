"""Regularised losses (FedMiD, FedDualAvg), and posteriors in place of updates (FedPA)."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.prox import Regulariser
from fedslice.recipes.shared import Optimizer, Weights, compose
from fedslice.types import Algorithm, Reduce, Stage, Work


def fedpa(
    model: Model,
    optimizer: Optimizer,
    *,
    samples: int = 5,
    window: int = 2,
    burn_in: int = 0,
    shrinkage: float = 0.1,
    burn_in_rounds: int = 0,
    batch: int = 32,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Updates of local Gaussian posteriors, estimated from SGD iterates.

        update = -Sigma_i^-1 (x - mean_i)
        Sigma_i = r I + (1 - r) S_i,   r = 1 / (1 + (l - 1) rho)

    Al-Shedivat et al., Federated Learning via Posterior Averaging, ICLR 2021.

    Enough local steps for a few samples; begin with burn-in rounds of FedAvg. Its steps follow
    from its samples, so it takes no ``work``.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        samples: l, windows of averaged iterates (our choice).
        window: steps in a window (our choice).
        burn_in: steps before the first window.
        shrinkage: rho (our choice).
        burn_in_rounds: rounds of FedAvg first.
        batch: examples in a mini-batch; there are burn_in + samples x window of them.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    = burn_in + samples x window; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fedpa(task.model, optax.sgd(0.1), samples=2, window=2, batch=1)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.7224, 0.2896, 0.143]
    """
    local = clients.posterior(
        model,
        optimizer,
        samples=samples,
        window=window,
        burn_in=burn_in,
        shrinkage=shrinkage,
        burn_in_rounds=burn_in_rounds,
        batch=batch,
    )
    return compose(
        "fedpa", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def fedmid(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    regulariser: Regulariser,
    server_only: bool = False,
    server_rate: float = 1.0,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Federated mirror descent for a loss with a regulariser.

        y <- prox_{eta psi}(y - eta g(y)),   x <- prox_{eta_s eta tau psi}(x + eta_s mean(y_i - x))

    Yuan et al., Federated Composite Optimization, ICML 2021.

    Constraints and sparsity; averaging undoes some zeros (``feddualavg`` does not). Clients and
    server both shrink, so at rest the strength counts twice (once with ``server_only``). Idle rows
    are not shrunk (lazy).

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        regulariser: psi, such as ``fs.prox.l1(0.001)``.
        server_only: leave the prox to the server: FedMiD-OSP.
        server_rate: eta_s, factor on the mean update.
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
    >>> box = fs.prox.box(0.5, 1.0)  # the best point within it is 0.5
    >>> method = fedmid(task.model, 0.1, fs.Work(steps=5, batch=1), regulariser=box)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(2, progress=False)
    >>> run.table("w", [1])
    array([0.5], dtype=float32)
    """
    local = clients.mirror(model, rate, work, regulariser=regulariser, server_only=server_only)
    return compose(
        "fedmid",
        local,
        servers.mirror(regulariser, server_rate),
        weights,
        heat,
        coefficient,
        stages,
        reduce,
    )


def feddualavg(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    regulariser: Regulariser,
    server_rate: float = 1.0,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Federated dual averaging for a loss with a regulariser.

        y = prox_{t psi}(z),   z <- z - eta g(y),   t <- t + eta
        z <- z + eta_s mean(z_i - z),   model prox_{t psi}(z)

    Yuan et al., Federated Composite Optimization, ICML 2021.

    Sparse models: zeros survive averaging, for idle rows too. With heat the regulariser counts n_m
    / N as much on a row.

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        regulariser: psi, such as ``fs.prox.l1(0.001)``.
        server_rate: eta_s, factor on the mean update.
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
    >>> method = feddualavg(task.model, 0.1, fs.Work(steps=5, batch=1), regulariser=fs.prox.l1(1.0))
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(3, progress=False)
    >>> run.table("w", [1])  # exactly zero
    array([0.], dtype=float32)
    """
    local = clients.dual(model, rate, work, regulariser=regulariser)
    return compose(
        "feddualavg",
        local,
        servers.dual(regulariser, server_rate),
        weights,
        heat,
        coefficient,
        stages,
        reduce,
    )
