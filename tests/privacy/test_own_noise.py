"""Noise of every client's own: what the sum of it is, on which rows, and what travels then."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import linear
from problems import logistic, people, run_of
from scipy import stats

import fedslice as fs
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.types import Algorithm, ClientReport, Message

ROWS = 6000
CLIP, NOISE = 0.5, 3.0


def still(stages: list[Any], rows: int = ROWS) -> Algorithm:
    """Clients that do not move: what the model then does is noise."""
    model = logistic(rows)
    return fs.recipes.fedavg(
        model, optax.sgd(0.0), fs.Work(steps=1, batch=4), weights="uniform", stages=stages
    )


def moved(sampler: Sampler, **more: Any) -> tuple[np.ndarray, int, Any]:
    """How far every row went in a round, how many clients came, and the run."""
    stages = fs.privacy.local(CLIP, NOISE, sampler, **more)
    run = run_of(still(stages), people(rows=ROWS), sampler=sampler)
    before = np.array(run.table("w", np.arange(ROWS)))
    report = run.train(1, progress=False)
    return run.table("w", np.arange(ROWS)) - before, report.clients, run


@pytest.mark.parametrize(
    "sampler",
    [pytest.param(fs.sampling.uniform(5), marks=pytest.mark.every), fs.sampling.poisson(4)],
)
def test_the_sum_of_all_noise_falls_on_every_row(sampler: Sampler) -> None:
    """n clients with N(0, z^2 C^2) each, over K: normal numbers of that variance on the rows that
    somebody holds and on those that nobody does, and nothing else."""
    change, came, run = moved(sampler)
    size = NOISE * CLIP * np.sqrt(came) / sampler.clients
    held = np.zeros(ROWS, bool)
    for field in ("item", "history"):
        ids = run.population.columns[field]
        held[ids[ids >= 0]] = True
    assert 20 < held.sum() < ROWS / 2
    for some in (held, ~held):
        assert stats.kstest(change[some] / size, "norm").pvalue > 1e-3
    assert abs(change.std() / size - 1) < 0.03  # standard error 0.009


@pytest.mark.every
def test_it_is_the_law_of_noise_that_each_client_draws() -> None:
    """The same moments as drawing for each client by itself, the fourth and across rows too."""
    rng = np.random.default_rng(0)
    apart = NOISE * CLIP * rng.normal(size=(5, ROWS)).sum(0) / 5
    change, came, _ = moved(fs.sampling.uniform(5))
    assert came == 5
    assert stats.ks_2samp(change, apart).pvalue > 1e-3
    assert abs(np.corrcoef(change[:-1], change[1:])[0, 1]) < 4 / np.sqrt(ROWS)


@pytest.mark.parametrize("power", few([0.0, 0.5, 1.0], 0.5))
def test_heat_says_where_it_falls(power: float) -> None:
    """On row m of the mean c_m^(1 - a) times as much: with a = 1 nowhere more than elsewhere."""
    heat = fs.privacy.heat.public(people(rows=ROWS).heat(logistic(ROWS)))
    c = heat.coefficient("w", np.arange(ROWS), "uniform")
    assert len(np.unique(c)) > 1
    change, came, _ = moved(fs.sampling.uniform(5), heat=heat, power=power)
    size = NOISE * CLIP * np.sqrt(came) / 5 * c ** (1 - power)
    assert stats.kstest(change / size, "norm").pvalue > 1e-3
    assert abs((change / size)[c > 1].std() - 1) < 0.25


@pytest.mark.every
def test_nobody_came_nobody_adds_noise() -> None:
    sampler = fs.sampling.poisson(0.01)
    change, came, _ = moved(sampler)
    assert came == 0
    assert (change == 0).all()


def test_all_rows_travel_both_ways_and_none_is_named() -> None:
    """Counted bytes by hand, from the sizes of the table, 24 rows, and of two dense numbers; they
    are those of a packed message and of a packed invitation."""
    sampler = fs.sampling.uniform(5)
    population = people()
    run = run_of(still(fs.privacy.local(CLIP, NOISE, sampler), 24), population, sampler=sampler)
    named = run_of(still(fs.privacy.central(CLIP, NOISE, sampler), 24), population, sampler=sampler)
    for report, other in zip(run.rounds(3), named.rounds(3), strict=True):
        numbers = 4 * (24 + 2)
        room = 4 * 2  # padded sizes: of the batch, of a client's rows
        assert report.bytes_down == 5 * (8 + 4 + 4 + room + numbers)
        assert report.bytes_up == 5 * (8 + 4 + 24 + numbers)
        assert other.bytes_down < report.bytes_down

    wire, every = run.shapes.wire, {"w": np.arange(24)}
    update = {"w": jnp.arange(24.0), "dense": {"slope": jnp.ones(()), "bias": jnp.ones(())}}
    sent = Message(update, jnp.ones(()), ClientReport(*[jnp.zeros(())] * 5))
    data = wire.pack_message(7, sent, every, every)
    assert len(data) * 5 == report.bytes_up
    _, again, ids = wire.unpack_message(data, {"w": 24})
    np.testing.assert_array_equal(again.update["w"], update["w"])
    np.testing.assert_array_equal(ids["w"], np.arange(24))
    with pytest.raises(InputError, match="all 24 must come"):
        wire.unpack_message(wire.pack_message(7, sent, {"w": np.arange(5)}, every), {"w": 24})
    shapes = jax.eval_shape(lambda: run.shapes.trees({"w": 24}, still=True).invitation)
    invitation = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), shapes)
    room = dict.fromkeys(wire.room, 1)
    assert len(wire.pack_invitation(0, 0, room, {"w": 24}, invitation)) * 5 == report.bytes_down


def test_what_it_cannot_hide_is_refused() -> None:
    sampler = fs.sampling.uniform(5)
    stages = fs.privacy.local(CLIP, NOISE, sampler)
    with pytest.raises(InputError, match=r"give privacy.local\(...\) the sampler"):
        run_of(still(stages, 24), people(), sampler=fs.sampling.uniform(4))
    with pytest.raises(InputError, match="leave rows out"):
        run_of(still(stages, 24), people(), sampler=sampler, rows="touched")
    with pytest.raises(InputError, match="cannot be accounted for"):
        fs.privacy.local(CLIP, NOISE, fs.sampling.weighted(5))
    with pytest.raises(InputError, match="must be positive"):
        fs.privacy.local(CLIP, 0.0, sampler)
    exact = fs.privacy.local(CLIP, NOISE, sampler, heat=people().heat(logistic()))
    with pytest.raises(InputError, match="the heat is exact"):
        still(exact, 24)


@pytest.mark.parametrize("way", few(["local", "distributed"], "local"))
def test_a_client_that_fails_still_adds_its_noise(way: str) -> None:
    """Otherwise the amount of noise, or a round thrown away, would show that its loss was not
    finite."""
    sampler = fs.sampling.uniform(7)
    wild = people()
    x = wild.columns["x"].copy()
    x[wild.owners == 3] = 1e30
    broken = fs.Population({**wild.columns, "x": x}, wild.offsets, wild.clients)
    how = (
        fs.privacy.local(1.0, 2.0, sampler)
        if way == "local"
        else fs.privacy.distributed(1.0, 2.0, sampler, least=7, numbers=50)
    )
    method = fs.recipes.fedavg(
        linear(), optax.sgd(0.0), fs.Work(steps=1, batch=4), weights="uniform", stages=how
    )
    moved = []
    for population in (wild, broken):
        run = run_of(method, population, sampler=sampler)
        first = np.asarray(run.table("w", np.arange(24)))
        report = run.train(1, progress=False)
        moved.append(np.asarray(run.table("w", np.arange(24))) - first)
    assert report.failed == 1
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-5, atol=1e-6)
    assert np.abs(moved[1]).max() > 0.1
