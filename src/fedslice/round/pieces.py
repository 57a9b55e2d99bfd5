"""Loops of small operations, compiled in one piece.

On a CPU XLA runs every operation in the body of a loop as a task of its own.  Where a step is a few
rows and a dot product, handing out tasks takes longer than all arithmetic, and tasks that are
handed to another thread wait for it.  XLA compiles a loop over less than a kilobyte into one
function instead; here larger ones are marked for the same: those whose operations are known to fit
into such a function, and small enough to gain by it.

What does not fit is what XLA has separate code for: sorts, products of matrices, sums of many
numbers, scatters.  Of the last, whole rows that are added to some of a table's, which is what
training a slice does (:mod:`fedslice.client.by_rows`), become a loop of their own: the same rows,
added in the same order.  An operation that is not in the list leaves its loop as it is, and should
the compiler still refuse, the program is compiled without marks (:mod:`fedslice.round.program`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from fedslice.types import Array

TRIED = (0, 10), (0, 11)  # versions of JAX from, and before; XLA ends a process where it fails
LOOPS = ("scan", "while")
SMALL_SUM = 1000  # numbers; sums of a few thousand are made by a library
SMALL = 1 << 16  # numbers of a result for which handing out a task costs something
MARK = {"xla_cpu_small_call": "true", "inlineable": "false"}
CONTROL = {*LOOPS, "cond", "jit", "custom_jvp_call", "custom_vjp_call"}
BY_NUMBER = """
    abs add add_any and bitcast_convert_type cbrt ceil clamp convert_element_type copy cos div
    eq erf erf_inv exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max
    min mul ne neg not or pow rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sqrt square sub tan tanh xor
"""
BY_PLACE = """
    broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather iota pad reshape rev
    slice split squeeze stack transpose
"""
SUMS = {"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"}
RANDOM = {"random_bits", "random_fold_in"}
KNOWN = {*CONTROL, *BY_NUMBER.split(), *BY_PLACE.split(), *RANDOM}
IN_PLACE = {*CONTROL, "dynamic_update_slice", "scatter-add"}  # what they hold may be large


def possible() -> bool:
    """Whether the mark was tried with this compiler."""
    return TRIED[0] <= jax.__version_info__ < TRIED[1] and jax.default_backend() == "cpu"


def refused(error: Exception) -> bool:
    """Whether an error is the compiler's, that something does not fit into one piece."""
    return any(word in str(error) for word in ("UNIMPLEMENTED", "Failed to materialize symbols"))


def fits(equation: JaxprEqn) -> bool:
    """Whether an operation is a loop that can be one piece, and gains by it.

    >>> def loop(step, size):
    ...     start = jnp.zeros(size)
    ...     return jax.make_jaxpr(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: step(x), x))(start)
    >>> steps = jnp.sin, jnp.sort, lambda x: x - jnp.sum(x)
    >>> [[fits(loop(step, size).eqns[-1]) for size in (100, 5000)] for step in steps]
    [[True, True], [False, False], [True, False]]
    """
    if equation.primitive.name not in LOOPS:
        return False
    return all(_fits(each) for each in inside(equation))


def _fits(equation: JaxprEqn) -> bool:
    name = equation.primitive.name
    sizes = [math.prod(_shape(result)) for result in equation.outvars]
    if name not in IN_PLACE and max(sizes, default=0) > SMALL:
        return False
    if name in SUMS:
        (operand,) = equation.invars
        return _type(operand).dtype == bool or math.prod(_shape(operand)) < SMALL_SUM
    return name in KNOWN or adds_rows(equation)


