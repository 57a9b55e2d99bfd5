"""Algorithms that hide rows, and deployments of them that draw as a simulation does."""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import optax
from laws import MODEL
from nodes import SEED, Deployment
from problems import people

import fedslice as fs
from fedslice.deploy.link import Fault
from fedslice.deploy.trial import drawn_apart
from fedslice.types import Algorithm, Answers, Stage

WORK = fs.Work(steps=3, batch=4)
EVERYBODY = fs.sampling.uniform(7)
LEAST = 5
HEAT = fs.privacy.heat.public(people().heat(MODEL))


def kept(make: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """What it makes without arguments is one and the same, so that it is traced once."""
    usual = cache(make)

    @wraps(make)
    def made(*given: Any, **settings: Any) -> Algorithm:
        return make(*given, **settings) if given or settings else usual()

    return made


def subavg(stages: list[Stage], heat: Any = HEAT, **settings: Any) -> Algorithm:
    given = {"work": WORK, "weights": "uniform", **settings}
    return fs.recipes.fedsubavg(MODEL, optax.sgd(0.1), heat=heat, stages=stages, **given)


@kept
def secure(answers: Answers | None = None, heat: Any = HEAT, **settings: Any) -> Algorithm:
    stages = [fs.stage.clip(1.0), fs.stage.secure(7, answers=answers)]
    return subavg(stages, heat, **settings)


@kept
def weighted() -> Algorithm:
    stages = [fs.stage.clip(1.0), fs.stage.secure(7, heaviest=6.0)]
    return fs.recipes.fedavg(MODEL, optax.sgd(0.1), WORK, stages=stages)


@kept
def with_server_noise() -> Algorithm:
    stages = fs.privacy.central(1.0, 0.5, EVERYBODY, heat=HEAT)
    return subavg([*stages, fs.stage.secure(7, toward_zero=True)])


@kept
def shares(**settings: Any) -> Algorithm:
    given = {"heat": HEAT, "numbers": 40, **settings}
    return subavg(fs.privacy.distributed(1.0, 0.5, EVERYBODY, LEAST, **given))


@kept
def local() -> Algorithm:
    return subavg(fs.privacy.local(1.0, 2.0, EVERYBODY, heat=HEAT))


def deployed(method: Algorithm, home: Path, **settings: Any) -> Deployment:
    """All seven nodes, which draw from the seed, and the padded sizes of a simulation."""
    plain = fs.simulate(method, people(), sampler=EVERYBODY, seed=SEED, engine="map", threads=1)
    given = {"sampler": EVERYBODY, "room": plain.planner.capacity, "node": {"trial": True}}
    return Deployment("hidden", home, method, **(given | settings))


def simulated(method: Algorithm, counted: list[list[int]]) -> Any:
    """The simulation of the clients that counted, in so many rounds."""
    settings = {"sampler": EVERYBODY, "seed": SEED, "engine": "map", "threads": 1}
    run = fs.simulate(method, people(), **settings)
    run.cohort = lambda round: np.array(counted[round] if round < len(counted) else [], np.int64)
    list(run.rounds(len(counted)))
    return run


def with_shares(method: Algorithm, counted: list[list[int]]) -> Algorithm:
    """A simulation's algorithm whose noise is the sum of the shares that the counted clients draw,
    each by its own key."""
    return drawn_apart(method, counted, range(7), SEED)


class At:
    """A fault in one step of a round (turns of the union from 0, of the sum from 5, or from 0 where
    there is no union), and from there on silence, if it is to ``leave``."""

    def __init__(self, step: int, fault: Fault, leave: bool = False) -> None:
        self.step, self.fault, self.leave, self.now = step, fault, leave, -1

    def __call__(self, answer: Callable[[], bytes], earlier: Sequence[bytes]) -> bytes | None:
        self.now += 1
        if self.now == self.step:
            return self.fault(answer, earlier)
        return None if self.leave and self.now > self.step else answer()
