"""Loops in one piece: the same numbers, all operations of the list, and what the compiler refuses
is compiled as it was."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kinds import few_rows
from laws import MODEL, RECIPES
from problems import people, run_of, state_bytes

from fedslice.round import pieces, program
from fedslice.round.constants import lift
from fedslice.round.filled import Filled
from fedslice.round.program import Compiled

pytestmark = pytest.mark.skipif(not pieces.possible(), reason="not tried with this JAX")
X = jnp.linspace(0.1, 0.9, 12).reshape(4, 3)
TABLE = jnp.linspace(-1.0, 1.0, 400).reshape(100, 4)
IDS = jnp.array([[7, 3], [99, 7], [100, 7], [-1, 5]])
KEY = jax.random.key(5)


def repeated(step: Callable[[Any], Any], count: int = 3) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, count, lambda number, x: step(x), x)


def bent(x: jax.Array) -> jax.Array:
    """Functions of single numbers."""
    soft = jnp.logaddexp(x, jnp.tanh(x)) + jax.nn.sigmoid(x) * jax.nn.gelu(x) + jax.lax.erf(x)
    rough = jnp.sign(x - 0.5) * jnp.round(x) + jnp.floor(3 * x) - jnp.ceil(x) % 2
    roots = jnp.sqrt(jnp.abs(x)) + jax.lax.rsqrt(1 + x**2) + jnp.cbrt(x) + jnp.abs(x) ** 0.7
    waves = jnp.sin(x) + jnp.cos(x) + jnp.tan(x / 3) + jnp.expm1(x / 9) + jnp.log1p(jnp.exp2(x))
    waves += jnp.log(jnp.square(x) + 1) + jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x)
    return 0.1 * (soft + rough + roots + waves + jnp.clip(x, 0.2, 0.7) + x**3 / (2 + x))


def mixed(x: jax.Array) -> jax.Array:
    """Whole numbers, bits and choices."""
    n = jax.lax.bitcast_convert_type(x, jnp.int32)
    u = (n.astype(jnp.uint32) << 3) ^ (n.astype(jnp.uint32) >> 7) | 5
    odd = ~((u & 1) == 1) & jnp.isfinite(x) | (x < 0.1) ^ (n // 7 >= 2)
    most = jnp.any(odd, 1) & (x[:, 0] <= 0.5) | jnp.all(x > 0, 1) & (jnp.prod(n, 1) != 3)
    odd &= most[:, None]
    return jnp.where(odd, x + (u % 97).astype(jnp.float32) / 97, -x) + (n >> 30)


def moved(x: jax.Array) -> jax.Array:
    """Numbers at other places."""
    left, right = jnp.split(jnp.pad(x, ((0, 0), (1, 0))), 2, axis=1)
    stack = jnp.stack([left, right[:, ::-1]]).transpose(1, 0, 2).reshape(4, 4)
    wide = jnp.concatenate([stack, jnp.arange(4.0)[None]])
    wide = jax.lax.dynamic_update_slice(wide, x[:1, :2], (x[0, 0].astype(jnp.int32), 1))
    return jax.lax.dynamic_slice(wide, (1, 0), (4, 3)) + x.sum(0) - x.max(1)[:, None] * x.min()


@jax.custom_vjp
def halved(x: jax.Array) -> jax.Array:
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda kept, slope: (slope,))


def nested(x: jax.Array) -> jax.Array:
    """Loops, choices and calls inside; a constant from around, and an argument that is not read."""
    some = jax.lax.cond(x[0, 0] > 0.5, lambda y: y * 0.3, lambda y: y + 0.4, x)
    three = jax.lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], some)
    total, each = jax.lax.scan(lambda c, y: (0.9 * c + y, c * 1.1), x[0], three, reverse=True)
    until = jax.lax.while_loop(lambda c: jnp.sum(c) < 4, lambda c: c * 1.5 + 0.1, jnp.abs(each))
    return jax.jit(lambda y, unread: y / 3.3)(until, x) + jax.nn.relu(total) + halved(x)


def trained(x: jax.Array) -> jax.Array:
    """What a step does: rows are read, and changed."""
    rows = TABLE.at[IDS].get(mode="fill", fill_value=0)
    flat = jax.lax.scatter_add(
        jnp.broadcast_to(x[0, :1], (100, 4)),
        IDS.reshape(-1, 1),
        rows.reshape(-1, 4),
        jax.lax.ScatterDimensionNumbers((1,), (0,), (0,)),
        mode="fill",
    )
    return x + flat[:4, :3] + flat[97:100].sum()


STEPS = {
    "functions": bent,
    "whole numbers": mixed,
    "places": moved,
    "nested": nested,
    "rows": trained,
    "random": lambda x: x + jax.random.normal(jax.random.fold_in(KEY, x.size), (4, 3)),
    "mapped": lambda x: jax.lax.map(lambda y: jnp.sum(y) * y / 3, x),
}


def marked(compiled: Compiled) -> bool:
    """Whether something of it was compiled in one piece."""
    ((run, values),) = compiled._known.values()
    return "xla_cpu_small_call" in run.lower(values, X).as_text()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STEPS)
def test_a_loop_in_one_piece_is_the_loop(name: str) -> None:
    loop = repeated(STEPS[name])
    compiled = Compiled(loop)
    found = compiled(X)
    assert marked(compiled)
    np.testing.assert_allclose(found, jax.jit(loop)(X), rtol=2e-6, atol=1e-6)


def test_every_operation_of_the_list_was_compiled_here() -> None:
    """But for a copy, which JAX makes where it sees fit."""
    used = {
        each.primitive.name
        for step in STEPS.values()
        for each in pieces.inside(jax.make_jaxpr(repeated(step))(X).eqns[-1])
    }
    assert (pieces.KNOWN | pieces.SUMS) - used <= {"copy"}


@pytest.mark.parametrize("places", [[2, 0, 2, 9], [-1, 1 << 30, 99, 100], [3, 3, 3, 3]])
def test_rows_are_added_as_a_scatter_adds_them(places: list[int]) -> None:
    given = TABLE, jnp.array(places)[:, None], jnp.linspace(0.1, 1.7, 16).reshape(4, 4)
    form = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    by_scatter = jax.lax.scatter_add(*given, form, mode="fill")
    assert np.array_equal(pieces.add_rows(*given), by_scatter)


@pytest.mark.parametrize(
    "changed",
    [
        lambda t, i, v: t.at[i[:, 0]].set(v),
        lambda t, i, v: t.at[i[:, 0]].add(v, mode="clip"),
        lambda t, i, v: t.at[:, i[:, 0]].add(v.T[:, :4].repeat(25, 0)),
        lambda t, i, v: t.at[i[:, 0], i[:, 0]].add(v[:, 0]),
        lambda t, i, v: jax.vmap(lambda t: t.at[i[:, 0]].add(v))(t[None])[0],
    ],
)
def test_other_ways_to_write_leave_a_loop_as_it_is(changed: Callable[..., Any]) -> None:
    given = jnp.array([[1], [0], [1], [2]]), jnp.ones((4, 4))
    (loop,) = jax.make_jaxpr(repeated(lambda table: changed(table, *given)))(TABLE).eqns[-1:]
    assert loop.primitive.name in pieces.LOOPS
    assert not pieces.fits(loop)


def test_large_results_and_sums_leave_a_loop_as_it_is() -> None:
    def fits(step: Callable[[Any], Any], size: int) -> bool:
        return pieces.fits(jax.make_jaxpr(repeated(step))(jnp.zeros(size)).eqns[-1])

    assert fits(jnp.sin, pieces.SMALL)
    assert not fits(jnp.sin, pieces.SMALL + 1)
    assert fits(lambda x: x + jnp.sum(x), pieces.SMALL_SUM - 1)
    assert not fits(lambda x: x + jnp.sum(x), pieces.SMALL_SUM)
    assert fits(lambda x: x * jnp.all(x > 0), 5 * pieces.SMALL_SUM)  # not made by a library
    assert fits(lambda x: x.at[3].set(1.0), 10 * pieces.SMALL) is False  # a scatter


def test_what_the_compiler_refuses_is_compiled_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA has no code for a sort within one piece, and says so."""
    monkeypatch.setattr(pieces, "KNOWN", pieces.KNOWN | {"sort"})
    loop = repeated(lambda x: jnp.sort(x[::-1], axis=0) * 0.5)
    compiled = Compiled(loop, donate=(0,))
    given = X + 0
    np.testing.assert_allclose(compiled(given), jax.jit(loop)(X), rtol=1e-6)
    assert not marked(compiled)
    assert given.is_deleted()  # by the call that went through