def inside(equation: JaxprEqn) -> Iterator[JaxprEqn]:
    """All operations inside of one."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, Jaxpr | ClosedJaxpr) and equation.primitive.name in CONTROL:
                for each in inner.eqns:
                    yield each
                    yield from inside(each)


def in_one_piece(run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """``run``, which is a loop that :func:`fits`, as one piece.

    XLA fails, and ends the process, where such a function has an argument that it does not read;
    and it puts constants into functions, which leaves their arguments unread.  So nothing is passed
    that might be constant: small arguments of one type come in one array, which begins with a
    number that nobody knows beforehand, and of each array something is read.

    >>> loop = lambda x, more: [jax.lax.fori_loop(0, 9, lambda i, x: x + more, x)]
    >>> in_one_piece(loop)(jnp.zeros(2), jnp.ones(()))
    [Array([9., 9.], dtype=float32)]
    """

    def marked(*given: Any) -> Sequence[Any]:
        traced = jax.make_jaxpr(run)(*given)
        packed = _Packed([*traced.consts, *given])  # what it takes from around is an argument, too

        def inside(*arrays: Array) -> Sequence[Any]:
            values, count = packed.opened(arrays), len(traced.consts)
            loop = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, values[:count]))
            return [*loop(*values[count:]), _read(arrays)]

        with set_xla_metadata(**MARK):
            *found, _ = jax.jit(inside)(*packed.arrays)
        return found

    return marked


class _Packed:
    """Values as few arrays, and back."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.keys = [jax.random.key_impl(each) if _is_key(each) else None for each in given]
        plain = [jax.random.key_data(each) if _is_key(each) else each for each in given]
        self.shapes, self.sizes = [x.shape for x in plain], [x.size for x in plain]
        types = [None if x.size > SMALL_SUM else jnp.dtype(x.dtype) for x in plain]
        self.groups = {
            kind: [place for place, own in enumerate(types) if own == kind]
            for kind in dict.fromkeys(types)
            if kind is not None
        }
        self.large = [place for place, own in enumerate(types) if own is None]
        unknown = _read(plain)
        self.arrays = [plain[place] for place in self.large]
        for kind, places in self.groups.items():
            each = [jnp.ravel(plain[place]) for place in places]
            self.arrays.append(jnp.concatenate([unknown[None].astype(kind), *each]))

    def opened(self, arrays: Sequence[Array]) -> list[Any]:
        """The values."""
        found = dict(zip(self.large, arrays, strict=False))
        for places, array in zip(self.groups.values(), arrays[len(self.large) :], strict=True):
            end = 1
            for place in places:
                start, end = end, end + self.sizes[place]
                found[place] = array[start:end].reshape(self.shapes[place])
        return [
            found[place] if kind is None else jax.random.wrap_key_data(found[place], impl=kind)
            for place, kind in enumerate(self.keys)
        ]


def _read(arrays: Sequence[Any]) -> Array:
    """A number that depends on all of them."""
    total = jnp.zeros((), jnp.uint32)
    for each in arrays:
        if each.size:
            first = jax.lax.slice(each, (0,) * each.ndim, (1,) * each.ndim).reshape(())
            wide = first.dtype == jnp.float32
            total += jax.lax.bitcast_convert_type(first, jnp.uint32) if wide else first.astype("u4")
    return total


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def adds_rows(equation: JaxprEqn) -> bool:
    """Whether an operation adds whole rows to those of a table; beyond its end: nowhere."""
    if equation.primitive.name != "scatter-add":
        return False
    form, (table, places, rows) = equation.params["dimension_numbers"], equation.invars
    return (
        (form.inserted_window_dims, form.scatter_dims_to_operand_dims) == ((0,), (0,))
        and not form.operand_batching_dims
        and equation.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
        and len(_shape(places)) == 2
        and form.update_window_dims == tuple(range(1, len(_shape(rows))))
        and _shape(rows)[1:] == _shape(table)[1:]
    )


def _type(name: Any) -> Any:
    """Shape and dtype behind a name of a traced program."""
    return name.aval


def _shape(name: Any) -> tuple[int, ...]:
    return tuple(_type(name).shape)


def add_rows(table: Array, places: Array, rows: Array) -> Array:
    """The same, one row after the other.

    >>> places = jnp.array([[2], [0], [2], [3]])
    >>> add_rows(jnp.zeros(3), places, jnp.array([1.0, 2.0, 3.0, 4.0]))
    Array([2., 0., 4.], dtype=float32)
    """
    last = table.shape[0] - 1

    def add(number: Array, table: Array) -> Array:
        place = places[number, 0]
        here = jnp.clip(place, 0, last)
        row = jax.lax.dynamic_index_in_dim(table, here, keepdims=False)
        more = jnp.where((place >= 0) & (place <= last), row + rows[number], row)
        return jax.lax.dynamic_update_index_in_dim(table, more, here, 0)

    return jax.lax.fori_loop(0, len(places), add, table)
