"""What a simulation must draw to be the same as nodes of a trial, which draw for themselves.

Where clients add noise, a simulation draws the sum of it once, which is the same in law.  Nodes of
a trial (``Node(trial=True)``) draw one share each, by keys that follow from the run's seed.  So the
simulation that they are compared with adds the shares of those that counted:

    sum_i (x_i + noise_i)  =  sum_i x_i + sum_{i counted} noise(key(seed, round, i))
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.deploy.vault import OWN_NOISE
from fedslice.round.protocol import key_of
from fedslice.types import Algorithm, Key, Message, Params


def drawn_apart(
    algorithm: Algorithm, counted: Sequence[Sequence[int]], numbers: Sequence[int], seed: int
) -> Algorithm:
    """The algorithm of a simulation whose noise is the sum of what the clients draw that
    ``counted``, round by round; ``numbers`` are those of all clients.  Without noise of the
    clients' own it is the algorithm as it is.

    >>> import optax, fedslice as fs
    >>> model = fs.tasks.quadratic.example1(clients=4).model
    >>> method = fs.recipes.fedavg(model, optax.sgd(0.1))
    >>> drawn_apart(method, [], [0, 1, 2, 3], seed=0) is method
    True
    """
    place, last = len(algorithm.stages), algorithm.stages[-1]
    if last.own is None:
        return algorithm
    own = last.own
    there = np.array([[number in each for number in numbers] for each in [*counted, []]])

    def share(total: Message, round: Any, client: Any) -> Params:
        run_key = jax.random.fold_in(jax.random.key(seed), 1)
        key = key_of(run_key, round, jnp.asarray(numbers, jnp.uint32)[client])
        key = jax.random.fold_in(jax.random.fold_in(key, OWN_NOISE), place)
        drawn = own.add(jax.tree.map(jnp.zeros_like, total.update), key)
        came = jnp.asarray(there)[round, client]
        return jax.tree.map(lambda x: x * came.astype(x.dtype), drawn)

    def decode(state: Any, total: Message, key: Key) -> tuple[Message, Any]:
        round = state["round"]

        def add(client: Any, so_far: Params) -> Params:
            return jax.tree.map(jnp.add, so_far, share(total, round, client))

        noisy = jax.lax.fori_loop(0, len(numbers), add, total.update)
        opened, _ = own.decode((), total._replace(update=noisy), key)
        return opened, {"round": round + 1}

    def init(params: Params, rows: Any) -> Any:
        return {"round": jnp.uint32(0)}

    stage = last._replace(init=init, decode=decode)
    return algorithm._replace(stages=(*algorithm.stages[:-1], stage))
