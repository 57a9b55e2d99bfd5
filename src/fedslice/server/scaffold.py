"""SCAFFOLD's server (Karimireddy et al. 2020), and the stateless approximation of Ding et al. (appendix D.2).

x <- x + eta_g mean(y_i - x),     c <- c + (|S| / N) mean(c_i+ - c_i)
approximation (eq. 47):  d <- (N - K)/N d + (K/N) mean(y_i - x),   x <- x + d

A choice: on tables the approximation is lazy.  The rows of the round move, the others keep their d; eq. 47 moves all
coordinates by d in every round (the cold row of Example 1, N = 100, K = 10, 5 steps of rate 0.1, from 1, is at 0.78
after 100 rounds, and at 0.56 if it moves in all of them).
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.types import Message, Params, PyTree, Rows, Server


def scaffold(clients: int, rate: float = 1.0) -> Server:
    """The global control variate; ``clients`` is N, ``rate`` eta_g.

    |S| is the number of clients that really took part, so c stays the mean of the c_i however many that are.

    >>> server = scaffold(100)
    """
    check_clients(clients)

    def init(params: Params, rows: Rows) -> PyTree:
        return params, jax.tree.map(jnp.zeros_like, params)

    def step(state: PyTree, message: Message) -> PyTree:
        params, c = state
        params = jax.tree.map(lambda x, d: x + rate * d, params, message.update)
        share = message.weight / clients
        c = jax.tree.map(lambda old, change: old + share * change, c, message.extra["variate"])
        return params, c

    return Server(init, lambda state, survey: state, step, lambda state: state[0], needs_sum=True)


def approximate(participation: float) -> Server:
    """Server-side averaging of updates: no state on clients.  Rows outside a round keep their d.

    >>> server = approximate(0.1)
    """
    check_participation(participation)

    def init(params: Params, rows: Rows) -> PyTree:
        return params, jax.tree.map(jnp.zeros_like, params)

    def step(state: PyTree, message: Message) -> PyTree:
        params, old = state
        new = jax.tree.map(lambda d, mean: (1 - participation) * d + participation * mean, old, message.update)
        return jax.tree.map(jnp.add, params, new), new

    return Server(init, lambda state, survey: state[0], step, lambda state: state[0])


def check_clients(clients: int) -> None:
    """N."""
    if clients < 1:
        raise InputError(f"clients={clients} must be the number of all clients, N")


def check_participation(participation: float) -> None:
    """A share of the clients."""
    if not 0 < participation <= 1:
        raise InputError(f"participation={participation} must be the share of clients in a round, K / N")
