"""Common ground of the robust reductions: updates without their weights, and who holds what.

A row is reduced over the clients of the cohort that hold it.  The result stands for the sum: it is
multiplied by the weight of those clients, so that ``mean`` divides by the weight of all and a
reduction that averages equals the sum."""

import jax
import jax.numpy as jnp

from fedslice.types import Array, Cohort, PyTree

SLACK = 1e-4  # 0.42 of 150 clients are 63, whatever the rounding of 0.42


def unweighted(cohort: Cohort) -> PyTree:
    """The cohort's values divided by the clients' weights; zeros for clients of weight zero."""
    scale = jnp.where(cohort.weight > 0, 1 / jnp.where(cohort.weight > 0, cohort.weight, 1), 0)
    return jax.tree.map(lambda x: x * expand(scale, x), cohort.values)


def full(tag: str, values: Array, cohort: Cohort) -> tuple[Array, Array]:
    """A leaf as [clients, rows of the round, ...] and who of weight above zero holds each row,
    [clients, rows].

    A dense leaf is as one row that all hold.
    """
    alive = cohort.weight > 0
    if not tag:
        return values[:, None], alive[:, None]
    places, rows = cohort.places[tag], cohort.sizes[tag]
    number = jnp.arange(values.shape[0])[:, None]
    blank = jnp.zeros((values.shape[0], rows, *values.shape[2:]), values.dtype)
    held = jnp.zeros((values.shape[0], rows), bool).at[number, places].set(True, mode="drop")
    return blank.at[number, places].set(values, mode="drop"), held & alive[:, None]


def masses(held: Array, weight: Array) -> Array:
    """The weight of the clients that hold each row."""
    return jnp.sum(jnp.where(held, weight[:, None], 0), axis=0)


def expand(factor: Array, like: Array) -> Array:
    """``factor`` with trailing axes, to multiply ``like``."""
    return factor.reshape(factor.shape + (1,) * (like.ndim - factor.ndim))


def weighted(cohort: Cohort, trust: Array) -> PyTree:
    """Each row's mean over its holders by ``trust`` [clients], times its holders' weight."""
    values = unweighted(cohort)

    def leaf(tag: str, x: Array) -> Array:
        spread, held = full(tag, x, cohort)
        share = jnp.where(held, trust[:, None], 0)
        total = jnp.sum(share, axis=0)
        mean = jnp.sum(spread * expand(share, spread), axis=0) / expand(
            jnp.where(total > 0, total, 1), spread[0]
        )
        out = mean * expand(masses(held, cohort.weight), mean)
        return out if tag else out[0]

    return jax.tree.map(leaf, cohort.tags, values)


def distances(cohort: Cohort, values: PyTree, centre: PyTree) -> Array:
    """L2 distance of each client's update from ``centre`` (in the round's rows), over what the
    client holds."""

    def leaf(tag: str, x: Array, middle: Array) -> Array:
        own = (
            middle[None]
            if not tag
            else middle.at[cohort.places[tag]].get(mode="fill", fill_value=0)
        )
        gap = x - own
        if tag:
            real = cohort.places[tag] < cohort.sizes[tag]
            gap = jnp.where(expand(real, gap), gap, 0)
        return jnp.sum(gap.reshape(gap.shape[0], -1) ** 2, axis=1)

    parts = jax.tree.leaves(jax.tree.map(leaf, *map(updates, (cohort.tags, values, centre))))
    return jnp.sqrt(sum(parts, jnp.zeros(())))


def updates(values: PyTree) -> PyTree:
    """The update alone: clients are judged by it, not by what comes along."""
    return values["update"]
