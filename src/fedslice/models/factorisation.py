"""Matrix factorisation: a rating is the product of what a user likes and what a film has.

    rating ~ u . q        loss (u . q - rating)^2

u, the user's vector, stays with the user; q, the film's, is a row of the table ``item``.  There is
no bias.  Both start uniform in (-0.05, 0.05).  Singhal et al., "Federated Reconstruction: Partially
Local Federated Learning" (2021)."""

import jax
import jax.numpy as jnp

from fedslice.metrics import root
from fedslice.model import Model, Table, lookup, remembered
from fedslice.types import Array, Batch, Key, Params

SPREAD = 0.05  # of the first values
HIGHEST = 5.0  # rating


@remembered
def factorisation(
    items: int, dimension: int = 50, users: int | None = None, stars: float = 1.0
) -> Model:
    """The model of ``items`` films, indexed by the field ``movie``, for the field ``rating``.

    The user's vector is a local leaf, or, where the number of ``users`` is given, a row of a table
    indexed by the field ``user``: the centralised baseline, in which the server holds all users'
    vectors.  ``accuracy`` is how often the prediction is the rating, when rounded to the nearest
    multiple of ``stars`` from ``stars`` to 5.  The authors' code rounds without holding predictions
    inside the scale, so that a prediction of 0 is never right there.

    >>> model = factorisation(items=3706)
    >>> model.local, model.tables["item"].rows * model.tables["item"].width
    (('user',), 185300)
    """

    def predict(params: Params, batch: Batch) -> Array:
        user = params["user"] if users is None else lookup(params["user"], batch["user"])
        return jnp.sum(lookup(params["item"], batch["movie"]) * user, axis=-1)

    def loss(params: Params, batch: Batch) -> Array:
        return (predict(params, batch) - batch["rating"]) ** 2

    def accuracy(params: Params, batch: Batch) -> Array:
        nearest = jnp.round(jnp.clip(predict(params, batch), stars, HIGHEST) / stars) * stars
        return (nearest == batch["rating"]).astype(jnp.float32)

    tables = {"item": Table(items, fields=("movie",), shape=(dimension,), init=uniform)}
    if users is not None:
        tables["user"] = Table(users, fields=("user",), shape=(dimension,), init=uniform)
    return Model(
        init=lambda key: {"user": uniform(key, (dimension,))} if users is None else {},
        loss=loss,
        tables=tables,
        local=("user",) if users is None else (),
        metrics={"rmse": root(loss), "accuracy": accuracy},
    )


def uniform(key: Key, shape: tuple[int, ...]) -> Array:
    """Both factors' first values.

    >>> bool(jnp.all(jnp.abs(uniform(jax.random.key(0), (50,))) < 0.05))
    True
    """
    return jax.random.uniform(key, shape, minval=-SPREAD, maxval=SPREAD)
