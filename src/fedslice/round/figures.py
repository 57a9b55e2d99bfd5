"""What a round reports, as arrays of the device: read only when somebody looks."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedslice.round.protocol import Stacked
from fedslice.stage.codes import is_code
from fedslice.types import Array, ClientReport, Message, PyTree

REPORT = ("loss", "start_loss", "failed", "update_norm")

Items: TypeAlias = tuple[Array, ...]


class Figures(NamedTuple):
    """What a round reports: one number for each name in ``REPORT``, and for each code of a message
    how many numbers each client kept."""

    values: Array
    items: Items


def summary(report: ClientReport) -> dict[str, Array]:
    """Of the clients' reports: losses by the examples gone through, and how many failed."""
    seen = report.examples
    share = seen / jnp.maximum(jnp.sum(seen), 1)
    losses = {"loss": report.loss, "start_loss": report.start_loss}
    means = {name: jnp.sum(share * loss) for name, loss in losses.items()}
    return {**means, "failed": jnp.sum(report.failed)}


def items_of(message: Message, tags: PyTree, stacked: Stacked) -> Items:
    """How many numbers each code of a message keeps, of the rows that are sent; ``tags`` are those
    of its update."""
    leaves = jax.tree.leaves(message.update, is_leaf=is_code)
    real = {name: rows < stacked.sizes[name] for name, rows in stacked.places.items()}
    pairs = zip(leaves, jax.tree.leaves(tags), strict=True)
    return tuple(leaf.items(real.get(tag)) for leaf, tag in pairs if is_code(leaf))
