"""Which of the k models of IFCA suits each client, and how well clients do with their own."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from fedslice.client.cluster import models_in, pick
from fedslice.evaluate import Evaluator, Scores
from fedslice.population import Population
from fedslice.simulate import Run

Data: TypeAlias = Population | Evaluator
"""A population, or, to prepare it only once, its evaluator."""


def scores(run: Run, data: Data) -> list[Scores]:
    """Every model of a run of ``recipes.ifca`` on ``data``."""
    evaluator = _evaluator(run, data)
    tables = set(run.model.tables)
    every = run.store.rows(lambda state: state.server, evaluator.ids())
    return [evaluator(pick(every, jnp.array(number), tables)) for number in range(models_in(every, tables))]


def assign(run: Run, data: Data) -> np.ndarray:
    """Each client's best model by its mean loss; -1 for clients without data.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.ifca(task.model, optax.sgd(0.5), models=2, steps=1, batch=1)
    >>> len(assign(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.train))
    4
    """
    losses = np.stack([each.clients["loss"] for each in scores(run, data)])
    return np.where(np.isnan(losses[0]), -1, np.argmin(losses, axis=0))


def evaluate(run: Run, train: Data, test: Data) -> Scores:
    """Every client with the model that suits its training data, measured on its test data."""
    train, test = _evaluator(run, train), _evaluator(run, test)
    own = dict(zip(train.population.clients.tolist(), assign(run, train).tolist(), strict=True))
    chosen = np.array([max(0, own.get(name, 0)) for name in test.population.clients.tolist()])
    every = scores(run, test)
    clients = {
        name: np.choose(chosen, [each.clients[name] for each in every], mode="clip") for name in every[0].clients
    }
    weight = test.population.counts / max(1, test.population.examples)
    return Scores({name: float(np.nansum(values * weight)) for name, values in clients.items()}, clients)


def _evaluator(run: Run, data: Data) -> Evaluator:
    return data if isinstance(data, Evaluator) else Evaluator(run.model, data)
