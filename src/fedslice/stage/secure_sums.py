"""A secure sum, as the compiled simulation computes it: fixed-point numbers modulo 2^32.

    client   q = fixed point of (w_i delta_i, w_i)        what :mod:`fedslice.privacy.secure` masks
    server   sum of q modulo 2^32, and back to floats

The masks of the protocol cancel in the sum, so the simulation leaves them out; what is left is its
rounding, of at most n / scale in the sum of n clients, and the law that both give the same whole
numbers.  The server sees the sum and nothing else of updates and weights: so no robust reduction,
no codes, no survey, and a bound on every number, which the stage before the mean must give.

Losses and counts that clients report do not go through it (docs/privacy.md).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.stage.fixed import bounded, scale_for
from fedslice.stage.fixed import decode as from_fixed
from fedslice.stage.fixed import encode as to_fixed
from fedslice.stage.gaussian import refuse_extras
from fedslice.types import Answers, Around, Array, Key, Message, Params, PyTree, Rows, Stage

WEIGHT = "weight"  # the extra that carries a client's weight


def secure(
    clients: int,
    bound: float = 1.0,
    heaviest: float | None = None,
    answers: Answers | None = None,
    toward_zero: bool = False,
) -> Stage:
    """Sums of at most so many ``clients``, next to the wire.

    Args:
        clients: the most that a cohort can have: the sum of so many cannot overflow.
        bound: on the L2 norm of an update before the mean: that of ``stage.clip(bound)``, or 1
            with ``stage.ball``.
        heaviest: the largest weight of a client where those are not uniform: with weights by
            examples one that has more counts for so many.
        answers: how clients answer for the rows of the cohort's union, ``types.Answers(15/16, 1/16,
            15/16, 1/16)``; by default they take all of it.  A row that a client holds but does not
            take it reads as zeros and does not train; the sums of rows are divided by p5, the share
            that is left, so that heat correction stays right on average.
        toward_zero: round toward zero, by less than 1 / scale a number, and not at random: with
            noise, since rounding at random may lengthen an update.

    >>> from fedslice.types import ClientReport
    >>> report = ClientReport(*[jnp.ones(())] * 4)
    >>> message = Message({"w": jnp.array([0.25, -0.5])}, jnp.ones(()), report)
    >>> stage, key = secure(clients=100), jax.random.key(0)
    >>> sent, _ = stage.encode((), (), message, key)
    >>> sent.update["w"], stage.decode((), sent, key)[0].update["w"].tolist()
    (Array([ 4194304, -8388608], dtype=int32), [0.25, -0.5])
    """
    if heaviest is not None and not heaviest >= 1:
        raise InputError(f"heaviest={heaviest}: the largest weight is at least 1")
    answers = answers or Answers()
    if not all(0 <= p <= 1 for p in answers) or not answers.p5 > 0:
        raise InputError(f"{answers}: four probabilities, with which held rows are taken at times")
    largest = heaviest or 1.0
    scales = scale_for(clients, bound * largest), scale_for(clients, largest)
    point = _FixedPoint(*scales, bound * largest, largest, toward_zero)

    def init(params: Params, rows: Rows) -> PyTree:
        """For rows that were left out."""
        return {} if answers.everything else dict.fromkeys(rows, jnp.float32(1 / answers.p5))

    return Stage(
        init,
        point.encode,
        point.decode,
        on_sum=True,
        bound=bound,
        most=clients,
        lengthens=not toward_zero,
        weights="" if heaviest else "uniform",
        rows="union",
        answers=answers,
        around=partial(_turns, clients),
    )


class _FixedPoint(NamedTuple):
    """Updates of numbers up to ``most``, times weights up to ``largest``, and these weights, as
    whole numbers of their own scales, and back."""

    scale: float
    weight_scale: float
    most: float
    largest: float
    toward_zero: bool

    def encode(
        self, offer: PyTree, memory: PyTree, message: Message, key: Key
    ) -> tuple[Message, PyTree]:
        """What a client hands to the sum."""
        refuse_extras(message, "through numbers that have no bound")
        weight = jnp.minimum(message.weight, self.largest)
        factor = weight / jnp.maximum(message.weight, 1e-30)
        leaves, tree = jax.tree.flatten((message.update, message.extra))
        whole = [
            self._whole(factor, leaf, jax.random.fold_in(key, place))
            for place, leaf in enumerate(leaves)
        ]
        update, extra = jax.tree.unflatten(tree, whole)
        told = to_fixed(weight, jnp.zeros(()), self.weight_scale)
        hidden = jnp.zeros_like(message.weight)
        return message._replace(update=update, weight=hidden, extra={**extra, WEIGHT: told}), memory

    def _whole(self, factor: Array, leaf: Array, key: Key) -> Array:
        uniform = jax.random.uniform(key, leaf.shape)
        within = bounded(factor * leaf, self.most)  # beyond it by rounding alone
        if self.toward_zero:
            within, uniform = jnp.trunc(within * self.scale) / self.scale, jnp.zeros_like(uniform)
        return to_fixed(within, uniform, self.scale)

    def decode(self, state: PyTree, total: Message, key: Key) -> tuple[Message, PyTree]:
        """What the server reads in the sum; ``state`` has what rows are multiplied by."""
        extra = dict(total.extra)
        weight = from_fixed(extra.pop(WEIGHT), self.weight_scale)
        update, extra = jax.tree.map(lambda q: from_fixed(q, self.scale), (total.update, extra))
        update = {
            name: jax.tree.map(lambda x: x * state[name], leaf) if name in state else leaf
            for name, leaf in update.items()
        }
        return total._replace(update=update, weight=weight, extra=extra), state


def _turns(most: int, cohort: Around) -> tuple[int, int]:
    """Bytes down and up of one client, beside its message: the secure sum that finds the union of
    each table's rows, the union, what the client takes of it, and the turns of the sum itself."""
    from fedslice.privacy.rows import plan_union
    from fedslice.privacy.secure.degree import degree
    from fedslice.privacy.secure.sizes import sizes

    neighbours = min(degree(max(3, most)).neighbours, max(2, cohort.clients - 1))
    numbers = cohort.dense + sum(cohort.union[t] * cohort.widths[t] for t in cohort.union)
    turns = sizes(cohort.clients, neighbours, numbers, parts=1 + len(cohort.union))
    up, down = turns.total
    up -= 4 * numbers  # which are the message's own
    for table, found in cohort.union.items():
        # as many as could be known beforehand
        most_found = min(cohort.rows[table], 1 << max(0, found - 1).bit_length())
        asked = plan_union(cohort.rows[table], most_found).sizes(cohort.clients, neighbours)
        more_up, more_down = asked.total
        up += more_up + -(-found // 8)
        down += more_down + 8 * found
    return down, up
