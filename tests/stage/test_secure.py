"""Fixed-point numbers, and the secure sum of the compiled simulation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import linear
from problems import assert_params_close, people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.stage.fixed import LARGEST, decode, encode, scale_for

WORK = fs.Work(steps=2, batch=4)


@pytest.mark.parametrize("bound", [1.0, 0.3, 7.0, 1e4])
@pytest.mark.parametrize("clients", [1, 2, 50, 1000, 10**6])
def test_the_scale_is_the_largest_that_cannot_overflow(bound: float, clients: int) -> None:
    scale = scale_for(bound, clients)
    assert np.log2(scale) == np.floor(np.log2(scale))
    assert clients * (bound * scale + 1) <= LARGEST < clients * (2 * bound * scale + 1)


@pytest.mark.parametrize("scale", [2.0**4, 2.0**22, 2.0**25, 2.0**30])
def test_numpy_and_compiled_jax_give_the_same_whole_numbers(scale: float) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 5000), rng.normal(size=5000) * 2 / scale, [1, -1, 0]])
    x = np.clip(x, -1, 1).astype(np.float32)
    uniform = rng.random(len(x), np.float32)
    uniform[:2] = 0
    by_numpy = encode(x, uniform, scale)
    by_jax = jax.jit(lambda x, u: encode(x, u, scale))(x, uniform)
    np.testing.assert_array_equal(by_numpy, by_jax)
    assert np.abs(by_numpy).max() <= scale + 1
    exact = np.floor(x.astype(float) * scale)
    exact += uniform < x.astype(float) * scale - exact
    np.testing.assert_array_equal(by_numpy, exact)


def test_rounding_is_unbiased() -> None:
    x, uniform = np.float32(0.3), (np.arange(100_000, dtype=np.float32) + 0.5) / 100_000
    found = decode(encode(np.full(100_000, x), uniform.astype(np.float32), 8.0), 8.0)
    assert found.mean() == pytest.approx(x, abs=1e-5)
    assert set(found.tolist()) == {0.25, 0.375}


def test_sums_wrap_and_come_back() -> None:
    """Partial sums may leave int32; the whole does not."""
    parts = np.array([LARGEST, LARGEST, -LARGEST, -LARGEST + 5], np.int32)
    assert int(jax.jit(jnp.sum)(jnp.asarray(parts))) == 5


def method(*after: Any, before: Any = None, weights: str = "uniform") -> Any:
    stages = [before or fs.stage.clip(1.0), fs.stage.mean(weights), *after]
    return fs.algorithm(fs.client.sgd(linear(), optax.sgd(0.1), WORK), stages, fs.server.optimize())


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_it_is_the_sum_but_for_rounding(weights: str) -> None:
    stage = fs.stage.secure(clients=7, heaviest=8.0)  # eight examples at most
    plain, secured = (run_of(method(*s, weights=weights), people(), 3) for s in ((), (stage,)))
    assert_params_close(plain.params(), secured.params(), rtol=0, atol=7 * 3 / scale_for(8.0, 7))
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(*(jax.tree.leaves(run.params()) for run in (plain, secured)), strict=True)
    )


def test_heavier_clients_count_for_the_heaviest() -> None:
    stage = fs.stage.secure(clients=7, heaviest=3.0)
    capped = run_of(method(stage, weights="examples"), people(), 1)
    told = fs.stage.mean(lambda message: jnp.minimum(message.weight, 3.0))
    expected = run_of(
        fs.algorithm(
            fs.client.sgd(linear(), optax.sgd(0.1), WORK),
            [fs.stage.clip(1.0), told],
            fs.server.optimize(),
        ),
        people(),
        1,
    )
    assert_params_close(capped.params(), expected.params(), rtol=0, atol=1e-6)


def test_weights_do_not_travel_in_the_clear() -> None:
    stage = fs.stage.secure(clients=7)
    report = fs.types.ClientReport(*[jnp.ones(())] * 4)
    message = fs.types.Message({"w": jnp.array([0.5])}, jnp.array(1.0), report)
    sent, _ = stage.encode((), (), message, jax.random.key(0))
    assert float(sent.weight) == 0
    assert sent.update["w"].dtype == sent.extra["weight"].dtype == jnp.int32
    back, _ = stage.decode((), sent, jax.random.key(0))
    assert float(back.weight) == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: method(fs.stage.secure(7), before=fs.stage.clip(2.0)), "norm at most 1"),
        (
            lambda: fs.recipes.scaffold_heat(
                linear(), 0.1, WORK, population=people(), stages=[fs.stage.secure(7)]
            ),
            "more than updates",
        ),
        (
            lambda: fs.recipes.fedavg(
                linear(), optax.sgd(0.1), stages=[fs.stage.secure(7)], reduce=fs.reduce.median()
            ),
            "reduce=sum",
        ),
        (lambda: fs.stage.secure(0), "at least one client"),
        (lambda: fs.stage.secure(2**31), "does not fit 32 bits"),
        (lambda: fs.stage.secure(5, heaviest=0.5), "at least 1"),
        (
            lambda: run_of(method(fs.stage.secure(3)), people(), sampler=fs.sampling.uniform(4)),
            "room for 3 clients",
        ),
        (
            lambda: run_of(method(fs.stage.secure(3)), people(), sampler=fs.sampling.full()),
            "round 1 has 7 clients",
        ),
        (
            lambda: run_of(method(fs.stage.secure(9)), people(), sampler=fs.sampling.weighted(4)),
            "may draw a client twice",
        ),
    ],
)
def test_what_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
