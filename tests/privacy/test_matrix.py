"""Strategies against their matrices: factorisation, sensitivity by enumeration, error by theory."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedslice.data import sampling
from fedslice.errors import InputError
from fedslice.privacy.accounting.account import guarantee
from fedslice.privacy.accounting.composition import accounting, exact_epsilon, rdp_epsilon
from fedslice.privacy.accounting.matrix import (
    Toeplitz,
    Tree,
    banded,
    banded_inverse,
    best_bands,
    error,
    mechanism,
    participation,
    square_root,
)
from fedslice.privacy.accounting.mechanism import ADD_OR_REMOVE, Gaussians


def encoder(strategy: Toeplitz | Tree) -> np.ndarray:
    """The matrix C, written down by its definition."""
    rounds = strategy.rounds
    if isinstance(strategy, Toeplitz):
        ago = np.arange(rounds)[:, None] - np.arange(rounds)
        return np.where(ago >= 0, strategy.encoder[np.maximum(ago, 0)], 0.0)
    nodes, size = [], 1
    while size <= rounds:
        for start in range(0, rounds - size + 1, size):
            node = np.zeros(rounds)
            node[start : start + size] = 1
            nodes.append(node)
        size *= 2
    return np.array(nodes)


def published(strategy: Toeplitz | Tree, draws: int) -> np.ndarray:
    """The matrix that makes the rounds' noise of independent Gaussians, from ``terms``."""
    matrix = np.zeros((strategy.rounds, draws))
    for round in range(strategy.rounds):
        terms = strategy.terms(round)
        assert len(terms.draws) == strategy.width
        np.add.at(matrix[round], terms.draws, terms.weights)
    return matrix


def patterns(rounds: int, times: int, apart: int, start: int = 0) -> Iterator[tuple[int, ...]]:
    yield ()
    if times:
        for first in range(start, rounds):
            for rest in patterns(rounds, times - 1, apart, first + apart):
                yield (first, *rest)


STRATEGIES = [
    square_root(13), banded(13, 1), banded(13, 4), banded_inverse(13, 1), banded_inverse(13, 2),
    banded_inverse(13, 4), Tree(13), Tree(16), Tree(1), banded_inverse(1, 3),
]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: f"{each.name}-{each.rounds}")
def test_what_is_published_is_a_function_of_the_release(strategy: Toeplitz | Tree) -> None:
    """A = B C with B = A times the published noise: so A X + A Y = B (C X + Z)."""
    matrix = encoder(strategy)
    ones = np.tril(np.ones((strategy.rounds, strategy.rounds)))
    decoder = ones @ published(strategy, len(matrix))
    np.testing.assert_allclose(decoder @ matrix, ones, atol=1e-6)
    spread = np.sqrt((decoder**2).sum() / strategy.rounds)
    assert strategy.spread == pytest.approx(spread, rel=1e-5)


@pytest.mark.parametrize(
    ("times", "apart"), [(1, 1), (1, 13), (2, 3), (3, 4), (4, 3), (5, 1), (13, 2)]
)
def test_sensitivity_by_enumeration(times: int, apart: int) -> None:
    """C is non-negative, so a client's worst updates all point the same way."""
    for strategy in STRATEGIES:
        matrix = encoder(strategy)
        assert matrix.min() >= 0
        worst = max(
            float(np.linalg.norm(matrix[:, list(chosen)].sum(1)))
            for chosen in patterns(strategy.rounds, times, apart)
        )
        found = strategy.sensitivity(times, apart)
        if isinstance(strategy, Toeplitz):
            assert found == pytest.approx(worst, rel=1e-9)
        else:
            assert worst * (1 - 1e-9) <= found <= 1.1 * worst


def test_updates_that_point_elsewhere_tell_less() -> None:
    """Random vectors in place of one direction, for all patterns: never above."""
    rng = np.random.default_rng(0)
    for strategy in (banded_inverse(8, 3), banded(8, 3), Tree(8)):
        matrix, bound = encoder(strategy), strategy.sensitivity(3, 2)
        for chosen in patterns(8, 3, 2):
            updates = rng.normal(size=(len(chosen), 4))
            updates /= np.linalg.norm(updates, axis=1, keepdims=True)
            assert np.linalg.norm(matrix[:, list(chosen)] @ updates) <= bound


def test_falling_coefficients_at_the_sizes_in_use() -> None:
    """What the exact sensitivity rests on."""
    for rounds, bands in [(200, 16), (2000, 64), (2000, 2), (500, 500)]:
        for strategy in (banded(rounds, bands), banded_inverse(rounds, bands)):
            assert (strategy.encoder >= 0).all()
            assert (np.diff(strategy.encoder) <= 1e-15).all()


