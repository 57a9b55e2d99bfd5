"""Full gradients of the cohort at the global model: Mime, MimeLite and FedDANE."""

from collections.abc import Sequence

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, Weights, compose, need_heat
from fedslice.types import Algorithm, Reduce, Stage, Work


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
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
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
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
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
        weights: what clients count for, ``"examples"``, ``"uniform"`` or a function of the message.
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
