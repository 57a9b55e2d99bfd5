"""The mean and the norm bound, one message at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedslice as fs
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.stage.clipping import norm
from fedslice.stage.codes import Steps, opened
from fedslice.types import ClientReport, Message, Stage

KEY = jax.random.key(0)
# four clients with ten examples: all hold row 3, one with two examples holds row 8, nobody row 9
HEAT = Heat(4, 10.0, {"w": np.array([3, 8])}, {"w": np.array([[4.0, 10.0], [1.0, 2.0]])})
ROWS = {"w": np.array([3, 8, 9])}


def message(weight: float = 2.0, **extra: Any) -> Message:
    update = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    return Message(update, jnp.float32(weight), ClientReport(*[jnp.zeros(())] * 4), extra)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("examples", 5.0), ("uniform", 1.0), (lambda message: jnp.float32(3), 3.0)],
    ids=["examples", "uniform", "function"],
)
def test_weights_of_clients_with_and_without_examples(weights: Any, expected: float) -> None:
    """One without examples, or whose update was not finite, counts for nothing, whatever the
    function says."""
    stage = fs.stage.mean(weights)
    sent, _ = stage.encode((), (), message(5.0, along=jnp.ones(2)), KEY)
    assert float(sent.weight) == expected
    for leaf in jax.tree.leaves((sent.update, sent.extra)):
        assert np.all(leaf == expected)
    none, _ = stage.encode((), (), message(0.0, along=jnp.ones(2)), KEY)
    assert float(none.weight) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((none.update, none.extra)))


@pytest.mark.parametrize(
    ("weights", "coefficient", "cold"),
    [("uniform", None, 4), ("examples", None, 5), ("uniform", "examples", 5)],
)
def test_heat_corrects_rows_and_what_is_shaped_like_the_model(
    weights: str, coefficient: str | None, cold: float
) -> None:
    """4 clients by 1, or 10 examples by 2; the hot row, the row that nobody holds, dense leaves and
    numbers that come along stay as they are.  The sum of two is divided by its weight first."""
    stage = fs.stage.mean(weights, HEAT, coefficient)
    state = stage.init({}, ROWS)
    total = message(2.0, gradient={"w": 3 * jnp.ones((3, 2)), "b": jnp.ones(2)}, steps=jnp.ones(()))
    mean, after = stage.decode(state, total, KEY)
    rows = np.repeat([[1.0], [cold], [1.0]], 2, axis=1)
    np.testing.assert_allclose(mean.update["w"], rows / 2, rtol=1e-6)
    np.testing.assert_allclose(mean.extra["gradient"]["w"], 3 * rows / 2, rtol=1e-6)
    np.testing.assert_allclose(mean.update["b"], [0.5, 0.5])
    np.testing.assert_allclose(mean.extra["gradient"]["b"], [0.5, 0.5])
    assert float(mean.extra["steps"]) == 0.5
    assert after is state
    assert (stage.weights, stage.coefficient) == (weights, coefficient or weights)


def test_without_heat_there_is_no_coefficient() -> None:
    stage = fs.stage.mean("uniform", coefficient="examples")
    assert (stage.coefficient, stage.heat, stage.init({}, ROWS)) == ("", None, {})


def test_a_sum_of_nobody_is_zero() -> None:
    mean, _ = fs.stage.mean().decode({}, message(0.0)._replace(update={"b": jnp.zeros(2)}), KEY)
    assert mean.update["b"].tolist() == [0, 0]


@pytest.mark.parametrize("denominator", [0.0, -1.0, np.nan])
def test_a_denominator_must_be_positive(denominator: float) -> None:
    with pytest.raises(InputError, match="must be positive: it divides the sum"):
        fs.stage.mean(denominator=denominator)


# -- norm bound ------------------------------------------------------------------------------------


def clipped(stage: Stage, update: Any) -> Any:
    sent, _ = stage.encode((), (), message()._replace(update=update), KEY)
    return sent.update


def test_only_what_is_longer_than_the_bound_is_clipped() -> None:
    """By the norm of all leaves together, 13 here."""
    update = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([[12.0]])}
    short = clipped(fs.stage.clip(6.5), update)
    np.testing.assert_allclose(short["a"], [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(short["b"], [[6.0]], rtol=1e-6)
    for bound in (13.0, 14.0, 1e6):
        same = clipped(fs.stage.clip(bound), update)
        assert all(np.array_equal(same[name], update[name]) for name in update)
    assert not np.any(clipped(fs.stage.clip(1.0), {"a": jnp.zeros(3)})["a"])


def test_a_code_is_clipped_by_the_norm_of_what_it_stands_for() -> None:
    """Steps 3 and 4 of a scale of 2 at 4 levels: 1.5 and 2, whose norm is 2.5."""
    code = {"a": Steps(jnp.array([3, 4], jnp.int8), jnp.float32(2), 4)}
    short = clipped(fs.stage.clip(1.25), code)
    assert isinstance(short["a"], Steps)
    np.testing.assert_allclose(opened(short)["a"], [0.75, 1.0], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-15, 1.0, 1e14, 1e18, 1e22, 1e37])
def test_norms_of_numbers_of_any_size(size: float) -> None:
    """Squares overflow from 1.8e19 on."""
    tree = {"a": size * jnp.array([2.0, -3.0]), "b": size * jnp.full((1, 1), 6.0), "c": jnp.ones(0)}
    assert float(norm(tree)) == pytest.approx(7 * size, rel=1e-5)


def test_the_norm_of_nothing_is_zero() -> None:
    assert float(norm({})) == float(norm({"a": jnp.ones((0, 3))})) == 0
