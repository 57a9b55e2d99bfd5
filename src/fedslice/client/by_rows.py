"""A step on the rows of its batch: what autodiff adds into zeros as large as a table is added to
the table itself.

Where a model reads a table by rows, its gradient is a sum of rows at places of zeros; a plain
optimizer scales it and adds it to the table:

    x + s scatter(0, places, v)  =  scatter(x, places, s v)

The left side goes over the whole table, the right one over the rows of the batch.  :func:`by_rows`
traces a step and evaluates it with such sums kept apart from what they are added to
(:mod:`fedslice.client.sparse`), as long as the operations that follow allow it: sums, scaling, a
choice between two; and, once rows of the same place are put together, functions that leave zero
alone and their sum, such as the norm of a gradient that is to be clipped.  Any other operation gets
the whole array, as it would without this module.  So nothing has to be declared of the model, the
optimizer or the algorithm, and nothing is refused: momentum, weight decay, a proximal term, a norm
of the table go over all rows, because they must.  Rows that come twice in a batch are added one by
one, not their sum, so results agree to rounding."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from fedslice.client import pairwise
from fedslice.client.product import Product
from fedslice.client.sparse import Rows, Same, Sparse
from fedslice.types import Array

Value: TypeAlias = Any  # an array, Sparse, Same or Product


def by_rows(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, on the rows that it changes, where that is possible.

    >>> def descend(table, ids):
    ...     return table - 0.5 * jax.grad(lambda table: jnp.sum(table[ids]))(table)
    >>> by_rows(descend)(jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 2]))
    Array([1., 2., 2.], dtype=float32)
    >>> table, ids = jnp.zeros(999), jnp.array([2, 2])
    >>> large = lambda step: str(jax.make_jaxpr(step)(table, ids)).count(":f32[999] =")
    >>> large(descend), large(by_rows(descend))  # zeros, gradient, its multiple, sum; sum alone
    (4, 1)
    """

    def run(*given: Any) -> Any:
        closed, shape = jax.make_jaxpr(step, return_shape=True)(*given)
        found = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shape), [_whole(value) for value in found])

    return run


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], given: Sequence[Value]) -> list[Value]:
    names = (*jaxpr.constvars, *jaxpr.invars)
    known: dict[Any, Value] = dict(zip(names, (*consts, *given), strict=True))

    def read(name: Any) -> Value:
        constant = isinstance(name, Literal)
        return np.asarray(name.val, _type(name).dtype) if constant else known[name]

    for equation in jaxpr.eqns:
        values = [read(name) for name in equation.invars]
        known.update(zip(equation.outvars, _apply(equation, values), strict=True))
    return [read(name) for name in jaxpr.outvars]


def _apply(equation: JaxprEqn, values: list[Value]) -> Sequence[Value]:
    name = equation.primitive.name
    values = [v.whole if isinstance(v, Sparse) and v.settled else v for v in values]
    if name in ("jit", "pjit"):
        inner = equation.params["jaxpr"]
        return _evaluate(inner.jaxpr, inner.consts, values)
    if name in RULES and (found := RULES[name](equation, *values)) is not None:
        return [found]
    result = _bind(equation, *(_whole(value) for value in values))
    return result if equation.primitive.multiple_results else [result]


