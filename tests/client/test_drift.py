"""Methods against client drift, on quadratics: closed forms, and the papers' pseudo-code in plain
NumPy.

F_i(x) = 1/2 (x - c_i)^T A_i (x - c_i).  All examples of a client are alike, so every mini-batch
gives the exact gradient A_i (x - c_i), and passes over unequal numbers of examples give unequal
numbers of local steps.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.model import Model
from fedslice.simulation.run import Run
from fedslice.stage.normalising import progress
from fedslice.tasks.quadratic import Quadratic, random_quadratic
from fedslice.types import Algorithm

N, DIM, RATE = 5, 3, 0.2
COUNTS = np.array([1, 4, 2, 3, 5])  # examples, and with one epoch of batches of one, local steps
R = fs.recipes
# Transcriptions run in float64, the engine in float32: some ten rounds of some ten operations at
# 6e-8 each, on numbers of size one, differ by less than 1e-5.  Fixed points are reached up to
# rounding divided by the least curvature.
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def _problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A_i with eigenvalues in [0.5, 2] and centres far apart: local optima disagree."""
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] for _ in range(N)]
    return np.stack([q @ np.diag(rng.uniform(0.5, 2, DIM)) @ q.T for q in turns]), 2 * rng.normal(
        size=(N, DIM)
    )


A, C = _problem()
START = np.array([1.0, -1.0, 0.5])


def _loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    gap = params["x"] - batch["centre"]
    return 0.5 * jnp.einsum("bi,bij,bj->b", gap, batch["matrix"], gap)


MODEL = Model(lambda key: {"x": jnp.asarray(START, jnp.float32)}, _loss)


def clients(counts: np.ndarray) -> Population:
    owner = np.repeat(np.arange(N), counts)
    return Population.from_arrays(
        owner, matrix=A[owner].astype(np.float32), centre=C[owner].astype(np.float32)
    )


EVEN, UNEVEN = clients(np.ones(N, int)), clients(COUNTS)


def grad(i: int, x: np.ndarray) -> np.ndarray:
    return A[i] @ (x - C[i])


def optimum(weights: np.ndarray | None = None) -> np.ndarray:
    """The zero of sum_i w_i A_i (x - c_i)."""
    w = np.ones(N) if weights is None else weights
    return np.linalg.solve(np.einsum("n,nij->ij", w, A), np.einsum("n,nij,nj->i", w, A, C))


def x_of(run: Run) -> np.ndarray:
    return np.asarray(run.params()["x"])


def pulls(steps: np.ndarray, rate: float = RATE) -> np.ndarray:
    """P_i = I - (I - eta A_i)^tau_i: tau_i exact steps of rate eta from x end in
    x - P_i (x - c_i)."""
    powers = [
        np.linalg.matrix_power(np.eye(DIM) - rate * a, t) for a, t in zip(A, steps, strict=True)
    ]
    return np.eye(DIM) - np.stack(powers)


