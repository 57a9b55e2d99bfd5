"""FedNova (Wang et al. 2020): updates per unit of local progress, so that clients with more steps
do not count more.

    x <- x - tau_eff sum_i p_i G_i / ||a_i||_1,    tau_eff = sum_i p_i ||a_i||_1

||a||_1 of tau local steps: tau for SGD; m <- rho m + 1, ||a|| += m for momentum rho; ||a|| <- (1 - eta_t mu) ||a|| + 1
for a proximal term, eta_t the round's rate: a schedule on the clients' rate changes it.  Both
together:

    m <- rho m + 1 - eta_t mu ||a||,   ||a|| += m
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.types import Array, Key, Message, PyTree, Stage


def nova(momentum: float = 0.0, proximal: float = 0.0) -> Stage:
    """Normalise by the local solver: ``momentum`` rho, ``proximal`` eta * mu, eta the rate before
    its schedule.

    >>> float(progress(jnp.array(3.0), momentum=0.5, proximal=0.0))
    4.25
    """
    if not 0 <= momentum < 1 or not 0 <= proximal < 1:
        raise InputError(
            f"nova(momentum={momentum}, proximal={proximal}): both must be from 0 to below 1"
        )

    def encode(state: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        pull = proximal * message.metrics.get("factor", jnp.ones(()))
        size = jnp.maximum(progress(message.metrics["steps"], momentum, pull), 1e-30)
        update = jax.tree.map(lambda leaf: leaf / size, message.update)
        return message._replace(update=update, extra={**message.extra, "progress": size}), memory

    def decode(state: PyTree, total: Message) -> tuple[Message, PyTree]:
        extra = dict(total.extra)
        effective = extra.pop("progress")
        return (
            total._replace(
                update=jax.tree.map(lambda leaf: effective * leaf, total.update), extra=extra
            ),
            state,
        )

    return Stage(lambda params, rows: (), encode, decode, alters=True)


def progress(steps: Array, momentum: float, proximal: Array | float) -> Array:
    """||a||_1 after so many steps."""

    def step(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        speed, total = carry
        speed = (
            momentum * speed + 1 - proximal * total
        )  # the proximal pull goes through the momentum too
        return speed, total + speed

    zero = jnp.zeros(())
    return jax.lax.fori_loop(0, steps.astype(jnp.int32), step, (zero, zero))[1]
