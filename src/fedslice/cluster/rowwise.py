"""Whether a function goes row by row: asked of its trace, operation by operation.

A table can be cut into shards that step by themselves if what becomes of a row depends on that row
and on dense values alone, and no dense value on rows.  So each value of a traced function is

    dense     it depends on dense inputs alone,
    of rows   its first axis is the rows of a table, and each entry depends on that row and on dense
              inputs alone,
    mixed     anything else: a norm over all rows, a row's place among the others (noise drawn for
              all rows at once), an operation that is not known here.

What is not known counts as mixed: then a table is stepped in one place, which is always right.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedslice.types import PyTree

# fmt: off
EACH = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "clz", "conj", "convert_element_type", "copy", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge",
    "gt", "igamma", "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not",
    "optimization_barrier", "or", "population_count", "pow", "random_bits", "random_fold_in",
    "random_seed", "random_unwrap", "random_wrap", "real", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "threefry2x32",
    "xor",
))
# fmt: on
"""Operations that act on each entry of their first axis by itself."""


ANY = "/any"  # of an outcome that may be mixed; no table's name


class Seen(NamedTuple):
    """What is known of a value: the space whose rows it has, the dense inputs that it reads, and
    why it is mixed, if it is."""

    space: str = ""
    reads: frozenset[int] = frozenset()
    mixed: str = ""


class Found(NamedTuple):
    """The inputs, by their numbers, that rows of the outcome read, and that its values of any kind
    do, if they are dense; or why it does not go row by row."""

    reads: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    reason: str = ""


def rowwise(
    function: Callable[..., PyTree],
    inputs: Sequence[PyTree],
    tags: Sequence[PyTree],
    outcome: PyTree,
    sizes: Mapping[str, int],
) -> Found:
    """Ask ``function(*inputs)``, whose leaves have the spaces ``tags`` and its results ``outcome``
    (``""``: dense, ``ANY``: of any kind).  ``sizes`` are the rows in ``inputs``, numbers that no
    other axis has.

    >>> import jax.numpy as jnp
    >>> table, rate = jnp.zeros((1009, 4)), jnp.ones(())
    >>> step = lambda table, rate: table - rate * table / (1 + jnp.abs(table))
    >>> rowwise(step, (table, rate), ("item", ""), "item", {"item": 1009})
    Found(reads=frozenset({1}), beside=frozenset(), reason='')
    >>> norm = lambda table, rate: table / jnp.sqrt(jnp.sum(table**2))
    >>> rowwise(norm, (table, rate), ("item", ""), "item", {"item": 1009}).reason
    'reduce_sum over all rows'
    """
    traced = jax.make_jaxpr(function)(*inputs)
    given = [
        Seen(tag) if tag else Seen(reads=frozenset([place]))
        for place, tag in enumerate(jax.tree.leaves(tuple(tags)))
    ]
    seen = _walk(traced.jaxpr, given, {size: name for name, size in sizes.items()})
    found = Found()
    for tag, value in zip(jax.tree.leaves(outcome), seen, strict=True):
        if tag == ANY:
            found = found._replace(beside=found.beside | value.reads)
        elif value.mixed:
            return Found(reason=value.mixed)
        elif value.space != tag:
            return Found(reason="rows in a value that is dense")
        elif tag:
            found = found._replace(reads=found.reads | value.reads)
    return found


def _walk(jaxpr: Any, given: Sequence[Seen], spaces: Mapping[int, str]) -> list[Seen]:
    known = dict(zip(jaxpr.invars, given, strict=True))
    for constant in jaxpr.constvars:
        known[constant] = _made(constant, spaces, Seen())
    for step in jaxpr.eqns:
        values = [Seen() if hasattr(each, "val") else known[each] for each in step.invars]
        results = _operation(step, values, spaces)
        known.update(zip(step.outvars, results, strict=True))
    return [Seen() if hasattr(each, "val") else known[each] for each in jaxpr.outvars]


def _operation(step: Any, values: Sequence[Seen], spaces: Mapping[int, str]) -> list[Seen]:
    name, params = step.primitive.name, step.params
    reads = frozenset().union(*(value.reads for value in values))
    mixed = next((value.mixed for value in values if value.mixed), "")
    found = {value.space for value in values if value.space}
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if inner is not None and name not in ("while", "scan") and not mixed:
        closed = getattr(inner, "jaxpr", inner)
        if len(closed.invars) == len(values):
            return _walk(closed, values, spaces)
    if not mixed and not found:
        alike = name == "broadcast_in_dim"
        return [_made(out, spaces, Seen(reads=reads), alike) for out in step.outvars]
    if not mixed and (len(found) > 1 or not _kept(name, step, values)):
        mixed = f"{name} over all rows"
    space = "" if mixed else found.pop()
    return [Seen(space, reads, mixed) for _ in step.outvars]


def _made(variable: Any, spaces: Mapping[int, str], seen: Seen, alike: bool = False) -> Seen:
    """A value that was made of dense ones: of rows, if all are ``alike``."""
    shape = tuple(getattr(variable.aval, "shape", ()))
    if not set(shape) & set(spaces):
        return seen
    if alike and shape[0] in spaces and not set(shape[1:]) & set(spaces):
        return seen._replace(space=spaces[shape[0]])
    return seen._replace(mixed="a value by the places of rows")


def _kept(name: str, step: Any, values: Sequence[Seen]) -> bool:
    """Whether an operation leaves the rows of its operands on the first axis, each by itself."""
    params = step.params
    first = next(
        each for each, value in zip(step.invars, values, strict=True) if value.space
    ).aval.shape
    shape = step.outvars[0].aval.shape
    if name in EACH:
        return True
    if name.startswith(("reduce_", "arg")) and "axes" in params:
        return 0 not in params["axes"]
    if name.startswith("cum"):
        return params["axis"] != 0
    rules: dict[str, Callable[[], bool]] = {
        "broadcast_in_dim": lambda: params["broadcast_dimensions"][:1] == (0,),
        "reshape": lambda: shape[:1] == first[:1] and params.get("dimensions") is None,
        "squeeze": lambda: 0 not in params["dimensions"],
        "expand_dims": lambda: 0 not in params["dimensions"],
        "transpose": lambda: tuple(params["permutation"])[:1] == (0,),
        "concatenate": lambda: params["dimension"] != 0 and all(v.space for v in values),
        "rev": lambda: 0 not in params["dimensions"],
        "sort": lambda: params["dimension"] != 0,
        "slice": lambda: shape[:1] == first[:1],
        "bitcast_convert_type": lambda: shape[:1] == first[:1],
        "pad": lambda: tuple(params["padding_config"][0]) == (0, 0, 0),
    }
    return name in rules and rules[name]()
