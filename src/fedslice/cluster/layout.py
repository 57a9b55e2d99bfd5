"""Where rows live: in shards that step by themselves, or with the driver.

Shards need a plain sum, one trip, and a server that goes row by row; each is asked of the algorithm
and of its trace.  Everything else (robust reductions, surveys, norms over a whole update, noise on
all rows at once, secure sums) has its tables and its server's step with the driver, which gets
every client's message by itself; its clients train on the workers all the same.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedslice.cluster.pieces import split
from fedslice.cluster.rowwise import ANY, rowwise
from fedslice.cluster.shard import message_of, parts_of, total_tags
from fedslice.reduce.sums import LARGE
from fedslice.round.program import once
from fedslice.round.protocol import conclude, offered
from fedslice.round.shapes import Shapes
from fedslice.types import Algorithm, Message, PyTree, State

ROWS = 1009  # and numbers after it: sizes of tables that no other axis has
COHORT = 13


class Layout(NamedTuple):
    """``reason``: why the tables are with the driver; empty if they are in shards.  Then dense
    leaves, by number, that rows read: of the state to be ``told``, and of ``state`` and ``total``
    to step.  Then shapes: of the state's ``rows`` and ``dense`` leaves, the total's dense ones, the
    rows that are ``sent``; and which dense leaves of a message are ``large``."""

    reason: str
    told: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    rows: tuple[Any, ...] = ()
    dense: tuple[Any, ...] = ()
    totals: tuple[Any, ...] = ()
    sent: tuple[Any, ...] = ()
    large: tuple[bool, ...] = ()


def layout(algorithm: Algorithm, shapes: Shapes) -> Layout:
    """Ask an algorithm where its rows can live."""
    if not shapes.spaces:
        return Layout("the model has no tables")
    if algorithm.survey is not None:
        return Layout("a survey's mean goes to the clients before they train")
    if not algorithm.reduce.plain:
        return Layout(f"{algorithm.reduce.name} needs every client's message by itself")
    if algorithm.answers is not None:
        return Layout("clients answer about the rows of the whole cohort")
    # of the columns nothing is in it but which there are
    return once(
        algorithm, ("layout", *shapes.population.columns), lambda: _asked(algorithm, shapes)
    )


def _asked(algorithm: Algorithm, shapes: Shapes) -> Layout:
    sizes = {name: ROWS + 2 * place for place, name in enumerate(shapes.spaces)}
    trees = jax.eval_shape(lambda: shapes.trees(sizes))
    state, tags = trees.state, shapes.tags
    total = parts_of(_total(trees.arrived))
    key = jax.eval_shape(lambda: jax.random.key(0))
    told = rowwise(
        lambda state: offered(algorithm, state), (state,), (tags.state,), tags.invitation, sizes
    )
    if told.reason:
        return Layout(f"what clients are told of a row hangs on others: {told.reason}")

    def step(state: State, total: PyTree, key: Any) -> tuple[State, Any]:
        return conclude(algorithm, state, (), message_of(total), key)

    given = (tags.state, total_tags(tags), "")
    found = rowwise(step, (state, total, key), given, (tags.state, ANY), sizes)
    if found.reason:
        return Layout(f"the server's step looks at all rows at once: {found.reason}")
    many = len(jax.tree.leaves(tags.state))
    paths = jax.tree_util.tree_leaves_with_path(total[0])  # of all values, which come first
    update = {many + n for n, (path, _) in enumerate(paths) if path[0].key == "update"}
    if found.reads & update:
        return Layout("the step of rows reads the update of dense leaves")
    reads = found.reads | found.beside - update  # their update's norm is of rows alone
    before = [n for n in reads if n < many]
    totals = _dense(total_tags(tags), [n - many for n in reads if n >= many])
    sent, kept = split(tags.values, total[0])
    rows, dense = split(tags.state, state)
    return Layout(
        "",
        _dense(tags.state, told.reads),
        _dense(tags.state, before),
        totals,
        tuple(rows),
        tuple(dense),
        tuple(split(total_tags(tags), total)[1]),
        tuple(sent),
        tuple(leaf.size >= LARGE for leaf in kept),
    )


def _total(message: Message) -> Message:
    """The sum of messages, as it looks: reports stay one for each client."""
    report = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((COHORT,), jnp.float32), message.report)
    return message._replace(report=report)


def _dense(tags: PyTree, leaves: Any) -> tuple[int, ...]:
    """Numbers among all leaves as numbers among the dense ones; others are no leaves of it."""
    numbers: Mapping[int, int] = {
        place: number
        for number, place in enumerate(
            place for place, tag in enumerate(jax.tree.leaves(tags)) if not tag
        )
    }
    return tuple(sorted(numbers[leaf] for leaf in leaves if leaf in numbers))
