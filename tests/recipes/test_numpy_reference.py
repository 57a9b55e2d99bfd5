"""Algorithm 1 of Ding et al. written again in plain NumPy, example by example, with full tables and
no tricks."""

from typing import Any

import numpy as np
import optax
import pytest
from problems import ROWS, logistic, people, run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.simulation.run import Run

RATE = 0.3


def coefficients(population: Population, weights: np.ndarray) -> np.ndarray:
    """sum of all w / sum of w over the clients whose examples mention the row; 1 if none does."""
    out = np.ones(ROWS)
    mention = [
        {
            int(i)
            for field in ("item", "history")
            for i in np.ravel(population.columns[field][a:b])
            if i >= 0
        }
        for a, b in zip(population.offsets[:-1], population.offsets[1:], strict=True)
    ]
    for row in range(ROWS):
        if mass := sum(w for w, s in zip(weights, mention, strict=True) if row in s):
            out[row] = weights.sum() / mass
    return out


def train_client(w: np.ndarray, dense: np.ndarray, columns: Any, batches: list[list[int]]) -> Any:
    """SGD on the client's batches; returns the change of table and (slope, bias)."""
    w, dense, start = w.copy(), dense.copy(), (w, dense)
    for batch in batches:
        grad_w, grad = np.zeros_like(w), np.zeros(2)
        for e in batch:
            ids = [*columns["item"][e], *(i for i in columns["history"][e] if i >= 0)]
            score = sum(w[i] for i in ids) + dense @ [columns["x"][e], 1.0]
            residual = (1 / (1 + np.exp(-score)) - columns["label"][e]) / len(batch)
            for i in ids:
                grad_w[i] += residual
            grad += residual * np.array([columns["x"][e], 1.0])
        w, dense = w - RATE * grad_w, dense - RATE * grad
    return w - start[0], dense - start[1]


def reference(run: Run, rounds: int, heat: bool, weights: str) -> tuple[np.ndarray, np.ndarray]:
    """The model after so many rounds; only cohorts and batches come from the run under test."""
    population = run.population
    counts = population.counts.astype(float)
    weight = counts if weights == "examples" else (counts > 0).astype(float)
    scale = coefficients(population, weight) if heat else np.ones(ROWS)
    w, dense = run.table("w", np.arange(ROWS)).astype(float), np.array([0.1, 0.0])
    for r in range(rounds):
        cohort = run.cohort(r)
        examples, sizes, steps = run.planner._examples(0, r, cohort, population.counts[cohort])
        total_w, total, mass = np.zeros(ROWS), np.zeros(2), 0.0
        for k, client in enumerate(cohort):
            batches = [list(examples[k, s, : sizes[k, s]]) for s in range(steps[k])]
            delta_w, delta = train_client(w, dense, population.columns, batches)
            total_w, total, mass = (
                total_w + weight[client] * delta_w,
                total + weight[client] * delta,
                mass + weight[client],
            )
        w, dense = w + scale * total_w / mass, dense + total / mass
    return w, dense


STEPS, EPOCHS = fs.Work(steps=4, batch=3), fs.Work(epochs=2, batch=4)


@pytest.mark.parametrize(
    ("heat", "weights", "work"),
    [
        pytest.param(False, "uniform", STEPS, id="fedavg-uniform-steps", marks=pytest.mark.every),
        pytest.param(False, "examples", EPOCHS, id="fedavg-examples-epochs"),
        pytest.param(
            True, "uniform", EPOCHS, id="fedsubavg-uniform-epochs", marks=pytest.mark.every
        ),
        pytest.param(True, "uniform", STEPS, id="fedsubavg-uniform-steps"),
        pytest.param(
            True, "examples", STEPS, id="fedsubavg-examples-steps", marks=pytest.mark.every
        ),
    ],
)
def test_engine_is_the_reference(heat: bool, weights: str, work: fs.Work) -> None:
    population, model, rounds = people(), logistic(), 5
    more = {"heat": population.heat(model)} if heat else {}
    recipe = fs.recipes.fedsubavg if heat else fs.recipes.fedavg
    method = recipe(model, optax.sgd(RATE), work, weights=weights, **more)
    run = run_of(method, population, sampler=fs.sampling.uniform(3), seed=2)
    w, dense = reference(run, rounds, heat, weights)
    first = run.table("w", np.arange(ROWS))
    for _ in run.rounds(rounds):
        pass
    got = run.params()["dense"]
    np.testing.assert_allclose(run.table("w", np.arange(ROWS)), w, atol=1e-5)
    np.testing.assert_allclose([got["slope"], got["bias"]], dense, atol=1e-5)
    assert np.abs(w - first).max() > 0.05


def test_the_losses_reported_are_the_reference() -> None:
    """Report.loss: mean over clients, weighted by examples seen, of the mean loss of their batches
    before each step."""
    population, model = people(), logistic()
    run = run_of(
        fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(steps=1, batch=4)), population, seed=1
    )
    table, columns = run.table("w", np.arange(ROWS)).astype(float), population.columns
    cohort = run.cohort(0)
    drawn, sizes, _ = run.planner._examples(0, 0, cohort, population.counts[cohort])
    examples = drawn[np.arange(4) < sizes[:, :, None]]
    padded = np.append(table, 0.0)
    score = padded[columns["item"][examples]].sum(1) + padded[columns["history"][examples]].sum(1)
    score += 0.1 * columns["x"][examples]
    losses = np.logaddexp(0, score) - columns["label"][examples] * score
    (report,) = run.rounds(1)
    assert report.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert report.examples == np.minimum(population.counts, 4).sum()
