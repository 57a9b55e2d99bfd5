"""Noise that is computed when a row is read has the law of noise on all rows in every round.

The problem: one client a group of rows, each of which it takes a share of the way to zero when it
is drawn; all starts at zero.  So with s_t = 1 - share where the group was drawn in round t, else 1,

    x_(t+1) = s_t x_t + sigma g_t,   Var x_(t+1) = s_t^2 Var x_t + sigma^2,
    Cov(x_u, x_t) = s_u s_(u+1) ... s_(t-1) Var x_u

on every row: noise that a client read takes part in what it trains.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import logistic, people, run_of, state_bytes

import fedslice as fs
from fedslice.errors import InputError
from fedslice.server.random_walks import walk
from fedslice.types import Algorithm, Stage

GROUP, GROUPS, SPARE, ROUNDS = 3000, 4, 3000, 7
ROWS = GROUP * GROUPS + SPARE  # the last ones are held by nobody
SHARE, SIGMA = 0.4, 2.0
SAMPLER = fs.sampling.uniform(2)
WIDE = 1e4  # a ball that nothing reaches the edge of
EVERY = {"w": np.arange(ROWS)}
# the first loss is zero, and noise over a hundred times it is no divergence
FREE: dict[str, Any] = {"sampler": SAMPLER, "stop_above": 1e9}


def table(rows: int) -> fs.Model:
    spread = fs.Table(rows=rows, fields="item")
    return fs.Model(
        lambda key: {"b": jnp.zeros(300)},
        lambda p, batch: p["w"][batch["item"]] ** 2 / 2 + 0 * p["b"].sum(),
        {"w": spread},
    )


def groups() -> fs.Population:
    return fs.Population.from_arrays(
        np.repeat(np.arange(GROUPS), GROUP), item=np.arange(GROUP * GROUPS)
    )


@cache
def method(way: str, **more: Any) -> Algorithm:
    # a mean over GROUP examples, and over the two clients of a round
    rate = 2 * SHARE * GROUP
    local = fs.client.sgd(table(ROWS), optax.sgd(rate), fs.Work(epochs=1, batch=GROUP))
    given = {"clip": WIDE, "noise": 2 * SIGMA / WIDE, "sampler": SAMPLER, **more}
    if way == "eager":
        return fs.algorithm(local, fs.privacy.central(**given), fs.server.optimize())
    return fs.algorithm(local, *fs.privacy.lazy(**given, rounds=ROUNDS))


@lru_cache(maxsize=2)
def models(way: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The table before every round, the dense leaf, and which groups were drawn in it."""
    run = run_of(method(way), groups(), **FREE, seed=3)
    drawn = np.zeros((ROUNDS, GROUPS + 1), bool)
    for t in range(ROUNDS):
        drawn[t, run.cohort(t)] = True
    params = [jax.tree.map(np.array, run.params(EVERY))]
    for _ in run.rounds(ROUNDS):
        params.append(jax.tree.map(np.array, run.params(EVERY)))
    return np.stack([p["w"] for p in params]), np.stack([p["b"] for p in params]), drawn


def covariance(drawn: np.ndarray) -> np.ndarray:
    """Of one row at all times, by the recursion."""
    kept = np.where(drawn, 1 - SHARE, 1.0)
    found = np.zeros((ROUNDS + 1, ROUNDS + 1))
    for t in range(1, ROUNDS + 1):
        found[t, :t] = found[:t, t] = kept[t - 1] * found[t - 1, :t]
        found[t, t] = kept[t - 1] ** 2 * found[t - 1, t - 1] + SIGMA**2
    return found


@pytest.mark.parametrize("way", few(["lazy", "eager"], "lazy"))
def test_rows_have_jointly_the_law_of_noise_in_every_round(way: str) -> None:
    """Every variance, and every covariance between two times, of rows that are drawn in some
    rounds, in other rounds, or never, which have ROUNDS sigma^2 in the end."""
    found, _, drawn = models(way)
    patterns = {tuple(drawn[:, group]) for group in range(GROUPS)}
    assert len(patterns) > 2
    for group in range(GROUPS + 1):
        rows = slice(GROUP * group, GROUP * (group + 1))
        x, expected = found[:, rows].astype(float), covariance(drawn[:, group])
        variance = np.diag(expected)
        error = np.sqrt((np.outer(variance, variance) + expected**2) / x.shape[1])
        assert (np.abs(x @ x.T / x.shape[1] - expected) <= 4.5 * error).all(), group
        assert (np.abs(x.mean(1)) <= 4.5 * np.sqrt(variance / x.shape[1])).all()
    assert expected[-1, -1] == ROUNDS * SIGMA**2


