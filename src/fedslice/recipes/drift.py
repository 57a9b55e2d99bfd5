"""Other ways against drift: surveys of gradients, dual variables, averaged directions."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, clients_of, compose, need_heat
from fedslice.types import Algorithm, Reduce, Stage, Work


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
        weights: what clients count for, ``"examples"`` or ``"uniform"``.
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


def mime(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Clients step with the server's optimizer, its state frozen, and a corrected gradient.

        c = mean_i grad f_i(x);   y <- y - U(g(y; xi) - g(x; xi) + c, s)
        x <- x + mean(y_i - x);   s moves with c

    Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning,
    NeurIPS 2021.

    Cross-device runs with momentum or adaptive steps (--set client=momentum chooses U). On tables
    c is the mean over the row's holders in the cohort, and heat corrects the update alone. U is
    optax's rule, a choice: Adam advances v by the step's own gradient before it uses it (and
    forgets that again), where the paper's U takes v as it stands in s.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: U: its state s is the server's, clients step with it frozen;
            ``fs.client.by_round(schedule)`` after it in an ``optax.chain`` is a factor on the
            clients' steps.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        weights: what clients count for, ``"examples"`` or ``"uniform"``.
        heat: ``population.heat(model)``, needed if the model has tables: corrects the update, not
            what was surveyed.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 4d and the optimizer's state, d the numbers of a client's slice; gradients of 2
    tau b + |D_i| examples a client, tau steps of batch b, D_i all of its examples; client memory:
    none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> heat, momentum = task.train.heat(task.model), optax.sgd(0.1, momentum=0.5)
    >>> method = mime(task.model, momentum, fs.Work(steps=3, batch=1), heat=heat)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.854, 0.1583, 0.0154]
    """
    need_heat(model, heat, "Mime")
    local = clients.mime(model, optimizer, work)
    survey = clients.gradient(model, batch=work.batch, start=lambda offer: offer.params)
    return compose(
        "mime", local, servers.mime(optimizer), weights, heat, coefficient, stages, reduce, survey
    )


def mimelite(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """Mime without the gradient correction.

        y <- y - U(g(y; xi), s);   x <- x + mean(y_i - x);   s moves with the mean of grad f_i(x)

    Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning,
    NeurIPS 2021.

    As ``mime``, in one trip. With SGD it is FedAvg. On tables take heat, or the server's
    statistics of cold rows are too small.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: U, as for ``mime``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        weights: what clients count for, ``"examples"`` or ``"uniform"``.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 3d and the optimizer's state, d the numbers of a client's slice; gradients of tau
    b + |D_i| examples a client, tau steps of batch b, D_i all of its examples; client memory:
    none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = mimelite(task.model, optax.sgd(0.1, momentum=0.5), fs.Work(steps=3, batch=1))
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.854, 0.2513, 0.1018]
    """
    local = clients.mime(model, optimizer, work, correct=False)
    return compose(
        "mimelite",
        local,
        servers.mime(optimizer, lite=True),
        weights,
        heat,
        coefficient,
        stages,
        reduce,
    )


def feddane(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    mu: float = 0.01,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """A survey of the cohort's gradients, then proximal local steps with a linear correction.

        min_y F_i(y) + <mean_j grad F_j(x) - grad F_i(x), y - x> + mu/2 ||y - x||^2

    Li et al., FedDANE: A Federated Newton-Type Method, 2019.

    Full participation, smooth losses; with small cohorts the surveyed gradient is noisy. On tables
    it is the mean over the row's holders in the cohort, and heat corrects the update alone.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        mu: strength of the pull to the global model (our choice).
        weights: what clients count for, ``"examples"`` or ``"uniform"``.
        heat: ``population.heat(model)``, needed if the model has tables: corrects the update, not
            what was surveyed.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 4d, d the numbers of a client's slice; gradients of tau b + 2 |D_i| examples a
    client, tau steps of batch b, D_i all of its examples; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> heat = task.train.heat(task.model)
    >>> method = feddane(task.model, optax.sgd(0.1), fs.Work(steps=3, batch=1), heat=heat)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [0.8541, 0.2244, 0.0589]
    """
    need_heat(model, heat, "FedDANE")
    local = clients.dane(model, optimizer, work, mu=mu)
    survey = clients.gradient(model, batch=work.batch)
    return compose(
        "feddane", local, servers.dane(), weights, heat, coefficient, stages, reduce, survey
    )


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
