"""Learning rates that change from round to round."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import run_of

import fedslice as fs
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model

R = fs.recipes
CENTRES = np.array([[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0]], np.float32)
PEOPLE = Population.from_arrays(np.arange(3), centre=CENTRES)


def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return 0.5 * jnp.sum((params["x"] - batch["centre"]) ** 2, -1)


MODEL = Model(lambda key: {"x": jnp.zeros(2)}, loss)
MEAN = CENTRES.mean(0)
SCHEDULES = {
    "decay": optax.exponential_decay(1.0, transition_steps=1, decay_rate=0.5),
    "steps": optax.piecewise_constant_schedule(1.0, {2: 0.1}),
    "warm-up": optax.linear_schedule(0.0, 1.0, transition_steps=4),
}
ROUNDS = 5


def factors(name: str) -> list[float]:
    """By hand: of rounds 0 to 4."""
    return {
        "decay": [1, 0.5, 0.25, 0.125, 0.0625],
        "steps": [1, 1, 0.1, 0.1, 0.1],  # optax scales from the boundary on; see the table below
        "warm-up": [0, 0.25, 0.5, 0.75, 1],
    }[name]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_of_factors(name: str) -> None:
    np.testing.assert_allclose(
        [SCHEDULES[name](r) for r in range(ROUNDS)], factors(name), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        pytest.param(
            recipe,
            name,
            marks=[]
            if recipe == "fedavg" or (recipe, name) == ("mime", "steps")
            else [pytest.mark.every],
        )
        for recipe in ("fedavg", "mime", "mimelite")
        for name in SCHEDULES
    ],
)
def test_client_schedule_multiplies_the_rate_by_round(name: str, recipe: str) -> None:
    """tau steps of rate eta f(r) on 1/2 ||x - c_i||^2 leave (1 - eta f)^tau of the gap; the mean
    has gap x - mean c.

    It is constant within a round: the local steps of round r all have f(r), r the rounds done
    before.  All A_i are I, so Mime's correction changes nothing but which client goes where: the
    mean of the y_i is the same."""
    rule = optax.chain(optax.sgd(0.3), fs.client.by_round(SCHEDULES[name]))
    method = getattr(R, recipe)(MODEL, rule, fs.Work(steps=3, batch=1))
    run = run_of(method, PEOPLE)
    x = np.zeros(2)
    for report in run.rounds(ROUNDS):
        x = MEAN + (1 - 0.3 * factors(name)[report.round - 1]) ** 3 * (x - MEAN)
        np.testing.assert_allclose(run.params()["x"], x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", few(SCHEDULES, "warm-up"))
def test_server_schedule_counts_rounds(name: str) -> None:
    """x <- x + f(r) (mean y_i - x), and mean y_i - x = -(1 - 0.7^3) (x - mean c)."""
    run = run_of(
        R.fedavg(
            MODEL, optax.sgd(0.3), fs.Work(steps=3, batch=1), server=optax.sgd(SCHEDULES[name])
        ),
        PEOPLE,
    )
    x = np.zeros(2)
    for report in run.rounds(ROUNDS):
        x = x - factors(name)[report.round - 1] * (1 - 0.7**3) * (x - MEAN)
        np.testing.assert_allclose(run.params()["x"], x, rtol=1e-5, atol=1e-6)


def test_a_schedule_inside_the_clients_optimizer_counts_local_steps_and_starts_anew() -> None:
    """The client's optimizer is new each round: rates 0.4, 0.2, 0.1 in its three steps, in every
    round."""
    rate = optax.exponential_decay(0.4, transition_steps=1, decay_rate=0.5)
    run = run_of(R.fedavg(MODEL, optax.sgd(rate), fs.Work(steps=3, batch=1)), PEOPLE)
    for report in run.rounds(3):
        left = (0.6 * 0.8 * 0.9) ** report.round
        np.testing.assert_allclose(run.params()["x"], MEAN * (1 - left), rtol=1e-5)


def test_the_servers_counter_is_global_for_rows_of_tables() -> None:
    """Row i is client i's alone, one client a round: a row first trained in round r meets f(r), not
    f(0)."""
    population = Population.from_arrays(np.arange(4), row=np.arange(4)[:, None])
    table = fs.Table(rows=4, fields=("row",), init=lambda key, shape: jnp.ones(shape))
    model = Model(
        lambda key: {},
        lambda p, batch: 0.5 * fs.lookup(p["w"], batch["row"]).sum(-1) ** 2,
        {"w": table},
    )
    server = optax.sgd(SCHEDULES["decay"])
    run = run_of(
        R.fedavg(model, optax.sgd(0.5), fs.Work(steps=1, batch=1), server=server),
        population,
        sampler=fs.sampling.uniform(1),
    )
    expected = np.ones(4)
    trained = []
    for r, _ in enumerate(run.rounds(ROUNDS)):
        (row,) = run.cohort(r)
        trained.append(row)
        expected[row] *= 1 - 0.5 * 0.5**r
        np.testing.assert_allclose(run.table("w", np.arange(4)), expected, rtol=1e-5)
    assert len(set(trained)) > 2


@pytest.mark.parametrize("side", ["client", "server"])
def test_schedules_go_on_after_a_restore(side: str, tmp_path: Path) -> None:
    rate, schedule = optax.sgd(0.3), SCHEDULES["warm-up"]
    method = R.fedavg(
        MODEL,
        optax.chain(rate, fs.client.by_round(schedule)) if side == "client" else rate,
        fs.Work(steps=2, batch=1),
        server=optax.sgd(schedule) if side == "server" else None,
    )
    first = run_of(method, PEOPLE, 2)
    first.save(tmp_path)
    second = run_of(method, PEOPLE)
    second.restore(tmp_path)
    for _ in zip(first.rounds(2), second.rounds(2), strict=True):
        assert np.array_equal(first.params()["x"], second.params()["x"])
    fresh = run_of(method, PEOPLE, 1)
    assert not np.any(
        fresh.params()["x"]
    )  # where a counter of zero would have shown: the first factor is 0


def test_gradient_clip_bounds_every_local_gradient() -> None:
    """One step of rate 1 from a steep loss moves a client by exactly the bound."""
    task = fs.tasks.quadratic.example1(clients=2, start=100.0)
    settings = settings_for(task, "fedavg", ["gradient_clip=0.5", "client_rate=1"])
    run = fs.simulate(
        find_method("fedavg").build(task, settings), task.train, sampler=fs.sampling.full()
    )
    first = jax.tree.map(np.array, run.params())
    run.train(1, progress=False)
    moved = first["w"] - np.asarray(run.params()["w"])
    share = np.sqrt(
        0.5
    )  # client 0 has gradient (200, 200), client 1 (0, 200): each is scaled to norm 0.5
    np.testing.assert_allclose(moved, [0.5 * share / 2, 0.5 * (share + 1) / 2], rtol=1e-4)
    with pytest.raises(InputError, match="gradient_clip"):
        find_method("fedavg").build(task, settings_for(task, "fedavg", ["gradient_clip=-1"]))