def test_other_errors_are_not_hidden() -> None:
    def fails(x: jax.Array) -> Any:
        def stop(value: Any) -> Any:
            raise ValueError("not today")

        return jax.pure_callback(stop, jax.ShapeDtypeStruct((4, 3), jnp.float32), x)

    with pytest.raises(jax.errors.JaxRuntimeError, match="not today"):
        jax.block_until_ready(Compiled(fails)(X))


def test_a_function_is_traced_anew_with_and_without_pieces() -> None:
    """How it is filled changes no number, and constants arrive inside of pieces, too."""
    traced = jax.make_jaxpr(repeated(trained))(X)
    lifted = lift(traced)
    ways = [Filled(traced, iter(lifted.values), how)(X) for how in ("as it is", "in pieces")]
    np.testing.assert_allclose(*[way[0] for way in ways], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "mode"),
    few_rows(product(RECIPES, ("scan", "map")), ("fedsubavg", "scan"), ("fedrecon", "map")),
)
def test_runs_have_the_bits_of_loops_as_they_are(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for possible in (True, False):
        monkeypatch.setattr(pieces, "possible", lambda possible=possible: possible)
        monkeypatch.setattr(program, "_PROGRAMS", program._Last(9))  # nothing made the other way
        run = run_of(RECIPES[name](MODEL, people()), people(), 3, engine=mode, threads=1, seed=2)
        found.append(state_bytes(run))
    assert found[0] == found[1]
