"""Differential privacy for whole clients, by composition of stages.

    [ball, mean with a fixed denominator, noise]

(McMahan et al. 2018; Andrew et al. 2021), and with heat (docs/privacy.md):

    s = sum_i clip(A delta_i, C) + N(0, z^2 C^2 I),     mean_m = c_m A_m^-1 s_m / K

One client changes the sum by at most C, for any public A.  A = diag(c^a) decides where the noise
goes: on row m of the mean it has standard deviation z C c_m^(1 - a) / K.  With a = 0 cold rows get
N/n_m times the noise of hot ones, with a = 1 all rows get the same, but a cold row's update counts
c_m times as much in the norm and uses up the ball; a = 1/2 weighs one against the other, and is
FedSubAvg's own geometry.
"""

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.privacy.accounting.local import split_noise
from fedslice.stage.averaging import mean
from fedslice.stage.bounding import Adapt, ball
from fedslice.stage.gaussian import noise as add_noise
from fedslice.types import Stage


def central(
    clip: float,
    noise: float,
    sampler: Sampler,
    *,
    heat: Heat | None = None,
    power: float = 0.5,
    adapt: Adapt | None = None,
    below: float | None = None,
) -> list[Stage]:
    """The stages of a private mean: give them to a recipe as ``stages=``, with
    ``weights="uniform"``, since a client's number of examples is private too.

    Args:
        clip: the bound C on the norm of a client's update (of A times it, with heat); with
            ``adapt`` the first one.
        noise: the noise multiplier z; ``fedslice privacy`` tells what epsilon it gives.
        sampler: who takes part: ``sampling.poisson(50)`` (recommended) or ``uniform``;
            the run must be given the same.
        heat: corrects rows as FedSubAvg does; itself released privately
            (``privacy.heat.estimate``) or public (``privacy.heat.public``).
        power: a of the geometry A = diag(c^a).
        adapt: let C follow a quantile of the clients' norms, ``privacy.Adapt()``.
        below: noise on the number of clients within the ball (default: a twentieth of the
            cohort, and at least ``noise``); what it costs is taken from the updates' share, so
            that both together are ``noise``.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> drawn = fs.sampling.poisson(50)
    >>> private = fs.privacy.central(clip=1.0, noise=0.5, sampler=drawn)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1),
    ...                            weights="uniform", stages=private)
    >>> run = fs.simulate(method, task.train, sampler=drawn)
    >>> _ = run.train(20, progress=False)
    >>> run.algorithm.noise[:4]
    ('gaussian', 0.5, 'poisson', 50)
    """
    cohort = accountable(sampler)
    told, multiplier = 0.0, noise
    if adapt is not None:
        told = max(cohort / 20, noise) if below is None else below
        multiplier = split_noise(noise, told)
    return [
        ball(clip, heat, power, adapt),
        mean("uniform", heat, denominator=cohort),
        add_noise(multiplier, sampler, below=told, cost=noise),
    ]


def accountable(sampler: Sampler, *more: str) -> float:
    """The clients of a round, on average, of a sampler that an accountant knows; ``more`` are other
    kinds that it knows for this noise.

    >>> from fedslice.data.sampling import poisson
    >>> accountable(poisson(50))
    50
    """
    if sampler.clients is None or sampler.kind not in ("poisson", "uniform", *more):
        raise InputError(
            f"{sampler.name} cannot be accounted for: use sampling.poisson(K), or"
            " sampling.uniform(K); for all clients sampling.poisson(N)"
        )
    return sampler.clients
