"""Differential privacy without sampling at random: noise that is correlated over rounds.

    [ball, mean with a fixed denominator, correlated_noise]

(DP-FTRL; see :mod:`fedslice.stage.correlated`).
"""

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.averaging import mean
from fedslice.stage.bounding import ball
from fedslice.stage.correlated import Strategy, correlated_noise
from fedslice.types import Stage


def matrix(
    clip: float,
    noise: float,
    sampler: Sampler,
    strategy: Strategy,
    *,
    clients: float | None = None,
    heat: Heat | None = None,
    power: float = 0.5,
) -> list[Stage]:
    """The stages of a mean whose noise takes back some of what earlier rounds added: give them to a
    recipe as ``stages=``, with ``weights="uniform"``.

    Args:
        clip: the bound C on the norm of a client's update (of A times it, with heat).
        noise: the standard deviation of each Gaussian over C.  What it is worth depends on how
            often a client takes part and how many rounds apart, which the accountant is told.
        sampler: who takes part, in any way that does not look at the clients' data; nobody's being
            drawn need be secret.  The further apart a client's rounds are the better:
            ``sampling.cyclic(50, 20)``.  The run must be given the same.
        strategy: what each round's noise is made of, for all rounds of the training:
            ``banded_inverse(rounds=200, bands=16)`` or ``Tree(200)`` of
            :mod:`fedslice.privacy.accounting.matrix`.
        clients: K, what sums are divided by, for a sampler that does not say how many come.
        heat: corrects rows as FedSubAvg does; released privately (``privacy.heat.estimate``) or
            public (``privacy.heat.public``).
        power: a of the geometry A = diag(c^a).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> from fedslice.privacy.accounting.matrix import banded_inverse
    >>> drawn = fs.sampling.cyclic(10, 5)
    >>> private = fs.privacy.matrix(1.0, 4.0, drawn, banded_inverse(rounds=20, bands=4))
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1),
    ...                            weights="uniform", stages=private)
    >>> run = fs.simulate(method, task.train, sampler=drawn)
    >>> _ = run.train(20, progress=False)
    >>> run.algorithm.noise.kind, run.algorithm.noise.rounds
    ('matrix', 20)
    """
    if sampler.by_examples:
        raise InputError(
            f"{sampler.name} may draw a client twice in a round, whose part is then twice as large"
            " as is accounted for: use sampling.uniform(K)"
        )
    cohort = sampler.clients if sampler.clients is not None else clients
    if cohort is None:
        raise InputError(
            f"{sampler.name} does not say how many clients come: give clients=K, what sums are"
            " divided by"
        )
    return [
        ball(clip, heat, power),
        mean("uniform", heat, denominator=cohort),
        correlated_noise(noise, sampler, strategy),
    ]
