"""Noise that is correlated over the rounds: its law, its end, and going on from a checkpoint."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from problems import logistic, people, run_of, state_bytes

import fedslice as fs
from fedslice.errors import InputError
from fedslice.stage.correlated import Terms
from fedslice.types import Algorithm

ROWS = 40_000
CLIP, NOISE, ROUNDS = 0.5, 3.0, 5
SAMPLER = fs.sampling.uniform(4)
BANDS = fs.stage.Bands((1.0, -0.5, -0.125), ROUNDS)


class Nodes(NamedTuple):
    """Kairouz et al.'s tree over four rounds, written out: Gaussians 0 to 3 are those of leaves, 4
    and 5 of pairs, 6 of all four.  The first t rounds have nodes {0}, {4}, {4, 2}, {6}."""

    rounds: int = 4

    def terms(self, round: int, /) -> Terms:
        draws, weights = [
            ([0], [1]),
            ([4, 0], [1, -1]),
            ([2], [1]),
            ([6, 4, 2], [1, -1, -1]),
        ][round]
        room = 3 - len(draws)
        return Terms(np.array(draws + [0] * room), np.array(weights + [0] * room, np.float32))


@cache
def of(strategy: Any, rows: int = ROWS, rate: float = 0.0) -> Algorithm:
    work = fs.Work(steps=1, batch=4)
    stages = fs.privacy.matrix(CLIP, NOISE, SAMPLER, strategy)
    return fs.recipes.fedavg(
        logistic(rows), optax.sgd(rate), work, weights="uniform", stages=stages
    )


@cache
def noises(strategy: Any, rounds: int) -> np.ndarray:
    """[rounds, rows]: what was added in each round, in units of z C / K."""
    run = run_of(of(strategy), people(rows=ROWS), sampler=SAMPLER)
    models = [np.array(run.table("w", np.arange(ROWS)), np.float64)]
    for _ in run.rounds(rounds):
        models.append(np.array(run.table("w", np.arange(ROWS)), np.float64))
    return np.diff(models, axis=0) * 4 / (NOISE * CLIP)


def assert_covariance(found: np.ndarray, expected: np.ndarray) -> None:
    """Of normal numbers: entry (s, t) has standard error sqrt((v_s v_t + v_st^2) / rows)."""
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / ROWS)
    assert (np.abs(found @ found.T / ROWS - expected) < 4.5 * error).all()
    kurtosis = (found**4).mean(1) / (found**2).mean(1) ** 2
    assert (np.abs(kurtosis - 3) < 4.5 * np.sqrt(24 / ROWS)).all()


def test_over_rounds_the_noise_is_that_of_the_inverse() -> None:
    """Clients that stand still: on every row, held or not, Y = C^-1 Z, so Cov Y = C^-1 C^-T."""
    inverse = sum(c * np.eye(ROUNDS, k=-j) for j, c in enumerate(BANDS.coefficients))
    assert_covariance(noises(BANDS, ROUNDS), inverse @ inverse.T)


def test_a_tree_has_as_many_gaussians_as_bits() -> None:
    """Prefix sums share nodes: the first three rounds, and the first two, have {4} in common."""
    prefix = np.cumsum(noises(Nodes(), 4), axis=0)
    expected = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 1]], float)
    assert_covariance(prefix, expected)


def test_dense_leaves_and_rows_have_noise_of_their_own() -> None:
    """Independent over rows and leaves, also of other runs; the same for a seed."""
    run, again, other = (
        run_of(of(BANDS, 24, 0.1), people(), 3, sampler=SAMPLER, seed=s) for s in (0, 0, 1)
    )
    assert state_bytes(run) == state_bytes(again) != state_bytes(other)
    found = noises(BANDS, ROUNDS)[:2]
    for shift in (1, 7):
        assert np.abs((found[:, :-shift] * found[:, shift:]).mean(1)).max() < 4.5 * 1.3 / ROWS**0.5


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """To the bit, and as correlated with what was before."""
    run = run_of(of(BANDS, 24, 0.1), people(), 2, sampler=SAMPLER)
    run.save(tmp_path)
    for _ in run.rounds(3):
        pass
    other = run_of(of(BANDS, 24, 0.1), people(), sampler=SAMPLER)
    other.restore(tmp_path)
    for _ in other.rounds(3):
        pass
    assert state_bytes(run) == state_bytes(other)


def test_rounds_beyond_its_last_are_refused() -> None:
    run = run_of(of(BANDS, 24, 0.1), people(), ROUNDS, sampler=SAMPLER)
    before = state_bytes(run)
    with pytest.raises(InputError, match="made for 5 rounds, and round 6 would be without"):
        run.train(1, progress=False)
    assert state_bytes(run) == before
    state = run.store.state.stages[-1]
    arrived = jax.eval_shape(lambda: run.shapes.trees({"w": 24}, still=True).arrived)
    total = jax.tree.map(lambda like: np.ones(like.shape, like.dtype), arrived)
    beyond = jax.jit(run.algorithm.stages[-1].decode)(state, total, run.engine.key)[0]
    assert np.isnan(np.asarray(beyond.update["w"])).all()


def test_any_sampler_that_draws_a_client_once() -> None:
    sampler = fs.sampling.full()
    with pytest.raises(InputError, match="give clients=K"):
        fs.privacy.matrix(CLIP, NOISE, sampler, BANDS)
    stages = fs.privacy.matrix(CLIP, NOISE, sampler, BANDS, clients=7)
    method = fs.recipes.fedavg(logistic(), optax.sgd(0.1), weights="uniform", stages=stages)
    assert run_of(method, people(), 2, sampler=sampler).round == 2
    with pytest.raises(InputError, match="twice in a round"):
        fs.privacy.matrix(CLIP, NOISE, fs.sampling.weighted(4), BANDS)
    with pytest.raises(InputError, match=r"give privacy.matrix\(...\) the sampler of the run"):
        run_of(of(BANDS, 24, 0.1), people(), sampler=fs.sampling.uniform(5))
    alone = fs.stage.correlated_noise(NOISE, SAMPLER, BANDS)
    mean = fs.stage.mean("uniform", denominator=4)
    with pytest.raises(InputError, match=r"stage\.ball"):
        fs.algorithm(fs.client.sgd(logistic(), optax.sgd(0.1)), [mean, alone], fs.server.optimize())
    with pytest.raises(InputError, match="without noise"):
        fs.privacy.matrix(CLIP, NOISE, SAMPLER, fs.stage.Bands((0.0, 1.0), 3))
