"""Diagnostics against dense linear algebra on quadratics."""

import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.errors import InputError
from fedslice.evaluation.diagnostics import condition_numbers, gradient_norms

QUADRATIC = fs.tasks.quadratic.random_quadratic(clients=30, rows=12, seed=2)


def start() -> fs.simulate:
    method = fs.recipes.fedavg(
        QUADRATIC.task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1), weights="uniform"
    )
    return fs.simulate(method, QUADRATIC.task.train, sampler=fs.sampling.full())


def test_gradient_norms_equal_their_definition() -> None:
    # At w = 0 client i's gradient is -A_i c_i; g is their sum, n_m the number of clients whose A_i
    # has row m.
    gradients = -np.einsum("nij,nj->ni", QUADRATIC.hessians, QUADRATIC.centres)
    heat = (np.abs(QUADRATIC.hessians).sum(2) > 0).sum(0)
    total, clients = gradients.sum(0), len(gradients)
    norms = gradient_norms(start(), QUADRATIC.task.train)
    assert norms.element_wise == pytest.approx(np.sum(total**2 / heat) / clients, rel=1e-5)
    assert norms.squared == pytest.approx(np.sum((total / clients) ** 2), rel=1e-5)


def test_weighted_norms_count_every_example_once() -> None:
    task = fs.tasks.movielens_lr.synthetic(scale=0.01)
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(5))
    # Zero weights: each example's gradient is (1/2 - label) on its five features and on the bias.
    residual = 0.5 - task.train.columns["label"].astype(np.float64)
    features = task.train.columns["features"]
    total = np.bincount(
        features.reshape(-1), np.repeat(residual, 5), minlength=task.model.tables["weight"].rows
    )
    counts = task.train.counts.astype(np.float64)
    mass = np.zeros_like(total)
    for client, (a, b) in enumerate(
        zip(task.train.offsets[:-1], task.train.offsets[1:], strict=True)
    ):
        mass[np.unique(features[a:b])] += counts[client]
    examples, held = task.train.examples, mass > 0
    expected = np.sum(total[held] ** 2 / mass[held]) / examples + (residual.sum() / examples) ** 2
    norms = gradient_norms(run, task.train, weights="examples")
    assert norms.element_wise == pytest.approx(expected, rel=1e-4)
    assert norms.squared == pytest.approx(
        (np.sum(total**2) + residual.sum() ** 2) / examples**2, rel=1e-4
    )


def test_condition_numbers_equal_numpy() -> None:
    heat = (np.abs(QUADRATIC.hessians).sum(2) > 0).sum(0)
    root = np.sqrt(len(QUADRATIC.centres) / heat)
    found = condition_numbers(start(), QUADRATIC.task.train)
    assert found.plain == pytest.approx(np.linalg.cond(QUADRATIC.hessian), rel=1e-3)
    assert found.corrected == pytest.approx(
        np.linalg.cond(root[:, None] * QUADRATIC.hessian * root), rel=1e-3
    )


@pytest.mark.parametrize("seed", range(5))
def test_correction_bounds_the_condition_number(seed: int) -> None:
    # Theorems 1 and 2 of Ding et al. with alpha = 0, all eigenvalues of all A_i in [rho1, rho2].
    low, high = 0.5, 2.0
    quadratic = fs.tasks.quadratic.random_quadratic(
        clients=40, rows=15, curvature=(low, high), seed=seed
    )
    method = fs.recipes.fedavg(
        quadratic.task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1), weights="uniform"
    )
    run = fs.simulate(method, quadratic.task.train, sampler=fs.sampling.full())
    found = condition_numbers(run, quadratic.task.train)
    dispersion = quadratic.task.train.heat(quadratic.task.model).dispersion
    assert found.plain >= dispersion * low / high * (1 - 1e-4)
    assert found.corrected <= high / low * (1 + 1e-4)


def test_large_problems_are_refused() -> None:
    task = fs.tasks.movielens_lr.synthetic(scale=0.02)
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(steps=1, batch=1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(5))
    with pytest.raises(InputError, match="too large"):
        condition_numbers(run, task.train)
