"""Measure a run: losses and the task's metrics on training, validation and test data, and where it
ends by heat and client by client."""

from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedslice.data.availability import participation
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation import clusters
from fedslice.evaluation.by_group import ClientGroups, by_columns, by_size, by_turns
from fedslice.evaluation.by_heat import HeatGroups, heat_groups
from fedslice.evaluation.gain import Gain, Personal
from fedslice.evaluation.kept_models import Kept
from fedslice.evaluation.ranking import Recommending
from fedslice.evaluation.scores import Evaluator, Scores
from fedslice.heat import Heat
from fedslice.simulation.checkpoint import fingerprint
from fedslice.simulation.run import Run
from fedslice.tasks.base import Task

TRAIN_SAMPLE = (
    10_000  # training examples on which the training loss is measured, as in the FedSubAvg paper
)
TRAIN_CLIENTS = 200  # training clients that rebuild their local leaves to be measured
TENTHS = tuple(place / 10 for place in range(1, 10))
TEST, VALIDATION = "test", "validation"
EVEN = ("uniform", "poisson", "full", "weighted", "cyclic")  # samplers that ask all clients alike


class Scorer:
    """Measures train loss, test loss and the task's metrics; made once for a task, used by all its
    runs."""

    def __init__(self, task: Task) -> None:
        self.task = task
        # by run, for runs may be measured side by side
        self.judges: WeakKeyDictionary[Run, dict[str, Callable[[], Gain]]] = WeakKeyDictionary()
        self.popular: dict[str, float] = {}
        self._known_groups: tuple[ClientGroups, dict[str, ClientGroups]] | None = None
        self.held_out = {TEST: task.test} | (
            {} if task.validation is None else {VALIDATION: task.validation}
        )

    @cached_property
    def evaluators(self) -> dict[str, Evaluator]:
        """The test set, or as much of it as the task asks for; the validation set likewise."""
        most = self.task.measured
        return {
            name: Evaluator(self.task.model, data if most is None else data.sample(most))
            for name, data in self.held_out.items()
        }

    @cached_property
    def test_data(self) -> str:
        """A hash of what it is measured on: a run does not go on with other data, which would bend
        its curve."""
        return "+".join(fingerprint(data) for data in self.held_out.values())

    @cached_property
    def train(self) -> Evaluator:
        """A sample of the training data."""
        return Evaluator(
            self.task.model,
            self.task.train.sample(min(TRAIN_SAMPLE, self.task.measured or TRAIN_SAMPLE)),
        )

    @cached_property
    def all(self) -> Evaluator:
        """All training data, by which clients choose among several models."""
        return Evaluator(self.task.model, self.task.train)

    def __call__(self, run: Run) -> dict[str, float]:
        """The figures of one evaluation."""
        gains, more = self._gains(run), {}
        if gains:
            found = {name: gain.after.pooled for name, gain in gains.items()}
            spread = gains[TEST].spread("loss")
            more = {f"gain_{name}": spread[name] for name in ("mean", "p10", "worst", "share")}
        else:
            found = {
                name: each.pooled(run.params(each.ids())) for name, each in self.evaluators.items()
            }
            found["train"] = self.train.pooled(run.params(self.train.ids()), ["loss"])
        figures = {"train_loss": found["train"]["loss"], "test_loss": found[TEST]["loss"]}
        figures |= {name: value for name, value in found[TEST].items() if name != "loss"} | more
        known = found.get(VALIDATION, {})
        return figures | {f"{VALIDATION}_{name}": value for name, value in known.items()}

    def baseline(self) -> dict[str, float]:
        """Test figures of what needs no training; how popular films would do is known once a run
        was measured."""
        return {**self.task.baseline, **self.popular}

    def _gains(self, run: Run) -> dict[str, Gain]:
        """Where clients have models of their own: what those are worth on each set."""
        client = run.algorithm.client
        if run.algorithm.server.several:  # each with the model that suits its own training data
            every = {"train": self.train, **self.evaluators}
            return {name: clusters.gain(run, self.all, each) for name, each in every.items()}
        if client.serve or client.adapt or self.task.model.local:
            return {name: judge() for name, judge in self._judges(run).items()}
        return {}

    # -- at the end --------------------------------------------------------------------------------

    def details(self, run: Run) -> dict[str, Any]:
        """What a report shows beside the curves: the test set client by client and, where all
        clients have one model, by the heat of what examples read; the data's heat; the target."""
        gains = self._gains(run)
        found: dict[str, Any] = {}
        if gains:
            scores = gains[TEST].after
        else:
            test = self.evaluators[TEST]
            numbers = test.numbers(run.params(test.ids()))
            scores = test.tallied(numbers)
            for name, groups in self._groups.items():
                found[name] = _by_heat(groups, groups.scores(self.task.model, numbers))
        if self._heat is not None:
            edges, rows = self._heat.histogram(30)
            found["heat"] = {
                "clients": self._heat.clients,
                "dispersion": self._heat.dispersion,
                "edges": edges.tolist(),
                "rows": rows.tolist(),
            }
        if (target := self.task.target) is not None:
            found["target"] = {
                "metric": target.metric,
                "value": target.value,
                "below": target.below,
            }
        people = self.task.test if gains else self.evaluators[TEST].population
        sizes, columns = self._client_groups(people)
        found["by_size"] = _by_group(sizes, scores)
        found["by_group"] = {name: _by_group(each, scores) for name, each in columns.items()}
        found |= self._turns(run, people, scores)
        return {"more": sorted(scores.more), "clients": _by_client(scores), **found}

    def _turns(self, run: Run, people: Population, scores: Scores) -> dict[str, Any]:
        """Who took part how often, and what that did to the clients' figures, where not all can be
        asked alike."""
        if run.sampler.kind in EVEN or len(run.population) != len(self.task.train):
            return {}
        times, told = participation(run.cohort, len(run.population), run.round)
        groups = by_turns(people, self.task.train, times)
        shown = {} if groups is None else {"by_turns": _by_group(groups, scores)}
        return {"participation": told, **shown}

    def _client_groups(self, people: Population) -> tuple[ClientGroups, dict[str, ClientGroups]]:
        """The clients of the test set by size and by what the data tell of them."""
        if self._known_groups is None:
            self._known_groups = by_size(people, self.task.train), by_columns(people)
        return self._known_groups

    @cached_property
    def _heat(self) -> Heat | None:
        return self.task.train.heat(self.task.model) if self.task.model.tables else None

    @cached_property
    def _groups(self) -> dict[str, HeatGroups]:
        """Test examples by heat, in thirds and in tenths."""
        if self._heat is None:
            return {}
        given = self.task.model, self.evaluators[TEST].population, self._heat
        return {"by_heat": heat_groups(*given), "by_heat_fine": heat_groups(*given, TENTHS)}

    # -- clients with models of their own ----------------------------------------------------------

    def _judges(self, run: Run) -> dict[str, Callable[[], Gain]]:
        """What clients make of the model, or keep: some of the training clients, and those held
        out."""
        if run not in self.judges:
            made = self._kept(run) if self._known(run) else self._adapting(run)
            self.judges[run] = made
        return self.judges[run]

    def _known(self, run: Run) -> bool:
        """Whether clients keep models, and the sets held out are of the same clients."""
        return run.algorithm.client.serve is not None and all(
            np.array_equal(data.clients, self.task.train.clients) for data in self.held_out.values()
        )

    def _kept(self, run: Run) -> dict[str, Callable[[], Gain]]:
        if self.task.judged is not None:
            raise InputError(
                f"judged={self.task.judged}: clients that keep their models are all judged, on"
                " examples of their own; leave judged out"
            )
        train = self.task.train
        chosen = np.random.default_rng(0).permutation(train.examples) < TRAIN_SAMPLE
        every = {"train": train.select(chosen), **self.held_out}
        return {name: Kept(run, data) for name, data in every.items()}

    def _adapting(self, run: Run) -> dict[str, Callable[[], Gain]]:
        adaptation = run.algorithm.client.adapt or self.task.adaptation
        if adaptation is None:
            raise InputError(
                f"{self.task.name} has local leaves and no way to rebuild them: use --algorithm"
                " fedrecon"
            )
        train = self.task.train
        some = train.subset(np.random.default_rng(0).permutation(len(train))[:TRAIN_CLIENTS])
        # the task's split, so that all algorithms are judged alike
        split = self.task.settings.get("split", "half")
        known = Personal(some, adaptation, split=split)

        def unseen(data: Population) -> Callable[[], Gain]:
            clients, catalogue = len(data), self.task.catalogue
            judge = Personal(data, adaptation, split=split, leaves=catalogue is not None)

            def draw() -> np.ndarray | None:
                most = self.task.judged
                if most is None:
                    return None
                return np.random.default_rng(run.round).permutation(clients)[:most]

            if catalogue is not None:
                whole = Recommending(judge, catalogue, train)
                if data is self.task.test:
                    self.popular = whole.popular()
                return lambda: whole(run, clients=draw())
            return lambda: judge(run.params(judge.ids()), clients=draw())

        return {"train": lambda: known(run.params(known.ids()))} | {
            name: unseen(data) for name, data in self.held_out.items()
        }


def _by_client(scores: Scores) -> dict[str, Any]:
    """Of each figure its mean, worst and percentiles over clients; no client's own."""
    found: dict[str, Any] = {}
    for name, values in scores.clients.items():
        known = values[np.isfinite(values)]
        if len(known):
            shares = np.percentile(known, np.arange(101))
            spread = scores._replace(clients={name: known}).spread(name)
            found[name] = {**spread, "clients": len(known), "percentiles": shares.tolist()}
    return found


def _by_group(groups: ClientGroups, scores: Scores) -> dict[str, Any]:
    return {
        "names": list(groups.names),
        "clients": groups.sizes.tolist(),
        "figures": groups.means(scores),
    }


def _by_heat(groups: HeatGroups, scores: Scores) -> dict[str, Any]:
    return {
        "names": list(groups.names),
        "spans": [list(span) for span in groups.spans],
        "examples": groups.sizes.tolist(),
        "figures": {name: values.tolist() for name, values in scores.clients.items()},
    }
