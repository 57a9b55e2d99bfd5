"""A traced function apart from its constants; :mod:`fedslice.round.filled` runs it with others.

Constants are lifted always, not only when a second value turns up, so the bits of a run do not
depend on what else the process has run.  Left where they are: 0, 1, -1 and what is not finite, by
which the compiler leaves work out (a rate of 1 is another program than a rate of 0.9, and which of
the two it is depends on the run alone), exponents, and everything that is not a floating-point
number, since whole numbers are sizes and counts.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

CALLS = {  # what only calls something, and by which name it has that
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
INSIDE = {"while": ("body_jaxpr", "cond_jaxpr"), "scan": ("jaxpr",), "cond": ("branches",)}


class Lifted(NamedTuple):
    """A traced function whose constants were found.  ``structure`` is the same for functions that
    differ in their ``values`` alone."""

    traced: ClosedJaxpr
    structure: Hashable
    values: list[Any]


def lift(traced: ClosedJaxpr) -> Lifted:
    """Separate a traced function into its structure and its constants.

    >>> functions = lambda x: 0.1 * x, lambda x: 0.2 * x, lambda x: 0.1 * x + 1
    >>> one, two, three = (lift(jax.make_jaxpr(fun)(jnp.ones(3))) for fun in functions)
    >>> one.structure == two.structure, one.structure == three.structure
    (True, False)
    >>> one.values, three.values
    ([array(0.1, dtype=float32)], [array(0.1, dtype=float32)])
    """
    values: list[Any] = []
    return Lifted(traced, _structure(traced, values), values)


def _structure(inner: Jaxpr | ClosedJaxpr, values: list[Any]) -> Hashable:
    """Operations with numbers for their variables; constants are put into ``values``."""
    jaxpr, consts = contents(inner)
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> Hashable:
        return numbers.setdefault(variable, len(numbers)), str(variable.aval)

    values.extend(map(_array, consts))
    head = tuple(name(variable) for variable in (*jaxpr.constvars, *jaxpr.invars))
    body = []
    for equation in jaxpr.eqns:
        operands: list[Hashable] = []
        for place, operand in enumerate(equation.invars):
            if not isinstance(operand, Literal):
                operands.append(numbers[operand])
            elif is_lifted(equation, place, operand):
                values.append(_as_argument(equation, place, operand))
                operands.append(("lifted", str(operand.aval)))
            else:
                operands.append(_fixed(operand))
        inside = opened(equation)
        told: list[Hashable] = [
            (key, tuple(_structure(each, values) for each in inside[key])) for key in inside
        ]
        if equation.primitive.name not in CALLS:  # the rest of a call is how to differentiate it
            told += [
                (key, _parameter(value))
                for key, value in sorted(equation.params.items())
                if key not in inside
            ]
        results = tuple(name(variable) for variable in equation.outvars)
        body.append((equation.primitive.name, tuple(operands), tuple(told), results))
    ends = (_fixed(end) if isinstance(end, Literal) else numbers[end] for end in jaxpr.outvars)
    return head, tuple(body), tuple(ends)


def _parameter(value: Any) -> Hashable:
    """A parameter of an operation as something to compare; what cannot be compared is only ever
    equal to itself."""
    if isinstance(value, Jaxpr | ClosedJaxpr):
        kept: list[Any] = []
        structure = _structure(value, kept)
        return structure, tuple(_parameter(each) for each in kept)
    if isinstance(value, tuple | list):
        return tuple(_parameter(each) for each in value)
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, str(value.dtype), value.tobytes()
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return value


class _Itself:
    """Something that has no hash, compared by identity and kept, so that no other takes its
    place."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def contents(inner: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    """Operations, and constants that are arrays."""
    return (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())


def opened(equation: JaxprEqn) -> dict[str, tuple[Any, ...]]:
    """The functions inside an operation that we can run ourselves, by the names of its
    parameters."""
    kind = equation.primitive.name
    names = INSIDE.get(kind, (CALLS[kind],) if kind in CALLS else ())
    found = {name: equation.params[name] for name in names}
    return {name: each if isinstance(each, tuple) else (each,) for name, each in found.items()}


def is_lifted(equation: JaxprEqn, place: int, operand: Literal) -> bool:
    """Whether a constant becomes an argument."""
    value = constant(operand)
    if value.ndim:
        return True
    if not jnp.issubdtype(value.dtype, np.floating) or not np.isfinite(value):
        return False
    return abs(float(value)) not in (0.0, 1.0) and (equation.primitive.name, place) != ("pow", 1)


def _as_argument(equation: JaxprEqn, place: int, operand: Literal) -> np.ndarray:
    """The value that is passed: of what is divided by, one over it, as the compiler does with a
    constant.  With an argument it would in some programs and not in others."""
    value = constant(operand)
    by_it = place == 1 and divides(equation)
    return np.asarray(1, value.dtype) / value if by_it else value


def divides(equation: JaxprEqn) -> bool:
    """Whether it divides by a constant."""
    last = equation.invars[-1]
    return (
        equation.primitive.name == "div"
        and isinstance(last, Literal)
        and is_lifted(equation, 1, last)
    )


def constant(operand: Literal) -> np.ndarray:
    """Its value, of its type."""
    kind: Any = operand.aval
    return np.asarray(operand.val, kind.dtype)


def _fixed(operand: Literal) -> Hashable:
    return "is", constant(operand).tobytes(), str(operand.aval)


def _array(value: Any) -> Any:
    """A constant on the host; keys of randomness stay what they are."""
    return value if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else np.asarray(value)
