"""Gaussian noise on the sum of clipped updates: central differential privacy (McMahan et al. 2018).

    sum <- sum + N(0, z^2 I)      where one client's part has norm at most 1 (stage.ball)

It falls on every row of every table, touched or not, in every round, also in one to which nobody
came: noise on the rows of the round alone would name them, and so the clients that hold them.  The
server adds it, so the server is trusted; under a secure sum devices can add it in parts
(:mod:`fedslice.stage.secure_sums`).

Where nobody is trusted every client adds N(0, z^2 I) to its own update, on all rows of all tables,
before it leaves (``local_noise``).  The sum of n independent normal numbers of variance z^2 is one
of variance n z^2, so

    sum_i (update_i + N(0, z^2 I))   has the law of   sum_i update_i + N(0, n z^2 I)

and a simulation draws that once, on the server's side: n is the number of clients that sent an
update.  Clients that are apart draw their own (``Stage.own``).  Between a client and the server
travel all rows, with noise, and no ids.
"""

import jax
import jax.numpy as jnp

from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.stage.bounding import BELOW
from fedslice.types import Array, Key, Message, Noise, OwnNoise, PyTree, Stage


def noise(
    multiplier: float, sampler: Sampler, below: float = 0.0, cost: float | None = None
) -> Stage:
    """Noise of standard deviation ``multiplier`` on sums of updates of norm 1, next to the wire.

    ``below`` is that on the number of clients within an adaptive ball; ``cost`` the multiplier that
    both together amount to (default: ``multiplier``), for the accountant.

    >>> from fedslice.data.sampling import poisson
    >>> from fedslice.types import ClientReport
    >>> total = Message({"w": jnp.zeros(100_000)}, jnp.zeros(()), ClientReport(*[jnp.zeros(1)] * 4))
    >>> noisy, _ = noise(2.0, poisson(50)).decode((), total, jax.random.key(0))
    >>> round(float(noisy.update["w"].std()), 2)
    2.0
    """
    check_multiplier(multiplier)
    if below < 0:
        raise InputError(f"below={below}: the noise on a number of clients cannot be negative")

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        refuse_extras(message, "without noise")
        return message, memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        update = normal(total.update, jax.random.fold_in(key, 0), multiplier)
        extra = dict(total.extra)
        if below:
            shaken = jax.random.normal(jax.random.fold_in(key, 1), extra[BELOW].shape)
            extra[BELOW] = extra[BELOW] + below * shaken
        return total._replace(update=update, extra=extra), state

    spent = Noise("gaussian", cost or multiplier, sampler.kind, sampler.clients)
    return Stage(lambda params, rows: (), encode, decode, on_sum=True, bound=1.0, noise=spent)


def local_noise(multiplier: float, sampler: Sampler) -> Stage:
    """Noise of standard deviation ``multiplier`` on the update, of norm at most 1, of each client.

    >>> from fedslice.data.sampling import uniform
    >>> from fedslice.types import ClientReport
    >>> reports = ClientReport(*[jnp.zeros(9)] * 4)
    >>> total = Message({"w": jnp.zeros(100_000)}, jnp.float32(9), reports)  # of nine clients
    >>> noisy, _ = local_noise(2.0, uniform(9)).decode((), total, jax.random.key(0))
    >>> round(float(noisy.update["w"].std()), 1)
    6.0
    """
    check_multiplier(multiplier)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        refuse_extras(message, "without noise")
        return message, memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        size = multiplier * jnp.sqrt(came(total))
        return total._replace(update=normal(total.update, key, size)), state

    def opened(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        return total, state

    return Stage(
        lambda params, rows: (),
        encode,
        decode,
        on_sum=True,
        bound=1.0,
        noise=Noise("local", multiplier, sampler.kind, sampler.clients, cycle=sampler.cycle),
        own=OwnNoise(lambda update, key: normal(update, key, multiplier), opened),
        rows="all",
    )


def came(total: Message) -> Array:
    """How many clients sent anything: also those whose update was not finite, for they add their
    noise to zeros; otherwise their failure would be seen.

    >>> from fedslice.types import ClientReport
    >>> report = ClientReport(*[jnp.zeros(3)] * 4, failed=jnp.array([0.0, 1.0, 0.0]))
    >>> float(came(Message({}, jnp.array(2.0), report)))
    3.0
    """
    return total.weight + jnp.sum(jnp.asarray(total.report.failed))


def check_multiplier(multiplier: float) -> None:
    """Refuse what is no noise."""
    if not 0 < multiplier < float("inf"):
        raise InputError(
            f"noise({multiplier}): the multiplier must be positive, such as 1; without noise there"
            " is no differential privacy"
        )


def normal(tree: PyTree, key: Key, size: float | Array) -> PyTree:
    """Every number of a tree with noise of its own."""
    leaves, shape = jax.tree.flatten(tree)
    noisy = [
        leaf + size * jax.random.normal(jax.random.fold_in(key, place), leaf.shape, jnp.float32)
        for place, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(shape, noisy)


def refuse_extras(message: Message, how: str) -> None:
    """What goes beside the update would not be protected, but for what the ball says."""
    if more := sorted(message.extra.keys() - {BELOW}):
        raise InputError(
            f"clients would send {', '.join(more)} beside their updates, {how}: use an algorithm"
            " that sends updates alone (fedavg, fedsubavg, fedprox, fedrecon, ...), and put"
            " stage.secure(...) last"
        )
