"""SCAFFOLD's server (Karimireddy et al. 2020), and the stateless approximation of Ding et al.
(appendix D.2).

x <- x + eta_g mean(y_i - x),     c <- c + (|S| / N) mean(c_i+ - c_i)

Clients move by -tau eta c the rows that they do not hold.  Nobody needs them for that: the server
moves each row of a table by -eta_g mean(tau eta) c in every round, holders send the rest.  A row
that the round does not touch keeps its c, so it is moved when it is next looked at, by all the
rounds since: ``clock`` adds up eta_g mean(tau eta), ``seen`` is what it showed when the row was
last written.

approximation (eq. 47):  d <- (N - K)/N d + (K/N) mean(y_i - x),   x <- x + d

A choice: on tables the approximation is lazy.  The rows of the round move, the others keep their d;
eq. 47 moves all coordinates by d in every round (the cold row of Example 1, N = 100, K = 10, 5
steps of rate 0.1, from 1, is at 0.78 after 100 rounds, and at 0.56 if it moves in all of them)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.client.variates import plus
from fedslice.errors import InputError
from fedslice.types import Array, Key, Message, Params, Rows, Server


class Variates(NamedTuple):
    """The model and c; when each row of a table was last written, by the clock, and the clock."""

    params: Params
    variate: Params
    seen: dict[str, Array]
    clock: Array


class Offer(NamedTuple):
    """What SCAFFOLD's clients start from."""

    params: Params
    variate: Params


def scaffold(total: float, rate: float = 1.0, holders: bool = False) -> Server:
    """The global control variate; ``total`` is N, or the weight of all clients; ``rate`` eta_g.

    |S| is the weight of the clients that really took part, so c stays the mean of the c_i however
    many that are.  With ``holders`` nothing moves a row but the clients that hold it.

    >>> server = scaffold(100)
    >>> server.offer(server.init({"w": jnp.ones(1)}, {}))
    Offer(params={'w': Array([1.], dtype=float32)}, variate={'w': Array([0.], dtype=float32)})
    """
    check_clients(total)

    def init(params: Params, rows: Rows) -> Variates:
        seen = {} if holders else {table: jnp.zeros(len(ids)) for table, ids in rows.items()}
        return Variates(params, jax.tree.map(jnp.zeros_like, params), seen, jnp.zeros(()))

    def present(state: Variates) -> Params:
        params, c, seen, clock = state
        return {
            name: plus(x, seen[name] - clock, c[name]) if name in seen else x
            for name, x in params.items()
        }

    def step(state: Variates, message: Message, key: Key) -> Variates:
        _, c, seen, clock = state
        params = jax.tree.map(lambda x, d: x + rate * d, present(state), message.update)
        if seen:
            moved = rate * message.extra["span"]
            params = {
                name: plus(x, -moved, c[name]) if name in seen else x for name, x in params.items()
            }
            clock = clock + moved
            seen = {name: jnp.full_like(times, clock) for name, times in seen.items()}
        share = message.weight / total
        c = jax.tree.map(lambda old, change: old + share * change, c, message.extra["variate"])
        return Variates(params, c, seen, clock)

    return Server(
        init, lambda state: Offer(present(state), state.variate), step, present, needs_sum=True
    )


class Averaged(NamedTuple):
    """The model, and the running mean of updates."""

    params: Params
    direction: Params


def approximate(participation: float) -> Server:
    """Server-side averaging of updates: no state on clients.  Rows outside a round keep their d.

    >>> server = approximate(0.1)
    >>> server.init({"w": jnp.ones(1)}, {}).direction
    {'w': Array([0.], dtype=float32)}
    """
    check_participation(participation)

    def init(params: Params, rows: Rows) -> Averaged:
        return Averaged(params, jax.tree.map(jnp.zeros_like, params))

    def step(state: Averaged, message: Message, key: Key) -> Averaged:
        new = jax.tree.map(
            lambda d, mean: (1 - participation) * d + participation * mean,
            state.direction,
            message.update,
        )
        return Averaged(jax.tree.map(jnp.add, state.params, new), new)

    return Server(init, lambda state: state.params, step, lambda state: state.params)


def check_clients(clients: float) -> None:
    """N."""
    if clients < 1:
        raise InputError(f"clients={clients} must be the number of all clients, N")


def check_participation(participation: float) -> None:
    """A share of the clients."""
    if not 0 < participation <= 1:
        raise InputError(
            f"participation={participation} must be the share of clients in a round, K / N"
        )
