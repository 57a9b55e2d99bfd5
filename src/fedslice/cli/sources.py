"""From settings to the arguments of a recipe, by the names of its parameters.

A parameter that is named here is made of the settings that stand beside it.  One that has the name
of a shared setting is that setting, and any other with a plain default is a setting of the
recipe's own.
"""

from collections.abc import Callable, Mapping
from math import ceil, sqrt
from typing import Any, NamedTuple

import optax

from fedslice import prox
from fedslice.cli.optimizers import optimizer, schedule
from fedslice.cli.settings import Options, Settings
from fedslice.cli.text import built
from fedslice.client import by_round, proximal
from fedslice.data import availability, halves, sampling
from fedslice.data.availability import Availability
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError, nearest
from fedslice.heat import Heat
from fedslice.privacy import heat as private_heat
from fedslice.privacy.devices import distributed, local
from fedslice.privacy.trusted import central
from fedslice.prox import Regulariser
from fedslice.round.program import once
from fedslice.stage.bounding import Adapt
from fedslice.stage.secure_sums import secure
from fedslice.tasks.base import Task
from fedslice.types import Answers, Stage, Work


class Source(NamedTuple):
    """How an argument is made, and of which settings: ``shared`` ones, and some of its ``own`` with
    default and meaning."""

    make: Callable[[Task, Settings], Any]
    shared: tuple[str, ...] = ()
    own: Options = {}  # noqa: RUF012 (never changed)


def client_optimizer(s: Settings, mu: float) -> optax.GradientTransformation:
    """The clients' optimizer, after the pull of a proximal term and before its schedule."""
    pull = [proximal(mu)] if mu else []
    factor = schedule(s.client_schedule)
    after = [] if factor is None else [by_round(factor)]
    return optax.chain(*pull, s.client_optimizer, *after) if pull or after else s.client_optimizer


def pooled_work(task: Task, s: Settings) -> Work:
    """On pooled data: as many examples a round as the cohort goes through."""
    some = int((task.train.counts > 0).sum())
    clients = some if s.sampler == "full" else s.cohort
    passes = max(1, round(s.epochs * task.train.examples / max(1, some) / s.batch))
    steps = min(s.steps, passes) if s.steps and s.epochs else s.steps or passes
    return Work(steps=steps, batch=clients * s.batch)


def sampler(s: Settings, task: Task | None = None) -> Sampler:
    """Who takes part in a round, of those who can; a trace needs the ``task``, whose clients it
    names."""
    plain = _drawing(s)
    if s.values.get("available", "always") == "always":
        return plain
    kinds: dict[str, Callable[..., Availability]] = {
        "sometimes": lambda chance: availability.sometimes(float(chance)),
        "diurnal": lambda day="24", low="0", high="1", zones="1": availability.diurnal(
            int(day), float(low), float(high), float(zones)
        ),
        "markov": lambda share, streak: availability.markov(float(share), float(streak)),
    }
    name, _, file = s.available.partition(":")
    if name == "trace":
        if task is None:
            raise InputError("available=trace: noise is accounted for samplers without a trace")
        return sampling.available(plain, availability.trace(file, task.train))
    return sampling.available(plain, built("available", s.available, kinds))


def _drawing(s: Settings) -> Sampler:
    if s.sampler == "full":
        return sampling.full()
    kinds = {
        "uniform": sampling.uniform,
        "weighted": sampling.weighted,
        "poisson": sampling.poisson,
    }
    if s.sampler not in kinds:
        found = nearest(s.sampler, [*kinds, "full"])
        raise InputError(f"there is no sampler {s.sampler!r}; {found}")
    return kinds[s.sampler](s.cohort)


def heat(task: Task, s: Settings) -> Heat | None:
    """The rows' heat if it is asked for.  Where clients train on a part of their examples they
    count for those, and send their rows; full MAML all of theirs."""
    if not s.values.get("heat", False):
        return None
    if s.values.get("split", "none") == "none":
        return released(task, s)
    if s.heat_privacy not in ("exact", "public"):
        raise InputError(
            f"heat_privacy={s.heat_privacy}: clients that train on a part of their examples cannot"
            " report their heat privately; leave heat or heat_privacy out"
        )
    every, drawn = not s.values.get("first_order", True), s.sampler == "weighted"
    exact = halves.heat(task.train, s.split, task.model, all_rows=every, drawn=drawn)
    return private_heat.public(exact) if s.heat_privacy == "public" else exact


def released(task: Task, s: Settings) -> Heat:
    """Heat as it is, or as clients would tell it."""
    train, model = task.train, task.model
    kinds: dict[str, Callable[..., Heat]] = {
        "exact": lambda: once(task, "heat", lambda: train.heat(model)),  # for all runs of a study
        "public": lambda: private_heat.public(train.heat(model)),
        "response": lambda epsilon="1": private_heat.estimate(
            private_heat.respond(train, model, float(epsilon), s.seed)
        ),
        "sum": lambda noise, rows: private_heat.estimate(
            private_heat.count(train, model, float(noise), int(rows), seed=s.seed)
        ),
    }
    return built("heat_privacy", s.heat_privacy, kinds)


