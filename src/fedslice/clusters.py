"""Which of the k models of IFCA suits each client, and how well clients do with their own."""

import jax.numpy as jnp
import numpy as np

from fedslice.client.cluster import models_in, pick
from fedslice.evaluate import Evaluator, Scores
from fedslice.population import Population
from fedslice.simulate import Run


def scores(run: Run, population: Population) -> list[Scores]:
    """Every model of a run of ``recipes.ifca`` on ``population``."""
    evaluator = Evaluator(run.model, population)
    tables = set(run.model.tables)
    every = run.store.rows(lambda state: state.server, evaluator.ids())
    count = models_in(every, tables)
    return [evaluator(pick(every, jnp.array(number), tables)) for number in range(count)]


def assign(run: Run, population: Population) -> np.ndarray:
    """Each client's best model by its mean loss on ``population``; -1 for clients without data.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.ifca(task.model, optax.sgd(0.5), models=2, steps=1, batch=1)
    >>> len(assign(fs.simulate(method, task.train, sampler=fs.sampling.full()), task.train))
    4
    """
    losses = np.stack([each.clients["loss"] for each in scores(run, population)])
    return np.where(np.isnan(losses[0]), -1, np.argmin(losses, axis=0))


def evaluate(run: Run, train: Population, test: Population) -> Scores:
    """Every client with the model that suits its training data, measured on its test data."""
    own = dict(zip(train.clients.tolist(), assign(run, train).tolist(), strict=True))
    chosen = np.array([max(0, own.get(name, 0)) for name in test.clients.tolist()])
    every = scores(run, test)
    clients = {
        name: np.choose(chosen, [each.clients[name] for each in every], mode="clip") for name in every[0].clients
    }
    weight = test.counts / max(1, test.examples)
    return Scores({name: float(np.nansum(values * weight)) for name, values in clients.items()}, clients)
