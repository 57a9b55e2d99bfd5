"""Problems whose answers are known on paper."""

import numpy as np
import optax
import pytest
from problems import run_of

import fedslice as fs
from fedslice.tasks.quadratic import Quadratic, example1, random_quadratic

ROWS = np.arange(2)


@pytest.fixture(scope="module")
def quadratic() -> Quadratic:
    return random_quadratic(clients=12, rows=6, seed=3)


@pytest.mark.parametrize("clients", [3, 10])
def test_example_1_fedavg(clients: int) -> None:
    """f_0 = w1^2 + w2^2, other f_i = w2^2.  One step of rate 1/2 takes a client's own rows to 0:
    delta = -w.

    Averaged over N clients w1 loses w1/N a round, so w1(r) = (1 - 1/N)^r w1(0), and w2 loses all of
    itself at once."""
    task = example1(clients=clients, start=3.0)
    run = run_of(
        fs.recipes.fedavg(task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1), weights="uniform"),
        task.train,
    )
    for report in run.rounds(4):
        expected = [3.0 * (1 - 1 / clients) ** report.round, 0.0]
        np.testing.assert_allclose(run.table("w", ROWS), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_example_1_fedsubavg(weights: str) -> None:
    """The cold row's coefficient N/1 undoes the mean over N: both rows are 0 after one round (|D_i|
    = 1 for all)."""
    task = example1(clients=10, start=3.0)
    heat = task.train.heat(task.model)
    method = fs.recipes.fedsubavg(
        task.model, optax.sgd(0.5), fs.Work(steps=1, batch=1), heat=heat, weights=weights
    )
    np.testing.assert_allclose(run_of(method, task.train, 1).table("w", ROWS), [0, 0], atol=1e-6)


def test_gradient_descent_has_its_closed_form(quadratic: Quadratic) -> None:
    """FedAvg, one exact step, all clients: x_r - x* = (I - g H)^r (x_0 - x*), x_0 = 0."""
    task, rounds, rate = quadratic.task, 7, 0.4
    method = fs.recipes.fedavg(
        task.model, optax.sgd(rate), fs.Work(steps=1, batch=1), weights="uniform"
    )
    got = run_of(method, task.train, rounds).table("w", np.arange(6))
    step = np.linalg.matrix_power(np.eye(6) - rate * quadratic.hessian, rounds)
    np.testing.assert_allclose(got, quadratic.optimum - step @ quadratic.optimum, atol=2e-6)


def test_fedsubavg_is_preconditioned_gradient_descent(quadratic: Quadratic) -> None:
    """With D = diag(N / n_m): x_r - x* = (I - g D H)^r (x_0 - x*)."""
    task, rounds, rate = quadratic.task, 5, 0.4
    heat = task.train.heat(task.model)
    scale = np.diag(12 / heat.counts("w"))
    method = fs.recipes.fedsubavg(
        task.model, optax.sgd(rate), fs.Work(steps=1, batch=1), heat=heat, weights="uniform"
    )
    got = run_of(method, task.train, rounds).table("w", np.arange(6))
    step = np.linalg.matrix_power(np.eye(6) - rate * scale @ quadratic.hessian, rounds)
    np.testing.assert_allclose(got, quadratic.optimum - step @ quadratic.optimum, atol=5e-6)


def test_fedsgd_with_heat_converges_to_the_optimum(quadratic: Quadratic) -> None:
    """kappa(DH) <= rho2/rho1 = 4: with rate 2/(rho1 + rho2) the gap shrinks by 3/5 a round, 0.6^50
    < 1e-11."""
    task = quadratic.task
    rate = 2 / (0.5 + 2.0)
    method = fs.recipes.fedsgd(
        task.model, optax.sgd(rate), heat=task.train.heat(task.model), weights="uniform"
    )
    got = run_of(method, task.train, 50).table("w", np.arange(6))
    np.testing.assert_allclose(got, quadratic.optimum, atol=5e-6)
    # the optimum itself is a stationary point of sum_i F_i
    gradient = np.einsum("nij,nj->i", quadratic.hessians, quadratic.optimum - quadratic.centres)
    np.testing.assert_allclose(gradient, 0, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_condition_number_theorems(seed: int) -> None:
    """Theorems 1 and 2 with alpha = 0: every A_i is positive definite with eigenvalues in [rho1,
    rho2] on S(i).

    kappa(H) >= n_max rho1 / (n_min rho2);  kappa(D^1/2 H D^1/2) <= rho2 / rho1.
    """
    low, high = 0.5, 2.0
    q = random_quadratic(clients=40, rows=12, hold=0.2, curvature=(low, high), seed=seed)
    held = np.array([np.diag(a) > 0 for a in q.hessians])
    count = held.sum(0)
    assert q.task.train.heat(q.task.model).counts("w").tolist() == count.tolist()
    for a, own in zip(q.hessians, held, strict=True):  # the assumption
        eigenvalues = np.linalg.eigvalsh(a[np.ix_(own, own)])
        assert low - 1e-9 <= eigenvalues.min() <= eigenvalues.max() <= high + 1e-9
    assert count.max() == 40
    assert count.max() / count.min() >= 5
    root = np.diag(np.sqrt(40 / count))
    assert np.linalg.cond(q.hessian) >= count.max() * low / (count.min() * high)
    assert np.linalg.cond(root @ q.hessian @ root) <= high / low + 1e-9
    assert np.linalg.cond(root @ q.hessian @ root) < np.linalg.cond(q.hessian)
