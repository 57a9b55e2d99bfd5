"""What noise and secure sums do not protect, refused.

Every number that leaves a client must be bounded and, with noise, be added to by it; who is drawn
must be as it is accounted for.
"""

import operator

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.types import Algorithm, Answers, Noise


def check_bounds(algorithm: Algorithm) -> None:
    """Noise and secure sums are for numbers of a known size, and for updates alone."""
    stages = algorithm.stages
    place = stages.index(algorithm.mean)
    needed = [stage.bound for stage in stages[place + 1 :] if stage.bound is not None]
    needed += [1.0] if algorithm.server.noise is not None else []
    if not needed:
        return
    if algorithm.client.extras or any(stage.extras for stage in stages):
        raise InputError(
            f"{algorithm.name} sends more than updates (variates, gradients, losses or steps), for"
            " which there is no bound: with noise or a secure sum use fedavg, fedsubavg, fedprox,"
            " fedrecon, ..."
        )
    if any(s.weights == "uniform" != algorithm.mean.weights for s in stages[place + 1 :]):
        raise InputError(
            "the secure sum is for clients that count alike: use weights='uniform' (--set"
            " weights=uniform), or give it the largest weight, stage.secure(heaviest=...)"
        )
    noise = algorithm.noise
    if algorithm.most is not None and noise is not None and noise.kind in ("skellam", "local"):
        raise InputError(
            f"what clients send with {noise.kind} noise has it already, in numbers of its own:"
            " leave stage.secure(...) (--set secure) out; privacy.distributed(...) is for a secure"
            " sum by itself"
        )
    if noise is not None and not (algorithm.answers or Answers()).everything:
        raise InputError(
            "answers about rows divide sums by p5, which one client could then change by more than"
            " the noise hides: leave answers out (secure=yes), or the noise"
        )
    if noise is not None and any(stage.lengthens for stage in stages):
        raise InputError(
            "rounding at random can lengthen an update beyond what noise hides: use"
            " stage.secure(..., toward_zero=True)"
        )
    given = stages[place - 1].bound if place else None
    if given is None or given > min(needed):
        raise InputError(
            f"noise and secure sums need updates of norm at most {min(needed):g}: put"
            f" stage.ball(...), or stage.clip({min(needed):g}), right before the mean, as"
            " privacy.central(...) does"
        )


def check_private(algorithm: Algorithm) -> None:
    """Refuse what noise would not hide: everything that leaves a client must be bounded, and be
    added to by noise."""
    name, mean, stages = algorithm.name, algorithm.mean, algorithm.stages
    if mean.weights != "uniform":
        raise InputError(
            f"with differential privacy every client counts alike: a client's examples would be"
            f" told by its weight in {name}; use weights='uniform' (--set weights=uniform)"
        )
    if mean.denominator is None:
        raise InputError(
            "the number of clients that came would be told by the mean: with differential privacy"
            " give it a fixed denominator, stage.mean('uniform', denominator=K), as"
            " privacy.central(...) does"
        )
    for heat in (stage.heat for stage in stages):
        if heat is not None and heat.release is None:
            raise InputError(
                "the heat is exact, and tells who holds a row: release it by"
                " privacy.heat.estimate(...) (--set heat_privacy=sum:4:200), or say that it is"
                " public knowledge by privacy.heat.public(heat) (heat_privacy=public)"
            )


def check_lazy(algorithm: Algorithm) -> None:
    """Refuse noise of the server's beside other noise, or other stages than it is the size of."""
    noise = algorithm.server.noise
    assert noise is not None
    own, last = noise.details["stages"], algorithm.stages[-2:]
    same = len(own) == len(last) and all(map(operator.is_, own, last))
    if not same or any(stage.noise for stage in algorithm.stages):
        raise InputError(
            "the server's noise is of the size of its own ball and mean: give an algorithm both"
            " that privacy.lazy(...) makes, the stages last, and no other noise"
        )
    if any(stage.codes for stage in algorithm.stages):
        raise InputError(
            "a ball needs updates as numbers, not as codes of them: leave out compress"
        )


def check_drawn(noise: Noise, sampler: Sampler) -> None:
    """Refuse a sampler other than the one that is accounted for."""
    if (noise.sampling, noise.clients, noise.cycle) != (
        sampler.kind,
        sampler.clients,
        sampler.cycle,
    ):
        who = "all" if noise.clients is None else f"{noise.clients:g}"
        raise InputError(
            f"the noise is accounted for {noise.sampling} sampling of {who} clients, not for"
            f" {sampler.name}: give privacy.{noise.made_by}(...) the sampler of the run"
        )


def check_rounds(algorithm: Algorithm, rounds: int) -> None:
    """Refuse more rounds than the noise is made for."""
    noise = algorithm.noise
    if noise is not None and noise.rounds is not None and rounds > noise.rounds:
        raise InputError(
            f"the noise is made for {noise.rounds} rounds, and round {rounds} would be without:"
            f" give privacy.{noise.made_by}(...) all rounds of the training"
        )


def check_most(most: int, sampler: Sampler) -> None:
    """Refuse cohorts that a secure sum cannot add up, and messages that count twice."""
    if sampler.by_examples:
        raise InputError(
            f"{sampler.name} may draw a client twice, and a secure sum has each message once: use"
            " sampling.uniform(...) or sampling.poisson(...)"
        )
    if sampler.clients is not None and sampler.clients > most:
        raise InputError(
            f"{sampler.name}: the secure sum has room for {most} clients; give it more,"
            " stage.secure(clients=...)"
        )
