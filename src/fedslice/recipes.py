"""The named algorithms: a few lines each, made only of public parts.

All take the local work, ``steps`` or ``epochs`` and ``batch``, and what composes with any of them:
``weights``, ``heat``, ``stages`` that stand before the mean (clip, compress, nova), and a
``reduce`` other than the sum.  With ``sampling.weighted`` give ``weights="uniform"``, and
``coefficient="examples"`` beside ``heat``."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import optax

from fedslice import client as local_parts
from fedslice import server as servers
from fedslice import stage as parts
from fedslice.client.local import Correction, Schedule
from fedslice.compose import algorithm
from fedslice.data.halves import Split
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.prox import Regulariser
from fedslice.reduce import worst
from fedslice.types import Algorithm, Client, Reduce, Server, Stage

Optimizer: TypeAlias = optax.GradientTransformation


def fedavg(
    model: Model,
    client: Optimizer,
    *,
    server: Optimizer | None = None,
    corrections: Sequence[Correction] = (),
    schedule: Schedule | None = None,
    name: str = "fedavg",
    **more: Any,
) -> Algorithm:
    """FedAvg (McMahan et al. 2017); with a ``server`` optimizer FedOpt (Reddi et al. 2021).

    >>> from fedslice.tasks import quadratic
    >>> fedavg(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).name
    'fedavg'
    """
    mix, work = _split(more)
    local = local_parts.sgd(model, client, corrections=corrections, schedule=schedule, **work)
    return _compose(name, local, servers.optimize(server), **mix)


def fedsubavg(model: Model, client: Optimizer, *, heat: Heat, **more: Any) -> Algorithm:
    """FedSubAvg (Ding et al. 2022): FedAvg with each row's mean update corrected by its heat.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> fedsubavg(task.model, optax.sgd(0.5), heat=task.train.heat(task.model), steps=1, batch=1).name
    'fedsubavg'
    """
    return fedavg(model, client, heat=heat, name="fedsubavg", **more)


def fedsgd(model: Model, *, server: Optimizer, **more: Any) -> Algorithm:
    """FedSGD (McMahan et al. 2017): one full-batch gradient of each client, one step of the
    server's optimizer.

    >>> from fedslice.tasks import quadratic
    >>> fedsgd(quadratic.example1(clients=4).model, server=optax.sgd(0.5)).name
    'fedsgd'
    """
    mix, work = _split(more)
    return _compose("fedsgd", local_parts.gradient(model, **work), servers.optimize(server), **mix)


def central(model: Model, client: Optimizer, *, steps: int, batch: int) -> Algorithm:
    """CentralSGD: run it on ``population.pool()`` with ``sampling.full()`` and a batch of cohort x
    local batch, so that it sees as many examples a round as the federated algorithms.

    >>> from fedslice.tasks import quadratic
    >>> central(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=4).name
    'central'
    """
    return fedavg(model, client, weights="uniform", steps=steps, batch=batch, name="central")


def fedprox(model: Model, client: Optimizer, *, mu: float = 0.01, **more: Any) -> Algorithm:
    """FedProx (Li et al. 2020): FedAvg with mu/2 ||x - x_t||^2 added to every client's loss.

    >>> from fedslice.tasks import quadratic
    >>> fedprox(quadratic.example1(clients=4).model, optax.sgd(0.1), mu=0.1, steps=5, batch=1).name
    'fedprox'
    """
    return fedavg(model, client, corrections=[local_parts.proximal(mu)], name="fedprox", **more)


def fednova(
    model: Model,
    client: Optimizer,
    *,
    momentum: float = 0.0,
    proximal: float = 0.0,
    stages: Sequence[Stage] = (),
    **more: Any,
) -> Algorithm:
    """FedNova (Wang et al. 2020): updates normalised by local progress.  ``momentum`` and
    ``proximal`` (rate x mu) describe the local solver.

    >>> from fedslice.tasks import quadratic
    >>> fednova(quadratic.example1(clients=4).model, optax.sgd(0.1), epochs=2, batch=1).name
    'fednova'
    """
    return fedavg(
        model,
        client,
        stages=[*stages, parts.nova(momentum, proximal, more.get("schedule"))],
        name="fednova",
        **more,
    )


def scaffold(
    model: Model,
    rate: float,
    *,
    clients: int,
    examples: int | None = None,
    option: int = 2,
    server_rate: float = 1.0,
    **more: Any,
) -> Algorithm:
    """SCAFFOLD (Karimireddy et al. 2020), exact, with client memory; ``clients`` is N.

    On tables it is to rounding the same as on dense leaves: the server moves a row for those who do
    not hold it.  Means are uniform, as published; ``weights="examples"``, the weighted case of Ding
    et al. (2022), needs ``examples``, the number that all clients have.

    >>> from fedslice.tasks import quadratic
    >>> scaffold(quadratic.example1(clients=4).model, 0.1, clients=4, steps=5, batch=1).name
    'scaffold'
    """
    if more.get("heat") is not None:
        raise InputError(
            "SCAFFOLD as published has no heat correction: use recipes.scaffold_heat, or leave"
            " heat out"
        )
    mix, work = _split({"weights": "uniform", **more})
    if model.tables and any(stage.alters for stage in mix.get("stages", ())):
        raise InputError(
            "SCAFFOLD's clients send y - x + tau eta c for the rows of tables, which clip, compress"
            " and nova would not take for y - x: leave them out, or use scaffold_heat"
        )
    local = local_parts.scaffold(model, rate, option=option, **work)
    return _compose(
        "scaffold", local, servers.scaffold(_total(clients, examples, mix), server_rate), **mix
    )


def scaffold_heat(
    model: Model,
    rate: float,
    *,
    clients: int,
    examples: int | None = None,
    option: int = 2,
    server_rate: float = 1.0,
    **more: Any,
) -> Algorithm:
    """SCAFFOLD among the holders of a row: c_m is the mean of their c_i, they alone move it, and
    their mean update is corrected by heat, as in FedSubAvg.  Arguments as for :func:`scaffold`.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> scaffold_heat(task.model, 0.1, clients=4, heat=task.train.heat(task.model), steps=5, batch=1).name
    'scaffold-heat'
    """
    mix, work = _split({"weights": "uniform", **more})
    _need_heat(model, mix, "Heat-corrected SCAFFOLD")
    local = local_parts.scaffold(model, rate, option=option, holders=True, **work)
    server = servers.scaffold(_total(clients, examples, mix), server_rate, holders=True)
    return _compose("scaffold-heat", local, server, **mix)


def _total(clients: int, examples: int | None, mix: dict[str, Any]) -> int:
    """The weight of all clients, of which a variate is the mean."""
    if mix["weights"] == "uniform":
        return clients
    if examples is None:
        raise InputError(
            "weights='examples' needs examples=population.examples, or the variate is no mean"
        )
    return examples


def scaffold_approximate(
    model: Model, client: Optimizer, *, participation: float, **more: Any
) -> Algorithm:
    """SCAFFOLD's stateless server-side approximation (Ding et al. 2022, eq. 47).

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> scaffold_approximate(model, optax.sgd(0.1), participation=0.5, steps=5, batch=1).name
    'scaffold-approximate'
    """
    mix, work = _split(more)
    server = servers.approximate(participation)
    return _compose("scaffold-approximate", local_parts.sgd(model, client, **work), server, **mix)


def mime(
    model: Model, optimizer: Optimizer, *, lite: bool = False, batch: int = 32, **more: Any
) -> Algorithm:
    """Mime (Karimireddy et al. 2021): clients step with the server's ``optimizer``, its state
    frozen.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> mime(task.model, optax.sgd(0.1, momentum=0.9), heat=task.train.heat(task.model), steps=5, batch=1).name
    'mime'
    """
    mix, work = _split(more)
    if not lite:
        _need_heat(model, mix, "Mime")
    local = local_parts.mime(model, optimizer, correct=not lite, batch=batch, **work)
    survey = (
        None if lite else local_parts.gradient(model, batch=batch, start=lambda offer: offer.params)
    )
    return _compose(
        "mimelite" if lite else "mime", local, servers.mime(optimizer, lite), survey=survey, **mix
    )


def mimelite(model: Model, optimizer: Optimizer, **more: Any) -> Algorithm:
    """MimeLite (Karimireddy et al. 2021): Mime without the correction.

    >>> from fedslice.tasks import quadratic
    >>> mimelite(quadratic.example1(clients=4).model, optax.sgd(0.1), steps=5, batch=1).name
    'mimelite'
    """
    return mime(model, optimizer, lite=True, **more)


def feddane(
    model: Model, client: Optimizer, *, mu: float = 0.01, batch: int = 32, **more: Any
) -> Algorithm:
    """FedDANE (Li et al. 2019): a survey of gradients, then proximal local steps with a linear
    correction.

    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> feddane(task.model, optax.sgd(0.1), heat=task.train.heat(task.model), steps=5, batch=1).name
    'feddane'
    """
    mix, work = _split(more)
    _need_heat(model, mix, "FedDANE")
    local = local_parts.dane(model, client, mu=mu, batch=batch, **work)
    return _compose(
        "feddane", local, servers.dane(), survey=local_parts.gradient(model, batch=batch), **mix
    )


def feddyn(
    model: Model, client: Optimizer, *, mu: float = 0.1, clients: int, **more: Any
) -> Algorithm:
    """FedDyn (Acar et al. 2021): dynamic regularisation with a dual variable on each client;
    ``clients`` is N.

    >>> from fedslice.tasks import quadratic
    >>> feddyn(quadratic.example1(clients=4).model, optax.sgd(0.1), clients=4, steps=5, batch=1).name
    'feddyn'
    """
    mix, work = _split(more, weights="uniform")
    local = local_parts.dynamic(model, client, mu=mu, **work)
    return _compose("feddyn", local, servers.dynamic(mu, clients), **mix)


def fedpd(model: Model, client: Optimizer, *, mu: float = 0.1, **more: Any) -> Algorithm:
    """FedPD (Zhang et al. 2021): the primal-dual method; every client takes part in every round.

    >>> from fedslice.tasks import quadratic
    >>> fedpd(quadratic.example1(clients=4).model, optax.sgd(0.1), steps=5, batch=1).name
    'fedpd'
    """
    mix, work = _split(more, weights="uniform")
    return _compose(
        "fedpd",
        local_parts.dynamic(model, client, mu=mu, send_dual=True, **work),
        servers.optimize(),
        **mix,
    )


def fedpa(
    model: Model, client: Optimizer, *, server: Optimizer | None = None, **more: Any
) -> Algorithm:
    """FedPA (Al-Shedivat et al. 2021): updates of local posteriors; local work as in
    ``client.posterior``.

    >>> from fedslice.tasks import quadratic
    >>> fedpa(quadratic.example1(clients=4).model, optax.sgd(0.1), samples=3, window=2, batch=1).name
    'fedpa'
    """
    mix, sampling = _split(more)
    return _compose(
        "fedpa", local_parts.posterior(model, client, **sampling), servers.optimize(server), **mix
    )


def fedmid(
    model: Model, rate: float, regulariser: Regulariser, *, server_rate: float = 1.0, **more: Any
) -> Algorithm:
    """Federated mirror descent (Yuan et al. 2021) for a loss with ``regulariser``.

    As in the paper clients and server both shrink, so at rest the strength counts twice; with
    ``server_only=True`` (their FedMiD-OSP) once.

    >>> from fedslice import prox
    >>> from fedslice.tasks import quadratic
    >>> fedmid(quadratic.example1(clients=4).model, 0.1, prox.l1(0.01), steps=5, batch=1).name
    'fedmid'
    """
    mix, work = _split(more)
    server = servers.mirror(regulariser, server_rate)
    return _compose("fedmid", local_parts.mirror(model, regulariser, rate, **work), server, **mix)


def feddualavg(
    model: Model, rate: float, regulariser: Regulariser, *, server_rate: float = 1.0, **more: Any
) -> Algorithm:
    """Federated dual averaging (Yuan et al. 2021) for a loss with ``regulariser``.

    >>> from fedslice import prox
    >>> from fedslice.tasks import quadratic
    >>> feddualavg(quadratic.example1(clients=4).model, 0.1, prox.l1(0.01), steps=5, batch=1).name
    'feddualavg'
    """
    mix, work = _split(more)
    server = servers.dual(regulariser, server_rate)
    return _compose("feddualavg", local_parts.dual(model, regulariser, rate, **work), server, **mix)


def qffl(
    model: Model,
    rate: float,
    *,
    q: float = 1.0,
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    **work: Any,
) -> Algorithm:
    """q-FFL (Li et al. 2020): clients with a higher loss count more.

    >>> from fedslice.tasks import quadratic
    >>> qffl(quadratic.example1(clients=4).model, 0.1, q=2.0, steps=5, batch=1).name
    'qffl'
    """
    local = local_parts.sgd(model, optax.sgd(rate), **work)
    _check_heat(model, heat)
    return algorithm(
        local, [*stages, parts.qffl(q, rate, heat, coefficient)], servers.optimize(), name="qffl"
    )


def afl(
    model: Model, client: Optimizer, *, rate: float = 0.1, stages: Sequence[Stage] = (), **more: Any
) -> Algorithm:
    """Agnostic federated learning (Mohri et al. 2019): weights that ascend on the worst mixture of
    clients.

    >>> from fedslice.tasks import quadratic
    >>> afl(quadratic.example1(clients=4).model, optax.sgd(0.1), rate=0.1, steps=5, batch=1).name
    'afl'
    """
    if "weights" in more:
        raise InputError("AFL makes the clients' weights itself: leave weights out")
    if more.get("heat") is not None:
        raise InputError(
            "AFL changes the clients' weights as it goes: heat correction, which needs them, cannot"
            " be used"
        )
    return fedavg(model, client, stages=[*stages, parts.agnostic(rate)], name="afl", **more)


def superquantile(model: Model, client: Optimizer, *, share: float = 0.5, **more: Any) -> Algorithm:
    """Superquantile learning, Delta-FL (Laguel et al. 2021): the worst ``share`` of the cohort
    only.

    >>> from fedslice.tasks import quadratic
    >>> superquantile(quadratic.example1(clients=4).model, optax.sgd(0.1), share=0.5, steps=5, batch=1).name
    'superquantile'
    """
    return fedavg(model, client, reduce=worst(share), name="superquantile", **more)


def ifca(
    model: Model, client: Optimizer, *, models: int = 2, spread: float = 0.1, **more: Any
) -> Algorithm:
    """IFCA / HypCluster (Ghosh et al. 2020, Mansour et al. 2020): each client trains the best of k
    models.

    >>> from fedslice.tasks import quadratic
    >>> ifca(quadratic.example1(clients=4).model, optax.sgd(0.1), models=3, steps=5, batch=1).name
    'ifca'
    """
    mix, work = _split(more)
    if mix.get("heat") is not None:
        raise InputError(
            "IFCA divides a row's holders between its models, so N / n_m would be wrong: leave"
            " heat out"
        )
    return _compose(
        "ifca",
        local_parts.cluster(model, client, **work),
        servers.cluster(model, models, spread),
        **mix,
    )


def fedrecon(
    model: Model,
    client: Optimizer,
    *,
    reconstruction: Optimizer,
    server: Optimizer | None = None,
    **more: Any,
) -> Algorithm:
    """FedRecon (Singhal et al. 2021): local leaves rebuilt on support, global ones trained on
    query; local work as in ``client.reconstruct``.  Updates weigh as their query examples, so
    ``heat`` is that of the query part, ``halves.heat(population, split, model)``.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> fedrecon(model, optax.sgd(0.5), reconstruction=optax.sgd(0.1), steps=1, batch=1).name
    'fedrecon'
    """
    mix, work = _split(more)
    local = local_parts.reconstruct(model, client, reconstruction=reconstruction, **work)
    return _compose("fedrecon", local, servers.optimize(server), **mix)


def maml(
    model: Model,
    client: Optimizer,
    *,
    inner_rate: float,
    server: Optimizer | None = None,
    weights: str = "uniform",
    **more: Any,
) -> Algorithm:
    """Federated MAML, Per-FedAvg (Fallah et al. 2020): the model that one gradient step makes a
    client's own; local work and ``first_order`` as in ``client.maml``.  Clients count for their
    query examples, and so must the heat: with ``query = parts.query(population, split)`` it is
    ``query.heat(model)`` in first order, which sends the rows of that part, and
    ``population.heat(model, query.counts)`` in full, which changes support rows too.

    >>> from fedslice.tasks import quadratic
    >>> maml(quadratic.example1(clients=4).model, optax.sgd(0.5), inner_rate=0.1, steps=1, batch=1).name
    'maml'
    """
    mix, work = _split({**more, "weights": weights})
    local = local_parts.maml(model, client, inner_rate=inner_rate, **work)
    return _compose("maml", local, servers.optimize(server), **mix)


def reptile(
    model: Model,
    client: Optimizer,
    *,
    rate: float | optax.Schedule = 1.0,
    split: Split = "half",
    **more: Any,
) -> Algorithm:
    """Reptile (Nichol et al. 2018): FedAvg with uniform weights and ``rate`` (their epsilon, or a
    schedule by round) on the server.  A client adapts by the same local work on its support
    examples.

    >>> from fedslice.tasks import quadratic
    >>> reptile(quadratic.example1(clients=4).model, optax.sgd(0.5), rate=0.5, steps=5, batch=1).name
    'reptile'
    """
    mix, work = _split(more, weights="uniform")
    local = local_parts.sgd(model, client, **work)
    tuning = {name: work[name] for name in ("steps", "epochs", "batch") if name in work}
    adapting = local._replace(adapt=local_parts.finetune(model, client, split=split, **tuning))
    return _compose("reptile", adapting, servers.optimize(optax.sgd(rate)), **mix)


def ditto(
    model: Model, client: Optimizer, *, server: Optimizer | None = None, **more: Any
) -> Algorithm:
    """Ditto (Li et al. 2021): FedAvg, and on each client a model of its own that is pulled to the
    global one; ``pull``, ``personal`` and local work as in ``client.ditto``.  ``kept.kept`` tells
    what the clients' own models gain.

    >>> from fedslice.tasks import quadratic
    >>> ditto(quadratic.example1(clients=4).model, optax.sgd(0.1), pull=0.5, steps=5, batch=1).name
    'ditto'
    """
    mix, work = _split(more)
    return _compose(
        "ditto", local_parts.ditto(model, client, **work), servers.optimize(server), **mix
    )


def fedper(
    model: Model, client: Optimizer, *, server: Optimizer | None = None, **more: Any
) -> Algorithm:
    """FedPer (Arivazhagan et al. 2019): FedAvg on the global leaves; each client keeps its local
    ones between rounds. ``kept.kept`` tells what they gain.

    >>> import jax.numpy as jnp
    >>> first = {"g": jnp.zeros(()), "l": jnp.zeros(())}
    >>> model = Model(lambda key: first, lambda p, b: (p["g"] + p["l"] - b["a"]) ** 2, local="l")
    >>> fedper(model, optax.sgd(0.1), steps=5, batch=1).name
    'fedper'
    """
    mix, work = _split(more)
    return _compose(
        "fedper", local_parts.keep(model, client, **work), servers.optimize(server), **mix
    )


def _split(more: dict[str, Any], **fixed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes to :func:`_compose`, and the local work; ``fixed`` is the recipe's own to say."""
    if taken := set(more) & set(fixed):
        raise InputError(
            f"{', '.join(sorted(taken))} cannot be chosen here: by its definition it is {fixed}"
        )
    shared = ("weights", "heat", "coefficient", "stages", "reduce")
    mix: dict[str, Any] = {name: more[name] for name in shared if name in more}
    return {**mix, **fixed}, {name: value for name, value in more.items() if name not in mix}


def _compose(
    name: str,
    local: Client,
    server: Server,
    weights: str = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    survey: Client | None = None,
) -> Algorithm:
    _check_heat(local.model, heat)
    return algorithm(
        local, [*stages, parts.mean(weights, heat, coefficient)], server, reduce, name, survey
    )


def _check_heat(model: Model, heat: Heat | None) -> None:
    if heat is not None:
        heat.check({name: table.rows for name, table in model.tables.items()})


def _need_heat(model: Model, mix: dict[str, Any], name: str) -> None:
    """A row's correction averages to zero over its holders; its mean update must then be theirs,
    which needs n_m."""
    if model.tables and mix.get("heat") is None:
        raise InputError(
            f"{name} on tables needs heat=population.heat(model): its corrections are means over"
            " rows' holders"
        )
