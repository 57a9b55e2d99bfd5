"""The named algorithms: a few lines each, made only of public parts.

All take ``steps`` or ``epochs`` and ``batch`` for the local work, and ``more`` for what composes with any of them:
``stages`` that stand before the mean (clip, compress, nova), and a ``reduce`` other than the sum.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import optax

from fedslice import client as clients
from fedslice import server as servers
from fedslice import stage as parts
from fedslice.algorithm import algorithm
from fedslice.client.local import Correction, Schedule
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.prox import Regulariser
from fedslice.reduce import worst
from fedslice.types import Algorithm, Reduce, Stage

Optimizer: TypeAlias = optax.GradientTransformation


def fedavg(
    model: Model,
    client: Optimizer,
    *,
    weights: str = "examples",
    heat: Heat | None = None,
    server: Optimizer | None = None,
    corrections: Sequence[Correction] = (),
    schedule: Schedule | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    name: str = "fedavg",
    **work: Any,
) -> Algorithm:
    """FedAvg (McMahan et al. 2017); with a ``server`` optimizer FedOpt (Reddi et al. 2021).

    >>> from fedslice.tasks import quadratic
    >>> fedavg(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).name
    'fedavg'
    """
    local = clients.sgd(model, client, corrections=corrections, schedule=schedule, **work)
    return algorithm(local, [*stages, parts.mean(weights, heat)], servers.optimize(server), reduce, name)


def fedsubavg(model: Model, client: Optimizer, *, heat: Heat, **more: Any) -> Algorithm:
    """FedSubAvg (Ding et al. 2022): FedAvg with each row's mean update corrected by its heat.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> fedsubavg(task.model, optax.sgd(0.5), heat=task.train.heat(task.model), steps=1, batch=1).name
    'fedsubavg'
    """
    return fedavg(model, client, heat=heat, name="fedsubavg", **more)


def fedsgd(
    model: Model,
    *,
    server: Optimizer,
    batch: int = 32,
    weights: str = "examples",
    heat: Heat | None = None,
    **more: Any,
) -> Algorithm:
    """FedSGD (McMahan et al. 2017): one full-batch gradient of each client, one step of the server's optimizer.

    >>> from fedslice.tasks import quadratic
    >>> fedsgd(quadratic.example1(clients=4).model, server=optax.sgd(0.5)).name
    'fedsgd'
    """
    return _compose(clients.gradient(model, batch=batch), weights, heat, servers.optimize(server), "fedsgd", **more)


def central(model: Model, client: Optimizer, *, steps: int, batch: int) -> Algorithm:
    """CentralSGD: run it on ``population.pool()`` with ``sampling.full()`` and a batch of cohort x local batch, so that
    it sees as many examples a round as the federated algorithms.

    >>> from fedslice.tasks import quadratic
    >>> central(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=4).name
    'central'
    """
    return fedavg(model, client, weights="uniform", steps=steps, batch=batch, name="central")


def fedprox(model: Model, client: Optimizer, *, mu: float = 0.01, **more: Any) -> Algorithm:
    """FedProx (Li et al. 2020): FedAvg with mu/2 ||x - x_t||^2 added to every client's loss."""
    return fedavg(model, client, corrections=[clients.proximal(mu)], name="fedprox", **more)


def fednova(
    model: Model,
    client: Optimizer,
    *,
    momentum: float = 0.0,
    proximal: float = 0.0,
    stages: Sequence[Stage] = (),
    **more: Any,
) -> Algorithm:
    """FedNova (Wang et al. 2020): updates normalised by local progress.  ``momentum`` and ``proximal`` (rate x mu)
    describe the local solver."""
    return fedavg(model, client, stages=[*stages, parts.nova(momentum, proximal)], name="fednova", **more)


def scaffold(
    model: Model,
    rate: float,
    *,
    participation: float,
    heat: Heat | None = None,
    option: int = 2,
    server_rate: float = 1.0,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    **more: Any,
) -> Algorithm:
    """SCAFFOLD (Karimireddy et al. 2020), exact, with client memory; ``participation`` is K / N."""
    _need_heat(model, heat, "SCAFFOLD")
    local = clients.scaffold(model, rate, steps=steps, epochs=epochs, batch=batch, option=option)
    return _compose(local, "uniform", heat, servers.scaffold(participation, server_rate), "scaffold", **more)


