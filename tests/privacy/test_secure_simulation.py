"""The engine's secure sum is the protocol's, number by number."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import linear
from problems import ROWS, people, run_of

import fedslice as fs
from fedslice.data.sampling import Sampler
from fedslice.privacy.secure.degree import Degree
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.run import secure_sum
from fedslice.types import Algorithm, Message, Stage

WORK = fs.Work(steps=2, batch=4)
CLIENTS = 7


def wire() -> Stage:
    """Keeps what comes over the wire, as it is: the sum of whole numbers."""

    def init(params: Any, rows: Any) -> Any:
        whole = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.int32), params)
        return {"update": whole, "weight": jnp.zeros((), jnp.int32)}

    def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
        return total, {"update": total.update, "weight": total.extra["weight"]}

    return Stage(init, lambda offer, memory, message, key: (message, memory), decode, on_sum=True)


def only(clients: list[int]) -> Sampler:
    return Sampler(f"only({clients})", lambda rng, counts: np.array(clients))


@cache
def method(weights: str) -> Algorithm:
    stages = [
        fs.stage.clip(1.0),
        fs.stage.mean(weights),
        fs.stage.secure(CLIENTS, heaviest=8.0),
        wire(),
    ]
    local = fs.client.sgd(linear(), optax.sgd(0.1), WORK)
    return fs.algorithm(local, stages, fs.server.optimize())


def received(clients: list[int], weights: str) -> dict[str, np.ndarray]:
    """What the server has in the second round, if these clients alone take part in it."""
    run = run_of(method(weights), people(), 1, rows="all", engine="map", threads=1)
    run.sampler = only(clients)
    run.train(1, progress=False)
    kept = run.store.state.stages[-1]
    return {
        "w": np.asarray(kept["update"]["w"]).reshape(ROWS, 1),
        "bias": np.asarray(kept["update"]["bias"]).reshape(1),
        "weight": np.asarray(kept["weight"]).reshape(1),
    }


@pytest.mark.parametrize("weights", [pytest.param("uniform", marks=pytest.mark.every), "examples"])
def test_the_engine_adds_what_the_protocol_adds(weights: str) -> None:
    """All seven; and five of them, when one falls silent before it sent anything and one before
    the others agreed on who stayed."""
    alone = [received([client], weights) for client in range(CLIENTS)]
    parts = Parts([dense("bias", 1), rows("w", np.arange(ROWS), 1), dense("weight", 1)])
    whole = secure_sum(alone, parts, Degree(6, 4))
    assert_same(whole.total, received(list(range(CLIENTS)), weights))
    fewer = secure_sum(alone, parts, Degree(6, 4), dropouts={2: 0, 5: 2})
    assert fewer.stayed == frozenset({0, 1, 3, 4, 6})
    assert_same(fewer.total, received([0, 1, 3, 4, 6], weights))
    assert any((each["w"] != 0).any() for each in alone)


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype == np.int32
        np.testing.assert_array_equal(left[name], right[name])
