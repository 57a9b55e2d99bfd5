"""The secure sum of the compiled simulation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import linear
from problems import assert_params_close, people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.stage.fixed import scale_for

WORK = fs.Work(steps=2, batch=4)


def method(*after: Any, before: Any = None, weights: str = "uniform") -> Any:
    stages = [before or fs.stage.clip(1.0), fs.stage.mean(weights), *after]
    return fs.algorithm(fs.client.sgd(linear(), optax.sgd(0.1), WORK), stages, fs.server.optimize())


@pytest.mark.parametrize("weights", few(["uniform", "examples"], "examples"))
def test_it_is_the_sum_but_for_rounding(weights: str) -> None:
    stage = fs.stage.secure(clients=10**6, heaviest=8.0)  # few digits; eight examples at most
    plain, secured = (run_of(method(*s, weights=weights), people(), 3) for s in ((), (stage,)))
    assert_params_close(
        plain.params(), secured.params(), rtol=0, atol=7 * 3 / scale_for(10**6, 8.0)
    )
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
    sent, _ = jax.jit(stage.encode)((), (), message, jax.random.key(0))
    assert float(sent.weight) == 0
    assert sent.update["w"].dtype == sent.extra["weight"].dtype == jnp.int32
    back, _ = jax.jit(stage.decode)((), sent, jax.random.key(0))
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
        (lambda: fs.stage.secure(0), "positive number"),
        (lambda: fs.stage.secure(2**31), "sum of 2147483648 clients is not possible"),
        (lambda: fs.stage.secure(5, heaviest=0.5), "at least 1"),
        (lambda: method(fs.stage.secure(7), weights="examples"), "count alike"),
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
