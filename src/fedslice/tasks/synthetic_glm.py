"""Synthetic(alpha, beta): heterogeneous Gaussians with a generalised linear model on each client
(Li et al. 2020).

"Federated Optimization in Heterogeneous Networks" (FedProx), section 5.1; a set of the kind that
the Field Guide (Wang et al. 2021) asks for: Gaussian features and a generalised linear model.  For
client k:

    u_k ~ N(0, alpha),  W_k[i, c] ~ N(u_k, 1) (60 x 10),  b_k[c] ~ N(u_k, 1) (10)
    B_k ~ N(0, beta),   v_k[j] ~ N(B_k, 1)
    x ~ N(v_k, S) with S diagonal, S[j, j] = j^-1.2 (j = 1 .. 60)
    y = argmax of x W_k + b_k

alpha says how much the clients' models differ, beta how much their data do; both are the standard
deviations, as in the authors' code (the paper writes the same letters where variances stand; the
paper's values, 0, 0.5 and 1, differ only at 0.5).  ``iid=True`` is their third kind of set: one W
and b with numbers ~ N(0, 1) for all clients, and v_k = B_k in all coordinates, here with beta = 0.
Client k has 50 + floor(exp(N(4, 2^2))) examples: the paper's power law.  A random fifth of each
client's examples is its test set.

Model: softmax regression, p(y | x) = softmax(x W + b), 610 parameters that start at zero.
"""

import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model, remembered
from fedslice.models.layers import classifier
from fedslice.tasks.base import Task, Workload

NAME = "synthetic-glm"
CLIENTS, FEATURES, CLASSES = 30, 60, 10
SETTINGS = {"cohort": 10, "epochs": 20, "batch": 10, "weights": "examples"}
LEARNING_RATES = {"": 0.01}
PUBLISHED = {
    "clients a round, epochs, batch, rate": "10, 20, 10, 0.01",
    "FedProx, best mu of 0.001, 0.01, 0.1, 1": "1",
    "results": "curves only",
}


@remembered
def softmax_regression(features: int = FEATURES, classes: int = CLASSES) -> Model:
    """The model; it reads the fields ``x`` [features] and ``label``.

    >>> softmax_regression().init(None)["weight"].shape
    (60, 10)
    """
    return classifier(
        lambda key: {"weight": jnp.zeros((features, classes)), "bias": jnp.zeros(classes)},
        lambda params, batch: batch["x"] @ params["weight"] + params["bias"],
        classes,
    )


def generate(
    clients: int = CLIENTS, alpha: float = 1.0, beta: float = 1.0, iid: bool = False, seed: int = 0
) -> Population:
    """The data, columns ``x`` and ``label``; see the module for the definition.

    >>> generate(clients=3).columns["x"].shape[1]
    60
    """
    if clients < 1 or not (alpha >= 0 and beta >= 0):
        raise InputError(
            f"clients={clients}, alpha={alpha}, beta={beta}: give at least one client, and none"
            " below 0"
        )
    rng = np.random.default_rng(seed)
    sizes = 50 + np.exp(rng.normal(4, 2, clients)).astype(np.int64)
    model, centre = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # roots of S
    shared = rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES)
    xs, labels = [], []
    for k, size in enumerate(sizes):
        weight, bias = shared if iid else (rng.normal(model[k], 1, part.shape) for part in shared)
        mean = np.full(FEATURES, centre[k]) if iid else rng.normal(centre[k], 1, FEATURES)
        x = mean + spread * rng.standard_normal((size, FEATURES))
        xs.append(x.astype(np.float32))
        labels.append(np.argmax(x @ weight + bias, axis=1).astype(np.int32))
    owner = np.repeat(np.arange(clients), sizes)
    return Population.from_arrays(owner, x=np.concatenate(xs), label=np.concatenate(labels))


def synthetic(
    seed: int = 0, scale: float = 1.0, alpha: float = 1.0, beta: float = 1.0, iid: bool = False
) -> Task:
    """The task on Synthetic(1, 1), or another pair; ``scale`` multiplies the 30 clients.

    >>> task = synthetic(scale=0.1)
    >>> len(task.train), task.settings["cohort"]
    (3, 3)
    """
    clients = max(2, round(CLIENTS * scale))
    people = generate(clients, alpha, 0.0 if iid else beta, iid, seed)
    train, test = _split(people, seed)
    settings = {**SETTINGS, "cohort": min(10, clients)}
    kind = "iid" if iid else f"({alpha:g}, {beta:g})"
    source = f"Synthetic {kind}, seed {seed}, scale {scale:g}"
    return Task(
        NAME, softmax_regression(), train, test, settings, LEARNING_RATES, None, PUBLISHED, source
    )


def _split(people: Population, seed: int) -> tuple[Population, Population]:
    """A random fifth of each client's examples is held out."""
    order = np.lexsort((np.random.default_rng((seed, 1)).random(people.examples), people.owners))
    rank = np.empty(people.examples, np.int64)
    rank[order] = np.arange(people.examples) - people.offsets[people.owners]
    held = rank < people.counts[people.owners] // 5
    return people.select(~held), people.select(held)


WORKLOAD = Workload(
    NAME,
    "softmax regression, 60 features and 10 classes, on Gaussians and linear models that differ by"
    " client; 30 clients (Synthetic(1, 1) of the FedProx paper)",
    synthetic,
    statistics={
        "clients": "30",
        "examples per client": "power law: 50 + exp(N(4, 2^2))",
        "labels": "10",
        "parameters": "610",
    },
    settings=SETTINGS,
    learning_rates=LEARNING_RATES,
    published=PUBLISHED,
    algorithm="fedavg",
)
