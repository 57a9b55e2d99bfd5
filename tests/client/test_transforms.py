"""Corrections and schedules as optax transformations: where they act, and where they belong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import run_of

import fedslice as fs
from fedslice.client.local import checked
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import adapted
from fedslice.model import Model

RATE, MU = 0.1, 0.5
PEOPLE = Population.from_arrays([0, 0, 1, 1], a=[1.0, 1.0, 5.0, 5.0])


def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (params["g"] + params["l"] - batch["a"]) ** 2 / 2


MODEL = Model(lambda key: {"g": jnp.array(2.0), "l": jnp.array(0.5)}, loss, local="l")
ONE = Model(lambda key: {"x": jnp.array(2.0)}, lambda p, b: (p["x"] - b["a"]) ** 2 / 2)


def test_a_pull_is_on_global_leaves_only() -> None:
    """Three steps on g and l, of which g alone is pulled to where it began."""
    rule = optax.chain(fs.client.proximal(MU), optax.sgd(RATE))
    run = run_of(fs.recipes.fedavg(MODEL, rule, fs.Work(steps=3, batch=2)), PEOPLE, 1)
    ends = []
    for a in (1.0, 5.0):
        g, local = 2.0, 0.5
        for _ in range(3):
            error = g + local - a
            g, local = g - RATE * (error + MU * (g - 2)), local - RATE * error
        ends.append(g)
    assert float(run.params()["g"]) == pytest.approx(np.mean(ends), rel=1e-6)


def test_the_order_is_pull_clip_step_factor() -> None:
    """One step: the pull is in the gradient that is clipped, and the factor is on what SGD makes of
    it.  At the start there is no pull, so a shift stands for it."""
    shift = fs.client.shift({"x": jnp.array(10.0)})
    clip = optax.clip_by_global_norm(2.0)
    factor = fs.client.by_round(lambda done: 0.5 + 0 * done)
    rule = optax.chain(shift, clip, optax.sgd(RATE), factor)
    run = run_of(fs.recipes.fedavg(ONE, rule, fs.Work(steps=1, batch=2)), PEOPLE, 1)
    assert float(run.params()["x"]) == pytest.approx(2 - 0.5 * RATE * 2, rel=1e-6)


@pytest.mark.parametrize(
    "recipe",
    few(
        ["fedprox", "ifca", "fedpa", "mimelite", "superquantile", "reptile", "ditto"],
        *("fedprox", "ifca", "fedpa", "mimelite", "ditto"),  # each has a client part of its own
    ),
)
def test_every_client_tells_its_optimizer(recipe: str) -> None:
    """A factor of zero keeps the global model where it is; a pull that is there already is none."""
    still = fs.client.by_round(lambda done: 0.0 * done)
    rule = optax.chain(fs.client.proximal(MU), optax.sgd(RATE), still)
    run = run_of(getattr(fs.recipes, recipe)(ONE, rule), PEOPLE)
    before = float(run.params()["x"])
    for _ in run.rounds(2):
        assert float(run.params()["x"]) == before


def test_adapting_is_in_no_round_and_pulled_to_the_global_model() -> None:
    """From x = 2, one step to the client's own a with the full rate; the second one is pulled."""
    falling = fs.client.by_round(optax.linear_schedule(1.0, 0.0, 1))
    rule = optax.chain(fs.client.proximal(MU), optax.sgd(RATE), falling)
    run = run_of(fs.recipes.fedavg(ONE, optax.sgd(RATE)), PEOPLE)
    gain = adapted(run, PEOPLE, fs.client.finetune(ONE, rule, fs.Work(steps=2, batch=1)))
    expected = []
    for a in (1.0, 5.0):
        x = 2.0
        for _ in range(2):
            x = x - RATE * (x - a + MU * (x - 2))
        expected.append((x - a) ** 2 / 2)
    np.testing.assert_allclose(gain.after.clients["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (fs.client.proximal(0.1), r"proximal\(0.1\) needs the model that a round starts from"),
        (fs.client.by_round(optax.constant_schedule(1.0)), "the number of rounds done"),
    ],
    ids=["proximal", "by_round"],
)
def test_a_server_is_not_told(rule: optax.GradientTransformation, words: str) -> None:
    method = fs.recipes.fedavg(ONE, optax.sgd(RATE), server=optax.chain(rule, optax.sgd(1.0)))
    with pytest.raises(InputError, match=words):
        run_of(method, PEOPLE, 1)


def test_work_that_says_nothing_is_one_pass() -> None:
    assert checked(fs.Work(batch=7)) == fs.Work(epochs=1, batch=7)
    assert checked(fs.Work(steps=3)) == fs.Work(steps=3)
