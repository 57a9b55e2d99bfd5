"""Gaussian noise on all rows of tables too large to go over, at the cost of the rows that are read.

Plain averaging with noise on the mean (:mod:`fedslice.stage.gaussian`) is, for every row m,

    x_m(t + 1) = x_m(t) + eta mean_m(t) + sigma_m g_m(t),     sigma_m = eta z C c_m^(1 - a) / K

and linear, so the row is the sum of its updates plus the sum of its noise:

    x_m(t) = y_m(t) + sigma_m W_m(t),     y_m(t + 1) = y_m(t) + eta mean_m(t)
    W_m(t) = g_m(0) + ... + g_m(t - 1)    a random walk

Rows that nobody trains keep their y.  And W_m(t) need not be added up: it is computed from (key, m,
t) alone, by Lévy's construction of Brownian motion.  W(0) = 0, W(2^L) ~ N(0, 2^L), and between two
times whose walk is known

    W((a + b) / 2) ~ N( (W(a) + W(b)) / 2, (b - a) / 4 )

drawn from a key of that middle time: L draws lead to any t below 2^L.  Whoever asks for W_m(t), in
whichever order and how often, gets the same number, and over all m and t they have the law of
sums of independent g_m(t).  So *everything that leaves the server* (what clients read, what is
evaluated, at any rounds) has jointly the law that it has with noise on all rows in every round,
and is covered by the same accounting.

What must not leave it is the state: y has no noise, and the key tells all of it.  A checkpoint is a
secret of the server's, not a release; nor are the losses and norms of reports.

Dense leaves are read in every round, and get their noise in every round.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.correlated import first_key, no_key
from fedslice.stage.gaussian import normal, refuse_extras
from fedslice.types import Array, Key, Message, Noise, Params, PyTree, Rows, Server

WORD = 0xFFFFFFFF


class Hidden(NamedTuple):
    """The model without the noise of its rows (y), and what that noise is made from."""

    params: Params
    size: dict[str, Array]  # per table float32 [rows]: sigma
    row: dict[str, Array]  # per table uint32 [rows, 2]: the row's id
    clock: Array  # rounds done
    key: Array  # bits of the key that all walks hang on


def lazy_noise(
    size: float, noise: Noise, rate: float = 1.0, heat: Heat | None = None, power: float = 0.5
) -> Server:
    """Averaging with rate ``rate`` and noise of standard deviation ``rate * size`` on the mean, for
    rows of tables times c^(1 - power); made by :func:`fedslice.privacy.lazy`, with its stages.

    >>> server = lazy_noise(0.5, Noise("gaussian", 1.0, "poisson", 50, rounds=10))
    >>> state = server.init({"w": jnp.zeros((3, 2))}, {"w": np.array([4, 17, 2**40])})
    >>> later = state._replace(clock=jnp.int32(4), key=state.key + 1)
    >>> server.params(state)["w"].tolist() == [[0.0, 0.0]] * 3  # before the first round
    True
    >>> some = server.init({"w": jnp.zeros((1, 2))}, {"w": np.array([17])})
    >>> some = some._replace(clock=jnp.int32(4), key=state.key + 1)
    >>> bool(jnp.all(server.params(some)["w"][0] == server.params(later)["w"][1]))  # any company
    True
    """
    if not rate > 0 or noise.rounds is None or not 0 < noise.rounds < 2**30:
        raise InputError(
            f"rate={rate}, rounds={noise.rounds}: give a positive rate and the most rounds of the"
            " training"
        )
    levels = noise.rounds.bit_length()

    def init(params: Params, rows: Rows) -> Hidden:
        sizes = {}
        for table, ids in rows.items():
            c = 1.0 if heat is None else heat.coefficient(table, ids, "uniform")
            sizes[table] = jnp.asarray(rate * size * c ** (1 - power) * np.ones(len(ids)), "f4")
        words = {
            table: jnp.asarray(np.stack([ids & WORD, ids >> 32], 1).astype(np.uint32))
            for table, ids in rows.items()
        }
        return Hidden(params, sizes, words, jnp.zeros((), jnp.int32), no_key())

    def present(state: Hidden) -> Params:
        return {
            name: _shown(state, place, name, levels) if name in state.size else leaf
            for place, (name, leaf) in enumerate(sorted(state.params.items()))
        }

    def step(state: Hidden, message: Message, key: Key) -> Hidden:
        refuse_extras(message, "without noise")
        params = jax.tree.map(lambda x, d: x + rate * d, state.params, message.update)
        dense = {name: leaf for name, leaf in params.items() if name not in state.size}
        params = {**params, **normal(dense, jax.random.fold_in(key, 1), rate * size)}
        bits = first_key(state.clock, state.key, jax.random.fold_in(key, 0))
        return state._replace(params=params, clock=state.clock + 1, key=bits)

    return Server(init, present, step, present, needs_sum=True, noise=noise)


def _shown(state: Hidden, place: int, name: str, levels: int) -> PyTree:
    """A table's rows with their noise."""
    leaves, tree = jax.tree.flatten(state.params[name])
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), place)
    shown = []
    for part, leaf in enumerate(leaves):
        moved = walk(jax.random.fold_in(key, part), state.row[name], state.clock, levels, leaf)
        size = state.size[name].reshape(-1, *(1,) * (leaf.ndim - 1))
        shown.append(leaf + size * moved)
    return jax.tree.unflatten(tree, shown)


def walk(key: Key, rows: Array, time: Array, levels: int, like: Array) -> Array:
    """W(time) of each row, for times below 2^levels, as many numbers a row as ``like`` has: from
    both ends of an interval to its middle, to the half that has the time in it, and so on.
    Compiled once for all times and keys, also for who only looks at rows.

    >>> rows, like = jnp.zeros((1, 2), jnp.uint32), jnp.zeros((1, 20_000))
    >>> w = {t: walk(jax.random.key(0), rows, jnp.int32(t), 4, like) for t in (0, 4, 7, 15)}
    >>> [round(float(w[t].var()), 1) for t in w], round(float((w[7] * w[15]).mean()), 1)
    ([0.0, 4.0, 7.0, 15.3], 7.1)
    """
    return _walk(key, rows, time, levels, like.shape[1:])


@partial(jax.jit, static_argnums=(3, 4))
def _walk(key: Key, rows: Array, time: Array, levels: int, shape: tuple[int, ...]) -> Array:
    def drawn(number: Array) -> Array:
        own = jax.random.fold_in(key, number)

        def one(row: Array) -> Array:
            mine = jax.random.fold_in(jax.random.fold_in(own, row[0]), row[1])
            return jax.random.normal(mine, shape)

        return jax.vmap(one)(rows)

    def halve(level: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        start, left, right = state
        half = 1 << (levels - 1 - level)
        middle = start + half  # every time is the middle of one interval alone
        between = (left + right) / 2 + jnp.sqrt(half / 2) * drawn(middle)
        later = time >= middle
        return (
            jnp.where(later, middle, start),
            jnp.where(later, between, left),
            jnp.where(later, right, between),
        )

    last = 2.0 ** (levels / 2) * drawn(jnp.int32(0))
    first = jnp.int32(0), jnp.zeros_like(last), last
    return jax.lax.fori_loop(0, levels, halve, first)[1]
