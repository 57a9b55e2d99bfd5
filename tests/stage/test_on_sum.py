"""Stages next to the wire, which act on the sum; the fixed denominator; rounds over all rows."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import dense, linear
from problems import ROWS, assert_params_close, people, run_of, state_bytes

import fedslice as fs
from fedslice.errors import InputError
from fedslice.types import Algorithm, Message, Stage

UNIT = 2.0**-12


@cache
def fixed_point() -> Stage:
    """Updates in whole multiples of ``UNIT``, as a secure sum would add them."""

    def encode(offer: Any, memory: Any, message: Message, key: Any) -> tuple[Message, Any]:
        whole = jax.tree.map(lambda x: jnp.round(x / UNIT).astype(jnp.int32), message.update)
        return message._replace(update=whole), memory

    def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
        return total._replace(update=jax.tree.map(lambda x: x * UNIT, total.update)), state

    return Stage(lambda params, rows: (), encode, decode, on_sum=True)


@cache
def noise(size: float) -> Stage:
    """Normal numbers added to the sum by the server."""

    def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
        leaves, tree = jax.tree.flatten(total.update)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
        ]
        return total._replace(update=tree.unflatten(noisy)), state

    return Stage(
        lambda params, rows: (), lambda o, m, message, k: (message, m), decode, on_sum=True
    )


@cache
def composed(*after: Stage, mean: Stage | None = None, server: Any = None) -> Algorithm:
    local = fs.client.sgd(linear(), optax.sgd(0.1), fs.Work(steps=2, batch=4))
    stages = [fs.stage.clip(0.5), mean or fs.stage.mean("uniform"), *after]
    return fs.algorithm(local, stages, fs.server.optimize(server))


def test_what_stands_after_the_mean_acts_on_the_sum() -> None:
    """Seven clients: each rounds by half a unit at most, so their mean differs by as much."""
    plain, whole = (run_of(composed(*after), people(), 1) for after in ((), (fixed_point(),)))
    for left, right in zip(*(jax.tree.leaves(run.params()) for run in (plain, whole)), strict=True):
        gap = np.abs(np.asarray(left) - np.asarray(right))
        assert gap.max() <= UNIT / 2 + 1e-7
    assert whole.shapes.tags.values["update"] == plain.shapes.tags.values["update"]


def test_its_sum_is_a_sum_of_whole_numbers() -> None:
    """The server's step is a multiple of a unit over the number of clients, for rows of tables and
    for dense leaves."""
    run = run_of(composed(fixed_point()), people())
    before = jax.tree.map(np.array, run.params())
    run.train(1, progress=False)
    for left, right in zip(*map(jax.tree.leaves, (before, run.params())), strict=True):
        steps = (np.asarray(right, np.float64) - left) * len(people()) / UNIT
        np.testing.assert_allclose(steps, np.round(steps), atol=0.02)


def test_noise_of_the_server_hangs_on_seed_and_round() -> None:
    """Its size on the mean is size / K; it is the same for a seed, another in each round, and does
    not touch what clients draw."""
    plain, noisy, again, other = (
        run_of(composed(*after), people(), 1, seed=seed)
        for after, seed in (((), 0), ((noise(0.7),), 0), ((noise(0.7),), 0), ((noise(0.7),), 1))
    )
    gaps = np.asarray(noisy.table("w", noisy.spaces["w"].ids)) - np.asarray(
        plain.table("w", plain.spaces["w"].ids)
    )
    assert 0.03 < gaps.std() < 0.3  # 0.1 expected, of some 20 draws
    assert state_bytes(noisy) == state_bytes(again) != state_bytes(other)
    first = np.asarray(noisy.params()["bias"]) - np.asarray(plain.params()["bias"])
    for run in (plain, noisy):
        run.train(1, progress=False)
    second = np.asarray(noisy.params()["bias"]) - np.asarray(plain.params()["bias"])
    assert abs(float(second - first) - float(first)) > 1e-4


def test_a_fixed_denominator() -> None:
    """In the place of the sum of weights, 7: updates are 7/10 of FedAvg's."""
    fixed = fs.stage.mean("uniform", denominator=10)
    runs = [run_of(composed(mean=mean), people(), 0) for mean in (None, fixed)]
    first = jax.tree.map(np.array, runs[0].params())
    for run in runs:
        run.train(1, progress=False)
    expected = jax.tree.map(lambda x, y: x + 0.7 * (np.asarray(y) - x), first, runs[0].params())
    assert_params_close(runs[1].params(), expected)
    empty = run_of(composed(mean=fixed), people(), sampler=fs.sampling.poisson(0.01))
    before = state_bytes(empty)
    empty.train(1, progress=False)
    assert not len(empty.cohort(0))
    assert state_bytes(empty) == before
    with pytest.raises(InputError, match="must be positive"):
        fs.stage.mean(denominator=0)


