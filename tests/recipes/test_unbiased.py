"""The law of unbiased rounds, by enumeration of all cohorts of a small population.

A client's batches do not depend on who else takes part, so a round from a given state is a function
of its cohort alone.  Its mean over all cohorts of K clients must be the round of all N, whatever K
is: then partial participation only adds noise.  With heat that round is the mean over each row's
holders, checked in NumPy.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import features, linear, slope
from problems import ROWS, people, run_of

import fedslice as fs
from fedslice.simulation.run import Run
from fedslice.types import Algorithm

COUNTS = (3, 1, 5, 2, 6, 4)
N, RATE = len(COUNTS), 0.05
PEOPLE, MODEL = people(counts=COUNTS), linear()
HEAT = PEOPLE.heat(MODEL)
R = fs.recipes
ONCE: dict[str, Any] = {
    "work": fs.Work(epochs=1, batch=8)
}  # all of a client's examples in one step
MORE: dict[str, Any] = {"work": fs.Work(steps=3, batch=2)}
UNIFORM: dict[str, Any] = {"weights": "uniform", "heat": HEAT}
# One step of the client's full gradient: with heat, x moves by -rate times the mean gradient of a
# row's holders.
ONE_STEP: dict[str, Algorithm] = {
    "fedsubavg": R.fedsubavg(MODEL, optax.sgd(RATE), **UNIFORM, **ONCE),
    "fedsgd": R.fedsgd(MODEL, optax.sgd(RATE), **UNIFORM),
    "mime": R.mime(MODEL, optax.sgd(RATE, momentum=0.5), **UNIFORM, **ONCE),
    "feddane": R.feddane(MODEL, optax.sgd(RATE), mu=0.5, **UNIFORM, **ONCE),
}
# Several steps.  After a first round of all clients there are momenta and variates.  The
# approximation of SCAFFOLD is lazy on tables, rows outside a round wait with their d: there the law
# holds where d is still zero.
SEVERAL: dict[str, Algorithm] = {
    "fedavg": R.fedavg(MODEL, optax.sgd(RATE), weights="uniform", **MORE),
    "fedprox": R.fedprox(MODEL, optax.sgd(RATE), mu=0.5, **UNIFORM, **MORE),
    "fednova": R.fednova(MODEL, RATE, momentum=0.5, **UNIFORM, **MORE),
    "scaffold-heat": R.scaffold_heat(MODEL, RATE, population=HEAT, **MORE),
    "scaffold-approximate": R.scaffold_approximate(
        MODEL,
        optax.sgd(RATE),
        population=PEOPLE,
        sampler=fs.sampling.uniform(2),
        **UNIFORM,
        **MORE,
    ),
    "mimelite": R.mimelite(MODEL, optax.sgd(RATE, momentum=0.5), **UNIFORM, **MORE),
}


class Rounds:
    """One round from the same state for any cohort, compiled once."""

    def __init__(self, method: Algorithm, before: int = 0, **settings: Any) -> None:
        self.run: Run = run_of(method, PEOPLE, before, **settings)
        for cohort in combinations(range(N), 3):  # so that the padded sizes suffice
            self.run.planner.plan(before, np.array(cohort))

    def after(self, cohort: Iterable[int]) -> np.ndarray:
        """The server's state, all of its numbers, after a round of this cohort."""
        copies = jax.tree.map(jnp.array, (self.run.store.state, self.run.memory))
        plan, _ = self.run.planner.plan(self.run.round, np.array(cohort))
        server = self.run.engine.in_memory(*copies, plan)[0].server
        return flat(server)

    def expected(self, clients: int) -> np.ndarray:
        return np.mean([self.after(cohort) for cohort in combinations(range(N), clients)], axis=0)


def flat(server: Any) -> np.ndarray:
    """The model, and after it the rest of the server's state."""
    leaves = jax.tree.leaves(server)
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in leaves])


def size_of_model(run: Run) -> int:
    return len(flat(run.params()))


@pytest.mark.parametrize("name", few([*ONE_STEP, *SEVERAL], "fedsubavg", "scaffold-heat"))
def test_the_mean_over_all_cohorts_is_the_round_of_all_clients(name: str) -> None:
    """Sums of some ten float32 numbers of size 1, rows corrected by up to N = 6: 1e-5 is ample."""
    first = name in ONE_STEP or name == "scaffold-approximate"
    rounds = Rounds({**ONE_STEP, **SEVERAL}[name], before=0 if first else 1)
    size = size_of_model(rounds.run)
    everybody, before = rounds.after(range(N)), flat(rounds.run.store.state.server)
    assert np.abs(everybody - before)[:size].max() > 0.01
    for clients in (1, 2, 3):
        expected = rounds.expected(clients)
        np.testing.assert_allclose(expected[:size], everybody[:size], atol=1e-5)
        if name == "scaffold-heat":  # c moves by K/N of what it would with all clients
            share = clients / N
            np.testing.assert_allclose(
                (expected - before)[size:], share * (everybody - before)[size:], atol=1e-5
            )


def test_weights_by_examples_are_a_ratio_estimator() -> None:
    """The cohort's weight, which divides, is random too: the mean over cohorts is off, the less the
    larger they are.  What is exact for the same objective is to draw by examples
    (tests/test_weighted.py)."""
    rounds = Rounds(R.fedsubavg(MODEL, optax.sgd(RATE), heat=HEAT, **ONCE))
    everybody = rounds.after(range(N))
    gaps = [np.abs(rounds.expected(clients) - everybody).max() for clients in (1, 2, 3)]
    assert gaps[0] > gaps[1] > gaps[2] > 1e-3


@pytest.mark.parametrize("name", few(ONE_STEP, "fedsubavg"))
def test_with_heat_a_round_of_all_clients_is_the_mean_over_holders(name: str) -> None:
    run = run_of(ONE_STEP[name], PEOPLE)
    before = np.append(run.table("w", np.arange(ROWS)), run.params()["bias"]).astype(float)
    for _ in run.rounds(1):
        pass
    inputs, target, owners = features(PEOPLE), PEOPLE.columns["x"], PEOPLE.owners
    gradients = np.stack(
        [slope(before, inputs[owners == i], target[owners == i]) for i in range(N)]
    )
    holders = np.stack([inputs[owners == i].any(axis=0) for i in range(N)]).sum(axis=0)
    assert set(holders) > {0, 1, 2}
    after = np.append(run.table("w", np.arange(ROWS)), run.params()["bias"])
    np.testing.assert_allclose(
        after, before - RATE * gradients.sum(axis=0) / np.maximum(holders, 1), atol=1e-5
    )
