"""Constants become arguments: what is alike is compiled once, and every value is the one given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import people, run_of, state_bytes

import fedslice as fs
from fedslice.round import program
from fedslice.round.constants import lift
from fedslice.round.filled import Filled
from fedslice.round.program import Compiled, once
from fedslice.stage.shared_noise import whole_noise
from fedslice.types import Algorithm

X = jnp.linspace(-2.0, 2.0, 12).reshape(4, 3)
HALVES = np.array([0.5, 0.25, 2.0], np.float32)


@jax.custom_jvp
def doubled(x: jax.Array) -> jax.Array:
    return 2.5 * x


doubled.defjvps(lambda tangent, out, x: 2.5 * tangent)


def own_steps(x: jax.Array) -> jax.Array:
    """As many steps as the client says: side by side the loop goes on for some of them."""
    count = jnp.abs(x[0] * 3).astype(jnp.int32)
    return jax.lax.fori_loop(0, count, lambda n, total: 0.7 * total + x, x)


FUNCTIONS: dict[str, Callable[[jax.Array], Any]] = {
    "plain": lambda x: 0.3 * x + 1.7,
    "exponent": lambda x: jnp.abs(x) ** 2.5 * 0.3,
    "array": lambda x: x * HALVES,
    "constants by constants": lambda x: x + jax.lax.div(jnp.float32(7.5), jnp.float32(2.5)),
    "a constant by a number": lambda x: 7.5 / (x + 3.5) - x / 2.5,
    "whole noise": lambda x: x + whole_noise(jax.random.key(0), 100.0, (4, 3)),
    "jit": lambda x: jax.jit(lambda y: y / 3.3 - 2.5 / y)(x) - 1,
    "scan": lambda x: jax.lax.scan(lambda c, y: (0.9 * c + y, c * 1.1), x[0], x, reverse=True),
    "while": lambda x: jax.lax.while_loop(
        lambda c: jnp.sum(c) < 40.5, lambda c: c * 1.5 + 0.1, jnp.abs(x)
    ),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0.5, lambda y: y * 0.2, lambda y: y + 0.4, x),
    "loops side by side": jax.vmap(own_steps),
    "custom": jax.vmap(doubled),
    "gradient": jax.grad(lambda x: jnp.sum(jax.nn.softplus(x * 0.3) + jax.nn.gelu(x))),
    "random": lambda x: x + 0.1 * jax.random.normal(jax.random.key(3), x.shape),
}


@pytest.mark.parametrize("name", few(FUNCTIONS, *(FUNCTIONS.keys() - {"whole noise"})))
def test_a_function_with_its_constants_as_arguments_is_the_function(name: str) -> None:
    """With the same values the same results, with zeros others: all of them arrive."""
    fun = FUNCTIONS[name]
    traced = jax.make_jaxpr(fun)(X)
    lifted = lift(traced)
    assert lifted.values
    found = Filled(traced, iter(lifted.values))(X)
    for left, right in zip(found, jax.tree.leaves(fun(X)), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-6)
    assert jax.tree.structure(Compiled(fun)(X)) == jax.tree.structure(fun(X))
    for left, right in zip(
        jax.tree.leaves(Compiled(fun)(X)), jax.tree.leaves(jax.jit(fun)(X)), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-6)


def test_what_stays_is_part_of_the_program() -> None:
    """Zero, one, exponents, whole numbers, and which operation it is."""
    functions: list[Callable[[jax.Array], Any]] = [
        lambda x: x * 0.3,
        lambda x: x * 1.0,
        lambda x: x + 0.3,
        lambda x: jnp.abs(x) ** 2.5,
        lambda x: jnp.abs(x) ** 3.5,
        lambda x: x.astype(jnp.int32) * 2,
        lambda x: x.astype(jnp.int32) * 3,
        lambda x: jnp.maximum(x, -jnp.inf),
    ]
    assert len({lift(jax.make_jaxpr(fun)(X)).structure for fun in functions}) == len(functions)
    same: list[Callable[[jax.Array], Any]] = [lambda x: 0.4 * x, lambda x: 0.5 * x]
    assert len({lift(jax.make_jaxpr(fun)(X)).structure for fun in same}) == 1


def test_constants_that_happen_to_be_equal_are_no_other_program() -> None:
    one, two = (jax.make_jaxpr(lambda x, b=b: 0.3 * x + b)(X) for b in (0.3, 0.4))
    assert lift(one).structure == lift(two).structure


def test_few_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_PROGRAMS", program._Last(2))
    for shape in (1, 2, 3):
        assert Compiled(lambda x: x * 0.3)(jnp.ones(shape)).shape == (shape,)
    assert len(program._PROGRAMS.kept) == 2


WORK = fs.Work(steps=2, batch=3)
MODEL = fs.Model(
    lambda key: {"bias": jnp.zeros(())},
    lambda p, b: (fs.lookup(p["w"], b["history"]).sum(1) + p["bias"] - b["x"]) ** 2,
    {"w": fs.Table(rows=24, fields=("history",))},
)


def prox(mu: float, rate: float, server: float) -> Algorithm:
    return fs.recipes.fedprox(MODEL, optax.sgd(rate), WORK, mu=mu, server=optax.sgd(server))


def test_a_grid_of_rates_and_seeds_is_one_program_with_the_bits_of_each_alone() -> None:
    """Run by itself, after all that was compiled is forgotten, each has the same bits."""
    population = people()
    grid = [(0.1, 0.05, 0.5, 0), (0.2, 0.3, 0.5, 0), (0.1, 0.05, 0.7, 0), (0.2, 0.3, 0.7, 4)]
    runs = [run_of(prox(*rates), population, 3, seed=seed) for *rates, seed in grid]
    programs = [run.engine.whole.programs() for run in runs]
    assert programs[0] == programs[1] == programs[2] == programs[3]
    assert len(programs[0]) == 1
    assert len({state_bytes(run) for run in runs}) == len(grid)
    program._PROGRAMS.kept.clear()
    *rates, seed = grid[-1]
    alone = run_of(prox(*rates), population, 3, seed=seed)
    assert alone.engine.whole.programs() != programs[0]
    assert state_bytes(alone) == state_bytes(runs[-1])
    assert len({run.identity["program"] for run in runs}) == 4  # a checkpoint knows every rate


def test_runs_of_one_algorithm_trace_it_once() -> None:
    """With other seeds."""
    traced: list[int] = []

    def loss(params: Any, batch: Any) -> Any:
        traced.append(1)
        return MODEL.loss(params, batch)

    def traces(run: Any) -> int:
        for key in run.planner.capacity.keys() - {"batch 0"}:
            run.planner.capacity[key] = 24  # one padded size for all
        before = len(traced)
        run.train(1, progress=False)
        return len(traced) - before

    model = replace(MODEL, loss=loss)
    one, two = (fs.recipes.fedavg(model, optax.sgd(0.1), WORK) for _ in range(2))
    first, other = run_of(one, people()), run_of(one, people(), seed=2)
    assert traces(first) > 0
    assert traces(other) == 0
    apart, mapped = run_of(two, people(), seed=2), run_of(one, people(), engine="map")
    assert traces(apart) > 0
    assert traces(mapped) > 0
    assert state_bytes(apart) == state_bytes(other) != state_bytes(first)


def test_an_algorithm_that_is_gone_is_not_taken_for_another() -> None:
    """The numbers of objects are used again: what is kept holds on to its owner."""
    made = [once([name], "key", lambda name=name: name) for name in "abcdefgh"]
    assert made == list("abcdefgh")
