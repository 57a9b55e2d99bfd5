"""Regularisers that are not smooth: prox maps, FedMiD and FedDualAvg."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.prox import box, group, l1
from fedslice.simulation.run import Run

R = fs.recipes
DIM = 4
COUNTS = np.array([2, 1, 4, 3])  # with one epoch of batches of one: unequal local steps
_rng = np.random.default_rng(7)
# Two coordinates with centres near 2 and -2, two near 0: l1 of the strengths below keeps the first
# and zeroes the last.
CENTRES = np.array([2.0, -2.0, 0.0, 0.0]) + 0.15 * _rng.normal(size=(4, DIM))
CURVES = _rng.uniform(0.6, 1.4, size=(4, DIM))


def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return 0.5 * jnp.sum(batch["curve"] * (params["x"].reshape(-1) - batch["centre"]) ** 2, -1)


def clients(counts: np.ndarray) -> Population:
    owner = np.repeat(np.arange(4), counts)
    return Population.from_arrays(
        owner, curve=CURVES[owner].astype(np.float32), centre=CENTRES[owner].astype(np.float32)
    )


EVEN, UNEVEN = clients(np.ones(4, int)), clients(COUNTS)
MODEL = Model(lambda key: {"x": jnp.ones(DIM)}, loss)
ROWS = Model(lambda key: {"x": jnp.ones((2, 2))}, loss)  # the same numbers as two rows


def x_of(run: Run) -> np.ndarray:
    return np.asarray(run.params()["x"])


def soft(v: np.ndarray, t: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


# -- prox maps -------------------------------------------------------------------------------------

GRID = np.linspace(-3, 3, 1201)
STEP = GRID[1] - GRID[0]


@pytest.mark.parametrize("t", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    ("regulariser", "psi"),
    [
        (l1(0.7), lambda x: 0.7 * np.abs(x)),
        (group(0.7), lambda x: 0.7 * np.abs(x)),  # a row of one number
        (box(-0.5, 1.0), lambda x: np.where((x >= -0.5 - 1e-9) & (x <= 1 + 1e-9), 0, np.inf)),
    ],
    ids=["l1", "group", "box"],
)
def test_prox_of_a_number_minimises(
    regulariser: Any, psi: Callable[[np.ndarray], np.ndarray], t: float
) -> None:
    """argmin t psi(x) + 1/2 (x - v)^2 on a grid; strongly convex, so the grid's best is within a
    step of the best."""
    points = np.array([-2.5, -0.8, -0.1, 0.0, 0.2, 0.9, 2.5])
    cost = np.nan_to_num(max(t, 1e-9) * psi(GRID), posinf=1e9) + 0.5 * (GRID - points[:, None]) ** 2
    got = regulariser.prox({"x": jnp.asarray(points)}, jnp.asarray(t))["x"]
    np.testing.assert_allclose(got, GRID[np.argmin(cost, axis=1)], atol=STEP)


@pytest.mark.parametrize("v", [(1.5, -1.0), (0.2, 0.1), (-2.0, 0.4)])
def test_group_prox_of_a_row_minimises(v: tuple[float, float]) -> None:
    """The same in the plane: t s ||x|| + 1/2 ||x - v||^2."""
    axis = np.linspace(-2.2, 2.2, 441)
    a, b = np.meshgrid(axis, axis, indexing="ij")
    cost = 0.5 * 0.8 * np.hypot(a, b) + 0.5 * ((a - v[0]) ** 2 + (b - v[1]) ** 2)
    best = np.unravel_index(np.argmin(cost), cost.shape)
    got = group(0.8).prox({"x": jnp.asarray([v])}, jnp.asarray(0.5))["x"][0]
    np.testing.assert_allclose(got, axis[list(best)], atol=0.01)


def test_impossible_regularisers_are_refused() -> None:
    for make in (lambda: l1(-1.0), lambda: group(-1.0), lambda: box(1.0, 0.0)):
        with pytest.raises(InputError):
            make()


# -- transcriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("server_rate", few([1.0, 0.6], 0.6))
def test_fedmid_is_its_pseudo_code(server_rate: float) -> None:
    """Yuan et al. (2021), h = 1/2 ||x||^2: y <- prox_{eta psi}(y - eta g), then x <- prox_{eta_s
    eta tau psi}(x + eta_s mean(y - x)), tau the mean number of steps; two of the four clients,
    uniform weights."""
    eta, s = 0.1, 0.3
    method = R.fedmid(
        MODEL,
        eta,
        fs.Work(epochs=1, batch=1),
        regulariser=l1(s),
        server_rate=server_rate,
        weights="uniform",
    )
    run = run_of(method, UNEVEN, 5, sampler=fs.sampling.uniform(2))
    x = np.ones(DIM)
    for r in range(5):
        moves, cohort = [], run.cohort(r)
        for i in cohort:
            y = x
            for _ in range(COUNTS[i]):
                y = soft(y - eta * CURVES[i] * (y - CENTRES[i]), eta * s)
            moves.append(y - x)
        x = soft(x + server_rate * np.mean(moves, 0), server_rate * eta * COUNTS[cohort].mean() * s)
    np.testing.assert_allclose(x_of(run), x, atol=1e-5)  # five rounds of float32


@pytest.mark.parametrize("server_rate", few([1.0, 0.6], 0.6))
def test_feddualavg_is_its_pseudo_code(server_rate: float) -> None:
    """Yuan et al. (2021): y = prox_{t psi}(z), z <- z - eta g(y), t <- t + eta on clients; the
    server averages z and adds eta_s eta tau to its own t.  Means by examples."""
    eta, s = 0.1, 0.3
    run = run_of(
        R.feddualavg(
            MODEL, eta, fs.Work(epochs=1, batch=1), regulariser=l1(s), server_rate=server_rate
        ),
        UNEVEN,
        5,
        sampler=fs.sampling.uniform(2),
    )
    z, t = np.ones(DIM), 0.0
    for r in range(5):
        moves, cohort = [], run.cohort(r)
        for i in cohort:
            own = z
            for k in range(COUNTS[i]):
                own = own - eta * CURVES[i] * (soft(own, (t + eta * k) * s) - CENTRES[i])
            moves.append(own - z)
        z = z + server_rate * np.average(moves, axis=0, weights=COUNTS[cohort])
        t += server_rate * eta * np.average(COUNTS[cohort], weights=COUNTS[cohort])
    np.testing.assert_allclose(x_of(run), soft(z, t * s), atol=1e-5)
    np.testing.assert_allclose(run.store.state.server[1], t, rtol=1e-6)


# -- solutions -------------------------------------------------------------------------------------
# f is separable, 1/2 sum_j a_j (x_j - m_j)^2 with a the mean curvature and m the weighted mean
# centre, so the solution of f + psi is known.  Local steps move the fixed point by O(eta tau): with
# eta = 0.02 and three steps, below 0.02.

A = CURVES.mean(0)
M = (CURVES * CENTRES).mean(0) / A
WORK: dict[str, Any] = {"work": fs.Work(steps=3, batch=1)}


def lasso(s: float) -> np.ndarray:
    """argmin 1/2 a (x - m)^2 + s |x| = soft(m, s / a)."""
    return np.asarray(np.where(np.abs(A * M) > s, soft(M, s / A), 0))


def test_feddualavg_solves_a_lasso() -> None:
    s = 0.4
    got = x_of(run_of(R.feddualavg(MODEL, 0.02, regulariser=l1(s), **WORK), EVEN, 150))
    np.testing.assert_allclose(got, lasso(s), atol=0.02)
    assert (got == 0).tolist() == (lasso(s) == 0).tolist() == [False, False, True, True]


@pytest.mark.every
def test_fedmid_solves_a_lasso_of_twice_the_strength() -> None:
    """As published FedMiD shrinks by eta s in each of the tau local steps and by eta tau s on the
    server: at rest grad f + 2 s sign(x) = 0, the solution for psi counted twice.  Exact zeros all
    the same."""
    s = 0.2
    got = x_of(run_of(R.fedmid(MODEL, 0.02, regulariser=l1(s), **WORK), EVEN, 150))
    np.testing.assert_allclose(got, lasso(2 * s), atol=0.02)
    assert np.abs(got - lasso(s))[:2].min() > 0.1
    assert (got == 0).tolist() == [False, False, True, True]


def test_fedmid_with_the_prox_on_the_server_only_solves_the_lasso() -> None:
    s = 0.4
    got = x_of(
        run_of(R.fedmid(MODEL, 0.02, regulariser=l1(s), server_only=True, **WORK), EVEN, 150)
    )
    np.testing.assert_allclose(got, lasso(s), atol=0.02)


@pytest.mark.every
@pytest.mark.parametrize("recipe", [R.fedmid, R.feddualavg])
def test_box_constraints_hold_and_the_solution_is_found(recipe: Any) -> None:
    """Separable: the constrained solution is clip(m).  Projections do not add up, so FedMiD's is no
    other."""
    bound = np.float32(0.7)
    run = run_of(recipe(MODEL, 0.02, regulariser=box(-0.7, 0.7), **WORK), EVEN)
    for report in run.rounds(150):
        if report.round in (1, 2, 20, 150):
            assert np.abs(x_of(run)).max() <= bound
    np.testing.assert_allclose(x_of(run), np.clip(M, -0.7, 0.7), atol=0.02)


@pytest.mark.parametrize("recipe", [R.fedmid, R.feddualavg])
def test_group_zeroes_whole_rows(recipe: Any) -> None:
    """The row with centres near (2, -2) stays, both numbers; the one near (0, 0) goes, both
    numbers."""
    got = x_of(run_of(recipe(ROWS, 0.02, regulariser=group(0.3), **WORK), EVEN, 150))
    assert (got[0] != 0).all()
    assert (got[1] == 0).all()
    assert np.linalg.norm(got[0]) < np.linalg.norm(M[:2]) - 0.2


@pytest.mark.every
def test_without_strength_both_are_fedavg() -> None:
    """psi = 0: soft thresholding by 0 is nothing."""
    plain = x_of(run_of(R.fedavg(MODEL, optax.sgd(0.1), fs.Work(epochs=1, batch=1)), UNEVEN, 4))
    for recipe in (R.fedmid, R.feddualavg):
        np.testing.assert_allclose(
            x_of(
                run_of(
                    recipe(MODEL, 0.1, fs.Work(epochs=1, batch=1), regulariser=l1(0.0)), UNEVEN, 4
                )
            ),
            plain,
            atol=1e-6,
        )


# -- tables ----------------------------------------------------------------------------------------


def test_idle_rows_shrink_exactly_in_feddualavg_and_later_in_fedmid() -> None:
    """Client i holds row i alone with gradient 0 there (its loss does not depend on it), one client
    a round.

    FedDualAvg: after r rounds t = r tau eta for every row, trained or not, so x = soft(1, r tau eta
    s).  FedMiD shrinks a row only in its own rounds, by 2 tau eta s each time."""
    population = Population.from_arrays(np.arange(3), row=np.arange(3)[:, None])
    table = fs.Table(rows=3, fields=("row",), init=lambda key, shape: jnp.ones(shape))
    model = Model(
        lambda key: {}, lambda p, batch: 0 * fs.lookup(p["w"], batch["row"]).sum(-1), {"w": table}
    )
    eta, s, rounds = 0.1, 0.2, 4
    dual = run_of(
        R.feddualavg(model, eta, regulariser=l1(s), **WORK),
        population,
        rounds,
        sampler=fs.sampling.uniform(1),
    )
    np.testing.assert_allclose(dual.table("w", np.arange(3)), 1 - rounds * 3 * eta * s, rtol=1e-5)
    lazy = run_of(
        R.fedmid(model, eta, regulariser=l1(s), **WORK),
        population,
        rounds,
        sampler=fs.sampling.uniform(1),
    )
    turns = np.bincount([lazy.cohort(r)[0] for r in range(rounds)], minlength=3)
    assert len(set(turns.tolist())) > 1
    np.testing.assert_allclose(
        lazy.table("w", np.arange(3)), 1 - turns * 2 * 3 * eta * s, rtol=1e-5
    )
