"""Noise that is correlated over the rounds: DP-FTRL, matrix factorisation (Kairouz et al. 2021;
Denisov et al. 2022; Kalinin et al. 2025).

    sum_t <- sum_t + z sum_i w_ti g_{d_ti}       g_0, g_1, ... independent, N(0, I) on all rows

With w = C^-1 a round's noise takes back some of what earlier rounds added, so that models, which
are sums over rounds, carry little of it.  All rounds together are one Gaussian release of C X,
which needs no sampling at random: the accountant wants to know how often, and how many rounds
apart, a client takes part.

Gaussians of earlier rounds are drawn again from their numbers, so nothing is kept for a row: the
state is the number of rounds done and the key of the first.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.stage.gaussian import check_multiplier, normal, refuse_extras
from fedslice.types import Array, Key, Message, Noise, Params, PyTree, Rows, Stage


class Drawn(Protocol):
    """One round's noise: ``weights[i]`` times the Gaussian of number ``draws[i]``, added up."""

    @property
    def draws(self) -> np.ndarray:
        """int32."""

    @property
    def weights(self) -> np.ndarray:
        """float32."""


class Strategy(Protocol):
    """What the noise of each of ``rounds`` rounds is made of."""

    @property
    def rounds(self) -> int:
        """How many it is for."""

    def terms(self, round: int, /) -> Drawn:
        """The noise of a round, counted from zero."""


class Terms(NamedTuple):
    """As ``Drawn``."""

    draws: np.ndarray
    weights: np.ndarray


class Bands(NamedTuple):
    """``coefficients`` c_0, c_1, ... of the noise c_0 g_t + c_1 g_(t-1) + ...: a Toeplitz C^-1.

    >>> Bands((1.0, -0.5), rounds=10).terms(4)
    Terms(draws=array([4, 3], dtype=int32), weights=array([ 1. , -0.5], dtype=float32))
    """

    coefficients: Sequence[float]
    rounds: int

    def terms(self, round: int, /) -> Terms:
        """The noise of a round, counted from zero; nothing comes before the first one."""
        ago = np.arange(len(self.coefficients))
        weights = np.where(ago <= round, np.asarray(self.coefficients, np.float64), 0)
        return Terms(np.maximum(round - ago, 0).astype(np.int32), weights.astype(np.float32))


class Walk(NamedTuple):
    """Rounds done, and the bits of the key that all Gaussians are drawn with: that of the server in
    the first round."""

    clock: Array
    key: Array


def correlated_noise(multiplier: float, sampler: Sampler, strategy: Strategy) -> Stage:
    """Noise of ``multiplier`` times the strategy's, on sums of updates of norm 1, next to the wire.

    >>> from fedslice.data.sampling import full
    >>> from fedslice.types import ClientReport
    >>> stage = correlated_noise(1.0, full(), Bands((1.0, -1.0), rounds=3))
    >>> total = Message({"w": jnp.zeros(4)}, jnp.zeros(()), ClientReport(*[jnp.zeros(1)] * 4))
    >>> state, done = stage.init({}, {}), []
    >>> for round in range(3):  # with c = (1, -1) the sum of t rounds has the last Gaussian alone
    ...     noisy, state = stage.decode(state, total, jax.random.key(round))
    ...     done.append(noisy.update["w"])
    >>> bool(jnp.allclose(sum(done), normal(total.update, jax.random.fold_in(
    ...     jax.random.key(0), 2), 1.0)["w"], atol=1e-6))
    True
    """
    check_multiplier(multiplier)
    draws, weights = _table(strategy)

    def init(params: Params, rows: Rows) -> PyTree:
        return Walk(jnp.zeros((), jnp.int32), no_key())

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        refuse_extras(message, "without noise")
        return message, memory

    def decode(state: Walk, total: Message, key: Key) -> tuple[Message, Walk]:
        bits = first_key(state.clock, state.key, key)
        # beyond the last round not a number, which stops a run: better no model than one in clear
        now = jnp.asarray(weights).at[state.clock].get(mode="fill", fill_value=jnp.nan)
        number = jnp.asarray(draws).at[state.clock].get(mode="clip")

        def add(place: Array, update: PyTree) -> PyTree:
            def more() -> PyTree:
                own = jax.random.fold_in(jax.random.wrap_key_data(bits), number[place])
                return normal(update, own, multiplier * now[place])

            return jax.lax.cond(now[place] == 0, lambda: update, more)

        update = jax.lax.fori_loop(0, weights.shape[1], add, total.update)
        return total._replace(update=update), Walk(state.clock + 1, bits)

    spent = Noise(
        "matrix",
        multiplier,
        sampler.kind,
        sampler.clients,
        {"strategy": strategy},
        strategy.rounds,
        sampler.cycle,
    )
    return Stage(init, encode, decode, on_sum=True, bound=1.0, noise=spent)


def no_key() -> Array:
    """The place of a key's bits, before the first round."""
    return jnp.zeros_like(jax.random.key_data(jax.random.key(0)))


def first_key(clock: Array, bits: Array, key: Key) -> Array:
    """The bits of the first round's key: this one's if no round was done."""
    return jnp.where(clock == 0, jax.random.key_data(key), bits)


def _table(strategy: Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and weights of all rounds, [rounds, width]."""
    if strategy.rounds < 1:
        raise InputError(f"rounds={strategy.rounds}: the noise is for one round or more")
    terms = [strategy.terms(round) for round in range(strategy.rounds)]
    draws = np.stack([np.asarray(each.draws, np.int32) for each in terms])
    weights = np.stack([np.asarray(each.weights, np.float32) for each in terms])
    if not np.isfinite(weights).all() or not (weights != 0).any(1).all():
        raise InputError("a round of this strategy is without noise, or its weights are not finite")
    used = np.flatnonzero((weights != 0).any(0))
    return draws[:, used], weights[:, used]
