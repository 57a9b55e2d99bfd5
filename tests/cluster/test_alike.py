"""Among how many threads the compiler's code is divided, and when that may differ from here."""

import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from problems import ROWS, people

import fedslice as fs
from fedslice.cluster.alike import NAME, threads_here
from fedslice.cluster.crew import Here

PEOPLE = people()
GRADIENT = """
import hashlib, jax, jax.numpy as jnp
from fedslice.models.lstm import init, lstm
layer = init(jax.random.key(0), 100, 100)
inputs = jax.random.normal(jax.random.key(1), (25, 5, 100))
found = jax.jit(jax.grad(lambda layer: jnp.sum(lstm(layer, inputs) ** 2)))(layer)
print(hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found))).hexdigest())
"""


class Asked(Here):
    """Writes down what workers are to have."""

    def start(self, kind: Any, *given: Any, busy: bool, cores: int) -> Any:
        if busy:
            self.cores = cores
        return super().start(kind, *given, busy=busy, cores=cores)


@pytest.mark.parametrize(("width", "own"), [(8, True), (1 << 14, False)])
def test_workers_have_threads_of_their_own_unless_sums_are_divided(
    monkeypatch: pytest.MonkeyPatch, width: int, own: bool
) -> None:
    """The gradient of ``wide`` is a sum over the batch of as many numbers as the batch times its
    width."""
    monkeypatch.setenv(NAME, "7")

    def loss(params: Any, batch: Any) -> Any:
        told = jnp.sum(jnp.tanh(params["wide"] + batch["label"][:, None]), 1)
        return jnp.square(told + params["weight"][batch["item"]].sum(1))

    table = fs.Table(rows=ROWS, fields="item")
    model = fs.Model(lambda key: {"wide": jnp.zeros(width)}, loss, {"weight": table})
    method = fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=2))
    crew = Asked(workers=2, threads=1)
    with fs.cluster.simulate(method, PEOPLE, crew=crew, sampler=fs.sampling.full()):
        assert crew.cores == (1 if own else 7)


def test_the_number_is_the_one_that_xla_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    assert threads_here() == 3
    monkeypatch.delenv(NAME)
    assert threads_here() == len(os.sched_getaffinity(0))


@pytest.mark.every
def test_an_lstm_has_the_same_gradient_with_any_number_of_threads() -> None:
    def hashed(threads: str) -> str:
        given = {**os.environ, NAME: threads}
        command = [sys.executable, "-c", GRADIENT]
        return subprocess.run(command, env=given, check=True, capture_output=True, text=True).stdout

    assert hashed("1") == hashed("2") == hashed("5")
