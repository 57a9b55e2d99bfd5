"""Several planned rounds as one program, so that the host is needed once for all of them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from fedslice.round.figures import Figures
from fedslice.round.plan import Plan
from fedslice.types import Array, Key, PyTree, State

Round: TypeAlias = Callable[[State, PyTree, Plan, Key], tuple[State, PyTree, Figures]]


def in_turn(one: Round, out: Any) -> Callable[..., tuple[State, PyTree, Figures]]:
    """Some of the rounds of a block, one after the other; the state changes in place."""
    _, _, like = out

    def several(
        state: State, memory: PyTree, plans: Plan, span: Array, key: Key
    ) -> tuple[State, PyTree, Figures]:
        def planned(number: Array) -> Plan:
            return jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), plans
            )

        def step(number: Array, carry: Any) -> Any:
            state, memory, figures = carry
            state, memory, found = one(state, memory, planned(number), key)
            kept = jax.tree.map(
                lambda all, new: jax.lax.dynamic_update_index_in_dim(all, new, number, 0),
                figures,
                found,
            )
            return state, memory, kept

        rounds = plans.shared.round.shape
        figures = jax.tree.map(lambda x: jnp.zeros(rounds + x.shape, x.dtype), like)
        return jax.lax.fori_loop(span[0], span[1], step, (state, memory, figures))

    return several


def one_of(state: State, memory: PyTree, plans: Plan, span: Any, key: Key) -> Any:
    """Of the arguments of several rounds those of one."""
    plan = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), plans)
    return state, memory, plan, key
