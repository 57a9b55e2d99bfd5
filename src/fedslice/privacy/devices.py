"""Noise that clients add themselves, by composition of stages.

    [ball, mean with a fixed denominator, local_noise]    every client enough for itself: ``local``
    [ball, mean with a fixed denominator, skellam]        a share each, below a secure sum:
                                                          ``distributed``

The server sees no update without noise, or none but in a sum, so it need not be trusted with them.
The price: noise falls on every row of every table of every client, and so all rows travel, both
ways: a client that asked for its own rows, or sent them alone, would tell what it holds.
"""

from fedslice.data.sampling import Sampler
from fedslice.heat import Heat
from fedslice.privacy.trusted import accountable
from fedslice.stage.averaging import mean
from fedslice.stage.bounding import ball
from fedslice.stage.gaussian import local_noise
from fedslice.stage.shared_noise import skellam
from fedslice.types import Stage


def local(
    clip: float,
    noise: float,
    sampler: Sampler,
    *,
    heat: Heat | None = None,
    power: float = 0.5,
) -> list[Stage]:
    """The stages of a mean of updates that are private before they leave: give them to a recipe as
    ``stages=``, with ``weights="uniform"``.

    Every client adds N(0, z^2 C^2) to its clipped update, on *all* rows of the tables.  A
    simulation adds the sum of these numbers, one of variance n z^2 C^2 on every row for n clients
    that came: the same in law.  Its bytes are those of all rows, down and up, of every client; no
    row is named.

    Not hidden: that a client takes part, and what it reports of its work (loss, examples, steps).

    Args:
        clip: the bound C on the norm of a client's update (of A times it, with heat).
        noise: the multiplier z of each client's own noise; it must be much larger than that of
            ``central``, for the mean of K clients has noise z C / sqrt(K), not z C / K.
        sampler: who takes part; drawing some at random does not help here, for the server knows
            who came, but coming seldom does: ``sampling.cyclic(50, 20)``.  The run must be given
            the same.
        heat: corrects rows as FedSubAvg does; released privately (``privacy.heat.estimate``) or
            public (``privacy.heat.public``).
        power: a of the geometry A = diag(c^a).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> drawn = fs.sampling.uniform(50)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1),
    ...                            weights="uniform",
    ...                            stages=fs.privacy.local(clip=1.0, noise=4.0, sampler=drawn))
    >>> run = fs.simulate(method, task.train, sampler=drawn)
    >>> report = run.train(1, progress=False)
    >>> run.algorithm.noise.kind, report.bytes_up // 50  # 12 of head, 24 told, two rows of 4
    ('local', 44)
    """
    cohort = accountable(sampler, "cyclic")
    return [
        ball(clip, heat, power),
        mean("uniform", heat, denominator=cohort),
        local_noise(noise, sampler),
    ]


def distributed(
    clip: float,
    noise: float,
    sampler: Sampler,
    least: int,
    *,
    scale: float = 1024.0,
    numbers: int = 10_000,
    heat: Heat | None = None,
    power: float = 0.5,
) -> list[Stage]:
    """The stages of a mean whose noise clients add in shares, in whole numbers, so that a secure
    sum hides the shares: give them to a recipe as ``stages=``, with ``weights="uniform"``.

    Any ``least`` clients together add Skellam noise of variance (z l2)^2 to the sum, on all rows;
    l2 is the norm that rounding to whole numbers is kept to (:mod:`fedslice.stage.shared_noise`).
    A round to which fewer came is thrown away.  A simulation adds the sum of the shares, the same
    in law.  Bytes are those of 32 bits for every number of all rows, without what a secure sum's
    own keys and masks need.

    Args:
        clip: the bound C on the norm of a client's update (of A times it, with heat).
        noise: the noise multiplier z of the sum of ``least`` clients.
        sampler: who takes part, ``sampling.uniform(K)``: the number of clients shows in the amount
            of noise, so it must be public.  The run must be given the same.
        least: how many clients at least must come for a sum to count.
        scale: whole numbers for each unit of the ball; more is finer and needs more bits.
        numbers: about how many numbers of a client's update are not zero: a public guess, which
            costs nothing if it is wrong but that clients then round toward zero.
        heat: corrects rows as FedSubAvg does; released privately (``privacy.heat.estimate``) or
            public (``privacy.heat.public``).
        power: a of the geometry A = diag(c^a).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=100)
    >>> drawn = fs.sampling.uniform(50)
    >>> private = fs.privacy.distributed(clip=1.0, noise=0.5, sampler=drawn, least=40, numbers=2)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1),
    ...                            weights="uniform", stages=private)
    >>> run = fs.simulate(method, task.train, sampler=drawn)
    >>> run.algorithm.noise.kind, run.algorithm.noise.details["least"]
    ('skellam', 40)
    """
    cohort = accountable(sampler)
    return [
        ball(clip, heat, power),
        mean("uniform", heat, denominator=cohort),
        skellam(noise, sampler, least, scale, numbers),
    ]
