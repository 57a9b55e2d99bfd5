"""What a training tells about each of its clients: the guarantee of an algorithm as it was run."""

from dataclasses import replace
from math import ceil, sqrt

from fedslice.errors import InputError
from fedslice.heat import Release
from fedslice.privacy.accounting.account import Guarantee, default_delta, guarantee
from fedslice.privacy.accounting.local import Local
from fedslice.privacy.accounting.matrix import mechanism
from fedslice.privacy.accounting.mechanism import REPLACE, Central, Mechanism
from fedslice.privacy.accounting.release import HeatCounts
from fedslice.privacy.accounting.skellam import Distributed
from fedslice.types import Algorithm, Noise


def spent(
    algorithm: Algorithm,
    clients: int,
    rounds: int,
    delta: float | None = None,
    often: int | None = None,
) -> Guarantee | None:
    """The guarantee after so many rounds among so many clients with data, heat included; None if
    nothing is noised.  ``often`` is in how many of them one client took part at most, if that is
    known: of use where each adds noise for itself.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> stages = fs.privacy.central(clip=1.0, noise=1.0, sampler=fs.sampling.poisson(10))
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), weights="uniform", stages=stages)
    >>> round(spent(method, clients=100, rounds=20).epsilon, 2)
    3.59
    """
    if algorithm.noise is None or rounds < 1:
        return None
    training = _training(algorithm.noise, clients, rounds, often)
    heats = {id(s.heat): s.heat.release for s in algorithm.stages if s.heat is not None}
    told = [release for release in heats.values() if release is not None]
    others = [made for release in told for made in _once(release)]
    level = default_delta(clients) if delta is None else delta
    found = guarantee(training, *others, delta=level, neighbours=_relation(algorithm.noise))
    bare = tuple(f"heat: {each.text}" for each in told if each.multiplier is None)
    return replace(found, not_covered=(*found.not_covered, *bare))


def _relation(noise: Noise) -> str | None:
    """In cohorts of a fixed size a client that comes pushes another out: correlated noise is then
    judged by that.  Other mechanisms see to it themselves."""
    fixed = noise.kind == "matrix" and noise.sampling in ("uniform", "cyclic")
    return REPLACE if fixed else None


def _training(noise: Noise, clients: int, rounds: int, came: int | None) -> Mechanism:
    """What an accountant reads of the noise of so many rounds."""
    cohort = float(clients) if noise.clients is None else noise.clients
    often = ceil(rounds / noise.cycle)  # at most, for one client
    if noise.kind == "local":
        return Local(noise.multiplier, often if came is None else max(1, came))
    if noise.kind == "skellam":
        norms = {name: noise.details[name] for name in ("l2", "l1")}
        return Distributed(
            clients, cohort, noise.multiplier, rounds, sampling=noise.sampling, **norms
        )
    if noise.kind == "matrix":
        strategy = noise.details["strategy"]
        if not hasattr(strategy, "sensitivity"):
            raise InputError(
                f"{strategy} does not say how much one client can change: use a strategy of"
                " fedslice.privacy.accounting.matrix, such as banded_inverse(rounds, bands)"
            )
        return mechanism(strategy, noise.multiplier, often, noise.cycle)
    return Central(clients, cohort, noise.multiplier, rounds, noise.sampling)


def _once(release: Release) -> list[Mechanism]:
    if release.multiplier is None:
        return []
    std = release.multiplier * sqrt(release.rows)
    return [HeatCounts(std=std, rows=release.rows, kind=release.kind)]
