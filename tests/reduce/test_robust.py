"""A fifth of the clients attack: plain averaging is harmed, robust reductions and clipping still
learn."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few

import fedslice as fs
from fedslice.errors import DivergedError
from fedslice.types import Client, Data, Key, Message, PyTree

ATTACKS = {"none": 0, "times 100": 1, "nan": 2, "flip": 3, "collude": 4}
ROUNDS, COHORT = 15, 50  # the task's own cohort
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "trimmed": {"reduce": fs.reduce.trimmed(0.4)},
    "median": {"reduce": fs.reduce.median()},
    "geometric": {"reduce": fs.reduce.geometric()},
    "krum": {"reduce": fs.reduce.krum(0.3, keep=10)},
    "clip": {"stages": [fs.stage.clip(0.5)]},
}
START = float(np.log(2))  # loss of the first model, all zeros
LEARNT = START - 0.006


@cache
def task() -> fs.tasks.base.Task:
    return fs.tasks.movielens_lr.synthetic(scale=0.05)


@cache
def marked(part: str, attack: str) -> fs.Population:
    """With a column ``bad``: the attack's number for a random fifth of the clients."""
    population = getattr(task(), part)
    bad = np.random.default_rng(1).permutation(len(population)) < round(0.2 * len(population))
    column = np.where(bad, ATTACKS[attack], 0).astype(np.float32)[population.owners]
    return fs.Population(
        {**population.columns, "bad": column}, population.offsets, population.clients
    )


def attacking(client: Client) -> Client:
    """The client's update changed as its column ``bad`` says; the kind is data, so all attacks
    share one program."""

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        message, memory = client.run(offer, memory, data, key)
        kind = data.phases[0].batches["bad"][0, 0]

        def leaf(x: jax.Array) -> jax.Array:
            changed = [100 * x, jnp.full_like(x, jnp.nan), -10 * x, jnp.full_like(x, -1.0)]
            return jnp.select([kind == number for number in (1, 2, 3, 4)], changed, x)

        return message._replace(update=jax.tree.map(leaf, message.update)), memory

    return client._replace(run=run)


@cache
def result(attack: str, defence: str) -> tuple[float, int]:
    """Test loss after the last round (infinite if the run was stopped), and how many updates were
    thrown away."""
    plain = task().model
    model = fs.Model(plain.init, lambda p, b: plain.loss(p, b) + 0 * b["bad"], plain.tables)
    method = fs.recipes.fedavg(
        model, optax.sgd(0.3), fs.Work(steps=10, batch=5), weights="uniform", **DEFENCES[defence]
    )
    method = method._replace(client=attacking(method.client))
    run = fs.simulate(
        method, marked("train", attack), sampler=fs.sampling.uniform(COHORT), engine="vmap"
    )
    try:
        failed = sum([report.failed for report in run.rounds(ROUNDS)])
    except DivergedError:
        return float("inf"), 0
    return fs.evaluate(run, marked("test", attack)).pooled["loss"], failed


def test_honest_run_learns_more_than_is_asked_of_the_others() -> None:
    assert result("none", "mean")[0] < LEARNT - 0.005


@pytest.mark.parametrize("attack", few(["times 100", "flip", "collude"], "times 100"))
def test_mean_is_harmed(attack: str) -> None:
    assert result(attack, "mean")[0] > START + 0.02


@pytest.mark.parametrize(
    ("attack", "defence"),
    [
        pytest.param(
            attack, name, marks=[] if attack == "times 100" and some else pytest.mark.every
        )
        for attack in ("times 100", "flip", "collude")
        for name in DEFENCES
        if name != "mean"
        for some in [name == "krum"]
    ],
)
def test_defences_still_learn(attack: str, defence: str) -> None:
    assert result(attack, defence)[0] < LEARNT


@pytest.mark.every
@pytest.mark.parametrize("defence", few(["mean", "median"], "median"))
def test_updates_that_are_not_numbers_are_counted_and_dropped(defence: str) -> None:
    """Attackers in the cohorts are known from the sampler; without them training goes on with the
    others."""
    train = marked("train", "nan")
    bad = train.columns["bad"][train.offsets[:-1].clip(max=train.examples - 1)] > 0
    eligible = np.flatnonzero(train.counts)
    cohorts = [
        eligible[fs.sampling.uniform(COHORT).cohort(0, r, train.counts[eligible])]
        for r in range(ROUNDS)
    ]
    loss, failed = result("nan", defence)
    assert failed == sum(int(bad[cohort].sum()) for cohort in cohorts) > 100
    assert loss < LEARNT
