"""FedExP (Jhunjhunwala, Wang and Joshi 2023): a server step that grows where updates disagree.

    eta_g = max(1, sum_i p_i ||delta_i||^2 / (2 (||delta||^2 + eps))),   x <- x + eta_g delta

delta = sum_i p_i delta_i is the mean and p_i are the clients' shares of the weights.  Where one
model fits all clients, a client's work does not lead away from it: in the mean by p_i

    2 <delta, x - x*> <= -sum_i p_i ||delta_i||^2,

so ||x + eta delta - x*||^2 falls for every eta below twice the ratio above, and fastest at it.

*On slices*: delta_i is zero where client i holds nothing, so both norms are those of the dense
model, and clients send one number more.  *With heat* the server moves by C delta, C = diag(c_m).
The same bound in the norm ||v||_C^2 = sum_m v_m^2 / c_m reads

    ||x + eta C delta - x*||_C^2
        <= ||x - x*||_C^2 - eta sum_i p_i ||delta_i||^2 + eta^2 <delta, C delta>

so the mean's squared norm becomes <delta, C delta>, which is 1 / c_m times the square of what the
server is given.  With all clients in the round it is the holders' mean, weighed by how many they
are: updates that agree among a row's holders give 1 for cold rows too, where FedExP without heat
takes the silence of those who do not hold a row for disagreement.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedslice import client as clients
from fedslice import server as servers
from fedslice.client.local import ONE_PASS
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.recipes.shared import Optimizer, compose
from fedslice.stage.averaging import coefficients
from fedslice.stage.clipping import norm
from fedslice.stage.codes import opened
from fedslice.types import Algorithm, Array, Key, Message, Params, PyTree, Rows, Stage, Work


def fedexp(
    model: Model,
    optimizer: Optimizer,
    work: Work = ONE_PASS,
    *,
    eps: float = 1e-3,
    server: Optimizer | None = None,
    weights: str = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
) -> Algorithm:
    """FedAvg with a server step that grows where the clients' updates disagree.

        eta_g = max(1, sum_i p_i ||delta_i||^2 / (2 (||delta||^2 + eps))),   x <- x + eta_g delta

    Jhunjhunwala, Wang and Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR
    2023.

    Heterogeneous clients and models large enough to fit them all: updates then cancel in the mean
    delta, and a longer step is safe. p_i is a client's share of the weights. One client, or updates
    that agree, make it FedAvg. With heat the norm of the mean is <delta, C delta>, C the rows'
    coefficients. The model swings from round to round; the paper reports the mean of the last two
    models, which is not done here.

    Args:
        model: what is trained, a ``fs.Model``.
        optimizer: the clients' optax optimizer, new in each round; put corrections before it and a
            schedule by round after it, ``optax.chain(fs.client.proximal(0.01), optax.sgd(0.1),
            fs.client.by_round(schedule))``.
        work: a client's work in a round, ``fs.Work(steps=10, batch=5)``; by default one pass over
            its examples in batches of 32.
        eps: added to the squared norm of the mean; larger ones hold the step back (our choice).
        server: the server's optax optimizer, which gets minus eta_g delta; by default SGD with
            rate 1.
        weights: what clients count for, ``"examples"`` or ``"uniform"``.
        heat: ``population.heat(model)``: corrects the rows of tables as FedSubAvg does.
        coefficient: what clients count for in the heat's coefficients, by default as in
            ``weights``; ``"examples"`` with ``sampling.weighted``.
        stages: what happens to messages before the mean, such as ``fs.stage.clip(1.0)``.

    A round sends 2d + 1, d the numbers of a client's slice; gradients of tau b examples a client,
    tau steps of batch b; client memory: none.

    Cannot be combined with: robust reductions (the step is a ratio of two means over the same
    clients).

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)  # row 0 is held by one client, row 1 by all
    >>> work = fs.Work(steps=1, batch=1)
    >>> for recipe in (fs.recipes.fedavg, fedexp):
    ...     run = fs.simulate(recipe(task.model, optax.sgd(0.5), work), task.train, seed=1,
    ...                       sampler=fs.sampling.full())
    ...     _ = run.train(9, progress=False)
    ...     print(run.table("w", [0]).round(3))  # the cold row
    [0.075]
    [0.031]
    """
    local = clients.sgd(model, optimizer, work)
    step = extrapolate(eps, heat, coefficient or weights)
    server_part = servers.optimize(server)
    return compose("fedexp", local, server_part, weights, heat, coefficient, [*stages, step])


def extrapolate(
    eps: float = 1e-3, heat: Heat | None = None, coefficient: str = "examples"
) -> Stage:
    """FedExP's step, to stand right before the mean, with the same ``heat`` and coefficient.

    >>> from fedslice.types import ClientReport
    >>> stage, key = extrapolate(eps=0.0), jax.random.key(0)
    >>> mean = Message({"w": jnp.array([1.0, 0.0])}, jnp.ones(()), ClientReport(*[jnp.ones(2)] * 4))
    >>> mean = mean._replace(extra={"square": jnp.array(8.0)})  # the clients' mean ||delta_i||^2
    >>> stage.decode({}, mean, key)[0].update["w"].tolist()
    [4.0, 0.0]
    """
    if not eps >= 0:
        raise InputError(f"eps={eps} must not be negative: it is added to a squared norm")

    def init(params: Params, rows: Rows) -> PyTree:
        return coefficients(heat, rows, coefficient)

    def encode(offer: PyTree, memory: PyTree, message: Message, key: Key) -> tuple[Message, PyTree]:
        square = jnp.square(norm(opened(message.update)))
        return message._replace(extra={**message.extra, "square": square}), memory

    def decode(state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        extra = dict(total.extra)
        ratio = extra.pop("square") / (2 * jnp.maximum(_square(total.update, state) + eps, 1e-30))
        step = jnp.maximum(1, ratio)
        update = jax.tree.map(lambda leaf: step * leaf, total.update)
        return total._replace(update=update, extra=extra), state

    return Stage(init, encode, decode, needs_sum=True, alters=True, extras=True)


def _square(mean: Params, coefficients: dict[str, Array]) -> Array:
    """<delta, C delta> from C delta; without coefficients the squared norm."""

    def leaf(x: Array, factor: Array | None) -> Array:
        if factor is None:
            return jnp.sum(x**2)
        rows = jnp.sum(x.reshape(len(x), -1) ** 2, axis=1)
        return jnp.sum(jnp.where(factor > 0, rows / jnp.where(factor > 0, factor, 1), 0))

    parts = [
        leaf(x, coefficients.get(name))
        for name, tree in mean.items()
        for x in jax.tree.leaves(tree)
    ]
    return sum(parts, jnp.zeros(()))
