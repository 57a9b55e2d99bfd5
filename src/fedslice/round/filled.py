"""A traced function with other numbers in the place of its constants
(:mod:`fedslice.round.constants`), and its loops in one piece (:mod:`fedslice.round.pieces`)."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from typing import Literal as Choice

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedslice.round import pieces
from fedslice.round.constants import CALLS, constant, contents, divides, is_lifted, opened

How: TypeAlias = Choice["as it is", "in pieces", "inside"]


class Filled:
    """A traced function with ``values``, in their order, in the place of its constants; loops that
    fit are compiled ``"in pieces"``, what is ``"inside"`` of one belongs to it."""

    def __init__(
        self, inner: Jaxpr | ClosedJaxpr, values: Iterator[Any], how: How = "as it is"
    ) -> None:
        self.jaxpr, consts = contents(inner)
        self.consts = [next(values) for _ in consts]
        self.steps = [_Step(equation, values, how) for equation in self.jaxpr.eqns]
        self.same: bool = not consts and all(step.same for step in self.steps)

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results."""
        known = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        known |= dict(zip(self.jaxpr.invars, arguments, strict=True))

        def read(operand: Any) -> Any:
            return constant(operand) if isinstance(operand, Literal) else known[operand]

        for equation, step in zip(self.jaxpr.eqns, self.steps, strict=True):
            given = [
                step.lifted[place] if place in step.lifted else read(operand)
                for place, operand in enumerate(equation.invars)
            ]
            known.update(zip(equation.outvars, step(*given), strict=True))
        return [read(end) for end in self.jaxpr.outvars]


class _Step:
    """One operation, with what is inside of it."""

    def __init__(self, equation: JaxprEqn, values: Iterator[Any], how: How) -> None:
        self.equation, self.kind = equation, equation.primitive.name
        self.piece = how == "in pieces" and pieces.fits(equation)
        self.rows = how == "inside" and pieces.adds_rows(equation)
        if self.piece:
            how = "inside"
        self.lifted = {
            place: next(values)
            for place, operand in enumerate(equation.invars)
            if isinstance(operand, Literal) and is_lifted(equation, place, operand)
        }
        self.inner = {
            name: [Filled(each, values, how) for each in several]
            for name, several in opened(equation).items()
        }
        self.plain = all(each.same for several in self.inner.values() for each in several)
        self.same = self.plain and not (self.lifted or self.piece or self.rows)

    def __call__(self, *given: Any) -> Sequence[Any]:
        """The results of the operation."""
        if self.rows:
            return [pieces.add_rows(*given)]
        return pieces.in_one_piece(self._run)(*given) if self.piece else self._run(*given)

    def _run(self, *given: Any) -> Sequence[Any]:
        if not self.plain:
            told = self.equation.params
            if self.kind in CALLS:
                return self.inner[CALLS[self.kind]][0](*given)
            run = {"while": self._while, "scan": self._scan, "cond": self._cond}[self.kind]
            return run(told, *given)
        if 1 in self.lifted and divides(self.equation):
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