def balance(weights: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """The zero of sum_i w_i P_i (x - c_i)."""
    return np.linalg.solve(
        np.einsum("n,nij->ij", weights, pull), np.einsum("n,nij,nj->i", weights, pull, C)
    )


def local(
    i: int, x: np.ndarray, steps: int, correct: Callable[[np.ndarray], Any], rate: float = RATE
) -> np.ndarray:
    """Local steps on the gradient plus ``correct(y)``."""
    y = x.copy()
    for _ in range(steps):
        y = y - rate * (grad(i, y) + correct(y))
    return y


# -- FedAvg ----------------------------------------------------------------------------------------


@pytest.mark.every
def test_fedavg_stops_at_its_own_fixed_point_which_is_not_the_optimum() -> None:
    """y_i - x = -P_i (x - c_i), so x stays where sum_i w_i P_i (x - c_i) = 0.  For one step P_i =
    eta A_i: the optimum.

    The map x -> mean y_i contracts by max |1 - P| <= (1 - 0.1)^4 or so a round: 60 rounds are
    plenty.
    """
    run = run_of(
        R.fedavg(MODEL, optax.sgd(RATE), fs.Work(steps=4, batch=1), weights="uniform"), EVEN, 60
    )
    fixed = balance(np.ones(N), pulls(np.full(N, 4)))
    np.testing.assert_allclose(x_of(run), fixed, **CLOSE)
    assert np.linalg.norm(fixed - optimum()) > 0.05
    single = run_of(
        R.fedavg(MODEL, optax.sgd(RATE), fs.Work(steps=1, batch=1), weights="uniform"), EVEN, 150
    )
    np.testing.assert_allclose(x_of(single), optimum(), **CLOSE)


# -- FedProx ---------------------------------------------------------------------------------------


@pytest.mark.every
def test_fedprox_of_zero_is_fedavg() -> None:
    one, two = (
        run_of(method, UNEVEN, 3)
        for method in (
            R.fedprox(MODEL, optax.sgd(RATE), fs.Work(epochs=1, batch=1), mu=0.0),
            R.fedavg(MODEL, optax.sgd(RATE), fs.Work(epochs=1, batch=1)),
        )
    )
    assert_params_close(one.params(), two.params(), rtol=0, atol=0)


@pytest.mark.parametrize("mu", few([0.0, 0.5, 2.0], 0.5))
def test_fedprox_has_its_closed_form(mu: float) -> None:
    """With z = y - x the corrected gradient is (A + mu) z + A (x - c), so tau steps give
    z = -(I - (I - eta (A + mu))^tau) (A + mu)^-1 A (x - c)."""
    run = run_of(
        R.fedprox(MODEL, optax.sgd(RATE), fs.Work(steps=4, batch=1), mu=mu, weights="uniform"),
        EVEN,
        1,
    )
    moves = []
    for i in range(N):
        curve = A[i] + mu * np.eye(DIM)
        reach = np.eye(DIM) - np.linalg.matrix_power(np.eye(DIM) - RATE * curve, 4)
        moves.append(-reach @ np.linalg.solve(curve, grad(i, START)))
    np.testing.assert_allclose(x_of(run), START + np.mean(moves, 0), **CLOSE)


@pytest.mark.every
def test_fedprox_pulls_towards_the_global_model() -> None:
    """One client: in A's eigenbasis every part of z shrinks as mu grows, for eta (A + mu) < 1."""
    alone = EVEN.subset(np.array([1]))
    sizes = [
        np.linalg.norm(
            x_of(
                run_of(R.fedprox(MODEL, optax.sgd(0.1), fs.Work(steps=8, batch=1), mu=mu), alone, 1)
            )
            - START
        )
        for mu in (0.0, 0.5, 2.0, 6.0)
    ]
    assert all(more > 1.1 * less for more, less in pairwise(sizes))


# -- SCAFFOLD --------------------------------------------------------------------------------------


def scaffold_in_numpy(
    cohorts: list[np.ndarray], steps: np.ndarray, option: int, server_rate: float, sign: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 1 of Karimireddy et al. 2020, line by line; ``sign`` -1 reverses the correction."""
    x, c, own = START.copy(), np.zeros(DIM), np.zeros((N, DIM))
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(steps[i]):
                y = y - RATE * (grad(i, y) + sign * (c - own[i]))
            new = grad(i, x) if option == 1 else own[i] - c + (x - y) / (steps[i] * RATE)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + server_rate * np.mean(moves, 0)
        c = c + len(cohort) / N * np.mean(changes, 0)
    return x, c, own


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("server_rate", few([1.0, 0.5], 0.5))
def test_scaffold_is_its_pseudo_code(option: int, server_rate: float) -> None:
    """Two of five clients a round, unequal steps: x, c and every c_i; with the sign reversed x is
    far off."""
    settings: dict[str, Any] = {"population": UNEVEN, "option": option, "server_rate": server_rate}
    run = run_of(
        R.scaffold(MODEL, RATE, fs.Work(epochs=1, batch=1), **settings),
        UNEVEN,
        8,
        sampler=fs.sampling.uniform(2),
        seed=4,
    )
    cohorts = [run.cohort(r) for r in range(8)]
    assert len({tuple(cohort) for cohort in cohorts}) > 3
    x, c, own = scaffold_in_numpy(cohorts, COUNTS, option, server_rate)
    np.testing.assert_allclose(x_of(run), x, **CLOSE)
    np.testing.assert_allclose(run.store.state.server[1]["x"], c, **CLOSE)
    np.testing.assert_allclose(run.memory[0]["x"], own, **CLOSE)
    wrong, _, _ = scaffold_in_numpy(cohorts, COUNTS, option, server_rate, sign=-1.0)
    assert np.abs(x_of(run) - wrong).max() > 0.1
    np.testing.assert_allclose(
        own.mean(0), c, atol=1e-12
    )  # what the variates are for: c is always the mean of all c_i


@pytest.mark.every
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("cohort", [N, 2])
def test_scaffold_finds_the_optimum(option: int, cohort: int) -> None:
    """At rest y_i = x, so c_i = grad F_i(x) and c = mean c_i = 0: the optimum of the plain mean,
    whatever the steps.

    A server rate of 1/2 keeps the noise of partial participation from growing.
    """
    method = R.scaffold(
        MODEL,
        0.1,
        fs.Work(epochs=1, batch=1),
        population=UNEVEN,
        option=option,
        server_rate=1.0 if cohort == N else 0.5,
    )
    run = run_of(method, UNEVEN, 100 if cohort == N else 400, sampler=fs.sampling.uniform(cohort))
    np.testing.assert_allclose(x_of(run), optimum(), **CLOSE)
    assert (
        np.linalg.norm(balance(np.ones(N), pulls(COUNTS, 0.1)) - optimum()) > 0.05
    )  # FedAvg would not


@pytest.mark.every
@pytest.mark.parametrize("option", few([1, 2], 2))
def test_the_first_round_of_scaffold_is_fedavg(option: int) -> None:
    """All variates start at 0."""
    one = R.scaffold(MODEL, RATE, fs.Work(epochs=2, batch=1), population=UNEVEN, option=option)
    two = R.fedavg(MODEL, optax.sgd(RATE), fs.Work(epochs=2, batch=1), weights="uniform")
    assert_params_close(
        run_of(one, UNEVEN, 1).params(), run_of(two, UNEVEN, 1).params(), rtol=0, atol=0
    )


def test_approximate_scaffold_is_eq_47() -> None:
    """d <- (N - K)/N d + (K/N) mean(y_i - x), x <- x + d, the mean by examples."""
    method = R.scaffold_approximate(
        MODEL,
        optax.sgd(RATE),
        fs.Work(epochs=1, batch=1),
        population=UNEVEN,
        sampler=fs.sampling.uniform(2),
    )
    run = run_of(method, UNEVEN, 6, sampler=fs.sampling.uniform(2))
    x, d = START, np.zeros(DIM)
    for r in range(6):
        cohort = run.cohort(r)
        moves = [local(i, x, COUNTS[i], lambda y: 0) - x for i in cohort]
        d = (N - 2) / N * d + 2 / N * np.average(moves, axis=0, weights=COUNTS[cohort])
        x = x + d
    np.testing.assert_allclose(x_of(run), x, **CLOSE)


# -- Mime and FedDANE ------------------------------------------------------------------------------


@pytest.mark.every
def test_mime_of_one_step_is_server_momentum() -> None:
    """From y = x the correction leaves c alone, the mean gradient: each client takes SGDM's own
    step, trace m included.

    The state is frozen during the step and then moves with c as SGDM's would, so the runs stay
    together.
    """
    optimizer = optax.sgd(RATE, momentum=0.9)
    mime = run_of(R.mime(MODEL, optimizer, fs.Work(steps=1, batch=1)), UNEVEN, 6)
    sgdm = run_of(R.fedsgd(MODEL, optimizer), UNEVEN, 6)
    assert_params_close(mime.params(), sgdm.params())


def test_mime_is_its_pseudo_code() -> None:
    """Algorithm 1 of Karimireddy et al. (2021) with momentum: local steps -eta (g(y) - g(x) + c +
    beta m), m frozen, then m <- beta m + c.  Means by examples over the cohort."""
    method = R.mime(MODEL, optax.sgd(RATE, momentum=0.5), fs.Work(epochs=1, batch=1))
    run = run_of(method, UNEVEN, 5, sampler=fs.sampling.uniform(3))
    x, m = START, np.zeros(DIM)
    for r in range(5):
        cohort = run.cohort(r)
        weights = COUNTS[cohort]
        c = np.average([grad(i, x) for i in cohort], axis=0, weights=weights)
        ends = [local(i, x, COUNTS[i], lambda y, i=i: c - grad(i, x) + 0.5 * m) for i in cohort]
        x, m = np.average(ends, axis=0, weights=weights), 0.5 * m + c
    np.testing.assert_allclose(x_of(run), x, **CLOSE)


@pytest.mark.every
def test_mime_finds_the_optimum_and_mimelite_does_not() -> None:
    """With everybody in the round c is the gradient of f: at the optimum no client moves.  MimeLite
    of plain SGD is FedAvg, round by round, and stops where FedAvg does."""
    work: dict[str, Any] = {"work": fs.Work(steps=4, batch=1), "weights": "uniform"}
    np.testing.assert_allclose(
        x_of(run_of(R.mime(MODEL, optax.sgd(0.1), **work), EVEN, 120)), optimum(), **CLOSE
    )
    lite, plain = (
        R.mimelite(MODEL, optax.sgd(RATE), **work),
        R.fedavg(MODEL, optax.sgd(RATE), **work),
    )
    assert_params_close(
        run_of(lite, EVEN, 5).params(), run_of(plain, EVEN, 5).params(), rtol=1e-6, atol=1e-7
    )


def test_feddane_is_its_pseudo_code() -> None:
    """min_y F_i(y) + <g_t - grad F_i(x), y - x> + mu/2 ||y - x||^2 by gradient steps, g_t the
    cohort's mean."""
    mu = 0.7
    run = run_of(
        R.feddane(MODEL, optax.sgd(RATE), fs.Work(epochs=1, batch=1), mu=mu),
        UNEVEN,
        5,
        sampler=fs.sampling.uniform(3),
    )
    x = START
    for r in range(5):
        cohort = run.cohort(r)
        g = np.average([grad(i, x) for i in cohort], axis=0, weights=COUNTS[cohort])
        ends = [
            local(i, x, COUNTS[i], lambda y, i=i: g - grad(i, x) + mu * (y - x)) for i in cohort
        ]
        x = np.average(ends, axis=0, weights=COUNTS[cohort])
    np.testing.assert_allclose(x_of(run), x, **CLOSE)


# -- FedNova ---------------------------------------------------------------------------------------


@pytest.mark.every
def test_fednova_of_equal_steps_is_fedavg() -> None:
    """tau_eff = tau: dividing and multiplying by it is nothing but rounding."""
    one, two = (
        R.fednova(MODEL, RATE, fs.Work(steps=3, batch=1)),
        R.fedavg(MODEL, optax.sgd(RATE), fs.Work(steps=3, batch=1)),
    )
    assert_params_close(run_of(one, UNEVEN, 4).params(), run_of(two, UNEVEN, 4).params())


@pytest.mark.every
def test_fednova_is_consistent_where_fedavg_is_not() -> None:
    """Fixed points, p_i = 1/N: FedAvg's solves sum P_i (x - c_i) = 0, FedNova's sum (P_i / tau_i)
    (x - c_i) = 0.

    P_i = tau_i eta A_i + O(eta^2), so as eta -> 0 FedNova's becomes the optimum and FedAvg's that
    of sum tau_i F_i.  With eta = 0.01 the remaining gap of FedNova is of order
    eta tau |A| |x - c| / 2 ~ 0.05.
    """
    rate, rounds = 0.01, 700  # the gap shrinks by about 1 - eta tau_eff 0.9 ~ 0.973 a round
    ends = {}
    for recipe, solver in ((R.fedavg, optax.sgd(rate)), (R.fednova, rate)):
        run = run_of(
            recipe(MODEL, solver, fs.Work(epochs=1, batch=1), weights="uniform"),
            UNEVEN,
            rounds,
        )
        ends[recipe] = x_of(run)
    pull = pulls(COUNTS, rate)
    # rounding of x, 1e-7, over the pull of a round, 0.02
    np.testing.assert_allclose(ends[R.fedavg], balance(np.ones(N), pull), atol=5e-5)
    np.testing.assert_allclose(ends[R.fednova], balance(1 / COUNTS, pull), atol=5e-5)
    gap = {recipe: np.linalg.norm(end - optimum()) for recipe, end in ends.items()}
    assert gap[R.fednova] < 0.05
    assert gap[R.fedavg] > 10 * gap[R.fednova]
    np.testing.assert_allclose(ends[R.fedavg], optimum(COUNTS), atol=0.05)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_progress_of_momentum(steps: int, rho: float) -> None:
    """The gradient of step k (of tau) counts 1 + rho + ... + rho^(tau-1-k) times."""
    expected = sum(sum(rho**power for power in range(steps - k)) for k in range(steps))
    assert float(progress(jnp.array(float(steps)), rho, 0.0)) == pytest.approx(expected, rel=1e-6)


def test_progress_of_momentum_and_a_proximal_term_together() -> None:
    """A constant gradient of 1 through optax: the way gone is ||a||_1 times the rate."""
    rate, rho, mu = 0.1, 0.5, 3.0
    optimizer = optax.sgd(rate, momentum=rho)
    x, state = jnp.zeros(()), optimizer.init(jnp.zeros(()))
    for _ in range(3):
        updates, state = optimizer.update(1 + mu * x, state)
        x = x + updates
    assert float(progress(jnp.array(3.0), rho, rate * mu)) == pytest.approx(
        float(-x) / rate, rel=1e-5
    )


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_progress_of_a_proximal_term(steps: int) -> None:
    """The gradient of step k is shrunk by 1 - eta mu in each of the tau - 1 - k steps after it."""
    expected = sum((1 - 0.3) ** (steps - 1 - k) for k in range(steps))
    assert float(progress(jnp.array(float(steps)), 0.0, 0.3)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rho", few([0.0, 0.6], 0.6), ids=["sgd", "momentum"])
@pytest.mark.parametrize("mu", few([0.0, 2.0], 2.0), ids=["", "proximal"])
@pytest.mark.parametrize("scheduled", few([False, True], True), ids=["", "scheduled"])
def test_fednova_normalises_by_the_local_solver(rho: float, mu: float, scheduled: bool) -> None:
    """F_i = <g_i, x>: the gradient is g_i everywhere, so G_i = eta_t ||a_i||_1 g_i exactly, and
    FedNova's round is x - eta_t tau_eff sum p_i g_i, tau_eff = sum p_i ||a_i||_1: no client counts
    more for its steps.  The schedule halves the rate in the second round, and with it the proximal
    pull of a step."""
    slopes = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
    owner = np.repeat(np.arange(N), COUNTS)
    population = Population.from_arrays(owner, slope=slopes[owner])
    model = Model(
        lambda key: {"x": jnp.zeros(DIM)}, lambda params, batch: batch["slope"] @ params["x"]
    )
    schedule = (lambda rounds: 1 / (1 + rounds)) if scheduled else None
    work = fs.Work(epochs=1, batch=1)
    method = R.fednova(model, RATE, work, momentum=rho, mu=mu, schedule=schedule)
    share, expected = COUNTS / COUNTS.sum(), np.zeros(DIM)
    for r in range(2):
        rate, sizes = RATE / (1 + r * scheduled), []
        for tau in COUNTS:  # the local solver itself, with g = 1
            z, trace = 0.0, 0.0
            for _ in range(tau):
                trace = rho * trace + 1 + mu * z
                z -= rate * trace
            sizes.append(-z / rate)
        expected = expected - rate * (share @ np.array(sizes)) * (share @ slopes)
    np.testing.assert_allclose(x_of(run_of(method, population, 2)), expected, rtol=1e-5, atol=1e-7)
    solver = optax.chain(fs.client.proximal(mu), optax.sgd(RATE, momentum=rho or None))
    plain = R.fedavg(model, solver, work)
    assert np.abs(x_of(run_of(plain, population, 2)) - expected).max() > 0.02


# -- FedDyn and FedPD ------------------------------------------------------------------------------


def test_feddyn_is_its_pseudo_code() -> None:
    """Algorithm 1 of Acar et al. (2021): theirs keeps the gradient G_i = -lambda_i and h = -lambda,
    |P| = 2 of 5."""
    mu = 0.8
    method = R.feddyn(MODEL, optax.sgd(RATE), fs.Work(epochs=1, batch=1), mu=mu, population=UNEVEN)
    run = run_of(method, UNEVEN, 8, sampler=fs.sampling.uniform(2))
    x, h, kept = START, np.zeros(DIM), np.zeros((N, DIM))
    for r in range(8):
        cohort = run.cohort(r)
        ends = {i: local(i, x, COUNTS[i], lambda y, i=i: -kept[i] + mu * (y - x)) for i in cohort}
        for i, end in ends.items():
            kept[i] = kept[i] - mu * (end - x)
        h = h - mu / N * sum(end - x for end in ends.values())
        x = np.mean(list(ends.values()), axis=0) - h / mu
    np.testing.assert_allclose(x_of(run), x, **CLOSE)
    np.testing.assert_allclose(run.store.state.server[1]["x"], -h, **CLOSE)
    np.testing.assert_allclose(run.memory[0]["x"], -kept, **CLOSE)


def test_fedpd_is_its_pseudo_code() -> None:
    """Algorithm 1 of Zhang et al. (2021), eta = 1/mu: lambda_i += (x_i - x)/eta, x <- mean(x_i +
    eta lambda_i)."""
    mu = 0.8
    run = run_of(R.fedpd(MODEL, optax.sgd(RATE), fs.Work(epochs=1, batch=1), mu=mu), UNEVEN, 8)
    x, dual = START, np.zeros((N, DIM))
    for _ in range(8):
        ends = np.stack(
            [local(i, x, COUNTS[i], lambda y, i=i: dual[i] + mu * (y - x)) for i in range(N)]
        )
        dual = dual + mu * (ends - x)
        x = np.mean(ends + dual / mu, axis=0)
    np.testing.assert_allclose(x_of(run), x, **CLOSE)
    np.testing.assert_allclose(run.memory[0]["x"], dual, **CLOSE)


@pytest.mark.every
@pytest.mark.parametrize(
    ("name", "cohort", "rounds"),
    [("feddyn", N, 150), ("feddyn", 2, 600), ("fedpd", N, 150)],
    ids=str,
)
def test_methods_with_duals_find_the_optimum(name: str, cohort: int, rounds: int) -> None:
    """At rest y_i = x, so grad F_i(x) = -lambda_i, and the server's rule makes the mean of all
    lambda_i zero."""
    work: dict[str, Any] = {"work": fs.Work(steps=10, batch=1), "mu": 1.0}
    method: Algorithm = (
        R.fedpd(MODEL, optax.sgd(RATE), **work)
        if name == "fedpd"
        else R.feddyn(MODEL, optax.sgd(RATE), population=EVEN, **work)
    )
    sampler = fs.sampling.full() if cohort == N else fs.sampling.uniform(cohort)
    run = run_of(method, EVEN, rounds, sampler=sampler)
    np.testing.assert_allclose(x_of(run), optimum(), **CLOSE)
    gradients = np.stack([grad(i, optimum()) for i in range(N)])
    np.testing.assert_allclose(run.memory[0]["x"], -gradients, atol=1e-4)


# -- tables ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparse() -> Quadratic:
    return random_quadratic(clients=6, rows=5, seed=2)


@pytest.mark.every
@pytest.mark.parametrize("name", few(["scaffold", "feddyn"], "scaffold"))
def test_sparse_methods_find_the_optimum_and_remember_own_rows_only(
    name: str, sparse: Quadratic
) -> None:
    """With heat the mean over the cohort is one over a row's holders, so at rest sum_i grad F_i = 0
    row by row.

    Every client keeps numbers for its own rows only: its variate, or minus its dual, is its own
    gradient there.
    """
    task = sparse.task
    work, heat = fs.Work(steps=5, batch=1), task.train.heat(task.model)
    method = (
        R.scaffold_heat(task.model, 0.1, work, population=task.train)
        if name == "scaffold"
        else R.feddyn(task.model, optax.sgd(0.2), work, population=heat, mu=1.0, heat=heat)
    )
    run = run_of(method, task.train, 250)
    np.testing.assert_allclose(run.table("w", np.arange(5)), sparse.optimum, **CLOSE)
    held = [np.flatnonzero(np.diag(a)) for a in sparse.hessians]
    assert run.memory[0]["w"].shape == (sum(map(len, held)),) < (6 * 5,)
    gradients = np.einsum("nij,nj->ni", sparse.hessians, sparse.optimum - sparse.centres)
    own = np.concatenate([g[rows] for g, rows in zip(gradients, held, strict=True)])
    np.testing.assert_allclose(run.memory[0]["w"], own if name == "scaffold" else -own, atol=1e-4)
    assert np.abs(own).max() > 0.1


@pytest.mark.parametrize("weights", few(["uniform", "examples"], "uniform"))
def test_scaffold_on_tables_is_the_published_one(weights: str, sparse: Quadratic) -> None:
    """Algorithm 1 of Karimireddy et al. on whole vectors, where clients also move the rows that
    they do not hold, with means weighted as by Ding et al. (D.4).  Two of six clients a round,
    unequal steps, rows idle for many rounds."""
    counts, rows = np.array([1, 3, 2, 4, 1, 2]), 5
    owner = np.repeat(np.arange(6), counts)
    people = Population.from_arrays(
        owner, **{key: column[owner] for key, column in sparse.task.train.columns.items()}
    )
    work = fs.Work(epochs=1, batch=1)
    method = R.scaffold(
        sparse.task.model, 0.1, work, population=people, weights=weights, server_rate=0.5
    )
    run = run_of(method, people, 9, sampler=fs.sampling.uniform(2), seed=3)
    weight = counts if weights == "examples" else np.ones(6)
    x, c, own, idle = np.zeros(rows), np.zeros(rows), np.zeros((6, rows)), np.zeros(rows, bool)
    for cohort in (run.cohort(r) for r in range(9)):
        share, old = weight[cohort] / weight[cohort].sum(), x
        idle = ~np.any([np.diag(sparse.hessians[i]) for i in cohort], 0) & (c != 0)
        for i, part in zip(cohort, share, strict=True):
            y = old.copy()
            for _ in range(counts[i]):
                y = y - 0.1 * (sparse.hessians[i] @ (y - sparse.centres[i]) - own[i] + c)
            x = x + 0.5 * part * (y - old)
            own[i] += -c + (old - y) / (counts[i] * 0.1)
        c = (weight / weight.sum()) @ own
    assert idle.any()  # rows that only the server moved in the last round
    np.testing.assert_allclose(run.table("w", np.arange(rows)), x, **CLOSE)
    np.testing.assert_allclose(run.store.state.server[1]["w"], c, **CLOSE)


def test_sparse_scaffold_under_partial_participation_keeps_the_mean_of_the_holders(
    sparse: Quadratic,
) -> None:
    """c_m = (1/n_m) sum over m's holders of c_{i,m}, after any rounds: |S|/N times N/n_m times the
    cohort's mean adds just the changes over n_m.  Clients that never took part remember zeros."""
    task = sparse.task
    method = R.scaffold_heat(
        task.model, 0.1, fs.Work(steps=3, batch=1), population=task.train.heat(task.model)
    )
    run = run_of(method, task.train, 3, sampler=fs.sampling.uniform(2), seed=1)
    held = [np.flatnonzero(np.diag(a)) for a in sparse.hessians]
    ends = np.cumsum([len(rows) for rows in held])
    own = np.split(np.asarray(run.memory[0]["w"]), ends[:-1])
    took_part = set(np.concatenate([run.cohort(r) for r in range(3)]).tolist())
    assert 2 < len(took_part) < 6
    assert [bool(np.any(c)) for c in own] == [i in took_part for i in range(6)]
    total, count = np.zeros(5), np.zeros(5)
    for rows, c in zip(held, own, strict=True):
        total[rows] += c
        count[rows] += 1
    np.testing.assert_allclose(run.store.state.server[1]["w"], total / count, **CLOSE)


@pytest.mark.every
@pytest.mark.parametrize("name", few(["scaffold", "feddyn"], "scaffold"))
def test_the_servers_mean_is_that_of_the_clients_however_many_come(name: str) -> None:
    """c = mean c_i and lambda = mean lambda_i, also when cohorts vary: then the fixed point is the
    optimum."""
    quadratic = random_quadratic(clients=8, rows=2, hold=1.0, seed=3)
    task = quadratic.task
    work, heat = fs.Work(steps=3, batch=1), task.train.heat(task.model)
    dyn = R.feddyn(task.model, optax.sgd(0.1), work, population=heat, mu=1.0, heat=heat)
    variates = R.scaffold_heat(task.model, 0.1, work, population=heat)
    methods = {"scaffold": variates, "feddyn": dyn}
    run = fs.simulate(methods[name], task.train, sampler=fs.sampling.poisson(4))
    for _ in run.rounds(400):
        pass
    np.testing.assert_allclose(run.table("w", np.arange(2)), quadratic.optimum, atol=1e-4)
