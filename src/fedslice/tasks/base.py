"""A task: data, model, published settings and published results of one workload."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedslice.data.features import Features
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.ranking import Catalogue
from fedslice.model import Model
from fedslice.types import Adaptation

ON = "measured on"
OBSERVED = "measured with fedslice on the real data"


@dataclass(frozen=True, eq=False)
class Target:
    """A figure to reach: rounds to it are what the papers report."""

    metric: str
    value: float
    below: bool = True

    def reached(self, figures: Mapping[str, float]) -> bool:
        """Whether these figures meet the target.

        >>> Target("train_loss", 0.65).reached({"train_loss": 0.64})
        True
        """
        figure = figures[self.metric]
        return figure <= self.value if self.below else figure >= self.value


@dataclass(frozen=True, eq=False)
class Task:
    """One workload, ready to train: ``settings``, each algorithm's ``learning_rates`` and what else
    a single one of the ``algorithms`` was run with are the published ones.

    ``measured`` is how many test (and training) examples are looked at while it trains, where more
    would take too long. ``judged`` is how many of the test clients, drawn anew each time, are
    judged where clients adapt (None: all). ``published`` results stand beside those ``observed``
    with fedslice on the real data. ``validation`` is what settings are chosen on, where they are
    (:meth:`validated`)."""

    name: str
    model: Model
    train: Population
    test: Population
    settings: Mapping[str, Any]
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    published: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    measured: int | None = None
    adaptation: Adaptation | None = (
        None  # how clients get their local leaves, where the algorithm does not say
    )
    algorithms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)
    judged: int | None = None
    # test figures of what needs no training
    baseline: Mapping[str, float] = field(default_factory=dict)
    validation: Population | None = None
    catalogue: Catalogue | None = None  # what is ranked for clients who rebuild their leaves
    in_order: bool = (
        False  # a client's examples are in the order of time, those of its test set later
    )
    # of own data: how they become what the model reads, and what a person should know of them
    features: Features | None = None
    notes: tuple[str, ...] = ()

    def validated(self, share: float = 0.1, seed: int = 0) -> "Task":
        """The same with a ``share`` of its training data held out to choose settings on, in the way
        that its test set was: whole clients where that has others than the training data, each
        client's latest examples where time is known, else any examples.

        >>> from fedslice.tasks import quadratic
        >>> task = quadratic.random_quadratic(clients=20).task.validated(0.2)
        >>> task.train.examples, task.validation.examples
        (16, 4)
        """
        strangers = not np.isin(self.test.clients, self.train.clients).any()
        people = self.train
        if strangers:
            train, held = people.split(clients=share, seed=seed)
        elif "time" in people.columns:
            train, held = people.split(time="time", examples=share)
        elif self.in_order:
            place = np.arange(people.examples) - people.offsets[people.owners]
            late = place >= (people.counts - np.floor(share * people.counts))[people.owners]
            train, held = people.select(~late), people.select(late)
        else:
            train, held = people.split(examples=share, seed=seed)
        if not held.examples:
            raise InputError(
                f"a validation set of {share:g} of the training data has no example: hold out more"
            )
        return replace(self, train=train, validation=held)


@dataclass(frozen=True, eq=False)
class Download:
    """A file that can be fetched, and what its content must be: ``digest`` is ``"md5:..."`` or
    ``"sha256:..."``."""

    url: str
    name: str
    digest: str


@dataclass(frozen=True, eq=False)
class Workload:
    """A task by name, before any data are read: what there is to know, and how to make it.

    ``synthetic(seed=, scale=)`` generates data of the published shape; ``load(path)`` reads the
    real data: a file, a folder or an archive.  Further arguments of the two have defaults: they are
    the task's options.  ``scale`` is the generator's size where the user asks for none: below 1 for
    what would be too slow on a small machine.  ``needs`` says in words which files ``load`` takes
    and where they are to be had."""

    name: str
    summary: str
    synthetic: Callable[..., Task]
    load: Callable[..., Task] | None = None
    needs: str = ""
    files: tuple[str, ...] = ()  # names (or patterns) of which the data folder must hold one
    download: Download | None = None
    scale: float = 1.0
    algorithm: str = "fedsubavg"  # the one to run if the user names none
    statistics: Mapping[str, str] = field(default_factory=dict)  # as published
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    published: Mapping[str, str] = field(default_factory=dict)
    algorithms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)  # with fedslice on the real data

    def sections(self) -> dict[str, dict[str, str]]:
        """What is published about it, and what was found, by heading."""
        goal = self.target
        aim = (
            {"target": f"{goal.metric} {'at most' if goal.below else 'at least'} {goal.value:g}"}
            if goal
            else {}
        )
        rates = {
            f"client rate{name and f', {name}'}": rate for name, rate in self.learning_rates.items()
        }
        alone = {
            f"settings of {name}": ", ".join(f"{key} {value:.4g}" for key, value in given.items())
            for name, given in self.algorithms.items()
        }
        parts = {
            "as published": self.statistics,
            "settings": {**self.settings, **rates, **alone, **aim},
            "published results": self.published,
            OBSERVED: self.observed,
        }
        return {
            title: {key: str(value) for key, value in cells.items()}
            for title, cells in parts.items()
            if cells
        }
