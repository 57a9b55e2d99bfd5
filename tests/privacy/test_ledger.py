"""The guarantee of an algorithm as it was run."""

from typing import Any

import optax
import pytest
from linear import linear
from problems import people

import fedslice as fs
from fedslice.privacy import heat as heats
from fedslice.privacy.accounting.account import guarantee
from fedslice.privacy.accounting.mechanism import Central
from fedslice.privacy.accounting.release import HeatCounts
from fedslice.privacy.ledger import spent

POISSON = fs.sampling.poisson(4)


def method(sampler: Any = POISSON, **more: Any) -> fs.types.Algorithm:
    stages = fs.privacy.central(1.0, 0.8, sampler, **more)
    return fs.recipes.fedavg(linear(), optax.sgd(0.1), weights="uniform", stages=stages)


@pytest.mark.parametrize("sampler", [POISSON, fs.sampling.uniform(4)], ids=["poisson", "uniform"])
def test_noise_and_draws_are_those_of_the_run(sampler: Any) -> None:
    expected = guarantee(Central(100, 4, 0.8, 30, sampler.kind))
    assert spent(method(sampler), 100, 30) == expected


def test_an_adaptive_clip_costs_what_was_asked_for() -> None:
    adaptive = method(adapt=fs.privacy.Adapt(), below=3.0)
    assert spent(adaptive, 100, 30) == spent(method(), 100, 30)


def test_a_noisy_sum_of_heat_is_composed_with_the_training() -> None:
    heat = heats.estimate(heats.count(people(), linear(), noise=2.0, most=9))
    expected = guarantee(Central(100, 4, 0.8, 30), HeatCounts(std=6.0, rows=9))
    found = spent(method(heat=heat), 100, 30)
    assert found == expected
    assert found is not None
    assert found.epsilon > spent(method(), 100, 30).epsilon  # type: ignore[union-attr]


def test_randomised_response_is_said_to_be_outside() -> None:
    heat = heats.estimate(heats.respond(people(), linear(), 1.0))
    found = spent(method(heat=heat), 100, 30)
    assert found is not None
    assert found.epsilon == spent(method(), 100, 30).epsilon  # type: ignore[union-attr]
    assert any("of each row alone" in text for text in found.not_covered)
    public = spent(method(heat=heats.public(people().heat(linear()))), 100, 30)
    assert public == spent(method(), 100, 30)


def test_nothing_is_spent_without_noise_or_rounds() -> None:
    assert spent(fs.recipes.fedavg(linear(), optax.sgd(0.1)), 100, 30) is None
    assert spent(method(), 100, 0) is None
