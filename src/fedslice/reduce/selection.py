"""Krum and multi-Krum (Blanchard et al. 2017), and the worst clients only (superquantile,
Delta-FL).

    score of i: sum of the squared distances to its n - f - 2 nearest;
    keep the ``keep`` clients of lowest score

Two clients are compared on what both hold: the mean squared gap of those numbers, dense leaves
included.
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.reduce.holders import SLACK, full, unweighted, updates, weighted
from fedslice.reduce.sums import add
from fedslice.types import Array, Cohort, PyTree, Reduce

HUGE = 3e38  # of clients that cannot be compared: worse than all others, better than the dead


def krum(bad: float = 0.2, keep: int = 1) -> Reduce:
    """``bad`` is the share of clients that may be bad, ``keep`` how many are averaged (more than
    one: multi-Krum).

    >>> from fedslice.types import ClientReport
    >>> sent, ones = {"update": jnp.array([1.0, 2.0, 2.5, 90.0])}, jnp.ones(4)
    >>> cohort = Cohort(sent, ones, ClientReport(*[ones] * 4), {"update": ""}, {}, {})
    >>> jax.jit(lambda: krum(0.25, keep=2).apply(cohort))()  # 2.25 of 2 and 2.5, times four clients
    ({'update': Array(9., dtype=float32)}, Array(4., dtype=float32))
    """
    if not 0 <= bad < 0.5 or keep < 1:
        raise InputError(
            f"krum(bad={bad}, keep={keep}): bad must be from 0 to below one half, keep at least 1"
        )

    def apply(cohort: Cohort) -> tuple[PyTree, Array]:
        alive = cohort.weight > 0
        gaps = _gaps(cohort)
        count = jnp.sum(alive)
        near = jnp.clip(count - jnp.floor(bad * count + SLACK).astype(count.dtype) - 2, 1, None)
        ordered = jnp.sort(
            jnp.where(alive[None, :] & ~jnp.eye(len(alive), dtype=bool), gaps, jnp.inf), axis=1
        )
        taken = jnp.arange(len(alive))[None, :] < near
        known = taken & (ordered < jnp.inf)
        score = jnp.sum(jnp.where(known, ordered, 0), axis=1) / jnp.maximum(
            jnp.sum(known, axis=1), 1
        )
        score = jnp.where(jnp.any(known, axis=1), score, HUGE)
        rank = jnp.argsort(jnp.argsort(jnp.where(alive, score, jnp.inf)))
        trust = jnp.where(alive & (rank < keep), cohort.weight, 0)
        return weighted(cohort, trust), jnp.sum(cohort.weight)

    return Reduce(f"krum({bad:g},{keep})", apply)


def _gaps(cohort: Cohort) -> Array:
    """Mean squared gap of the numbers that two clients both hold, [clients, clients]."""

    def leaf(tag: str, x: Array) -> tuple[Array, Array]:
        spread, held = full(tag, x, cohort)
        flat = spread.reshape(*held.shape, -1)
        hold = held.astype(jnp.float32)
        squares = jnp.sum(flat**2, -1) * hold
        cross = jnp.einsum("iud,jud->ij", flat * hold[..., None], flat * hold[..., None])
        gap = squares @ hold.T + hold @ squares.T - 2 * cross
        return gap, hold @ hold.T * flat.shape[-1]

    pairs = [
        leaf(tag, x)
        for tag, x in zip(
            jax.tree.leaves(updates(cohort.tags)),
            jax.tree.leaves(updates(unweighted(cohort))),
            strict=True,
        )
    ]
    gap, common = (sum(parts, jnp.zeros(())) for parts in zip(*pairs, strict=True))
    return jnp.where(
        common > 0,
        jnp.clip(jnp.nan_to_num(gap, nan=HUGE, posinf=HUGE), 0, HUGE) / jnp.maximum(common, 1),
        jnp.inf,
    )


def worst(share: float) -> Reduce:
    """Superquantile (Laguel et al. 2021): only the ``share`` of clients with the highest loss
    count.

    >>> from fedslice.types import ClientReport
    >>> sent, losses = {"update": jnp.array([1.0, 2.0, 4.0, 8.0])}, jnp.array([5.0, 8.0, 9.0, 6.0])
    >>> report = ClientReport(losses, losses, losses, losses)
    >>> cohort = Cohort(sent, jnp.ones(4), report, {"update": ""}, {}, {})
    >>> worst(0.5).apply(cohort)  # the sum of the two of loss 8 and 9, and their weight
    ({'update': Array(6., dtype=float32)}, Array(2., dtype=float32))
    """
    if not 0 < share <= 1:
        raise InputError(f"worst({share}): give the share of clients that count, above 0 up to 1")

    def apply(cohort: Cohort) -> tuple[PyTree, Array]:
        alive = cohort.weight > 0
        loss = jnp.where(alive, cohort.report.start_loss, -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-loss))
        chosen = alive & (rank < jnp.ceil(share * jnp.sum(alive) - SLACK))
        masked = jax.tree.map(
            lambda x: jnp.where(chosen.reshape((-1,) + (1,) * (x.ndim - 1)), x, 0), cohort.values
        )
        return add(cohort._replace(values=masked)), jnp.sum(jnp.where(chosen, cohort.weight, 0))

    return Reduce(f"worst({share:g})", apply, additive=True)
