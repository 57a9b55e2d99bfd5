"""What a training tells about each of its clients: the guarantee of an algorithm as it was run."""

from dataclasses import replace
from math import sqrt

from fedslice.heat import Release
from fedslice.privacy.account import Guarantee, guarantee
from fedslice.privacy.mechanism import Central, Mechanism
from fedslice.privacy.release import HeatCounts
from fedslice.types import Algorithm, Noise


def spent(
    algorithm: Algorithm, clients: int, rounds: int, delta: float | None = None
) -> Guarantee | None:
    """The guarantee after so many rounds among so many clients with data, heat included; None if
    nothing is noised.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> stages = fs.privacy.central(clip=1.0, noise=1.0, sampler=fs.sampling.poisson(10))
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), weights="uniform", stages=stages)
    >>> round(spent(method, clients=100, rounds=20).epsilon, 2)
    3.59
    """
    if algorithm.noise is None or rounds < 1:
        return None
    training = _training(algorithm.noise, clients, rounds)
    heats = {id(s.heat): s.heat.release for s in algorithm.stages if s.heat is not None}
    told = [release for release in heats.values() if release is not None]
    others = [made for release in told for made in _once(release)]
    found = guarantee(training, *others, delta=delta)
    bare = tuple(f"heat, known by {each.text}" for each in told if each.epsilon is not None)
    return replace(found, not_covered=(*found.not_covered, *bare))


def _training(noise: Noise, clients: int, rounds: int) -> Mechanism:
    cohort = float(clients) if noise.clients is None else noise.clients
    return Central(clients, cohort, noise.multiplier, rounds, noise.sampling)


def _once(release: Release) -> list[Mechanism]:
    if release.multiplier is None:
        return []
    return [HeatCounts(std=release.multiplier * sqrt(release.rows), rows=release.rows)]
