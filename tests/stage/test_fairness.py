"""Fairness between clients: q-FFL, AFL and the superquantile against plain NumPy, and what they are
for."""

from functools import cache
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, logistic, people, run_of

import fedslice as fs
from fedslice.model import Model
from fedslice.simulation.run import Run
from fedslice.types import ClientReport, Message

CENTRES = np.array(
    [[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [-0.1, 0.0], [3.0, 1.0]], np.float32
)  # the last is alone


@cache
def model() -> Model:
    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return 0.5 * jnp.sum((params["x"] - batch["c"]) ** 2, axis=-1)

    return Model(lambda key: {"x": jnp.array([0.5, -0.5])}, loss)


@cache
def group() -> fs.Population:
    """Every client has one example, so F_i = 1/2 |x - c_i|^2 exactly."""
    return fs.Population.from_arrays(np.arange(len(CENTRES)), c=CENTRES)


def losses(x: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum((x - CENTRES) ** 2, axis=1)


def final(run: Run) -> np.ndarray:
    return np.asarray(run.params()["x"], np.float64)


def local(x: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """y_i - x after so many steps of the gradient x - c_i."""
    return (CENTRES - x) * (1 - (1 - rate) ** steps)


# -- q-FFL -----------------------------------------------------------------------------------------


@pytest.mark.every
def test_qffl_of_zero_is_fedavg_with_uniform_weights() -> None:
    """q = 0: Delta_i = L (x - y_i), h_i = L, so the step is the plain mean of y_i - x."""
    one = fs.recipes.qffl(logistic(), 0.3, fs.Work(steps=2, batch=4), q=0.0)
    two = fs.recipes.fedavg(
        logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4), weights="uniform"
    )
    assert_params_close(run_of(one, people(), 3).params(), run_of(two, people(), 3).params())


@pytest.mark.parametrize("q", few([1.0, 2.0], 2.0))
def test_qffl_is_q_fedavg(q: float) -> None:
    """Li et al. 2020, Algorithm 2, in NumPy, with two local steps."""
    rate, rounds = 0.1, 5
    x = np.array([0.5, -0.5])
    for _ in range(rounds):
        f, gap = losses(x), -local(x, rate, 2) / rate
        delta = f[:, None] ** q * gap
        h = q * f ** (q - 1) * np.sum(gap**2, axis=1) + f**q / rate
        x = x - delta.sum(0) / h.sum()
    run = run_of(fs.recipes.qffl(model(), rate, fs.Work(steps=2, batch=1), q=q), group(), rounds)
    np.testing.assert_allclose(final(run), x, rtol=1e-4)


def told(loss: float, weight: float = 5.0, **extra: float) -> Message:
    """A client's message with an update of norm 5."""
    report = ClientReport(jnp.zeros(()), jnp.float32(loss), jnp.zeros(()), jnp.zeros(()))
    update = {"x": jnp.array([3.0, 4.0])}
    return Message(
        update, jnp.float32(weight), report, {k: jnp.float32(v) for k, v in extra.items()}
    )


def test_qffl_of_one_message() -> None:
    """F = 3, q = 2, rate 0.5, so L = 2: F^2 L = 18 times the update; h = 2 F (2 5)^2 + L F^2 = 618,
    by which what comes along is averaged."""
    stage = fs.stage.qffl(2.0, 0.5)
    sent, _ = stage.encode((), (), told(3.0, along=0.5), jax.random.key(0))
    np.testing.assert_allclose(sent.update["x"], [54, 72], rtol=1e-6)
    np.testing.assert_allclose([sent.weight, sent.extra["along"]], [618, 309], rtol=1e-6)
    total, _ = stage.decode({}, sent, jax.random.key(0))
    np.testing.assert_allclose(total.extra["along"], 0.5, rtol=1e-6)


def test_qffl_of_a_client_without_examples_is_nothing() -> None:
    """Nor is a round of such clients: nothing is divided by nothing."""
    stage = fs.stage.qffl(1.0, 0.5)
    sent, _ = stage.encode((), (), told(3.0, weight=0.0, along=0.5), jax.random.key(0))
    for message in (sent, stage.decode({}, sent, jax.random.key(0))[0]):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves((message.update, message.extra)))
        assert float(message.weight) == 0


def test_qffl_of_a_loss_of_zero_is_finite() -> None:
    """q F^(q - 1) with q below 1 is not, at F = 0."""
    sent, _ = fs.stage.qffl(0.5, 0.5).encode((), (), told(0.0), jax.random.key(0))
    assert np.isfinite(sent.update["x"]).all()
    assert 0 < float(sent.weight) < np.inf


@pytest.mark.every
def test_larger_q_is_fairer() -> None:
    worst = []
    for q in (0.0, 1.0, 5.0):
        worst.append(
            losses(
                final(
                    run_of(
                        fs.recipes.qffl(model(), 0.1, fs.Work(steps=2, batch=1), q=q), group(), 100
                    )
                )
            ).max()
        )
    assert worst[0] > 1.1 * worst[1] > 1.2 * worst[2]


# -- AFL -------------------------------------------------------------------------------------------


def afl_by_hand(rate: float, ascent: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Descent in x on sum_i lambda_i F_i(x) and exponentiated-gradient ascent in lambda, both from
    the same point, and lambda normalised."""
    x, mixture = np.array([0.5, -0.5]), np.full(len(CENTRES), 1 / len(CENTRES))
    for _ in range(rounds):
        x, mixture = x + mixture @ local(x, rate, 1), mixture * np.exp(ascent * losses(x))
        mixture = mixture / mixture.sum()
    return x, mixture


@pytest.mark.parametrize("rounds", [1, 2, 12])
def test_afl_weights_are_mirror_ascent(rounds: int) -> None:
    run = run_of(
        fs.recipes.afl(model(), optax.sgd(0.2), fs.Work(steps=1, batch=1), weight_rate=0.3),
        group(),
        rounds,
    )
    x, mixture = afl_by_hand(0.2, 0.3, rounds)
    np.testing.assert_allclose(final(run), x, rtol=1e-4, atol=1e-5)
    found = np.exp(np.asarray(run.memory[1][0], np.float64))
    np.testing.assert_allclose(found / found.sum(), mixture, rtol=1e-4)
    assert mixture.max() > 1.2 * mixture.min()


@pytest.mark.parametrize("before", few([0, 1], 1))
def test_afl_ascends_the_same_way_whoever_comes(before: int) -> None:
    """Over all cohorts of two of five, the mean change of log lambda is 2/5 of rate F_i, up to a
    constant."""
    run = run_of(
        fs.recipes.afl(model(), optax.sgd(0.2), fs.Work(steps=1, batch=1), weight_rate=0.3),
        group(),
        before,
    )
    x, held, changes = final(run), np.asarray(run.memory[1][0]), []
    for cohort in combinations(range(len(CENTRES)), 2):
        copies = jax.tree.map(jnp.array, (run.store.state, run.memory))
        plan, _ = run.planner.plan(before, np.array(cohort))
        changes.append(np.asarray(run.engine.in_memory(*copies, plan)[1][1][0]) - held)
    change, expected = np.mean(changes, axis=0), 2 / 5 * 0.3 * losses(x)
    np.testing.assert_allclose(change - change.mean(), expected - expected.mean(), atol=1e-5)
    assert np.ptp(expected) > 0.05


def test_afl_of_one_message() -> None:
    """The weight is exp of the log lambda before the step, which goes by rate (F - b) and stays
    within 20 either way."""
    stage = fs.stage.agnostic(0.5)
    offer = {"mean_loss": jnp.float32(1.0)}
    for before, loss, after in ((0.2, 3.0, 1.2), (19.5, 9.0, 20.0), (-19.5, -9.0, -20.0)):
        sent, new = stage.encode(offer, jnp.float32(before), told(loss), jax.random.key(0))
        np.testing.assert_allclose([sent.weight, new], [np.exp(before), after], rtol=1e-6)
        assert float(sent.extra["loss"]) == loss
    sent, _ = stage.encode(offer, jnp.float32(0.2), told(3.0, weight=0.0), jax.random.key(0))
    assert float(sent.weight) == 0


def test_afl_takes_the_mean_loss_of_a_round_in_which_somebody_came() -> None:
    """A round of nobody has no mean loss; a zero in its place would make the next ascent jump."""
    stage, state = fs.stage.agnostic(0.5), {"mean_loss": jnp.float32(1.5)}
    for weight, expected in ((2.0, 4.0), (0.0, 1.5)):
        mean = told(0.0, weight)._replace(extra={"loss": jnp.float32(4.0)})
        total, after = stage.decode(state, mean, jax.random.key(0))
        assert float(after["mean_loss"]) == expected
        assert total.extra == {}


def test_afl_lowers_the_worst_loss() -> None:
    """FedAvg's optimum is the mean of the centres, 2.4 from the lonely client; the minimax point
    lies half way."""
    average = losses(
        final(
            run_of(
                fs.recipes.fedavg(model(), optax.sgd(0.2), fs.Work(steps=1, batch=1)), group(), 150
            )
        )
    )
    fair = losses(
        final(
            run_of(
                fs.recipes.afl(
                    model(), optax.sgd(0.2), fs.Work(steps=1, batch=1), weight_rate=0.05
                ),
                group(),
                150,
            )
        )
    )
    assert fair.max() < 0.6 * average.max()
    assert fair.mean() > average.mean()  # which costs the others something


@pytest.mark.parametrize("setting", ["heat", "weights"])
def test_afl_makes_its_weights_itself(setting: str) -> None:
    """It has no such arguments, and a heat's coefficients would need weights that stay."""
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{setting}'"):
        fs.recipes.afl(logistic(), optax.sgd(0.1), **{setting: "uniform"})


# -- superquantile ---------------------------------------------------------------------------------


@pytest.mark.every
def test_superquantile_of_all_is_fedavg() -> None:
    one = fs.recipes.superquantile(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4), share=1.0)
    two = fs.recipes.fedavg(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4))
    assert_params_close(run_of(one, people(), 3).params(), run_of(two, people(), 3).params())


def test_superquantile_trains_the_worst() -> None:
    """The worst 40 % of five clients are two: by hand, and lower for the worst than FedAvg."""
    x = np.array([0.5, -0.5])
    for _ in range(40):
        chosen = np.argsort(-losses(x))[:2]
        x = x + local(x, 0.2, 1)[chosen].mean(0)
    run = run_of(
        fs.recipes.superquantile(model(), optax.sgd(0.2), fs.Work(steps=1, batch=1), share=0.4),
        group(),
        40,
    )
    np.testing.assert_allclose(final(run), x, rtol=1e-3, atol=1e-4)
    average = run_of(
        fs.recipes.fedavg(model(), optax.sgd(0.2), fs.Work(steps=1, batch=1)), group(), 40
    )
    assert losses(final(run)).max() < 0.6 * losses(final(average)).max()
