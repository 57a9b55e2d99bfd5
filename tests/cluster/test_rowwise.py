"""What goes row by row is found by tracing, and what does not is never taken for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedslice.cluster.rowwise import ANY, rowwise

ROWS = {"item": 1009}
TABLE, RATE = jnp.ones((1009, 3)), jnp.ones(())


def asked(function: Any) -> Any:
    return rowwise(function, (TABLE, RATE), ("item", ""), "item", ROWS)


LOCAL = {
    "each number": lambda t, r: jnp.where(t > 0, jnp.tanh(t), r) ** 3 + jnp.clip(t, -r, r),
    "norm of a row": lambda t, r: t / jnp.linalg.norm(t, axis=1, keepdims=True),
    "sorted in a row": lambda t, r: jnp.sort(t, axis=1)[:, ::-1],
    "inner function": lambda t, r: jax.jit(lambda x: jax.nn.softmax(x, axis=-1))(t) * r,
    "rows of zeros": lambda t, r: jnp.zeros_like(t) + r,
    "two columns": lambda t, r: jnp.concatenate([t[:, :1], t[:, 1:]], axis=1),
    "keys of rows": lambda t, r: jax.vmap(
        lambda row: row + jax.random.normal(jax.random.key(row[0].astype(int)), (3,))
    )(t),
}
MIXED = {
    "norm of all": lambda t, r: t / jnp.linalg.norm(t),
    "largest of all": lambda t, r: t - jnp.max(t, axis=0),
    "shifted": lambda t, r: jnp.roll(t, 1, axis=0),
    "running sum": lambda t, r: jnp.cumsum(t, axis=0),
    "sorted by row": lambda t, r: jnp.sort(t, axis=0),
    "reversed": lambda t, r: t[::-1],
    "noise for all": lambda t, r: t + jax.random.normal(jax.random.key(0), t.shape),
    "place of a row": lambda t, r: t * jnp.arange(1009)[:, None],
    "other rows": lambda t, r: t + t[jnp.zeros(1009, int)],
    "loop": lambda t, r: jax.lax.fori_loop(0, 3, lambda i, x: x + x[i], t),
}


@pytest.mark.parametrize("name", LOCAL)
def test_row_by_row(name: str) -> None:
    assert asked(LOCAL[name]).reason == ""


@pytest.mark.parametrize("name", MIXED)
def test_not_row_by_row(name: str) -> None:
    assert asked(MIXED[name]).reason


@pytest.mark.parametrize("name", LOCAL)
def test_what_is_found_is_true(name: str) -> None:
    """Half of the rows alone become what they become among all."""
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(1009, 3)).astype(np.float32))
    every, some = LOCAL[name](rows, RATE), LOCAL[name](rows[::2], RATE)
    np.testing.assert_array_equal(np.asarray(every)[::2], some)


def test_dense_values_that_rows_read() -> None:
    found = rowwise(
        lambda t, a, b, c: (t * a, b + c), (TABLE, RATE, RATE, RATE), ("item", "", "", ""),
        ("item", ""), ROWS,
    )  # fmt: skip
    assert found.reads == {1}


def test_a_dense_value_that_reads_rows_is_refused_unless_it_may() -> None:
    def step(table: Any, rate: Any) -> Any:
        return table, rate + jnp.sum(table)

    given: Any = (step, (TABLE, RATE), ("item", ""))
    assert rowwise(*given, ("item", ""), ROWS).reason == "reduce_sum over all rows"
    assert rowwise(*given, ("item", ANY), ROWS).beside == {1}


@pytest.mark.parametrize(
    ("rule", "local"),
    [
        (optax.adam(0.1), True),
        (optax.yogi(0.1), True),
        (optax.sgd(0.1, momentum=0.9, nesterov=True), True),
        (optax.adagrad(0.1), True),
        (optax.chain(optax.clip(1.0), optax.add_decayed_weights(0.1), optax.sgd(0.1)), True),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), False),
        (optax.lamb(0.1), False),
    ],
)
def test_optimizers(rule: optax.GradientTransformation, local: bool) -> None:
    """Elementwise rules go row by row, norms of a whole leaf do not."""
    params = {"dense": RATE, "table": TABLE}
    state = rule.init(params)
    tag: Any = lambda leaf: "item" if jnp.ndim(leaf) else ""  # noqa: E731
    trees = (params, state, params)
    tags = jax.tree.map(tag, trees)
    found = rowwise(lambda g, s, p: rule.update(g, s, p), trees, tags, (tags[0], tags[1]), ROWS)
    assert (found.reason == "") == local