@pytest.mark.parametrize(
    ("stages", "more", "words"),
    [
        ([fs.stage.mean(), fs.stage.clip(1.0)], {}, "only what acts on the sum may stand after"),
        ([noise(1.0), fs.stage.mean()], {}, "must stand after the mean"),
        ([fs.stage.compress(fs.stage.sign()), fs.stage.mean(), noise(1.0)], {}, "not as codes"),
        ([fs.stage.mean(), noise(1.0)], {"reduce": fs.reduce.median()}, "reduce=sum"),
        ([fs.stage.mean(), noise(1.0)], {"survey": fs.client.gradient(linear())}, "of one trip"),
        ([fs.stage.compress(fs.stage.sign())] * 2 + [fs.stage.mean()], {}, "compressed once"),
        ([noise(1.0)], {}, "exactly one stage"),
    ],
)
def test_what_cannot_stand_there_is_refused(stages: Any, more: Any, words: str) -> None:
    local = fs.client.sgd(linear(), optax.sgd(0.1))
    with pytest.raises(InputError, match=words):
        fs.algorithm(local, stages, fs.server.optimize(), **more)


# -- rounds over all rows --------------------------------------------------------------------------


def test_over_all_rows_a_table_is_a_dense_leaf() -> None:
    """With momentum on the server idle rows move, too: as in the model whose table is dense, and
    not as with the rows of the round alone."""
    rows = np.arange(ROWS)
    server = optax.adam(0.1, b2=0.9)

    def method(model: fs.Model) -> Algorithm:
        return fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=2, batch=4), server=server)

    settings: dict[str, Any] = {"sampler": fs.sampling.uniform(3)}
    sparse = method(linear())
    whole = run_of(sparse, people(), rows="all", **settings)
    first = np.asarray(whole.table("w", rows))
    for _ in whole.rounds(5):
        pass
    wide = run_of(method(dense(first)), people(), 5, **settings)
    lazy = run_of(sparse, people(), 5, **settings)
    np.testing.assert_allclose(whole.table("w", rows), wide.params()["w"], rtol=2e-5, atol=2e-6)
    assert np.abs(np.asarray(lazy.table("w", rows)) - np.asarray(wide.params()["w"])).max() > 1e-3


def test_noise_falls_on_all_rows() -> None:
    """On rows that nobody holds, too: who holds what cannot be read off the model."""
    population = people()
    held = np.unique(population.columns["history"][population.columns["history"] >= 0])
    idle = np.setdiff1d(np.arange(ROWS), held[:-3])[:3]
    some = population.select(~np.isin(population.columns["history"], idle).any(1))
    run = run_of(composed(noise(0.5)), some, rows="all")
    before = np.asarray(run.table("w", idle))
    run.train(1, progress=False)
    assert (np.asarray(run.table("w", idle)) != before).all()
    touched = run_of(composed(noise(0.5)), some, 1)
    np.testing.assert_array_equal(touched.table("w", idle), before)


def test_a_table_that_is_too_large_for_it_is_refused() -> None:
    table = fs.Table(rows=2**40, fields="item")
    model = fs.Model(lambda key: {}, lambda p, b: p["w"][b["item"]] ** 2, {"w": table})
    population = fs.Population.from_arrays([0, 1], item=[5, 2**39])
    method = fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=1))
    with pytest.raises(InputError, match="too large for rounds over all of its rows"):
        run_of(method, population, rows="all")
