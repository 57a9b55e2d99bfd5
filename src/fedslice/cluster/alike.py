"""Among how many threads XLA divides its work in a member's process.

XLA starts a thread for each core that it sees.  Large sums, and products that add up many numbers,
are divided among these threads and then put together, so with another number of them the last bits
differ.  Members therefore have as many as the driver, whatever their machines: the bits of a run
are those of the driver's machine alone.

But members of one machine all see all of its cores, and wait for each other's threads.  So workers
have only the threads that are their own where nothing that a client computes is divided.  That
holds for operations that were tried (:data:`SUM` and :data:`CONTRACTED` are half of what was found
to be divided, or less); where there is any other, the bits come first.
"""

import math
import os
from collections.abc import Iterator
from typing import Any

from jax.extend.core import JaxprEqn

from fedslice.round import pieces

NAME = "NPROC"  # the environment variable in which XLA looks for the number
SUM = 1 << 14  # numbers; sums of 2^15 were divided
CONTRACTED = 1 << 10  # numbers that are added up for one of a product; 5,000 were divided
ADDING = {"reduce_sum", "reduce_prod"}
OTHERS = """
    argmax argmin cumsum random_seed random_split random_unwrap random_wrap scatter scatter-add sort
    threefry2x32
"""
WHOLE = {*pieces.KNOWN, *pieces.SUMS, *OTHERS.split()}


def threads_here() -> int:
    """Among how many XLA divides its work in this process.

    >>> threads_here() >= 1
    True
    """
    given = os.environ.get(NAME, "")
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(given) if given.isdigit() and int(given) else seen or 1


def divided(traced: Any, together: int = 1) -> bool:
    """Whether anything of a traced program might be, with so many clients side by side.

    >>> import jax, jax.numpy as jnp
    >>> large, small = jnp.ones((1000, 300)), jnp.ones((50, 300))
    >>> [divided(jax.make_jaxpr(lambda x: jnp.sum(x, 0))(x)) for x in (large, small)]
    [True, False]
    >>> [divided(jax.make_jaxpr(lambda x: x @ x.T)(x.T)) for x in (large.T, small)]
    [False, False]
    >>> divided(jax.make_jaxpr(lambda x: x.T @ x)(jnp.ones((5000, 64))))
    True
    """
    return any(_may_be(each, together) for each in _all(traced.jaxpr.eqns))


def _all(equations: list[JaxprEqn]) -> Iterator[JaxprEqn]:
    for equation in equations:
        yield equation
        yield from pieces.inside(equation)


def _may_be(equation: JaxprEqn, together: int) -> bool:
    name = equation.primitive.name
    shapes = [tuple(getattr(each.aval, "shape", ())) for each in equation.invars]
    if name in ADDING:
        return together * math.prod(shapes[0]) >= SUM
    if name == "dot_general":
        (axes, _), _ = equation.params["dimension_numbers"]
        return math.prod(shapes[0][axis] for axis in axes) >= CONTRACTED
    return name not in WHOLE