def test_noise_of_rounds_and_rows_is_independent_and_normal() -> None:
    """Rows that nobody holds: their steps have the moments of independent normal numbers."""
    found, dense, _ = models("lazy")
    steps = np.diff(found[:, -SPARE:].astype(float), axis=0) / SIGMA
    assert abs((steps**4).mean() - 3) < 4.5 * np.sqrt(96 / steps.size)
    assert abs((steps[:, 1:] * steps[:, :-1]).mean()) < 4.5 / np.sqrt(steps.size)
    products = (steps[:, None] * steps[None]).mean(-1)
    np.testing.assert_allclose(products, np.eye(ROUNDS), atol=4.5 * np.sqrt(2 / SPARE))
    apart = np.diff(dense.astype(float), axis=0) / SIGMA
    assert abs(apart.var() - 1) < 4.5 * np.sqrt(2 / apart.size)
    other = run_of(method("lazy"), groups(), 2, **FREE, seed=4).params(EVERY)["w"]
    both = (np.asarray(other)[-SPARE:] * found[2, -SPARE:]).mean()
    assert abs(both) < 4.5 * 2 * SIGMA**2 / np.sqrt(SPARE)


def test_a_walk_is_a_walk_at_all_times() -> None:
    """Cov(W(s), W(t)) = min(s, t) for all times below 2^3, whatever order they are asked in."""
    rows = jnp.stack([jnp.arange(8000, dtype=jnp.uint32), jnp.zeros(8000, jnp.uint32)], 1)
    like = jnp.zeros(8000)
    ask = jax.jit(lambda rows, t: walk(jax.random.key(2), rows, t, 3, like))
    order = [5, 1, 7, 0, 3, 2, 6, 4]
    found = {t: np.asarray(ask(rows, jnp.int32(t)), np.float64) for t in order}
    assert not found[0].any()
    paths = np.stack([found[t] for t in range(8)])
    times = np.minimum.outer(np.arange(8.0), np.arange(8.0))
    error = np.sqrt((np.outer(np.diag(times), np.diag(times)) + times**2) / 8000)
    assert (np.abs(paths @ paths.T / 8000 - times) <= 4.5 * error).all()
    upper = rows.at[:, 1].set(1)  # an id beyond 2^32 is another row
    assert abs((ask(upper, jnp.int32(4)) * found[4]).mean()) < 0.3


def test_looking_changes_nothing_and_depends_on_nobody() -> None:
    """A row looked at alone is the row that is looked at among all, and that clients are sent."""
    quiet = run_of(method("lazy"), groups(), 3, **FREE)
    seen = run_of(method("lazy"), groups(), 0, **FREE)
    for _ in seen.rounds(3):
        seen.params(EVERY)
    assert state_bytes(quiet) == state_bytes(seen)
    every = seen.table("w", np.arange(ROWS))
    some = np.array([1, GROUP + 5, ROWS - 2])
    np.testing.assert_array_equal(seen.table("w", some), every[some])
    held = np.asarray(seen.algorithm.server.offer(seen.store.state.server)["w"])
    np.testing.assert_array_equal(held, every[: GROUP * GROUPS])
    hidden = np.asarray(seen.store.state.server.params["w"])
    assert (hidden != held).mean() > 0.99


@pytest.mark.parametrize(
    ("power", "rate"), [(0.5, 0.5), pytest.param(0.0, 1.0, marks=pytest.mark.every)]
)
def test_heat_says_how_much_falls_on_a_row(power: float, rate: float) -> None:
    """sigma_m = z C c_m^(1 - a) / K, as with noise in every round, for held rows and others."""
    population, sampler, rows = people(rows=9000), fs.sampling.uniform(5), np.arange(9000)
    heat = fs.privacy.heat.public(population.heat(logistic(9000)))
    c = heat.coefficient("w", rows, "uniform")
    local = fs.client.sgd(logistic(9000), optax.sgd(0.0), fs.Work(steps=1, batch=4))
    parts = fs.privacy.lazy(0.5, 3.0, sampler, heat=heat, power=power, rate=rate)
    run = run_of(fs.algorithm(local, *parts), population, sampler=sampler)
    first = np.array(run.table("w", rows))
    run.train(4, progress=False)
    sizes = rate * 3.0 * 0.5 * c ** (1 - power) / 5 * np.sqrt(4)
    scaled = (run.table("w", rows) - first) / sizes
    assert abs(scaled.var() - 1) < 4.5 * np.sqrt(2 / len(rows))
    cold = scaled[c > 1]
    assert abs(cold.var() - 1) < 4.5 * np.sqrt(2 / len(cold))


