"""A step by rows gives what the step gives, and goes over whole tables only where it must."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.client.by_rows import by_rows
from fedslice.client.local import train
from fedslice.types import Phase

ROWS, WIDTH = 1000, 3
# rows that come twice in a field, in both fields, and padding
BATCH = {
    "item": jnp.array([3, 7, 3, 999]),
    "history": jnp.array([[3, 5, -1], [5, 5, 0], [-1, -1, -1], [8, 999, 2]]),
    "label": jnp.array([1.0, -1.0, 0.5, 2.0]),
}


def params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {"table": draw(ROWS, WIDTH), "number": draw(ROWS), "w": draw(WIDTH)}


def scored(params: dict[str, Any], item: jax.Array, history: jax.Array) -> jax.Array:
    """The mean square of a score of an item [batch, width] and a history [batch, length, width]."""
    score = item @ params["w"] + jnp.tanh(history * item[:, None]).sum((1, 2))
    return jnp.mean((score - BATCH["label"]) ** 2)


def looked_up(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    history = fs.lookup(params["table"], batch["history"])
    return scored(params, fs.lookup(params["table"], batch["item"]), history)


def plain(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    """-1 is the last row, which is masked."""
    history = jnp.where((batch["history"] >= 0)[..., None], params["table"][batch["history"]], 0)
    return scored(params, params["table"][batch["item"]], history)


def clipped(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    history = jnp.take(params["table"], batch["history"], axis=0, mode="clip")
    return scored(params, params["table"][batch["item"]], history)


def transposed(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    history = fs.lookup(params["table"], batch["history"].T).transpose(1, 0, 2)
    return scored(params, fs.lookup(params["table"], batch["item"]), history)


def two_tables(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    numbers = fs.lookup(params["number"], batch["history"])
    return looked_up(params, batch) + jnp.sum(numbers**2)


def in_a_function(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    return jax.jit(looked_up)(params, batch)


def compared(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    """What a renumbering of the rows would change."""
    seen = batch["item"][:, None] == batch["history"]
    return looked_up(params, batch) * jnp.sum(seen) / params["table"].shape[0]


def with_norm(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    return looked_up(params, batch) + 0.1 * jnp.sum(params["table"] ** 2)


def all_rows(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    item = fs.lookup(params["table"], batch["item"])
    return -jnp.mean(jax.nn.log_softmax(item @ params["table"].T)[:, 0])


def one_by_one(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    def read(total: jax.Array, one: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(total + params["table"][one]), None

    return jnp.sum(jax.lax.scan(read, params["w"], batch["item"])[0])


def again(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    return jax.checkpoint(looked_up)(params, batch)


def single_numbers(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.sum(params["table"][batch["item"], 1] ** 2)


SGD = optax.sgd(0.1)
BY_ROWS: dict[str, optax.GradientTransformation] = {
    "sgd": SGD,
    "schedule": optax.sgd(lambda count: 0.1 / (1 + count)),
    "clip by norm": optax.chain(optax.clip_by_global_norm(0.05), SGD),
    "no clip by norm": optax.chain(optax.clip_by_global_norm(1e6), SGD),
    "clip numbers": optax.chain(optax.clip(0.01), SGD),
    "block": optax.chain(optax.clip_by_block_rms(1e-3), SGD),
    "sign": optax.sign_sgd(0.1),
}
OVER_ALL: dict[str, optax.GradientTransformation] = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "decay": optax.chain(optax.add_decayed_weights(0.1), SGD),
    "pull": optax.chain(fs.client.proximal(0.5), SGD),
    "unit norms": optax.chain(optax.adaptive_grad_clip(1e-3), SGD),
}


def step_of(loss: Callable[..., jax.Array], optimizer: Any) -> Callable[..., Any]:
    """Two steps, the second only if it is due."""
    rule = optax.with_extra_args_support(optimizer)

    def step(params: Any, state: Any, batch: Any, due: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        start = jax.tree.map(jnp.zeros_like, params)
        updates, after = rule.update(grads, state, params, start=start, round=None)
        new = (optax.apply_updates(params, updates), after)
        return jax.tree.map(lambda x, y: jnp.where(due, x, y), new, (params, state)), value

    return step


def equations(jaxpr: Any) -> Iterator[Any]:
    """All of them, with those of inner functions."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for each in value if isinstance(value, tuple) else (value,):
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def large(step: Callable[..., Any], given: Any) -> list[str]:
    """The operations of a step whose result is as large as the table."""
    return [
        equation.primitive.name
        for equation in equations(jax.make_jaxpr(step)(*given).jaxpr)
        if any(out.aval.shape == (ROWS, WIDTH) for out in equation.outvars)
    ]


