"""FedDyn's server (Acar et al. 2021): the mean of all clients' dual variables.

lambda <- lambda + (|S| / N) mu mean(y_i - x),     x <- x + mean(y_i - x) + lambda / mu

A choice: on tables it is lazy, as all servers here are.  The rows of the round move, the others
wait with their lambda; the paper moves all coordinates by lambda / mu in every round.  The cold row
of Example 1 (N = 100, K = 10, 5 steps of rate 0.1, mu = 0.1, from 1) is at 0.41 after 100 rounds,
and at -0.51 if it moves in all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.server.variates import check_clients
from fedslice.types import Key, Message, Params, Rows, Server


class Dynamic(NamedTuple):
    """The model, and the mean of all clients' duals."""

    params: Params
    dual: Params


def dynamic(mu: float, clients: int) -> Server:
    """``mu`` as on the clients; ``clients`` is N.  |S| is the number of clients that really took
    part.

    >>> from fedslice.types import ClientReport
    >>> mean = Message({"w": jnp.ones(1)}, jnp.array(5.0), ClientReport(*[jnp.ones(5)] * 4))
    >>> server = dynamic(0.5, clients=10)
    >>> state = server.init({"w": jnp.zeros(1)}, {})
    >>> server.step(state, mean, jax.random.key(0))  # of 10 clients 5 came: half of the mean
    Dynamic(params={'w': Array([1.5], dtype=float32)}, dual={'w': Array([0.25], dtype=float32)})
    """
    check_clients(clients)
    if not mu > 0:
        raise InputError(f"mu={mu} must be positive: the dual is divided by it")

    def init(params: Params, rows: Rows) -> Dynamic:
        return Dynamic(params, jax.tree.map(jnp.zeros_like, params))

    def step(state: Dynamic, message: Message, key: Key) -> Dynamic:
        params, dual = state
        share = mu * message.weight / clients
        dual = jax.tree.map(lambda held, move: held + share * move, dual, message.update)
        moved = jax.tree.map(
            lambda x, move, held: x + move + held / mu, params, message.update, dual
        )
        return Dynamic(moved, dual)

    return Server(
        init,
        lambda state: state.params,
        step,
        lambda state: state.params,
        needs_sum=True,
        needs_update=True,
    )
