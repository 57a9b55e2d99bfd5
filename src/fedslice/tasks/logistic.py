"""Logistic regression on categorical features: one weight for each value of each feature.

    p(label = 1) = sigmoid(bias + sum of the weights of the example's features)

The loss is the ordinary binary cross-entropy (the FedSubAvg paper's figures are half of it).
Beside accuracy, which on clicks hardly leaves the rate of the commoner label, there are the area
under the ROC curve and the log loss, the loss under the name it has elsewhere; all three are
compared with the :func:`baseline`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.metrics import Metric, PerExample, auc, calibration
from fedslice.model import Model, Table, lookup, remembered
from fedslice.types import Array, Batch, Params


@remembered
def logistic(rows: int) -> Model:
    """The model over one table ``weight`` indexed by the field ``features``.

    >>> logistic(10).tables["weight"].rows
    10
    """

    def logit(params: Params, batch: Batch) -> Array:
        return jnp.sum(lookup(params["weight"], batch["features"]), axis=-1) + params["bias"]

    def loss(params: Params, batch: Batch) -> Array:
        z = logit(params, batch)
        return jax.nn.softplus(z) - batch["label"] * z

    def accuracy(params: Params, batch: Batch) -> Array:
        return ((logit(params, batch) > 0) == (batch["label"] > 0.5)).astype(jnp.float32)

    table = Table(rows=rows, fields=("features",))
    figures: dict[str, PerExample | Metric] = {
        "auc": auc(logit),
        "accuracy": accuracy,
        "log_loss": loss,
        "calibration": calibration(lambda params, batch: jax.nn.sigmoid(logit(params, batch))),
    }
    return Model(
        lambda key: {"bias": jnp.zeros(())},
        loss,
        {"weight": table},
        metrics=figures,
        ranges={"label": 2},
    )


def baseline(train: Population, test: Population) -> dict[str, float]:
    """What is had on the test set without any feature: for everybody the rate of ones in the
    training data.

    >>> label = [1.0, 1.0, 1.0, 0.0]
    >>> people = Population.from_arrays([0, 0, 1, 1], features=[[0]] * 4, label=label)
    >>> {name: round(value, 4) for name, value in baseline(people, people).items()}
    {'auc': 0.5, 'accuracy': 0.75, 'log_loss': 0.5623, 'calibration': 0.0}
    """
    rate = np.clip(train.columns["label"].mean(dtype=np.float64), 1e-7, 1 - 1e-7)
    ones = float(test.columns["label"].mean(dtype=np.float64))
    loss = -ones * np.log(rate) - (1 - ones) * np.log(1 - rate)
    return {
        "auc": 0.5,
        "accuracy": ones if rate > 0.5 else 1 - ones,
        "log_loss": float(loss),
        "calibration": abs(float(rate) - ones),
    }
