"""Messages that are added as they come have the sum of all of them, bit by bit."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import ROWS, people, run_of, state_bytes

import fedslice as fs
from fedslice.reduce.sums import LARGE
from fedslice.round import engine
from fedslice.round.adding import Sums, cut

PEOPLE = people()


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of two clients are too many."""
    monkeypatch.setattr(engine, "PART", 1)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were added each time."""
    add, found = Sums.add, list[int]()

    def watched(self: Sums, message: Any, places: Any, count: int) -> Any:
        found.append(count)
        return add(self, message, places, count)

    monkeypatch.setattr(Sums, "add", watched)
    return found


def wide_loss(params: Any, batch: Any) -> Any:
    """A dense leaf so large that it is added client by client."""
    told = jnp.sum(jnp.tanh(params["wide"] + batch["label"][:, None]), 1) / LARGE
    return jnp.square(told + params["weight"][batch["item"]].sum(1))


@pytest.mark.parametrize(("mode", "threads"), [("map", 1), ("map", 2), (2, 2)])
@pytest.mark.usefixtures("one_at_a_time")
def test_large_dense_leaves_and_a_last_part_that_is_not_full(
    mode: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fs.Table(rows=ROWS, fields="item")
    wide = jnp.linspace(-1.0, 1.0, LARGE)
    model = fs.Model(lambda key: {"wide": wide}, wide_loss, {"weight": table})
    method = fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=2, batch=2))
    settings = {"sampler": fs.sampling.full(), "engine": mode}
    parts = counted(monkeypatch)
    found = run_of(method, PEOPLE, 2, threads=threads, **settings)
    assert sum(parts) == 2 * len(PEOPLE)
    assert max(parts) == (2 if mode == 2 else 1)
    monkeypatch.setattr(engine, "PART", 1 << 30)
    assert state_bytes(found) == state_bytes(run_of(method, PEOPLE, 2, threads=1, **settings))


def test_parts_are_even_and_no_larger_than_said() -> None:
    for clients, threads, most, unit in np.random.default_rng(0).integers(1, 40, (300, 4)):
        size = cut(clients, threads, most, unit)
        assert size % unit == 0
        assert size < max(most, unit) + unit
        turns = -(-clients // (size * threads))
        even = -(-clients // threads)  # what a thread does if all do the same
        assert turns * size >= even
        fewest = -(-clients // (threads * max(most, unit)))
        plain = -(-clients // (threads * fewest * unit)) * unit
        assert turns * size <= fewest * plain