def private_stages(s: Settings, heat: Heat | None) -> list[Stage]:
    """Ball, mean and noise, as differential privacy needs them."""
    if not s.clip > 0:
        raise InputError(
            f"noise={s.noise:g} hides clipped updates only: set clip too, such as clip=1, and try"
            " some"
        )
    if s.compress != "none":
        raise InputError("noise is added to plain numbers: leave compress out")
    adapt = Adapt(quantile=s.clip_quantile) if s.clip_quantile else None
    if adapt is not None and s.noise_by != "server":
        raise InputError("clip_quantile is for noise_by=server: leave one of them out")
    given, how = (s.clip, s.noise, sampler(s)), {"heat": heat, "power": s.geometry}
    kinds: dict[str, Callable[..., list[Stage]]] = {
        "server": lambda: central(*given, adapt=adapt, **how),
        "clients": lambda: local(*given, **how),
        "shares": lambda least: distributed(*given, least=int(least), **how),
    }
    return built("noise_by", s.noise_by, kinds)


def answers(s: Settings) -> Answers | None:
    """How clients answer about the rows of the union; None without a secure sum."""
    kinds: dict[str, Callable[..., Answers | None]] = {
        "no": lambda: None,
        "yes": Answers,
        "answers": lambda p1, p2, p3, p4: Answers(float(p1), float(p2), float(p3), float(p4)),
    }
    return built("secure", s.secure, kinds)


def secure_stage(task: Task, s: Settings) -> list[Stage]:
    """The secure sum, if there is one, with room for the largest cohort to be expected."""
    given = answers(s)
    if given is None:
        return []
    if not s.clip > 0:
        raise InputError("a secure sum adds numbers of a known size: set clip too, such as clip=1")
    some = int((task.train.counts > 0).sum())
    drawn = sampler(s)
    most = some if drawn.clients is None else drawn.clients
    if drawn.kind == "poisson":
        most = min(some, most + 8 * sqrt(most) + 8)  # more come less than once in 10^12 rounds
    bound = 1.0 if s.noise else s.clip
    return [secure(ceil(most), bound=bound, answers=given, toward_zero=s.noise > 0)]


def regulariser(task: Task, s: Settings) -> Regulariser:
    """psi by its name."""
    kinds: Mapping[str, Callable[[float], Regulariser]] = {
        "l1": prox.l1,
        "group": prox.group,
        "box": lambda strength: prox.box(-strength, strength),
    }
    if s.regulariser not in kinds:
        wanted = nearest(s.regulariser, kinds)
        raise InputError(f"regulariser={s.regulariser!r} is not known; {wanted}")
    return kinds[s.regulariser](s.strength)


SOURCES: dict[str, Source] = {
    "model": Source(lambda task, s: task.model),
    "optimizer": Source(
        lambda task, s: client_optimizer(s, 0.0),
        ("client", "client_rate", "gradient_clip", "client_schedule"),
    ),
    "rate": Source(lambda task, s: s.client_rate, ("client_rate",)),
    "schedule": Source(lambda task, s: schedule(s.client_schedule), ("client_schedule",)),
    "work": Source(lambda task, s: s.work, ("steps", "epochs", "batch")),
    "server": Source(
        lambda task, s: s.server_optimizer, ("server", "server_rate", "server_schedule")
    ),
    "heat": Source(heat, ("heat_privacy",)),
    "coefficient": Source(lambda task, s: "examples" if s.sampler == "weighted" else None),
    "stages": Source(
        lambda task, s: s.before_mean,
        (
            "clip",
            "compress",
            "feedback",
            "noise",
            "noise_by",
            "geometry",
            "clip_quantile",
            "secure",
        ),
    ),
    "reduce": Source(lambda task, s: s.reduction, ("reduce",)),
    "population": Source(lambda task, s: task.train),
    "sampler": Source(lambda task, s: sampler(s, task)),
    "regulariser": Source(
        regulariser,
        own={
            "regulariser": ("l1", "l1, group or box"),
            "strength": (0.001, "of psi; half width of the box (our choice)"),
        },
    ),
    "reconstruction": Source(
        lambda task, s: optimizer("sgd", s.reconstruct_rate),
        own={"reconstruct_rate": (0.1, "eta_r (the authors' setting)")},
    ),
    "recover": Source(
        lambda task, s: Work(s.reconstruct_steps, s.reconstruct_epochs, s.batch),
        own={
            "reconstruct_steps": (50, "k_r at most (the paper's MovieLens setting)"),
            "reconstruct_epochs": (5, "passes over support at most (the authors' code)"),
        },
    ),
    "personal": Source(
        lambda task, s: s.chosen("client", s.personal_rate or s.client_rate),
        own={"personal_rate": (0.0, "eta_p (0: the client rate)")},
    ),
}
