"""The server of HypCluster / IFCA (Mansour et al. 2020, Ghosh et al. 2020): k models side by side.

x_j <- x_j + mean of the updates of the clients that chose model j
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.client.clusters import pick
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Array, Key, Message, Params, PyTree, Rows, Server


def cluster(model: Model, models: int, spread: float = 0.1, seed: int = 0) -> Server:
    """``models`` copies of the first model, each moved by normal noise of size ``spread``, or they
    would stay equal.

    Tables have the models along their second axis, other leaves along their first.  ``params`` is
    the first model; :func:`fedslice.evaluation.clusters.assign` finds every client's own.

    >>> from fedslice.tasks import quadratic
    >>> from fedslice.types import ClientReport
    >>> mean, member = {"w": jnp.array([[1.0, -3.0]])}, {"member": jnp.array([0.25, 0.75])}
    >>> told = Message(mean, jnp.ones(()), ClientReport(*[jnp.ones(4)] * 4), member)
    >>> server = cluster(quadratic.example1(clients=4).model, 2, spread=0.0)
    >>> state = server.init({"w": jnp.full(1, 5.0)}, {"w": np.array([0])})
    >>> server.step(state, told, jax.random.key(0))  # by 1 / 0.25 and -3 / 0.75
    {'w': Array([[9., 1.]], dtype=float32)}
    """
    tables = set(model.tables)
    if models < 1 or spread < 0:
        raise InputError(
            f"models={models}, spread={spread}: at least one model, and no negative noise"
        )

    def init(params: Params, rows: Rows) -> PyTree:
        return {
            name: _copies(leaf, rows.get(name), place)
            for place, (name, leaf) in enumerate(params.items())
        }

    def _copies(leaf: PyTree, ids: np.ndarray | None, place: int) -> PyTree:
        key = jax.random.fold_in(jax.random.key(seed), place)
        if ids is None:
            parts, tree = jax.tree.flatten(leaf)
            return jax.tree.unflatten(
                tree, [_noisy(x, jax.random.fold_in(key, n)) for n, x in enumerate(parts)]
            )
        noise = _row_noise(
            key, jnp.asarray(ids & 0xFFFFFFFF, jnp.uint32), (models, *leaf.shape[1:])
        )
        return leaf[:, None] + _size() * noise

    def _noisy(leaf: Array, key: Array) -> Array:
        return leaf[None] + _size() * jax.random.normal(key, (models, *leaf.shape))

    def _size() -> float:
        return spread if models > 1 else 0.0

    def step(state: PyTree, message: Message, key: Key) -> PyTree:
        share = message.extra["member"]  # weight of each model's clients in that of all
        scale = jnp.where(share > 0, 1 / jnp.where(share > 0, share, 1), 0)

        def move(name: str, leaf: PyTree) -> PyTree:
            def one(x: Array, d: Array) -> Array:
                shape = (
                    (1, -1) + (1,) * (x.ndim - 2) if name in tables else (-1,) + (1,) * (x.ndim - 1)
                )
                return x + d * scale.reshape(shape)

            return jax.tree.map(one, leaf, message.update[name])

        return {name: move(name, leaf) for name, leaf in state.items()}

    return Server(
        init,
        lambda state: state,
        step,
        lambda state: pick(state, jnp.array(0), tables),
        several=True,
    )


def _row_noise(key: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Normal numbers from (key, row), so that a row's noise does not depend on its neighbours."""
    return jax.vmap(lambda row: jax.random.normal(jax.random.fold_in(key, row), shape))(ids)
