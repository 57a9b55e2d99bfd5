"""Which of the k models of IFCA suits each client, and how well clients do with their own."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from fedslice.client.clusters import models_in, pick
from fedslice.data.halves import QUERY, SUPPORT
from fedslice.data.halves import assign as split
from fedslice.data.population import Population
from fedslice.evaluation.gain import Gain
from fedslice.evaluation.scores import Evaluator, Scores, tally
from fedslice.simulation.run import Run
from fedslice.types import Params

Data: TypeAlias = Population | Evaluator
"""A population, or, to prepare it only once, its evaluator."""


def scores(run: Run, data: Data) -> list[Scores]:
    """Every model of a run of ``recipes.ifca`` on ``data``."""
    evaluator = _evaluator(run, data)
    return [evaluator(params) for params in _models(run, evaluator)]


def assign(run: Run, data: Data) -> np.ndarray:
    """Each client's best model by its mean loss; -1 for clients without data.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.ifca(task.model, optax.sgd(0.5), models=2)
    >>> len(assign(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.train))
    4
    """
    return _best(scores(run, data))


def _best(every: list[Scores]) -> np.ndarray:
    losses = np.stack([each.clients["loss"] for each in every])
    return np.where(np.isnan(losses[0]), -1, np.argmin(losses, axis=0))


def evaluate(run: Run, train: Data, test: Data) -> Scores:
    """Every client with the model that suits its training data, measured on its test data.

    A client that did not train chooses by a random half of its test data and is measured on the
    other.
    """
    return gain(run, train, test).after


def gain(run: Run, train: Data, test: Data) -> Gain:
    """What clients gain from their choice.  Before it, all have the model that is best for all
    training data together; after it, as in :func:`evaluate`.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.ifca(task.model, optax.sgd(0.5), models=1)
    >>> run = fs.simulate(method, task.train, sampler=fs.sampling.full())
    >>> gain(run, task.train, task.train).spread("loss")["mean"]
    0.0
    """
    train, test = _evaluator(run, train), _evaluator(run, test)
    people, owners = test.population, test.population.owners
    found = scores(run, train)
    known = dict(zip(train.population.clients.tolist(), _best(found).tolist(), strict=True))
    chosen = np.array([known.get(name, -1) for name in people.clients.tolist()], np.int64)
    new = chosen < 0
    every = [test.numbers(params) for params in _models(run, test)]
    part = split(people, "half")
    judged = ~new[owners] | (part == QUERY)
    if new.any():
        support = new[owners] & (part == SUPPORT)
        mine = [_measured(test, each, support).clients["loss"] for each in every]
        chosen = np.where(new, np.argmin(np.nan_to_num(np.stack(mine), nan=np.inf), axis=0), chosen)
    place = np.arange(people.examples)
    own = {
        name: np.stack([each[name] for each in every])[chosen[owners], :, place].T
        for name in every[0]
    }
    common = every[int(np.argmin([each.pooled["loss"] for each in found]))]
    return Gain(_measured(test, common, judged), _measured(test, own, judged))


def _models(run: Run, evaluator: Evaluator) -> list[Params]:
    """Each model of the run, with the rows that the evaluator needs."""
    tables = set(run.model.tables)
    every = run.store.rows(lambda state: state.server, evaluator.ids())
    return [pick(every, jnp.array(number), tables) for number in range(models_in(every, tables))]


def _measured(evaluator: Evaluator, numbers: dict[str, np.ndarray], some: np.ndarray) -> Scores:
    """The figures of some of the examples."""
    people = evaluator.population
    part = {name: pairs[:, some] for name, pairs in numbers.items()}
    return tally(evaluator.model, [part], people.owners[some], len(people))


def _evaluator(run: Run, data: Data) -> Evaluator:
    return data if isinstance(data, Evaluator) else Evaluator(run, data)
