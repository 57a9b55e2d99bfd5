"""FedExP against plain NumPy, and where its step is one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import features, linear, slope, theta_of
from problems import ROWS, assert_params_close, people, run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model

R, RATE = fs.recipes, 0.05
ONCE = fs.Work(epochs=1, batch=8)  # one step of the client's full gradient
COUNTS = (3, 1, 5, 2, 6, 4)


@pytest.mark.parametrize("eps", few([0.0, 0.01], 0.01))
@pytest.mark.parametrize("heat", few([False, True], True), ids=["", "heat"])
@pytest.mark.parametrize("weights", few(["uniform", "examples"], "examples"))
def test_engine_is_numpy(weights: str, heat: bool, eps: float) -> None:
    """Three of six clients a round: x <- x + eta_g C delta with eta_g from <delta, C delta>."""
    population, model = people(counts=COUNTS), linear()
    known = population.heat(model)
    method = R.fedexp(
        model, optax.sgd(RATE), ONCE, eps=eps, weights=weights, heat=known if heat else None
    )
    run = run_of(method, population, sampler=fs.sampling.uniform(3), seed=2)
    factor = np.ones(ROWS + 1)
    if heat:
        factor[:ROWS] = known.coefficient("w", np.arange(ROWS), weights)
    x, steps = theta_of(run), []
    inputs, target, owners = features(population), population.columns["x"], population.owners
    for r, _ in enumerate(run.rounds(6)):
        cohort = run.cohort(r)
        weight = np.array(COUNTS)[cohort] if weights == "examples" else np.ones(3)
        moves = np.stack(
            [-RATE * slope(x, inputs[owners == i], target[owners == i]) for i in cohort]
        )
        share = weight / weight.sum()
        mean = share @ moves
        square = share @ np.sum(moves**2, 1)
        steps.append(max(1, square / (2 * (mean @ (factor * mean) + eps))))
        x = x + steps[-1] * factor * mean
        np.testing.assert_allclose(theta_of(run), x, rtol=1e-4, atol=1e-5)
    if not heat and not eps:
        assert max(steps) > 1.05  # the step was not one for ever


def test_one_client_is_fedavg() -> None:
    """||delta||^2 / (2 ||delta||^2) is one half, so the step is 1."""
    alone = people(counts=(5,))
    one, two = (
        run_of(recipe(linear(), optax.sgd(RATE), fs.Work(steps=3, batch=2)), alone, 4).params()
        for recipe in (R.fedexp, R.fedavg)
    )
    assert_params_close(one, two, rtol=0, atol=0)


@pytest.mark.every
@pytest.mark.parametrize("heat", few([False, True], True), ids=["", "heat"])
def test_updates_that_agree_are_fedavg(heat: bool) -> None:
    """All clients have the same data: the mean's norm is that of each of them, with heat too, for
    all hold all rows."""
    column = np.tile(np.array([[0, 1, 2]]), (4, 1))
    alike = Population.from_arrays(np.arange(4), history=column, x=np.ones(4))
    model = linear()
    given = {"heat": alike.heat(model)} if heat else {}
    one, two = (
        run_of(recipe(model, optax.sgd(RATE), ONCE, **given), alike, 4).params()
        for recipe in (R.fedexp, R.fedavg)
    )
    assert_params_close(one, two, rtol=0, atol=0)


def cold(clients: int) -> tuple[Model, Population]:
    """F_i = w_i^2 / 2 from w_i = 1: client i holds row i alone."""
    table = fs.Table(rows=clients, fields=("row",), init=lambda key, shape: jnp.ones(shape))

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return fs.lookup(params["w"], batch["row"]).sum(-1) ** 2 / 2

    rows = np.arange(clients)[:, None]
    return Model(lambda key: {}, loss, {"w": table}), Population.from_arrays(rows[:, 0], row=rows)


@pytest.mark.every
def test_rows_of_one_holder_each() -> None:
    """delta = -eta (1, ..., 1) / N: ||delta||^2 is 1/N of the mean ||delta_i||^2, so the step is
    N/2 and each row goes eta/2, where FedAvg goes eta/N.  With heat <delta, C delta> = N delta^2
    N is the mean ||delta_i||^2 itself: the step is 1 and each row goes eta."""
    model, population = cold(8)
    work = fs.Work(steps=1, batch=1)
    for heat, moved in ((None, 0.5 / 2), (population.heat(model), 0.5)):
        method = R.fedexp(model, optax.sgd(0.5), work, eps=0.0, heat=heat)
        run = run_of(method, population, 1)
        np.testing.assert_allclose(run.table("w", np.arange(8)), 1 - moved, rtol=1e-6)


def test_a_round_sends_one_number_more_a_client() -> None:
    population = people()
    sent = [
        next(run_of(recipe(linear(), optax.sgd(RATE), ONCE), population).rounds(1)).bytes_up
        for recipe in (R.fedavg, R.fedexp)
    ]
    assert sent[1] - sent[0] == 4 * len(population)


def test_it_goes_with_clip_compression_and_a_server_optimizer() -> None:
    stages = [fs.stage.clip(0.1), fs.stage.compress(fs.stage.quantise(127))]
    method = R.fedexp(
        linear(), optax.sgd(RATE), ONCE, stages=stages, server=optax.sgd(1.0, momentum=0.5)
    )
    losses = [report.loss for report in run_of(method, people()).rounds(8)]
    assert losses[-1] < losses[0]


def test_a_vote_is_refused() -> None:
    stages = [fs.recipes.extrapolation.extrapolate(), fs.stage.mean()]
    local = fs.client.sgd(linear(), optax.sgd(RATE))
    with pytest.raises(InputError, match="plain sum"):
        fs.algorithm(local, stages, fs.server.optimize(), reduce=fs.reduce.median())