def _bind(equation: JaxprEqn, *values: Any) -> Any:
    """The operation of an equation, on its own arrays or on others."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, settings = bound if isinstance(bound, tuple) else ((), bound)  # older JAX: a pair
    with equation.ctx.manager:
        return equation.primitive.bind(*functions, *values, **settings)


def _type(name: Any) -> Any:
    """Shape and dtype behind a name of a traced program."""
    return name.aval


def _whole(value: Value) -> Any:
    return value.whole if isinstance(value, Sparse | Same | Product) else value


def _number(value: Value) -> Any:
    """What stands everywhere in an array, where that is one number; else None."""
    if isinstance(value, Same):
        return value.number
    return None if isinstance(value, Sparse | Product) or np.ndim(value) else value


def _constant(value: Value) -> Any:
    """That number, where it is known while tracing."""
    number = _number(value)
    return number if isinstance(number, np.ndarray) else None


def _is_zero(value: Value) -> bool:
    number = _constant(value)
    return number is not None and number == 0


# -- rules: what an operation gives, or None where it gets whole arrays ----------------------------


def _fill(equation: JaxprEqn, value: Value, *sizes: Any) -> Value:
    number = _number(value)
    return None if number is None or sizes else Same(number, _type(equation.outvars[0]).shape)


def _scatter(equation: JaxprEqn, into: Value, places: Any, values: Any) -> Value:
    """Whole rows added into zeros: the gradient of rows that were read."""
    if not (_is_zero(into) or isinstance(into, Sparse)):
        return None
    places, values = _whole(places), _whole(values)
    form, shape = equation.params["dimension_numbers"], _type(equation.outvars[0]).shape
    lead = places.ndim - 1
    if (
        (form.inserted_window_dims, form.scatter_dims_to_operand_dims) != ((0,), (0,))
        or form.operand_batching_dims
        or form.update_window_dims != tuple(range(lead, values.ndim))
        or values.shape[lead:] != shape[1:]
    ):
        return None
    flat = places.reshape(-1)
    if equation.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        flat = jnp.clip(flat, 0, shape[0] - 1)
    rows = Sparse(shape, None, (Rows(flat, values.reshape(-1, *shape[1:])),))
    return into.plus(rows) if isinstance(into, Sparse) else rows


def _linear(equation: JaxprEqn, value: Value) -> Value:
    if isinstance(value, Sparse):
        return value.map(lambda x: _bind(equation, x))
    return _folded(equation, value)


def _folded(equation: JaxprEqn, *values: Value) -> Value:
    """What is known while tracing stays known."""
    constants = [_constant(value) for value in values]
    if any(each is None for each in constants):
        return None
    with jax.ensure_compile_time_eval():
        number = np.asarray(_bind(equation, *constants))
    shape = _type(equation.outvars[0]).shape
    return Same(number, shape) if shape else number


def _plus(equation: JaxprEqn, left: Value, right: Value) -> Value:
    if isinstance(right, Sparse) and not isinstance(left, Sparse):
        left, right = right, left
    if not isinstance(left, Sparse):
        return None
    if _is_zero(right):
        return left
    if _number(right) is not None:
        return None
    return left.plus(right if isinstance(right, Sparse) else _whole(right))


def _minus(equation: JaxprEqn, left: Value, right: Value) -> Value:
    return _plus(equation, left, right.map(jnp.negative)) if isinstance(right, Sparse) else None


def _times(equation: JaxprEqn, left: Value, right: Value) -> Value:
    if left is right:
        return _zero_to_zero(equation, left, right)
    if isinstance(right, Sparse):
        left, right = right, left
    number = _number(right)
    if not isinstance(left, Sparse) or number is None:
        return None
    return left.map(lambda x: x * number)


def _over(equation: JaxprEqn, left: Value, right: Value) -> Value:
    number = _number(right)
    if not isinstance(left, Sparse) or number is None:
        return None
    return left.map(lambda x: x / number)


def _choose(equation: JaxprEqn, which: Value, *cases: Value) -> Value:
    """Between arrays with the same base and rows at the same places, or none."""
    number = _number(which)
    first = next((case for case in cases if isinstance(case, Sparse)), None)
    if number is None or first is None:
        return None
    rows = [case.rows if isinstance(case, Sparse) else () for case in cases]
    for case, own in zip(cases, rows, strict=True):
        base = case.base if isinstance(case, Sparse) else None if _is_zero(case) else case
        same = len(own) == len(first.rows) and all(
            mine.places is its.places for mine, its in zip(own, first.rows, strict=True)
        )
        if base is not first.base or not (same or not own):
            return None
    kept = tuple(
        Rows(
            each.places,
            jax.lax.select_n(
                number, *(own[k].values if own else jnp.zeros_like(each.values) for own in rows)
            ),
        )
        for k, each in enumerate(first.rows)
    )
    distinct = all(case.distinct for case in cases if isinstance(case, Sparse))
    return Sparse(first.shape, first.base, kept, distinct)


def _zero_to_zero(equation: JaxprEqn, *values: Value) -> Value:
    """A function of each number of one array that leaves zero alone."""
    given = {id(value): value for value in values if isinstance(value, Sparse)}
    if len(given) != 1:
        return None if given else _folded(equation, *values)
    (one,) = given.values()
    zero = np.zeros((), one.rows[0].values.dtype)
    of_zero = _folded(equation, *(zero if value is one else value for value in values))
    if of_zero is None or not _is_zero(of_zero) or one.merged is None:
        return None
    (rows,) = one.merged.rows
    own = (
        rows.values if value is one else jnp.broadcast_to(_number(value), rows.values.shape)
        for value in values
    )
    return replace(one.merged, rows=(Rows(rows.places, _bind(equation, *own)),))


def _sum(equation: JaxprEqn, value: Value) -> Array | None:
    """The sum over rows, or of all numbers of a small array."""
    axes, kind = equation.params["axes"], _type(equation.invars[0])
    if isinstance(value, Sparse) and 0 in axes and value.merged is not None:
        return _bind(equation, value.merged.rows[0].values)
    small = pairwise.between(math.prod(kind.shape)) and jnp.issubdtype(kind.dtype, jnp.floating)
    return pairwise.in_halves(_whole(value)) if small and len(axes) == len(kind.shape) else None


def _product(equation: JaxprEqn, left: Value, right: Value) -> Value:
    _, (batch, _) = equation.params["dimension_numbers"]
    plain = type(equation.params["precision"]) in (tuple, type(None))  # of each operand, if at all
    return Product(_whole(left), _whole(right), equation.params) if plain and not batch else None


def _turned(equation: JaxprEqn, value: Value) -> Value:
    turns = isinstance(value, Product) and equation.params["permutation"] == value.turn
    return value.turned if turns else None


RULES: dict[str, Callable[..., Value]] = {
    "broadcast_in_dim": _fill,
    "scatter-add": _scatter,
    "add": _plus,
    "add_any": _plus,
    "sub": _minus,
    "mul": _times,
    "div": _over,
    "select_n": _choose,
    "reduce_sum": _sum,
    "dot_general": _product,
    "transpose": _turned,
    **dict.fromkeys(("neg", "copy", "convert_element_type", "reduce_precision"), _linear),
    **dict.fromkeys(("square", "integer_pow", "abs", "sign", "max", "min", "clamp"), _zero_to_zero),
}
