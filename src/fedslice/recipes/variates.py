"""SCAFFOLD: control variates that take the clients' drift out, and its approximation."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, clients_of, compose, weight_of_all
from fedslice.types import Algorithm, Reduce, Stage, Work


def scaffold(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    population: Population | Heat,
    option: int = 2,
    server_rate: float = 1.0,
    weights: str = "uniform",
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Local steps with the drift taken out by control variates.

        y <- y - eta (g(y) - c_i + c)
        c_i+ = c_i - c + (x - y) / (tau eta)   (option 1: grad f_i(x))
        x <- x + eta_g mean(y_i - x),   c <- c + (K/N) mean(c_i+ - c_i)

    Karimireddy et al., SCAFFOLD, ICML 2020. With weights by examples the weighted case of Ding et
    al. 2022 (D.4): both means, and c, by |D_i|.

    Few, stable clients (cross-silo) with heterogeneous data: its fixed point is the true optimum,
    FedAvg's is not. It is the published method on tables too: clients move by -tau eta c the rows
    that they do not hold, which the server does for them, also for rows outside the round (when
    they are next read). So a cold row is as slow as in FedAvg; ``scaffold_heat`` corrects that.

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        population: the ``fs.Population`` that will be trained on, or its heat: tells N and the
            number of examples.
        option: 1 or 2 of the paper, whose experiments use 2.
        server_rate: factor on the mean update.
        weights: ``"uniform"``, as published, or ``"examples"``, the weighted case of Ding et al.
            2022 (D.4): both means, and c, by |D_i|.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``; on tables
            none that alters updates.
        reduce: the plain sum, by default; all else is refused.

    A round sends 4d, d the numbers of a client's slice; gradients of tau b (option 1: tau b +
    |D_i|) examples a client, tau steps of batch b, D_i all of its examples; client memory: one
    variate of the client's own slice.

    Cannot be combined with: robust reductions (its server state must stay the mean of the clients'
    memories); on tables clip and compress (holders send more than y - x); heat correction (that is
    ``scaffold_heat``).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = scaffold(task.model, 0.1, fs.Work(steps=5, batch=1), population=task.train)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.6199, 0.1857, 0.1006]
    """
    if model.tables and any(stage.alters for stage in stages):
        raise InputError(
            "SCAFFOLD's clients send y - x + tau eta c for the rows of tables, which clip, compress"
            " and nova would not take for y - x: leave them out, or use scaffold_heat"
        )
    local = clients.scaffold(model, rate, work, option=option)
    server = servers.scaffold(weight_of_all(population, weights), server_rate)
    return compose("scaffold", local, server, weights, stages=stages, reduce=reduce)


def scaffold_heat(
    model: Model,
    rate: float,
    work: Work = ONE_PASS,
    *,
    population: Population | Heat,
    option: int = 2,
    server_rate: float = 1.0,
    weights: str = "uniform",
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """SCAFFOLD among the holders of each row, heat-corrected as FedSubAvg is.

        as scaffold, but c_m is the mean over the clients that hold row m, they alone move it, and
        x_m <- x_m + eta_g N/n_m mean(y_i - x)

    fedslice's own: Karimireddy et al. 2020 with the correction of Ding et al. 2022. No paper has
    published it.

    As ``scaffold``, on models with cold rows. It is no baseline of the FedSubAvg paper.

    Args:
        model: what is trained, a ``fs.Model``.
        rate: the clients' learning rate; they do SGD.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        population: the ``fs.Population`` that will be trained on, or its heat: tells N, the number
            of examples, and how many clients hold each row.
        option: 1 or 2 of the paper, whose experiments use 2.
        server_rate: factor on the mean update.
        weights: ``"uniform"``, as published, or ``"examples"``, the weighted case of Ding et al.
            2022 (D.4): both means, and c, by |D_i|.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: the plain sum, by default; all else is refused.

    A round sends 4d, d the numbers of a client's slice; gradients of tau b (option 1: tau b +
    |D_i|) examples a client, tau steps of batch b, D_i all of its examples; client memory: one
    variate of the client's own slice.

    Cannot be combined with: robust reductions (its server state must stay the mean of the clients'
    memories).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> work = fs.Work(steps=5, batch=1)
    >>> method = scaffold_heat(task.model, 0.1, work, population=task.train)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(2, progress=False)
    >>> print(run.table("w", [0, 1]).round(2))  # the cold row is at 0.65 with plain SCAFFOLD
    [0.11 0.11]
    """
    local = clients.scaffold(model, rate, work, option=option, holders=True)
    server = servers.scaffold(weight_of_all(population, weights), server_rate, holders=True)
    heat = population if isinstance(population, Heat) else population.heat(model)
    chosen = heat if model.tables else None
    return compose("scaffold-heat", local, server, weights, chosen, None, stages, reduce)


def scaffold_approximate(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    population: Population | Heat,
    sampler: Sampler,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """SCAFFOLD's stateless server-side approximation.

        d <- (N - K)/N d + (K/N) sum_i w_i delta_i / sum_i w_i,   x <- x + d

    Ding et al. 2022, appendix D.2, eq. 47.

    The baseline of the FedSubAvg paper's CTR tasks. On tables it is lazy, a choice: rows outside
    the round wait with their d, where eq. 47 moves all coordinates in every round.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        population: the ``fs.Population`` that will be trained on, or its heat: tells N and the
            number of examples.
        sampler: the one that will draw the clients, such as ``fs.sampling.uniform(50)``: tells K.
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
    >>> sampler, work = fs.sampling.uniform(2), fs.Work(steps=1, batch=1)
    >>> told = {"population": task.train, "sampler": sampler}
    >>> method = scaffold_approximate(task.model, optax.sgd(0.5), work, **told)
    >>> run = fs.simulate(method, task.train, sampler=sampler)
    >>> _ = run.train(1, progress=False)
    >>> run.table("w", [1])  # half of the way: K/N
    array([0.5], dtype=float32)
    """
    local = clients.sgd(model, optimizer, work)
    server = servers.approximate(sampler.rate(clients_of(population)))
    return compose(
        "scaffold-approximate", local, server, weights, heat, coefficient, stages, reduce
    )
