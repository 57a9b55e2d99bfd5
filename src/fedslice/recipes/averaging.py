"""FedAvg and FedSubAvg, with any optimizer on clients and server; FedSGD and CentralSGD."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, compose
from fedslice.types import Algorithm, Reduce, Stage, Work


def fedavg(
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
    """Mean of the clients' updates; with a server optimizer FedOpt (FedAvgM, FedAdagrad, ...).

        delta_i = (tau local steps from x) - x
        x <- ServerOpt(x, -sum_i w_i delta_i / sum_i w_i)

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017; Reddi et al., Adaptive Federated Optimization, ICLR 2021; FedAvgM: Hsu et al.,
    Measuring the Effects of Non-Identical Data Distribution, 2019.

    The baseline, and the choice where all clients hold the whole model. On tables every server
    optimizer is lazy: rows outside the round neither move nor cost anything, and keep their
    moments.

    With delta the mean, eta_s the server's rate and the constants that the command line has, the
    optimizers of FedOpt are

        fedavgm      m <- 0.9 m + delta,   x <- x + eta_s m
        fedadagrad   v <- v + delta^2,   x <- x + eta_s delta / sqrt(v + eps),   eps 1e-7
        fedadam      m, v <- moments of delta,   x <- x + eta_s m / (sqrt(v) + eps)
        fedyogi      m as Adam's,   v <- v - (1 - b2) sign(v - delta^2) delta^2 from 1e-6,
                     x <- x + eta_s m / (sqrt(v) + eps);   b1 0.9, b2 0.99, eps 1e-3 for both

    The rules are optax's: Adam and Yogi correct the bias, which Reddi et al. leave out, and
    Adagrad's v starts from 0.1 with eps under the root, where theirs is sqrt(v) + eps. Rates of
    client and server are tuned together.

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

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fedavg(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1), weights="uniform")
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)
    >>> run.table("w", [0, 1])  # the cold row goes a quarter of the way, the hot one all of it
    array([0.75, 0.  ], dtype=float32)
    """
    local = clients.sgd(model, optimizer, work)
    return compose(
        "fedavg", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def fedsubavg(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    heat: Heat,
    server: Optimizer | None = None,
    weights: Weights = "examples",
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """FedAvg with every row's update corrected by its heat N/n_m.

        x_m <- x_m + c_m * sum_i w_i delta_{i,m} / sum_i w_i
        c_m = sum_all w / sum_{i: m in S(i)} w_i    (uniform weights: N / n_m; dense leaves: 1)

    Ding et al., Federated Submodel Optimization for Hot and Cold Data Features, NeurIPS 2022.

    m is a row of a table, S(i) the rows that client i's data mention, n_m how many of the N
    clients hold row m; the first sums run over the round's cohort, sum_all over all clients.
    FedAvg divides a cold row's update by the whole cohort, most of which does not hold it.

    Wherever rows differ in heat. A row held by one client moves about N/K times as far as that
    client's update (K clients a round), so a rate that suits FedAvg can be too large; clipping
    (``stages=[fs.stage.clip(1.0)]``, --set clip=1) helps. Over all cohorts the mean round is the
    mean over each row's holders: exactly with uniform weights, and with ``sampling.weighted``
    (sampler=weighted); weights by examples, the paper's experiments, make a ratio estimator, right
    up to O(1/K).

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        heat: ``population.heat(model)``: how many clients, and examples, stand behind each row; it
            gives c_m.
        server: the server's optax optimizer, which gets minus the mean update; by default plain
            averaging, SGD with rate 1.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of tau b examples a client, tau
    steps of batch b; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> heat, work = task.train.heat(task.model), fs.Work(steps=1, batch=1)
    >>> method = fedsubavg(task.model, optax.sgd(0.5), work, heat=heat, weights="uniform")
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)
    >>> run.table("w", [0, 1])  # both are done in one round; FedAvg has the cold one at 0.75
    array([0., 0.], dtype=float32)
    """
    local = clients.sgd(model, optimizer, work)
    return compose(
        "fedsubavg", local, servers.optimize(server), weights, heat, coefficient, stages, reduce
    )


def fedsgd(
    model: Model,
    server: Optimizer,
    *,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
) -> Algorithm:
    """One full-batch gradient of each client, one server step.

        x <- ServerOpt(x, sum_i w_i grad f_i(x) / sum_i w_i)

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017.

    When communication is free and exact gradients matter; with all clients it is gradient descent.

    Args:
        model: what is trained, a ``fs.Model``.
        server: the server's optax optimizer; its rate is the learning rate.
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.
        reduce: what takes the place of the sum over clients, such as ``fs.reduce.median()``.

    A round sends 2d, d the numbers of a client's slice; gradients of |D_i| examples a client, D_i
    all of its examples; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = fedsgd(task.model, optax.sgd(0.5))
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [1.25, 0.1406, 0.0791]
    """
    return compose(
        "fedsgd",
        clients.gradient(model),
        servers.optimize(server),
        weights,
        heat,
        coefficient,
        stages,
        reduce,
    )


def central(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
) -> Algorithm:
    """SGD on the pooled data, as many examples a round: what federation is compared with.

        tau steps on the pooled data with batch K b

    Ding et al. 2022, the baseline CentralSGD.

    To see what federation costs. Run it on ``population.pool()`` with ``sampling.full()``.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the optax optimizer, new in each round; ``fs.client.by_round(schedule)`` after
            it in an ``optax.chain`` is a factor on its rate.
        work: the steps of a round; a batch of cohort x local batch sees as many examples as the
            federated algorithms.

    A round sends nothing; gradients of tau K b examples, K clients' batches of b in each of tau
    steps; client memory: none.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> method = central(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=4))
    >>> run = fs.simulate(method, task.train.pool(), sampler=fs.sampling.full())
    >>> [round(report.loss, 4) for report in run.rounds(3)]
    [1.25, 0.1406, 0.0791]
    """
    local = clients.sgd(model, optimizer, work)
    return compose("central", local, servers.optimize(), weights="uniform")
