"""The guarantee of an algorithm as it was run."""

from typing import Any

import optax
import pytest
from linear import linear
from problems import people

import fedslice as fs
from fedslice.errors import InputError
from fedslice.privacy import heat as heats
from fedslice.privacy.accounting.account import guarantee
from fedslice.privacy.accounting.correlated import Correlated
from fedslice.privacy.accounting.local import Local
from fedslice.privacy.accounting.matrix import banded, banded_inverse, mechanism
from fedslice.privacy.accounting.mechanism import REPLACE, Central
from fedslice.privacy.accounting.release import HeatCounts
from fedslice.privacy.accounting.skellam import Distributed
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
    assert public is not None
    assert public.epsilon == found.epsilon
    assert any("taken for public" in text for text in public.not_covered)


def test_nothing_is_spent_without_noise_or_rounds() -> None:
    assert spent(fs.recipes.fedavg(linear(), optax.sgd(0.1)), 100, 30) is None
    assert spent(method(), 100, 0) is None


def test_every_kind_of_noise_has_its_mechanism() -> None:
    """Local noise by how often a client may come, Skellam noise by its norms, correlated noise by
    its strategy and how far apart a client's rounds are."""
    turns = fs.sampling.cyclic(4, 5)
    strategy = banded_inverse(30, 4)
    shared = fs.privacy.distributed(1.0, 0.8, fs.sampling.uniform(4), least=3, scale=64.0)
    norms = shared[-1].noise.details  # type: ignore[union-attr]
    kinds = {
        Local(3.0, 6): fs.privacy.local(1.0, 3.0, turns),
        Local(3.0, 30): fs.privacy.local(1.0, 3.0, fs.sampling.uniform(4)),
        Distributed(100, 4, 0.8, 30, norms["l2"], norms["l1"], "uniform"): shared,
        mechanism(strategy, 2.0, 6, 5): fs.privacy.matrix(1.0, 2.0, turns, strategy),
    }
    for expected, stages in kinds.items():
        made = fs.recipes.fedavg(linear(), optax.sgd(0.1), weights="uniform", stages=stages)
        relation = REPLACE if isinstance(expected, Correlated) else None
        found = guarantee(expected, delta=1e-5, neighbours=relation)
        assert spent(made, 100, 30, delta=1e-5) == found
    local = fs.client.sgd(linear(), optax.sgd(0.1))
    lazy = fs.algorithm(local, *fs.privacy.lazy(1.0, 0.8, POISSON))
    assert spent(lazy, 100, 30) == spent(method(), 100, 30)


def test_a_strategy_of_unknown_sensitivity_is_refused() -> None:
    stages = fs.privacy.matrix(1.0, 2.0, POISSON, fs.stage.Bands((1.0, -0.5), 30))
    made = fs.recipes.fedavg(linear(), optax.sgd(0.1), weights="uniform", stages=stages)
    with pytest.raises(InputError, match="does not say how much one client can change"):
        spent(made, 100, 30)


def test_correlated_noise_that_is_not_is_central_noise() -> None:
    """One band is independent noise: with everybody in every round, in cohorts of a fixed size,
    both ways of counting agree."""
    everybody = fs.sampling.uniform(100)
    stages = fs.privacy.matrix(1.0, 10.0, everybody, banded(20, 1))
    made = fs.recipes.fedavg(linear(), optax.sgd(0.1), weights="uniform", stages=stages)
    plain = fs.privacy.central(1.0, 10.0, everybody)
    other = fs.recipes.fedavg(linear(), optax.sgd(0.1), weights="uniform", stages=plain)
    one, two = (spent(each, 100, 20, delta=1e-5) for each in (made, other))
    assert one is not None
    assert two is not None
    assert one.epsilon == pytest.approx(two.epsilon, rel=0.02)
    assert one.neighbours == two.neighbours


def test_hardly_any_noise_is_refused_at_once() -> None:
    for make in (lambda: Central(100, 10, 0.01, 5), lambda: HeatCounts(std=0.01, rows=5)):
        with pytest.raises(InputError, match="protects nobody"):
            make()
