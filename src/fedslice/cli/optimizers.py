"""Optimizers and schedules by name, with the constants that are settings too."""

from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax

from fedslice.cli.text import built
from fedslice.errors import InputError, nearest
from fedslice.types import Array, Params

Rate: TypeAlias = float | optax.Schedule

# With each optimizer its constants, which are settings too: client_b1, server_eps and so on.  Adam
# and Yogi have those of the Field Guide, the others optax's own.
MOMENTS = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "sgd": (optax.sgd, {}),
    "momentum": (lambda rate, b1: optax.sgd(rate, momentum=b1), {"b1": 0.9}),
    "adagrad": (
        lambda rate, eps, accumulator: optax.adagrad(
            rate, initial_accumulator_value=accumulator, eps=eps
        ),
        {"eps": 1e-7, "accumulator": 0.1},
    ),
    "adam": (optax.adam, MOMENTS),
    "yogi": (lambda rate, **given: yogi(rate, **given), {**MOMENTS, "accumulator": 1e-6}),
    "adamw": (optax.adamw, {"b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "rmsprop": (
        lambda rate, b2, eps, accumulator: optax.rmsprop(
            rate, decay=b2, eps=eps, initial_scale=accumulator
        ),
        {"b2": 0.9, "eps": 1e-8, "accumulator": 0.0},
    ),
    "lion": (optax.lion, {"b1": 0.9, "b2": 0.99}),
}
CONSTANTS = {
    "b1": "decay of the first moment (momentum: of the momentum)",
    "b2": "decay of the second moment",
    "eps": "added to the root of the second moment (adagrad, rmsprop: under it)",
    "accumulator": "what the second moment starts from",
}


def optimizer(
    name: str, rate: Rate, first: float | None = None, **given: float
) -> optax.GradientTransformation:
    """An optax optimizer by name, with constants other than its usual ones if ``given``.

    >>> _ = optimizer("yogi", 0.01), optimizer("adagrad", 0.1, accumulator=0.0, eps=1e-3)
    """
    if first is None and not callable(rate):
        first = rate
    if first is not None and not first > 0:
        raise InputError(f"a learning rate of {first} is not possible: give a positive number")
    for key, value in given.items():
        if not (0 <= value < 1 if key in ("b1", "b2") else value >= 0):
            raise InputError(
                f"{key}={value} is not possible:"
                f" {'from 0 to below 1' if key[0] == 'b' else 'at least 0'}"
            )
    return OPTIMIZERS[name][0](rate, **{**constants(name), **given})


def yogi(
    rate: Rate, b1: float, b2: float, eps: float, accumulator: float
) -> optax.GradientTransformation:
    """optax's Yogi with a first moment that starts at zero; its own starts at ``accumulator`` too,
    and so moves weights that have no gradient.

    >>> import jax.numpy as jnp
    >>> x = {"w": jnp.zeros(1)}
    >>> rule = yogi(0.1, 0.9, 0.99, 1e-3, accumulator=0.1)
    >>> float(rule.update(x, rule.init(x))[0]["w"][0])
    -0.0
    """
    inner = optax.scale_by_yogi(b1, b2, eps, initial_accumulator_value=accumulator)

    def init(params: Params) -> optax.OptState:
        state = inner.init(params)
        return state._replace(mu=jax.tree.map(jnp.zeros_like, state.mu))

    return optax.chain(
        optax.GradientTransformation(init, inner.update), optax.scale_by_learning_rate(rate)
    )


def constants(name: str) -> dict[str, float]:
    """The constants of an optimizer and what they are where nobody says otherwise.

    >>> constants("adagrad")
    {'eps': 1e-07, 'accumulator': 0.1}
    """
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
    return OPTIMIZERS[name][1]


def schedule(text: str) -> Callable[[Array], Array] | None:
    """A factor on a rate by round: ``linear:R`` and ``cosine:R`` fall to zero in R rounds,
    ``exponential:F:R`` to the share F in every R, ``warmup:R`` rises in R.

    >>> float(schedule("warmup:10")(4)), float(schedule("exponential:0.25:10")(5))
    (0.5, 0.5)
    """
    kinds: dict[str, Callable[..., Callable[[Array], Array]]] = {
        "linear": lambda rounds: optax.linear_schedule(1.0, 0.0, int(rounds)),
        "cosine": lambda rounds: optax.cosine_decay_schedule(1.0, int(rounds)),
        "exponential": lambda factor, rounds: optax.exponential_decay(
            1.0, int(rounds), _positive(factor)
        ),
        "warmup": lambda rounds: (
            lambda count: optax.linear_schedule(0.0, 1.0, int(rounds))(count + 1)
        ),
        "constant": lambda: optax.constant_schedule(1.0),
    }
    factors = [built("schedule", part, kinds) for part in text.split("+")]
    if text == "constant":
        return None

    def factor(count: Array) -> Array:
        return reduce(mul, (one(count) for one in factors))

    return factor


def _positive(text: str) -> float:
    if not float(text) > 0:
        raise ValueError(f"{text} must be positive")
    return float(text)
