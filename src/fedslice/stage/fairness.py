"""Fairness between clients: q-FFL (Li et al. 2020) and AFL (Mohri et al. 2019).

    q-FedAvg  Delta_i = F_i^q L (x - y_i),  h_i = q F_i^(q-1) ||L (x - y_i)||^2 + L F_i^q
              x <- x - sum Delta_i / sum h_i
    AFL       weights lambda_i <- lambda_i exp(rate (F_i - b)): mirror ascent on the clients' worst
              mixture

F_i is the loss of the client's first batch, an unbiased estimate at the offered model (the papers'
is the loss over all of the client's examples; a power of the estimate is not unbiased).  q = 0 is
FedAvg with uniform weights.

The gradient of sum_i lambda_i F_i by lambda is F; a constant b taken off all of it changes no
normalised lambda.  With all clients in the round any b gives the exact ascent.  With some of them,
only those who came step; as long as b does not depend on who that is, the mean over cohorts is K/N
rate (F_i - b), the ascent at K/N of the rate.  So b is the mean loss of the round *before* (0 in
the first one), which keeps lambda from drifting off."""

import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.averaging import coefficients, correct, scale
from fedslice.stage.clipping import norm
from fedslice.stage.codes import opened, times
from fedslice.types import Key, Message, Params, PyTree, Rows, Stage

LARGEST = 20.0  # of log lambda, either way


def qffl(q: float, rate: float, heat: Heat | None = None, coefficient: str | None = None) -> Stage:
    """q-FedAvg in place of the mean; ``rate`` is the client's learning rate, L = 1 / rate;
    ``coefficient`` as for the mean, by default ``"uniform"``.

    >>> import jax
    >>> from fedslice.types import ClientReport
    >>> report = ClientReport(*[jnp.array(2.0)] * 4)
    >>> message = Message({"w": jnp.array([0.1])}, jnp.array(5.0), report)
    >>> sent, _ = qffl(1.0, 0.1).encode((), (), message, jax.random.key(0))
    >>> sent.update["w"].tolist(), float(sent.weight)  # F L delta;  ||L delta||^2 + L F
    ([2.0], 21.0)
    """
    if q < 0 or not rate > 0:
        raise InputError(f"q-FFL needs q >= 0 and a positive client rate, got q={q}, rate={rate}")
    smooth, counted = 1 / rate, coefficient or "uniform"

    def init(params: Params, rows: Rows) -> PyTree:
        return coefficients(heat, rows, counted)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        loss = jnp.maximum(message.report.start_loss, 1e-10)
        alive = (message.weight > 0).astype(jnp.float32)
        power = loss**q
        square = jnp.square(smooth * norm(opened(message.update)))
        share = alive * (q * loss ** (q - 1) * square + smooth * power)
        weighted = scale(message, share)  # extras are averaged by h_i
        update = times(alive * power * smooth, message.update)
        return weighted._replace(update=update, weight=share), memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        factor = 1 / jnp.where(total.weight > 0, total.weight, 1)
        return correct(scale(total, factor), state), state

    said = "" if heat is None else counted
    return Stage(
        init,
        encode,
        decode,
        weighs=True,
        needs_sum=True,
        weights="uniform",
        coefficient=said,
        heat=heat,
    )


def agnostic(rate: float) -> Stage:
    """AFL's weights, to stand before ``mean("examples")``; every client's log lambda is kept with
    it.

    >>> agnostic(0.1).init({}, {})
    {'mean_loss': Array(0., dtype=float32)}
    """
    if not rate >= 0:
        raise InputError(f"agnostic({rate}): the rate of the ascent must not be negative")

    def init(params: Params, rows: Rows) -> PyTree:
        return {"mean_loss": jnp.zeros(())}

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        loss = message.report.start_loss
        new = jnp.clip(memory + rate * (loss - offer["mean_loss"]), -LARGEST, LARGEST)
        weight = jnp.where(message.weight > 0, jnp.exp(memory), 0)
        return message._replace(weight=weight, extra={**message.extra, "loss": loss}), new

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        extra = dict(total.extra)
        loss = extra.pop("loss")
        return total._replace(extra=extra), {
            "mean_loss": jnp.where(total.weight > 0, loss, state["mean_loss"])
        }

    return Stage(
        init,
        encode,
        decode,
        offer=lambda state: state,
        remember=lambda params, tables: jnp.zeros(()),
        keeps=True,
        extras=True,
    )
