"""FedPA against the definition of its posterior, the paper's recursion, and FedAvg where they
coincide."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, run_of

import fedslice as fs
from fedslice.client.posteriors import posterior_update
from fedslice.data.population import Population
from fedslice.model import Model

RATE, DIM = 0.3, 4
COUNTS = np.array([2, 1, 3])
CURVES = np.array([[1.0, 0.5, 2.0, 0.2], [0.3, 1.5, 0.7, 1.0], [2.0, 1.0, 0.4, 0.8]])
CENTRES = np.random.default_rng(5).normal(size=(3, DIM))


def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return 0.5 * jnp.sum(batch["curve"] * (params["x"] - batch["centre"]) ** 2, -1)


OWNER = np.repeat(
    np.arange(3), COUNTS
)  # all examples of a client are alike: every batch gives the exact gradient
PEOPLE = Population.from_arrays(
    OWNER, curve=CURVES[OWNER].astype(np.float32), centre=CENTRES[OWNER].astype(np.float32)
)
MODEL = Model(lambda key: {"x": jnp.zeros(DIM)}, loss)


def samples_of(i: int, x: np.ndarray, samples: int, window: int, burn_in: int) -> np.ndarray:
    """Means of the iterates over windows of steps after burn-in, less x."""
    y, path = x, []
    for _ in range(burn_in + samples * window):
        y = y - RATE * CURVES[i] * (y - CENTRES[i])
        path.append(y - x)
    return np.array(path[burn_in:]).reshape(samples, window, DIM).mean(1)


def dense(found: np.ndarray, rho: float) -> np.ndarray:
    """Sigma^-1 times the mean, Sigma = r I + (1 - r) S, r = 1 / (1 + (l - 1) rho), S with l - 1 in
    the denominator."""
    count, dim = found.shape
    r = 1 / (1 + (count - 1) * rho)
    covariance = np.cov(found, rowvar=False, ddof=1) if count > 1 else np.zeros((dim, dim))
    return np.linalg.solve(r * np.eye(dim) + (1 - r) * covariance, found.mean(0))


def recursion(found: np.ndarray, rho: float) -> np.ndarray:
    """The paper's dynamic programme (Al-Shedivat et al. 2021, appendix), O(l^2 d), never a d x d
    matrix.

    With u_t = x_t - mean_{t-1} the scatter (t-1) S_t grows by (t-1)/t u_t u_t^T, so T_t = I + rho
    (t-1) S_t grows by g_t u_t u_t^T, g_t = rho (t-1)/t, and Sigma_t = T_t / (1 + (t-1) rho).  With
    v_t = T_{t-1}^-1 u_t (Sherman-Morrison)

        T_t^-1 = T_{t-1}^-1 - g_t v_t v_t^T / (1 + g_t u_t.v_t)
        d_t = T_t^-1 mean_t = d_{t-1} + (1/t - g_t u_t.d_{t-1}) / (1 + g_t u_t.v_t) v_t
        mean_t = mean_{t-1} + u_t / t
    """
    mean = found[0].copy()
    delta = mean.copy()
    past: list[tuple[np.ndarray, float]] = []
    for t in range(2, len(found) + 1):
        u, g = found[t - 1] - mean, rho * (t - 1) / t
        v = u - sum((factor * (old @ u) * old for old, factor in past), np.zeros_like(u))
        denominator = 1 + g * (u @ v)
        delta = delta + (1 / t - g * (u @ delta)) / denominator * v
        past.append((v, g / denominator))
        mean = mean + u / t
    return (1 + (len(found) - 1) * rho) * delta


@pytest.mark.parametrize("count", few([1, 2, 5, 9], 1, 5))
@pytest.mark.parametrize("rho", [0.0, 0.1, 3.0])
def test_the_update_is_a_dense_solve_and_the_papers_recursion(count: int, rho: float) -> None:
    """More and fewer samples than numbers.  cond(Sigma) <= 1 + rho times the scatter, below 100:
    float32 loses two digits of seven."""
    found = np.random.default_rng(count).normal(size=(count, 6))
    got = posterior_update(jnp.asarray(found, jnp.float32), rho)
    exact = dense(found, rho)
    np.testing.assert_allclose(recursion(found, rho), exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)
    if count > 1 and rho > 0:
        assert np.abs(exact - found.mean(0)).max() > 0.01  # the covariance does matter


@pytest.mark.every
def test_no_shrinkage_towards_the_samples_is_their_mean() -> None:
    """rho = 0 gives r = 1: Sigma = I, whatever the samples."""
    found = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(posterior_update(jnp.asarray(found), 0.0), found.mean(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("samples", "window", "burn_in"),
    [
        pytest.param(1, 3, 2, marks=pytest.mark.every),
        (3, 2, 1),
        pytest.param(4, 1, 0, marks=pytest.mark.every),
    ],
)
def test_fedpa_is_its_definition(samples: int, window: int, burn_in: int) -> None:
    """Three rounds: every client's samples, its posterior's update, their mean by examples.

    With one sample this is FedAvg on the averaged iterate: ``dense`` of one sample is the sample.
    """
    method = fs.recipes.fedpa(
        MODEL,
        optax.sgd(RATE),
        samples=samples,
        window=window,
        burn_in=burn_in,
        shrinkage=0.5,
        batch=2,
    )
    x = np.zeros(DIM)
    for _ in range(3):
        moves = [dense(samples_of(i, x, samples, window, burn_in), 0.5) for i in range(3)]
        x = x + np.average(moves, axis=0, weights=COUNTS)
    np.testing.assert_allclose(
        run_of(method, PEOPLE, 3).params()["x"], x, atol=1e-5
    )  # three rounds of float32


@pytest.mark.every
def test_fedpa_of_one_sample_of_one_step_is_fedavg() -> None:
    """The only iterate in the only window is the last one."""
    one = fs.recipes.fedpa(MODEL, optax.sgd(RATE), samples=1, window=1, burn_in=3, batch=2)
    two = fs.recipes.fedavg(MODEL, optax.sgd(RATE), fs.Work(steps=4, batch=2))
    assert_params_close(
        run_of(one, PEOPLE, 3).params(), run_of(two, PEOPLE, 3).params(), rtol=1e-6, atol=1e-6
    )


def test_before_burn_in_rounds_fedpa_is_fedavg_and_then_no_more() -> None:
    settings: dict[str, Any] = {
        "samples": 2,
        "window": 2,
        "burn_in": 1,
        "shrinkage": 0.5,
        "batch": 2,
    }
    burning = run_of(fs.recipes.fedpa(MODEL, optax.sgd(RATE), burn_in_rounds=2, **settings), PEOPLE)
    plain = run_of(fs.recipes.fedavg(MODEL, optax.sgd(RATE), fs.Work(steps=5, batch=2)), PEOPLE)
    same = [
        np.allclose(burning.params()["x"], plain.params()["x"], rtol=0, atol=1e-6)
        for _ in zip(burning.rounds(3), plain.rounds(3), strict=True)
    ]
    assert same == [True, True, False]


def test_fedpa_in_a_table_is_fedpa_in_a_dense_leaf() -> None:
    """Rows outside a client's slice have samples of zero: Sigma is r I there, and Sigma^-1 mean is
    zero."""
    rows = np.array([[0, 1], [1, 2], [2, 3]])[OWNER]
    population = Population.from_arrays(
        OWNER, rows=rows, centre=CENTRES[OWNER, :2].astype(np.float32)
    )

    def gap(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return jnp.sum((fs.lookup(params["w"], batch["rows"]) - batch["centre"]) ** 2, -1)

    table = fs.Table(rows=DIM, fields=("rows",), init=jax.nn.initializers.zeros)
    ends = [
        run_of(
            fs.recipes.fedpa(model, optax.sgd(0.1), samples=3, window=1, shrinkage=0.5, batch=2),
            population,
            3,
        )
        for model in (
            Model(lambda key: {}, gap, {"w": table}),
            Model(lambda key: {"w": jnp.zeros(DIM)}, gap),
        )
    ]
    assert_params_close(ends[0].params(), ends[1].params())
    assert np.abs(ends[0].params()["w"]).min() > 0.01
