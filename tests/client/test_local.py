"""The loop over local steps and the full gradient, by hand: two batches of two, the second of one
real example."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.client.local import full_gradient, loop, mean_loss, train
from fedslice.errors import InputError
from fedslice.types import Phase

# 99 is padding of a batch, the last batch is padding, too
X = np.array([[1.0, 5.0], [4.0, 99.0], [77.0, 88.0]])
MODEL = fs.Model(
    lambda key: {"m": jnp.zeros(()), "n": jnp.zeros(())},
    lambda p, b: (p["m"] + p["n"] - b["x"]) ** 2,
)


def phase(steps: int = 2, limit: int = 3, **more: Any) -> Phase:
    sizes = jnp.array([2, 1, 0], jnp.int32) * (jnp.arange(3) < steps)
    batches = {"x": jnp.asarray(X, jnp.float32)}
    return Phase(batches, sizes, jnp.int32(steps), jnp.int32(limit), jnp.float32(3), **more)


def params(m: float = 0.0, n: float = 0.0) -> dict[str, Any]:
    return {"m": jnp.float32(m), "n": jnp.float32(n)}


@pytest.mark.parametrize(("size", "expected"), [(0, 0.0), (1, 4.0), (2, 10.0)])
def test_the_mean_loss_is_of_real_examples(size: int, expected: float) -> None:
    """(1 + 1 - 4)^2 = 4 and (2 - 6)^2 = 16; of none it is zero."""
    batch = {"x": jnp.array([4.0, 6.0])}
    found = mean_loss(MODEL, params(1, 1), batch, jnp.int32(size))
    assert float(found) == expected


def test_a_loss_must_be_one_number_for_each_example() -> None:
    model = fs.Model(lambda key: {}, lambda p, b: jnp.mean(b["x"]))
    with pytest.raises(InputError, match=r"shape \[batch\], but gave shape \(\)"):
        mean_loss(model, {}, {"x": jnp.ones(2)}, jnp.int32(2))


@pytest.mark.parametrize("limit", [2, 3])
def test_a_client_stays_as_it_is_beyond_its_own_steps(limit: int) -> None:
    """Losses 10 and 20 in two steps of its own; the third is of another client.  The report: their
    mean, the first, three examples, two steps."""

    def body(number: Any, carry: Any, batch: Any, size: Any) -> Any:
        return carry + batch["x"][0] + 1000 * size, 10.0 * (number + 1)

    carry, report = loop(phase(limit=limit), body, jnp.float32(0))
    assert float(carry) == (1 + 2000) + (4 + 1000)
    assert [float(x) for x in report] == [15, 10, 3, 2, 0]


def test_a_client_without_steps_reports_nothing() -> None:
    def body(number: Any, carry: Any, batch: Any, size: Any) -> Any:
        return carry + 1, jnp.float32(np.nan)

    carry, report = loop(phase(steps=0), body, jnp.float32(7))
    assert float(carry) == 7
    assert [float(x) for x in report] == [0, 0, 0, 0, 0]


def test_every_step_has_noise_of_its_own() -> None:
    def body(number: Any, carry: Any, batch: Any, size: Any) -> Any:
        return carry.at[number].set(jax.random.uniform(batch["step_key"])), jnp.float32(0)

    drawn, _ = loop(phase(steps=3, key=jax.random.key(0)), body, jnp.zeros(3))
    assert len(set(drawn.tolist())) == 3
    other, _ = loop(phase(steps=3, key=jax.random.key(1)), body, jnp.zeros(3))
    assert not set(drawn.tolist()) & set(other.tolist())


def test_two_steps_by_hand() -> None:
    """Gradient 2 (m - mean x), rate 0.1 times a factor of one half: m goes from 1 by 0.1 (3 - 1) to
    1.2, then by 0.1 (4 - 1.2) to 1.48.  n is frozen at zero."""
    free, frozen = {"m": jnp.float32(1)}, {"n": jnp.float32(0)}
    half = optax.chain(optax.sgd(0.1), fs.client.by_round(lambda round: 0.5))
    end, report = train(MODEL, half, free, frozen, phase(), free, jnp.int32(0))
    assert set(end) == {"m"}
    np.testing.assert_allclose(end["m"], 1.48, rtol=1e-6)
    losses = [(0 + 16) / 2, (1.2 - 4) ** 2]
    np.testing.assert_allclose(
        [report.loss, report.start_loss], [np.mean(losses), losses[0]], rtol=1e-6
    )


def test_corrections_follow_one_another_and_see_where_the_client_is() -> None:
    """First + 1, then times 3, then + 2 (x - x0): at m = 1 the gradient -4 becomes -9, so m goes to
    1.9.  n is no leaf of the start and has plain steps, three times as long, to 1.2 first."""
    start = {"m": jnp.float32(1)}
    rule = optax.chain(
        fs.client.shift({"m": jnp.float32(1)}),
        optax.scale(3),
        fs.client.proximal(2),
        optax.sgd(0.1),
    )
    end, _ = train(MODEL, rule, params(1, 0), {}, phase(), start, jnp.int32(0))
    m1, n1 = 1.9, 1.2
    slope = 2 * (m1 + n1 - 4)
    np.testing.assert_allclose(end["m"], m1 - 0.1 * (3 * (slope + 1) + 2 * (m1 - 1)), rtol=1e-5)
    np.testing.assert_allclose(end["n"], n1 - 0.1 * 3 * slope, rtol=1e-5)


def test_the_optimizer_sees_the_model() -> None:
    """Weight decay: m <- m - 0.1 (g + 0.5 m)."""
    decay = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
    free, frozen = {"m": jnp.float32(1)}, {"n": jnp.float32(0)}
    end, _ = train(MODEL, decay, free, frozen, phase(steps=1), free, None)
    np.testing.assert_allclose(end["m"], 1 - 0.1 * (-4 + 0.5), rtol=1e-6)


def test_the_full_gradient_is_of_all_examples_alike() -> None:
    """2 (1 - (1 + 5 + 4) / 3): batches count by their examples, not each as one."""
    found, report = full_gradient(MODEL, params(1, 0), phase(), jnp.float32(3), jax.random.key(0))
    np.testing.assert_allclose(found["m"], 2 * (1 - 10 / 3), rtol=1e-6)
    np.testing.assert_allclose(found["n"], found["m"])
    np.testing.assert_allclose([report.start_loss, report.examples], [8, 3])