def both_ways(loss: Callable[..., jax.Array], optimizer: Any) -> tuple[list[str], list[str]]:
    """Checks that results agree; what is as large as the table, by rows and without."""
    step, first = step_of(loss, optimizer), params()
    for due in (True, False):
        given = (first, optimizer.init(first), BATCH, jnp.array(due))
        found, expected = jax.jit(by_rows(step))(*given), jax.jit(step)(*given)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)
    moved = jnp.any(found[0][0]["table"] != first["table"])
    assert not moved  # the last one was not due
    return large(by_rows(step), given), large(step, given)


@pytest.mark.parametrize(
    "loss",
    [looked_up, plain, clipped, transposed, two_tables, in_a_function, compared],
    ids=lambda loss: loss.__name__,
)
def test_reading_by_rows_is_training_by_rows(loss: Callable[..., jax.Array]) -> None:
    by_row, whole = both_ways(loss, SGD)
    assert by_row == ["scatter-add"] * 2  # one for each field
    assert len(whole) > 4


@pytest.mark.parametrize("name", BY_ROWS)
def test_an_optimizer_that_leaves_zero_alone_is_applied_by_rows(name: str) -> None:
    by_row, whole = both_ways(looked_up, BY_ROWS[name])
    assert set(by_row) == {"scatter-add"}
    assert len(whole) > 4


@pytest.mark.parametrize("name", OVER_ALL)
def test_an_optimizer_that_moves_idle_rows_goes_over_all(name: str) -> None:
    assert set(both_ways(looked_up, OVER_ALL[name])[0]) - {"scatter-add"}


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        pytest.param(
            loss,
            name,
            marks=[] if name == usual else [pytest.mark.every],
            id=f"{name}-{loss.__name__}",
        )
        for loss, usual in {
            with_norm: "sgd",
            all_rows: "clip by norm",
            one_by_one: "sgd",
            again: "clip by norm",
            single_numbers: "sgd",
        }.items()
        for name in ("sgd", "clip by norm")
    ],
)
def test_a_model_that_does_more_than_read_rows_gets_its_whole_gradient(
    loss: Callable[..., jax.Array], name: str
) -> None:
    assert set(both_ways(loss, BY_ROWS[name])[0]) - {"scatter-add"}


def test_a_large_batch_of_a_small_table_is_clipped_by_its_whole_gradient() -> None:
    wide = {**BATCH, "history": jnp.tile(BATCH["history"], (1, 5))}
    step, first = step_of(looked_up, BY_ROWS["clip by norm"]), params()
    given = (first, BY_ROWS["clip by norm"].init(first), wide, jnp.array(True))
    found, expected = jax.jit(by_rows(step))(*given), jax.jit(step)(*given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 2e-5, 1e-6), found, expected)
    assert set(large(by_rows(step), given)) - {"scatter-add"}


def test_vectorised_over_clients() -> None:
    step, first = step_of(looked_up, BY_ROWS["clip by norm"]), params()
    tables = jnp.stack([first["table"], 2 * first["table"]])
    due = jnp.array([True, False])

    @jax.jit
    def one(table: jax.Array, due: jax.Array) -> jax.Array:
        given = {**first, "table": table}
        state = BY_ROWS["clip by norm"].init(given)
        return by_rows(step)(given, state, BATCH, due)[0][0]["table"]

    alone = [one(*each) for each in zip(tables, due, strict=True)]
    np.testing.assert_allclose(jax.vmap(one)(tables, due), jnp.stack(alone), rtol=2e-5, atol=1e-6)


