"""The geometric median, RFA (Pillutla et al. 2022): the point with the least sum of distances to
the updates.

    z_m = sum_i b_i delta_{i,m} / sum_i b_i over the holders of m
    b_i = w_i / max(eps, ||delta_i - z on S(i)||)

A few Weiszfeld steps from zero, where a client far off has little weight.
"""

import jax
import jax.numpy as jnp

from fedslice.errors import InputError
from fedslice.reduce.holders import distances, expand, full, masses, unweighted, weighted
from fedslice.reduce.sums import add
from fedslice.types import Array, Cohort, PyTree, Reduce


def geometric(steps: int = 8, floor: float = 1e-6) -> Reduce:
    """Geometric median by ``steps`` of smoothed Weiszfeld.

    >>> from fedslice.types import ClientReport
    >>> sent, ones = {"update": jnp.array([1.0, 2.0, 3.0, 90.0])}, jnp.ones(4)
    >>> cohort = Cohort(sent, ones, ClientReport(*[ones] * 4), {"update": ""}, {}, {})
    >>> values, weight = geometric().apply(cohort)
    >>> round(float(values["update"] / weight), 1)  # the sum of distances is least from 2 to 3
    2.2
    """
    if steps < 1 or not floor > 0:
        raise InputError(
            f"geometric(steps={steps}, floor={floor}): steps must be at least 1 and floor positive"
        )

    def apply(cohort: Cohort) -> tuple[PyTree, Array]:
        values = unweighted(cohort)

        def step(number: Array, centre: PyTree) -> PyTree:
            trust = cohort.weight / jnp.maximum(distances(cohort, values, centre), floor)
            return per_row(cohort, weighted(cohort, trust))

        # no update: an outlier, however far, does not move the start
        first = jax.tree.map(jnp.zeros_like, add(cohort))
        centre = jax.lax.fori_loop(0, steps - 1, step, first)
        trust = cohort.weight / jnp.maximum(distances(cohort, values, centre), floor)
        return weighted(cohort, trust), jnp.sum(cohort.weight)

    return Reduce("geometric", apply)


def per_row(cohort: Cohort, total: PyTree) -> PyTree:
    """Undo the holders' weights: what stands for a sum becomes a mean over holders."""

    def leaf(tag: str, summed: Array, values: Array) -> Array:
        _, held = full(tag, values, cohort)
        mass = masses(held, cohort.weight)
        mass = jnp.where(mass > 0, mass, 1)
        return summed / expand(mass, summed) if tag else summed / mass[0]

    return jax.tree.map(leaf, cohort.tags, total, cohort.values)
