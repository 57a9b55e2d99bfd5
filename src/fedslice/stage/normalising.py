"""FedNova (Wang et al. 2020): updates per unit of local progress, so that clients with more steps
do not count more.

    x <- x - tau_eff sum_i p_i G_i / ||a_i||_1,    tau_eff = sum_i p_i ||a_i||_1

||a||_1 of tau local steps: tau for SGD; m <- rho m + 1, ||a|| += m for momentum rho;
||a|| <- (1 - eta_t mu) ||a|| + 1 for a proximal term, eta_t the round's rate: a schedule on the
clients' rate changes it.  Both together:

    m <- rho m + 1 - eta_t mu ||a||,   ||a|| += m
"""

import jax
import jax.numpy as jnp
import optax

from fedslice.errors import InputError
from fedslice.stage.codes import over
from fedslice.types import Array, Key, Message, Params, PyTree, Rows, Stage


def nova(
    momentum: float = 0.0, proximal: float = 0.0, schedule: optax.Schedule | None = None
) -> Stage:
    """Normalise by the local solver: ``momentum`` rho, ``proximal`` eta * mu, eta the rate before
    its ``schedule``, a factor by round.

    >>> float(progress(jnp.array(3.0), momentum=0.5, proximal=0.0))
    4.25
    """
    if not 0 <= momentum < 1 or not 0 <= proximal < 1:
        raise InputError(
            f"nova(momentum={momentum}, proximal={proximal}): both must be from 0 to below 1"
        )

    def init(params: Params, rows: Rows) -> PyTree:
        return () if schedule is None else {"round": jnp.zeros((), jnp.int32)}

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        pull = proximal * (jnp.ones(()) if schedule is None else schedule(offer["round"]))
        size = jnp.maximum(progress(message.report.steps, momentum, pull), 1e-30)
        extra = {**message.extra, "progress": size}
        return message._replace(update=over(message.update, size), extra=extra), memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        extra = dict(total.extra)
        effective = extra.pop("progress")
        update = jax.tree.map(lambda leaf: effective * leaf, total.update)
        after = jax.tree.map(lambda round: round + 1, state)
        return total._replace(update=update, extra=extra), after

    return Stage(init, encode, decode, offer=lambda state: state, alters=True, extras=True)


def progress(steps: Array, momentum: float, proximal: Array | float) -> Array:
    """||a||_1 after so many steps."""

    def step(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        speed, total = carry
        # the proximal pull goes through the momentum too
        speed = momentum * speed + 1 - proximal * total
        return speed, total + speed

    zero = jnp.zeros(())
    return jax.lax.fori_loop(0, steps.astype(jnp.int32), step, (zero, zero))[1]