def test_random_keys_and_loops_pass_through() -> None:
    def step(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
        walked = jax.lax.fori_loop(0, 3, lambda _, y: y + noise, x)
        return key, jax.lax.cond(walked[0] > 0, jnp.sin, jnp.cos, walked)

    given = jax.random.key(0), jnp.ones(4)
    np.testing.assert_array_equal(jax.jit(by_rows(step))(*given)[1], jax.jit(step)(*given)[1])


@pytest.mark.parametrize(
    ("together", "name"),
    [
        (False, "sgd"),
        (True, "clip by norm"),
        pytest.param(False, "clip by norm", marks=pytest.mark.every),
        pytest.param(True, "sgd", marks=pytest.mark.every),
    ],
)
def test_the_compiled_loop_does_not_copy_the_table(name: str, together: bool) -> None:
    """One copy before the loop, for the offered rows are needed after it; then it is in place."""
    optimizer, first = BY_ROWS[name], params()

    def losses(params: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
        return (fs.lookup(params["table"], batch["history"]).sum(1) @ params["w"]) ** 2

    model = fs.Model(lambda key: {"w": first["w"]}, losses)

    def one(table: jax.Array, history: jax.Array, steps: jax.Array, most: Any) -> Any:
        given = {"table": table, "w": first["w"]}
        limit = most if together else steps
        phase = Phase({"history": history}, jnp.full(2, 4), steps, limit, jnp.float32(4))
        return train(model, optimizer, given, {}, phase, given, None)[0]["table"] - table

    history = jnp.stack([BATCH["history"]] * 2)
    given = (jnp.stack([first["table"]] * 2), jnp.stack([history] * 2), jnp.array([1, 2]))

    def cohort(*given: jax.Array) -> Any:
        if together:
            return jax.vmap(one, (0, 0, 0, None))(*given, jnp.int32(2))
        return one(*(each[0] for each in given), None)

    text = jax.jit(cohort).lower(*given).compile().as_text()
    copied = re.compile(rf"= f32\[(2,)?{ROWS},{WIDTH}\]\S* copy\(")
    inside, main = text.split("\nENTRY ")
    assert "while(" in main
    assert copied.search(main) or not together  # alone it is a copy already
    assert not copied.search(inside)


def layers(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Products with two and with three axes, of matrices as they are and transposed."""
    deep = jnp.tanh(jnp.einsum("bti,ij->btj", x, params["one"])).sum(1) @ params["two"].T
    high = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT
    return jnp.sum(jnp.matmul(deep, params["one"], precision=high) ** 2)


def test_gradients_of_matrices_are_products_and_not_their_transposes() -> None:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    given = {"one": draw(5, 7), "two": draw(5, 7)}, draw(3, 4, 5)

    def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
        grads = jax.grad(layers)(params, x)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)))
        return jax.tree.map(lambda p, g: p - g / norm, params, grads), norm

    found, expected = jax.jit(by_rows(step))(*given), jax.jit(step)(*given)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, 2e-5, 1e-6), found, expected)
    turned, plain = (
        [each.primitive.name for each in equations(jax.make_jaxpr(way)(*given).jaxpr)]
        for way in (by_rows(step), step)
    )
    assert turned.count("dot_general") == plain.count("dot_general") == 8
    assert (turned.count("transpose"), plain.count("transpose")) == (1, 5)  # what is left: two.T


@pytest.mark.parametrize("shape", [(33,), (7, 9), (80, 40), (4095,), (0,), (32,), (4096,)])
def test_small_sums_of_all_numbers_are_made_by_halves(shape: tuple[int, ...]) -> None:
    """Right to the last bit but one, where one by one would lose more; whole numbers are exact."""
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    total = by_rows(lambda x: (jnp.sum(x * 1.0), jnp.sum(jnp.abs(x), 0)))
    found, over_first = jax.jit(total)(values)
    near = 4 * np.finfo(np.float32).eps * np.abs(values.astype(float)).sum()
    assert abs(float(found) - values.astype(float).sum()) <= near
    np.testing.assert_allclose(over_first, np.abs(values).sum(0), rtol=1e-5)
    sums = [
        each for each in equations(jax.make_jaxpr(total)(values).jaxpr) if "reduce" in str(each)
    ]
    sizes = [each.invars[0].aval.size for each in sums if len(each.outvars[0].aval.shape) == 0]
    assert sizes
    assert all(size <= 32 or size >= 4096 for size in sizes)
    counts = np.ones(shape, np.int32)
    assert int(jax.jit(by_rows(jnp.sum))(counts)) == counts.size
