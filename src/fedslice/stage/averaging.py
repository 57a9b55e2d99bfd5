"""The weighted mean of the cohort's updates, with or without heat correction.

    FedAvg     mean_m = sum_i w_i delta_{i,m} / sum_i w_i
    FedSubAvg  mean_m = c_m * the same,  c_m = sum_all w / sum_{i: m in S(i)} w_i

(McMahan et al. 2017; Ding et al. 2022, where w = 1 and c_m = N / n_m).

The sums without a condition run over the cohort and over all clients.  Dense leaves are held by
all: c = 1.

With w = 1 and a cohort drawn uniformly, E[mean_m] is the mean over the row's holders, exactly.
With w = |D_i| it is a *ratio estimator*: the cohort's sum of weights is random too, so that E is
right only up to O(1/K).  Draws in proportion to |D_i| (``sampling.weighted``), averaged uniformly
with c_m by examples, have the holders' weighted mean exactly.

A fixed ``denominator`` stands in the place of the cohort's sum of weights: with cohorts of random
size (Poisson) the expected sum of weights is unbiased, and what one client adds does not depend on
who else came, which differential privacy needs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.codes import times
from fedslice.types import Array, Key, Message, Params, PyTree, Rows, Stage

WEIGHTS: dict[str, Callable[[Message], Array]] = {
    "examples": lambda message: message.weight,
    "uniform": lambda message: (message.weight > 0).astype(jnp.float32),
}


def mean(
    weights: str | Callable[[Message], Array] = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    denominator: float | None = None,
) -> Stage:
    """Mean by ``"examples"``, ``"uniform"``, or any function of a client's message; ``heat``
    corrects table rows.

    ``coefficient`` is what clients count for in c_m, by default their ``weights``.  Uniform weights
    with a coefficient by examples are for clients that are *drawn* in proportion to their examples
    (``sampling.weighted``).

    >>> from fedslice.types import ClientReport
    >>> total = Message({"w": jnp.array([6.0])}, jnp.array(3.0), ClientReport(*[jnp.zeros(2)] * 4))
    >>> [
    ...     stage.decode({}, total, jax.random.key(0))[0].update["w"].tolist()
    ...     for stage in (mean(), mean(denominator=4))
    ... ]
    [[2.0], [1.5]]
    """
    if isinstance(weights, str) and weights not in WEIGHTS:
        raise InputError(
            f"weights={weights!r} is not known: use one of {sorted(WEIGHTS)} or a function of a"
            " message"
        )
    if heat is not None and not isinstance(weights, str):
        raise InputError(
            "heat correction needs weights='examples' or 'uniform': it must know every client's"
            " weight"
        )
    if coefficient not in (None, *WEIGHTS):
        raise InputError(f"coefficient={coefficient!r} is not known: use one of {sorted(WEIGHTS)}")
    if denominator is not None and not denominator > 0:
        raise InputError(f"denominator={denominator} must be positive: it divides the sum")
    said = weights if isinstance(weights, str) else ""
    counted = coefficient or said
    weigh = WEIGHTS[weights] if isinstance(weights, str) else weights

    def init(params: Params, rows: Rows) -> PyTree:
        return coefficients(heat, rows, counted)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        weight = jnp.where(message.weight > 0, weigh(message), 0)  # of failed or empty clients zero
        return scale(message, weight)._replace(weight=weight), memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        weight = total.weight if denominator is None else jnp.float32(denominator)
        factor = 1 / jnp.where(weight > 0, weight, 1)
        return correct(scale(total, factor), state), state

    factor_by = "" if heat is None else counted
    return Stage(
        init,
        encode,
        decode,
        weighs=True,
        denominator=denominator,
        weights=said,
        coefficient=factor_by,
        heat=heat,
    )


def coefficients(heat: Heat | None, rows: Rows, weights: str) -> dict[str, Array]:
    """The factor of each row of each table; nothing without heat."""
    if heat is None:
        return {}
    return {
        table: jnp.asarray(heat.coefficient(table, ids, weights)) for table, ids in rows.items()
    }


def scale(message: Message, factor: Array) -> Message:
    """Update and extra times a number."""
    update, extra = times(factor, (message.update, message.extra))
    return message._replace(update=update, extra=extra)


def correct(message: Message, coefficients: dict[str, Array]) -> Message:
    """Table rows of the update, and of extras shaped like the model, times their coefficients."""

    def rows(tree: PyTree) -> PyTree:
        if not isinstance(tree, dict):
            return tree
        return {
            name: _times(coefficients[name], leaf) if name in coefficients else leaf
            for name, leaf in tree.items()
        }

    return message._replace(
        update=rows(message.update), extra={k: rows(v) for k, v in message.extra.items()}
    )


def _times(factor: Array, leaf: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x * factor.reshape(factor.shape + (1,) * (x.ndim - 1)), leaf)
