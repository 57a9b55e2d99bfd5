"""A traced function apart from its constants, and the same function with others.

Constants are lifted always, not only when a second value turns up, so the bits of a run do not
depend on what else the process has run.  Left where they are: 0, 1, -1 and what is not finite, by
which the compiler leaves work out (a rate of 1 is another program than a rate of 0.9, and which of
the two it is depends on the run alone), exponents, and everything that is not a floating-point
number, since whole numbers are sizes and counts.
"""

from collections.abc import Hashable, Iterator, Sequence
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
    jaxpr, consts = _parts(inner)
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
            elif _is_lifted(equation, place, operand):
                values.append(_as_argument(equation, place, operand))
                operands.append(("lifted", str(operand.aval)))
            else:
                operands.append(_fixed(operand))
        opened = _opened(equation)
        told: list[Hashable] = [
            (key, tuple(_structure(each, values) for each in opened[key])) for key in opened
        ]
        if equation.primitive.name not in CALLS:  # the rest of a call is how to differentiate it
            told += [
                (key, _parameter(value))
                for key, value in sorted(equation.params.items())
                if key not in opened
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


def _parts(inner: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    return (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())


def _opened(equation: JaxprEqn) -> dict[str, tuple[Any, ...]]:
    """The functions inside an operation that we can run ourselves, by the names of its
    parameters."""
    kind = equation.primitive.name
    names = INSIDE.get(kind, (CALLS[kind],) if kind in CALLS else ())
    found = {name: equation.params[name] for name in names}
    return {name: each if isinstance(each, tuple) else (each,) for name, each in found.items()}


def _is_lifted(equation: JaxprEqn, place: int, operand: Literal) -> bool:
    """Whether a constant becomes an argument."""
    value = _constant(operand)
    if value.ndim:
        return True
    if not jnp.issubdtype(value.dtype, np.floating) or not np.isfinite(value):
        return False
    return abs(float(value)) not in (0.0, 1.0) and (equation.primitive.name, place) != ("pow", 1)


def _as_argument(equation: JaxprEqn, place: int, operand: Literal) -> np.ndarray:
    """The value that is passed: of what is divided by, one over it, as the compiler does with a
    constant.  With an argument it would in some programs and not in others."""
    value = _constant(operand)
    by_it = place == 1 and _divides(equation)
    return np.asarray(1, value.dtype) / value if by_it else value


def _divides(equation: JaxprEqn) -> bool:
    """Whether it divides by a constant."""
    last = equation.invars[-1]
    return (
        equation.primitive.name == "div"
        and isinstance(last, Literal)
        and _is_lifted(equation, 1, last)
    )


def _constant(operand: Literal) -> np.ndarray:
    kind: Any = operand.aval
    return np.asarray(operand.val, kind.dtype)


def _fixed(operand: Literal) -> Hashable:
    return "is", _constant(operand).tobytes(), str(operand.aval)


def _array(value: Any) -> Any:
    """A constant on the host; keys of randomness stay what they are."""
    return value if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else np.asarray(value)


# -- running with others ---------------------------------------------------------------------------


class Filled:
    """A traced function with ``values``, in their order, in the place of its constants."""

    def __init__(self, inner: Jaxpr | ClosedJaxpr, values: Iterator[Any]) -> None:
        self.jaxpr, consts = _parts(inner)
        self.consts = [next(values) for _ in consts]
        self.steps = [_Step(equation, values) for equation in self.jaxpr.eqns]
        self.same: bool = not consts and all(step.same for step in self.steps)

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results."""
        known = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        known |= dict(zip(self.jaxpr.invars, arguments, strict=True))

        def read(operand: Any) -> Any:
            return _constant(operand) if isinstance(operand, Literal) else known[operand]

        for equation, step in zip(self.jaxpr.eqns, self.steps, strict=True):
            given = [
                step.lifted[place] if place in step.lifted else read(operand)
                for place, operand in enumerate(equation.invars)
            ]
            known.update(zip(equation.outvars, step(*given), strict=True))
        return [read(end) for end in self.jaxpr.outvars]


class _Step:
    """One operation, with what is inside of it."""

    def __init__(self, equation: JaxprEqn, values: Iterator[Any]) -> None:
        self.equation, self.kind = equation, equation.primitive.name
        self.lifted = {
            place: next(values)
            for place, operand in enumerate(equation.invars)
            if isinstance(operand, Literal) and _is_lifted(equation, place, operand)
        }
        self.inner = {
            name: [Filled(each, values) for each in several]
            for name, several in _opened(equation).items()
        }
        self.plain = all(each.same for several in self.inner.values() for each in several)
        self.same = self.plain and not self.lifted

    def __call__(self, *given: Any) -> Sequence[Any]:
        if not self.plain:
            told = self.equation.params
            if self.kind in CALLS:
                return self.inner[CALLS[self.kind]][0](*given)
            run = {"while": self._while, "scan": self._scan, "cond": self._cond}[self.kind]
            return run(told, *given)
        if 1 in self.lifted and _divides(self.equation):
            return [jax.lax.mul(*given)]
        primitive = self.equation.primitive
        bound = primitive.get_bind_params(self.equation.params)
        functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # old, new JAX
        found = primitive.bind(*functions, *given, **parameters)
        return found if primitive.multiple_results else [found]

    def _while(self, told: dict[str, Any], *given: Any) -> Sequence[Any]:
        (test,), (body,) = self.inner["cond_jaxpr"], self.inner["body_jaxpr"]
        first, second = told["cond_nconsts"], told["cond_nconsts"] + told["body_nconsts"]
        of_test, of_body, start = given[:first], given[first:second], given[second:]

        def due(carry: Any) -> Any:
            return test(*of_test, *carry)[0]

        def step(carry: Any) -> Any:
            # clients side by side, each with a number of steps of its own: those that are through
            # stay as they are
            now, after = due(carry), body(*of_body, *carry)
            if not now.ndim:
                return tuple(after)
            wide = [now.reshape(now.shape + (1,) * (new.ndim - now.ndim)) for new in after]
            return tuple(map(jnp.where, wide, after, carry))

        return jax.lax.while_loop(lambda carry: jnp.any(due(carry)), step, tuple(start))

    def _scan(self, told: dict[str, Any], *given: Any) -> Sequence[Any]:
        (body,) = self.inner["jaxpr"]
        first, second = told["num_consts"], told["num_consts"] + told["num_carry"]
        consts, start, each = given[:first], given[first:second], given[second:]

        def step(carry: Any, one: Any) -> Any:
            found = body(*consts, *carry, *one)
            return tuple(found[: len(start)]), tuple(found[len(start) :])

        names = ("length", "reverse", "unroll")
        end, stacked = jax.lax.scan(
            step, tuple(start), tuple(each), **{name: told[name] for name in names}
        )
        return [*end, *stacked]

    def _cond(self, told: dict[str, Any], *given: Any) -> Sequence[Any]:
        branches = [
            lambda *operands, branch=branch: tuple(branch(*operands))
            for branch in self.inner["branches"]
        ]
        return jax.lax.switch(given[0], branches, *given[1:])