def scaffold_approximate(
    model: Model,
    client: Optimizer,
    *,
    participation: float,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """SCAFFOLD's stateless server-side approximation (Ding et al. 2022, eq. 47)."""
    local, server = clients.sgd(model, client, **work), servers.approximate(participation)
    return _compose(local, weights, heat, server, "scaffold-approximate", stages, reduce)


def mime(
    model: Model,
    optimizer: Optimizer,
    *,
    lite: bool = False,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    batch: int = 32,
    **work: Any,
) -> Algorithm:
    """Mime (Karimireddy et al. 2021), or MimeLite: clients step with the server's ``optimizer``, its state frozen."""
    if not lite:
        _need_heat(model, heat, "Mime")
    local = clients.mime(model, optimizer, correct=not lite, batch=batch, **work)
    survey = None if lite else clients.gradient(model, batch=batch)
    name = "mimelite" if lite else "mime"
    return _compose(local, weights, heat, servers.mime(optimizer, lite), name, stages, reduce, survey)


def mimelite(model: Model, optimizer: Optimizer, **more: Any) -> Algorithm:
    """MimeLite (Karimireddy et al. 2021): Mime without the correction."""
    return mime(model, optimizer, lite=True, **more)


def feddane(
    model: Model,
    client: Optimizer,
    *,
    mu: float = 0.01,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    batch: int = 32,
    **work: Any,
) -> Algorithm:
    """FedDANE (Li et al. 2019): a survey of gradients, then proximal local steps with a linear correction."""
    _need_heat(model, heat, "FedDANE")
    local, survey = clients.dane(model, client, mu=mu, batch=batch, **work), clients.gradient(model, batch=batch)
    return _compose(local, weights, heat, servers.dane(), "feddane", stages, reduce, survey)


def feddyn(
    model: Model,
    client: Optimizer,
    *,
    mu: float = 0.1,
    participation: float,
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """FedDyn (Acar et al. 2021): dynamic regularisation with a dual variable on each client."""
    local = clients.dynamic(model, client, mu=mu, **work)
    return _compose(local, "uniform", heat, servers.dynamic(mu, participation), "feddyn", stages, reduce)


def fedpd(
    model: Model,
    client: Optimizer,
    *,
    mu: float = 0.1,
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """FedPD (Zhang et al. 2021): the primal-dual method; every client takes part in every round."""
    local = clients.dynamic(model, client, mu=mu, send_dual=True, **work)
    return _compose(local, "uniform", heat, servers.optimize(), "fedpd", stages, reduce)


def fedpa(
    model: Model,
    client: Optimizer,
    *,
    weights: str = "examples",
    heat: Heat | None = None,
    server: Optimizer | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **sampling: Any,
) -> Algorithm:
    """FedPA (Al-Shedivat et al. 2021): updates of local posteriors; ``sampling`` as in ``client.posterior``."""
    local = clients.posterior(model, client, **sampling)
    return _compose(local, weights, heat, servers.optimize(server), "fedpa", stages, reduce)


def fedmid(
    model: Model,
    rate: float,
    regulariser: Regulariser,
    *,
    server_rate: float = 1.0,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """Federated mirror descent (Yuan et al. 2021) for a loss with ``regulariser``."""
    local, server = clients.mirror(model, regulariser, rate, **work), servers.mirror(regulariser, rate, server_rate)
    return _compose(local, weights, heat, server, "fedmid", stages, reduce)


def feddualavg(
    model: Model,
    rate: float,
    regulariser: Regulariser,
    *,
    server_rate: float = 1.0,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """Federated dual averaging (Yuan et al. 2021) for a loss with ``regulariser``."""
    local, server = clients.dual(model, regulariser, rate, **work), servers.dual(regulariser, server_rate)
    return _compose(local, weights, heat, server, "feddualavg", stages, reduce)


def qffl(
    model: Model, rate: float, *, q: float = 1.0, heat: Heat | None = None, stages: Sequence[Stage] = (), **work: Any
) -> Algorithm:
    """q-FFL (Li et al. 2020): clients with a higher loss count more."""
    local = clients.sgd(model, optax.sgd(rate), **work)
    return algorithm(local, [*stages, parts.qffl(q, rate, heat)], servers.optimize(), name="qffl")


def afl(model: Model, client: Optimizer, *, rate: float = 0.1, stages: Sequence[Stage] = (), **more: Any) -> Algorithm:
    """Agnostic federated learning (Mohri et al. 2019): weights that ascend on the worst mixture of clients."""
    if more.get("heat") is not None:
        raise InputError(
            "AFL changes the clients' weights as it goes, so heat correction, which needs them, cannot be used"
        )
    return fedavg(model, client, stages=[*stages, parts.agnostic(rate)], name="afl", **more)


def superquantile(model: Model, client: Optimizer, *, share: float = 0.5, **more: Any) -> Algorithm:
    """Superquantile learning, Delta-FL (Laguel et al. 2021): the worst ``share`` of the cohort only."""
    return fedavg(model, client, reduce=worst(share), name="superquantile", **more)


def ifca(
    model: Model,
    client: Optimizer,
    *,
    models: int = 2,
    spread: float = 0.1,
    weights: str = "examples",
    heat: Heat | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    **work: Any,
) -> Algorithm:
    """IFCA / HypCluster (Ghosh et al. 2020, Mansour et al. 2020): each client trains the best of k models."""
    local, server = clients.cluster(model, client, **work), servers.cluster(model, models, spread)
    return _compose(local, weights, heat, server, "ifca", stages, reduce)


def _compose(
    local: Any,
    weights: str,
    heat: Heat | None,
    server: Any,
    name: str,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    survey: Any = None,
) -> Algorithm:
    return algorithm(local, [*stages, parts.mean(weights, heat)], server, reduce, name, survey)


def _need_heat(model: Model, heat: Heat | None, name: str) -> None:
    """A control variate of a row is the mean over the clients that hold it, which needs n_m."""
    if model.tables and heat is None:
        raise InputError(
            f"{name} on tables needs heat=population.heat(model): its variates are means over a row's holders"
        )