def test_square_root_by_theory() -> None:
    """The largest error is sum c_j^2 = (ln T + gamma + ln 16) / pi + o(1), within a constant of
    what any factorisation needs; tree and independent noise are far above."""
    rounds = 4096
    strategy = square_root(rounds)
    largest = float((strategy.encoder**2).sum())
    assert largest == pytest.approx(
        (np.log(rounds) + np.euler_gamma + np.log(16)) / np.pi, abs=1e-3
    )
    assert np.cumsum(strategy.decoder) == pytest.approx(strategy.encoder)  # B = C
    assert error(strategy, 1, rounds) <= largest
    assert error(strategy, 1, rounds) < 0.5 * error(Tree(rounds), 1, rounds)
    assert error(banded(rounds, 1), 1, rounds) == pytest.approx(np.sqrt((rounds + 1) / 2))


def test_bands() -> None:
    inverse = [error(banded_inverse(200, bands), 4, 50) for bands in (1, 2, 4, 8, 16)]
    assert sorted(inverse, reverse=True) == inverse
    for bands in (2, 4, 8, 16):
        assert error(banded_inverse(200, bands), 4, 50) < error(banded(200, bands), 4, 50)
    assert error(banded_inverse(200, 8), 4, 50) < error(Tree(200), 4, 50)
    assert best_bands(200, 4, 50) == 16
    assert best_bands(200, 4, 50, most=8) == 8
    assert best_bands(1, 1, 1) == 1
    # rounds further apart than the bands do not meet: sqrt(k) times one column
    column = np.linalg.norm(banded(200, 16).encoder)
    assert banded(200, 16).sensitivity(4, 50) == pytest.approx(2 * column)


def test_the_feedback_of_bands_is_the_inverse() -> None:
    """Y_t = Z_t - sum c_j Y_{t-j}, as the docstring says."""
    strategy, rng = banded(12, 4), np.random.default_rng(0)
    drawn, noise = rng.normal(size=12), np.zeros(12)
    for round in range(12):
        reach = min(round, 3)
        kept = noise[round - reach : round][::-1]
        noise[round] = drawn[round] - strategy.encoder[1 : reach + 1] @ kept
    np.testing.assert_allclose(noise, published(strategy, 12) @ drawn, atol=1e-6)


def test_in_a_compiled_round() -> None:
    """As a stage would use it: the same Gaussians again from their numbers, nothing kept."""
    strategy, key = banded_inverse(6, 3), jax.random.key(7)

    @jax.jit
    def noise(draws: jax.Array, weights: jax.Array) -> jax.Array:
        def add(place: int, total: jax.Array) -> jax.Array:
            number = jax.random.fold_in(key, draws[place])
            return total + weights[place] * jax.random.normal(number, total.shape)

        return jax.lax.fori_loop(0, len(draws), add, jnp.zeros(5))

    drawn = np.array([jax.random.normal(jax.random.fold_in(key, t), (5,)) for t in range(6)])
    for round in range(6):
        terms = strategy.terms(round)
        expected = sum(
            strategy.decoder[ago] * drawn[round - ago] for ago in range(min(round + 1, 3))
        )
        found = noise(jnp.asarray(terms.draws), jnp.asarray(terms.weights))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_accounting_of_a_strategy() -> None:
    """Independent noise is what full participation of k rounds costs; the whole run is one
    release."""
    noise, delta = 5.0, 1e-5
    found = guarantee(mechanism(banded(100, 1), noise, 4, 25), delta=delta)
    assert found.epsilon == pytest.approx(exact_epsilon([Gaussians(noise, 4)], delta))
    strategy = banded_inverse(100, 8)
    found = guarantee(mechanism(strategy, noise, 4, 25), delta=delta)
    one = Gaussians(noise / strategy.sensitivity(4, 25))
    assert found.epsilon == pytest.approx(exact_epsilon([one], delta))
    assert "banded inverse (8) noise of multiplier 5, for clients that take part at most 4" in str(
        found
    )


@pytest.mark.parametrize("rounds", [1, 2, 13, 16, 200])
def test_one_participation_in_the_tree_against_the_library(rounds: int) -> None:
    dp = accounting()
    library = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    library.compose(dp.SingleEpochTreeAggregationDpEvent(6.0, rounds))
    parts = mechanism(Tree(rounds), 6.0, 1, rounds).parts(ADD_OR_REMOVE)
    assert rdp_epsilon(parts, 1e-5) == pytest.approx(library.get_epsilon(1e-5), rel=1e-9)


def test_participation_of_cohorts() -> None:
    cohorts = [sampling.full().cohort(0, round, np.ones(3)) for round in range(5)]
    assert participation(cohorts) == (5, 1)
    assert participation([np.array([round % 4]) for round in range(10)]) == (3, 4)
    assert participation([np.array([0]), np.array([1])]) == (1, 2)
    with pytest.raises(InputError, match="no client"):
        participation([np.zeros(0, int)])


def test_refusals() -> None:
    for call, words in [
        (lambda: banded(0, 1), "rounds=0"),
        (lambda: banded_inverse(5, 0), "bands=0"),
        (lambda: banded_inverse(5, 2).terms(5), "round 5 of a strategy for 5"),
        (lambda: Tree(5).terms(-1), "round -1"),
        (lambda: Tree(5).sensitivity(0, 1), "participations=0"),
        (lambda: banded(5, 2).sensitivity(1, 0), "separation=0"),
    ]:
        with pytest.raises(InputError, match=words):
            call()