def test_a_round_costs_the_rows_that_it_reads() -> None:
    """A table of 2^40 rows, of which no round could go over all."""
    population = fs.Population.from_arrays([0, 1, 2], item=[5, 2**39, 2**39 + 2**32])
    local = fs.client.sgd(table(2**40), optax.sgd(0.1), fs.Work(steps=1, batch=1))
    parts = fs.privacy.lazy(1.0, 1.0, SAMPLER)
    run = run_of(fs.algorithm(local, *parts), population, 3, **FREE)
    assert run.store.state.server.params["w"].shape == (3,)
    read = run.table("w", np.array([5, 6, 2**39, 2**39 + 2**32, 2**40 - 1]))
    assert len(set(read.tolist())) == 5
    assert 0 not in read


@pytest.mark.parametrize("store", few(["ram", "disk"], "disk"))
def test_it_goes_on_from_a_checkpoint(store: str, tmp_path: Path) -> None:
    def run(rounds: int) -> Any:
        place = "ram" if store == "ram" else tmp_path / "rows"
        return run_of(method("lazy"), groups(), rounds, **FREE, store=place)

    first = run(2)
    first.save(tmp_path / "saved")
    for _ in first.rounds(3):
        pass
    again = run(0)
    again.restore(tmp_path / "saved")
    for _ in again.rounds(3):
        pass
    ram = run_of(method("lazy"), groups(), 5, **FREE)
    for other in (again, ram):
        np.testing.assert_array_equal(other.params(EVERY)["w"], first.params(EVERY)["w"])


def test_what_would_go_without_noise_is_refused() -> None:
    local = fs.client.sgd(table(ROWS), optax.sgd(0.1))
    stages, server = fs.privacy.lazy(1.0, 1.0, SAMPLER, rounds=2)
    others, _ = fs.privacy.lazy(2.0, 1.0, SAMPLER)
    noisy = fs.privacy.central(1.0, 1.0, SAMPLER)
    topk = fs.stage.compress(fs.stage.largest(0.5))
    wrong: list[tuple[list[Stage], dict[str, Any], str]] = [
        (others, {}, "of the size of its own ball and mean"),
        (noisy, {}, "of the size of its own ball and mean"),
        ([*stages, fs.stage.noise(1.0, SAMPLER)], {}, "of the size of its own ball and mean"),
        ([fs.stage.mean("uniform", denominator=2)], {}, "ball"),
        ([topk, *stages], {}, "leave out compress"),
        (stages, {"reduce": fs.reduce.median()}, "use reduce=sum"),
        (stages, {"survey": fs.client.gradient(table(ROWS))}, "surveys its clients first"),
    ]
    for given, more, words in wrong:
        with pytest.raises(InputError, match=words):
            fs.algorithm(local, given, server, **more)
    telling = local._replace(extras=True)
    with pytest.raises(InputError, match="sends more than updates"):
        fs.algorithm(telling, stages, server)
    adapting = fs.stage.ball(1.0, adapt=fs.privacy.Adapt())
    with pytest.raises(InputError, match="of the size of its own ball and mean"):
        fs.algorithm(local, [adapting, stages[1]], server)
    run = run_of(fs.algorithm(local, stages, server), groups(), 2, **FREE)
    with pytest.raises(InputError, match=r"made for 2 rounds.*privacy.lazy\(...\) all rounds"):
        run.train(1, progress=False)
    with pytest.raises(InputError, match=r"give privacy.lazy\(...\) the sampler"):
        run_of(run.algorithm, groups(), sampler=fs.sampling.uniform(3))
    with pytest.raises(InputError, match="the most rounds"):
        fs.privacy.lazy(1.0, 1.0, SAMPLER, rounds=0)


def test_the_model_is_shown_with_all_rows() -> None:
    """A list of the rows that somebody holds would tell who holds what."""
    run = run_of(method("lazy"), groups(), **FREE)
    shown = {space: rows.shape[0] for space, rows in run.params().items() if space == "w"}
    assert shown == {"w": run.model.tables["w"].rows}
