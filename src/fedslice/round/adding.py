"""Messages of a large cohort, added up as they come.

All messages of a cohort take as much memory as the cohort has clients, and are written only to be
read once.  Where the server needs no more than their sum, clients train in parts of a few, and each
part is added to the sums while the next ones train.  Parts come in the order of the clients and are
added client by client, as :mod:`fedslice.reduce.sums` does with all of them: the same bits.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.reduce.sums import one_by_one
from fedslice.types import Array, Message, PyTree

PART = 1 << 22  # numbers in the messages of a part: they stay in a cache until they are added
STACKED = "/stacked"  # tag of what is no value; no table's name


def cut(clients: int, threads: int, most: int, unit: int) -> int:
    """How many clients a part has, a multiple of ``unit``, so that no thread trains more than
    ``most`` at a time and the threads' parts are as even as can be.

    >>> cut(100, threads=2, most=21, unit=1), cut(100, threads=2, most=1000, unit=1)
    (10, 50)
    """
    fewest = -(-clients // (threads * max(most, unit)))
    sizes = [
        -(-clients // (threads * count * unit)) * unit for count in range(fewest, 2 * fewest + 1)
    ]
    return min(sizes, key=lambda size: (-(-clients // (size * threads)) * size, -size))


class Sums:
    """The sums of rows, and of large dense leaves, over the clients that came so far; ``tags`` name
    the space of each leaf of ``{"update": ..., **extra}``, ``sizes`` are the rows of the round.

    >>> def two(row, bias):
    ...     update = {"b": jnp.full((2, 3), bias), "w": jnp.full((2, 1, 2), row)}
    ...     return Message(update, jnp.ones(2), ())
    >>> sums = Sums({"update": {"b": "", "w": "item"}}, {"item": 4})
    >>> for row, bias, count in ((1.0, 7.0, 2), (5.0, 8.0, 1)):
    ...     few = sums.add(two(row, bias), {"item": np.array([[3], [0]])}, count)
    >>> sums.messages(few).update["w"].tolist()
    [[[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [6.0, 6.0]]]
    >>> sums.messages(few).update["b"].shape
    (2, 3)
    """

    def __init__(self, tags: PyTree, sizes: Mapping[str, int]) -> None:
        self._tags, self._sizes = tags, sizes
        self._tree: Any = None
        self._names: dict[int, str] = {}  # numbers of the leaves that are added, and their spaces
        self._sums: list[Array] = []

    def add(self, message: Message, places: Mapping[str, Any], count: int) -> list[Array]:
        """The first ``count`` clients of a part are added, whose rows belong to ``places``.  All
        that is small is given back as it is, stacked."""
        leaves, tree = jax.tree.flatten(message)
        if self._tree is None:
            self._begin(message, leaves, tree)
        values = [leaves[number] for number in self._names]
        where = [places[name] if name else None for name in self._names.values()]
        self._sums = _more(self._sums, values, where, np.int32(count))
        return [leaf for number, leaf in enumerate(leaves) if number not in self._names]

    def _begin(self, message: Message, leaves: Sequence[Array], tree: Any) -> None:
        rest = jax.tree.map(lambda _: STACKED, (message.weight, message.report))
        extra = {name: self._tags[name] for name in message.extra}
        tags = jax.tree.leaves(Message(self._tags["update"], rest[0], rest[1], extra))
        self._tree = tree
        self._names = {
            number: tag
            for number, (tag, leaf) in enumerate(zip(tags, leaves, strict=True))
            if tag != STACKED and (tag or one_by_one(leaf))
        }
        each = [(self._sizes.get(tag), leaves[number]) for number, tag in self._names.items()]
        self._sums = _zeros(
            tuple(
                (leaf.shape[1:] if rows is None else (rows, *leaf.shape[2:]), leaf.dtype.name)
                for rows, leaf in each
            )
        )

    def messages(self, few: Sequence[Array]) -> Message:
        """Stacked messages with the same sum, ``few`` being all that is small: the sums are those
        of one client who holds all rows of the round, :meth:`places`."""
        stacked, sums = iter(few), iter(self._sums)
        leaves = [
            next(sums)[None] if number in self._names else next(stacked)
            for number in range(self._tree.num_leaves)
        ]
        message: Message = jax.tree.unflatten(self._tree, leaves)
        return message

    def places(self) -> dict[str, np.ndarray]:
        """Where the rows of :meth:`messages` belong."""
        return {name: np.arange(rows, dtype=np.int32)[None] for name, rows in self._sizes.items()}


@partial(jax.jit, static_argnums=0)
def _zeros(kinds: tuple[tuple[tuple[int, ...], str], ...]) -> list[Array]:
    return [jnp.zeros(*kind) for kind in kinds]


@partial(jax.jit, donate_argnums=0)
def _more(
    sums: list[Array], stacked: list[Array], places: list[Array | None], count: Array
) -> list[Array]:
    def one(total: Array, values: Array, where: Array | None) -> Array:
        if where is None:
            return jax.lax.fori_loop(0, count, lambda n, so_far: so_far + values[n], total)
        real = jnp.arange(len(values))[:, None] < count
        flat = jnp.where(real, where, len(total)).reshape(-1)
        return total.at[flat].add(values.reshape(-1, *values.shape[2:]), mode="drop")

    return [one(*each) for each in zip(sums, stacked, places, strict=True)]
