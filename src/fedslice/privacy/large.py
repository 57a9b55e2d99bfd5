"""Central differential privacy for tables too large to go over in every round.

    [ball, mean with a fixed denominator], and a server that adds the noise to rows as they are read

(:mod:`fedslice.server.random_walks`).
"""

from fedslice.data.sampling import Sampler
from fedslice.heat import Heat
from fedslice.privacy.trusted import accountable
from fedslice.server.random_walks import lazy_noise
from fedslice.stage.averaging import mean
from fedslice.stage.bounding import ball
from fedslice.stage.gaussian import check_multiplier
from fedslice.types import Noise, Server, Stage


def lazy(
    clip: float,
    noise: float,
    sampler: Sampler,
    *,
    rate: float = 1.0,
    rounds: int = 10_000,
    heat: Heat | None = None,
    power: float = 0.5,
) -> tuple[list[Stage], Server]:
    """Stages and server of a private mean, the same in law as ``central`` with plain averaging, at
    the cost of the rows that a round reads: give both to ``fs.algorithm``.

    All that clients are sent and all that is evaluated, in whichever rounds, has jointly the law of
    noise on all rows in every round.  The server's state, and so a checkpoint, is a secret.

    Args:
        clip: the bound C on the norm of a client's update (of A times it, with heat); it is fixed.
        noise: the noise multiplier z.
        sampler: who takes part: ``sampling.poisson(50)`` (recommended) or ``uniform``; the run must
            be given the same.
        rate: of the server, which can have no momentum: with it old noise would go on moving rows.
        rounds: the most rounds of the training; a row that is read costs log2 of it.
        heat: corrects rows as FedSubAvg does; released privately (``privacy.heat.estimate``) or
            public (``privacy.heat.public``).
        power: a of the geometry A = diag(c^a).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> drawn = fs.sampling.poisson(50)
    >>> local = fs.client.sgd(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1))
    >>> method = fs.algorithm(local, *fs.privacy.lazy(clip=1.0, noise=0.5, sampler=drawn))
    >>> run = fs.simulate(method, task.train, sampler=drawn)
    >>> run.algorithm.noise[:4]
    ('gaussian', 0.5, 'poisson', 50)
    """
    check_multiplier(noise)
    cohort = accountable(sampler)
    stages = [ball(clip, heat, power), mean("uniform", heat, denominator=cohort)]
    spent = Noise(
        "gaussian", noise, sampler.kind, sampler.clients, {"stages": tuple(stages)}, rounds
    )
    return stages, lazy_noise(noise * clip / cohort, spent, rate, heat, power)
