"""Estimated time of a run, worked out by hand from the bytes that its reports count."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.data.devices import Devices
from fedslice.evaluation.cost import Cost, operations

DEVICES = Devices(example=0.5)


def test_with_one_client_a_round_it_is_the_published_formula_of_the_counted_bytes():
    """Each round has one client, so the maximum is its own, and the sum over rounds is that of the
    totals."""
    task = fs.tasks.quadratic.random_quadratic(clients=6, rows=5).task
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(epochs=1, batch=1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(1), rows="held")
    reports = list(run.rounds(7))
    first = sum(report.bytes_down for report in reports)
    assert run.totals["bytes_down"] == first
    totals, rounds = run.totals, run.round
    by_hand = (
        totals["bytes_down"] / 0.75e6
        + totals["bytes_up"] / 0.25e6
        + 7 * 0.5 * totals["examples"]
        + 10 * rounds
    )
    assert Cost(run, DEVICES)() == pytest.approx(by_hand, rel=1e-9)


def test_it_is_the_same_in_one_go_and_from_one_evaluation_to_the_next():
    task = fs.tasks.quadratic.random_quadratic(clients=8, rows=5).task
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(epochs=1, batch=1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(3), rows="held")
    cost = Cost(run, Devices(bandwidth_spread=0.5, speed_spread=0.5, stragglers=0.2))
    list(run.rounds(4))
    before = run.round, run.totals["bytes_up"], cost()
    list(run.rounds(3))
    assert cost(*before) == pytest.approx(cost(), rel=1e-3)  # shares of rows sent differ a little
    assert cost(*before) > before[2] + 3 * 10


def test_a_round_lasts_as_long_as_its_slowest_client():
    task = fs.tasks.quadratic.example1(clients=5)
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), fs.Work(epochs=3, batch=1))
    run = fs.simulate(method, task.train, sampler=fs.sampling.full(), rows="held")
    list(run.rounds(1))
    cost = Cost(run, DEVICES._replace(speed_spread=1.0))
    each = cost.devices.seconds(
        cost.down, cost.up, np.full(5, 3.0), run.population.numbers, 0, run.seed
    )
    # one round of all clients, who also named their rows in it
    assert cost() == pytest.approx(each.max(), rel=1e-3)
    assert np.ptp(each) > 1


@pytest.mark.parametrize("hidden", [8, 16])
def test_operations_are_those_of_the_matrices(hidden):
    """x W1 -> W2: forward 2 (d h + h), gradients of both matrices the same again, of the middle
    h; the rest is element-wise."""
    width = 32
    model = fs.Model(
        init=lambda key: {"one": jnp.zeros((width, hidden)), "two": jnp.zeros((hidden, 1))},
        loss=lambda p, b: ((b["x"] @ p["one"]) @ p["two"])[:, 0],
    )
    people = fs.Population.from_arrays([0, 1], x=np.zeros((2, width), np.float32))
    counted = operations(model, people)
    matrices = 2 * (width * hidden + hidden) + 2 * (width * hidden + hidden) + 2 * hidden
    assert matrices <= counted <= 1.2 * matrices + 8 * hidden
