"""Whole numbers, and noise that clients add in shares below a secure sum."""

from math import exp, log, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import logistic, people, run_of
from scipy import stats

import fedslice as fs
from fedslice.errors import InputError
from fedslice.stage.shared_noise import rounded, rounded_norm, whole_noise
from fedslice.types import Algorithm

ROWS = 6000
CLIP, NOISE, SCALE, NUMBERS = 0.5, 2.0, 256.0, 40


def chi_square(drawn: np.ndarray, variance: float) -> float:
    """How likely numbers are at least so far from a Skellam law."""
    edges = np.unique(np.round(sqrt(variance) * np.linspace(-2.5, 2.5, 41)))
    below = stats.skellam.cdf(edges, variance / 2, variance / 2)
    if variance > 1e5:  # scipy's sums of Bessel functions give up; half a unit of continuity
        below = stats.norm.cdf((edges + 0.5) / sqrt(variance))
    expected = len(drawn) * np.diff(np.concatenate([[0.0], below, [1.0]]))
    found = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=len(edges) + 1)
    return float(stats.chisquare(found, expected, sum_check=False).pvalue)


@jax.jit
def drawn_of(key: Any, variance: Any) -> Any:
    """Of any variance by one program."""
    return whole_noise(key, variance, (150_000,))


@pytest.mark.parametrize("variance", few([3.0, 1900.0, 2500.0, 2e6], 3.0, 2e6))
def test_the_noise_is_skellam(variance: float) -> None:
    """Below and above the mean of 1000 from which on jax.random.poisson is not used: at 10^6 its
    variance is 2.5 per cent too large."""
    drawn = np.asarray(drawn_of(jax.random.key(1), variance))
    assert drawn.dtype == np.int32
    assert chi_square(drawn, variance) > 1e-3
    error = sqrt((2 + 1 / variance) / len(drawn))  # the fourth moment is 3 v^2 + v
    assert abs(drawn.var() / variance - 1) < 4 * error
    assert (np.asarray(drawn_of(jax.random.key(2), variance)) != drawn).mean() > 0.5
    assert not np.asarray(drawn_of(jax.random.key(0), 0.0)).any()


def test_rounding_keeps_the_mean_and_the_bound() -> None:
    """Up with the chance of the fraction; whatever is guessed, none is longer than the bound; zeros
    stay zero."""
    rng = np.random.default_rng(0)
    unit = rng.normal(size=NUMBERS)
    unit = np.append(unit / np.linalg.norm(unit), np.zeros(5)).astype(np.float32)
    longest = rounded_norm(SCALE, NUMBERS)
    keys = jax.random.split(jax.random.key(0), 4000)
    send = jax.jit(jax.vmap(lambda k: rounded({"w": unit}, SCALE, longest, k)["w"]))
    many = np.asarray(send(keys))
    assert (np.abs(many - SCALE * unit) < 1).all()
    assert (np.linalg.norm(many, axis=1) <= longest).all()
    np.testing.assert_allclose(many.mean(0), SCALE * unit, atol=5 * 0.5 / sqrt(4000))
    assert (many[:, NUMBERS:] == 0).all()
    short = rounded_norm(2.0, 1)
    flat = np.full(1000, 1 / sqrt(1000), np.float32)  # each 0.06 of a unit: 63 are rounded up
    send = jax.jit(jax.vmap(lambda k: rounded({"w": flat}, 2.0, short, k)["w"]))
    guess = np.asarray(send(keys[:200]))
    assert (np.linalg.norm(guess, axis=1) <= short).all()
    assert (guess == 0).all()


def test_what_an_accountant_reads() -> None:
    """The bound of Kairouz et al., theorem 1, in units of 1/s; the noise is z times it."""
    stage = fs.stage.skellam(NOISE, fs.sampling.uniform(5), 4, SCALE, NUMBERS)
    assert stage.noise is not None
    c, gamma, d, beta = 1.0, 1 / SCALE, NUMBERS, exp(-8.0)
    spread = gamma * sqrt(2 * log(1 / beta)) * (c + gamma * sqrt(d) / 2)
    squared = min(c**2 + gamma**2 * d / 4 + spread, (c + gamma * sqrt(d)) ** 2)
    details = stage.noise.details
    assert details["l2"] == pytest.approx(sqrt(squared) / gamma, rel=3e-4)
    assert details["l2"] >= sqrt(squared) / gamma
    assert details["l1"] == pytest.approx(details["l2"] ** 2)  # whole numbers: |k| <= k^2
    assert details["variance"] == pytest.approx((NOISE * details["l2"]) ** 2)
    assert (details["least"], stage.noise.kind, stage.noise.clients) == (4, "skellam", 5)


def of(rate: float, stages: list[Any], rows: int = ROWS) -> Algorithm:
    work = fs.Work(steps=1, batch=4)
    return fs.recipes.fedavg(
        logistic(rows), optax.sgd(rate), work, weights="uniform", stages=stages
    )


@pytest.mark.parametrize("least", few([3, 6], 3))
def test_clients_have_their_shares_on_every_row(least: int) -> None:
    """Of six clients that stand still: Skellam numbers of variance 6/L (z l2)^2 over s K, on rows
    of clients and on others."""
    sampler = fs.sampling.uniform(6)
    stages = fs.privacy.distributed(CLIP, NOISE, sampler, least, scale=SCALE, numbers=NUMBERS)
    run = run_of(of(0.0, stages), people(rows=ROWS), sampler=sampler)
    first = np.array(run.table("w", np.arange(ROWS)), np.float64)
    run.train(1, progress=False)
    change = (run.table("w", np.arange(ROWS)) - first) * 6 * SCALE / CLIP
    np.testing.assert_allclose(change, np.round(change), atol=0.01)
    noise = run.algorithm.noise
    assert noise is not None
    variance = noise.details["variance"] * 6 / least
    assert chi_square(np.round(change), variance) > 1e-3
    assert abs(change.var() / variance - 1) < 4 * sqrt(2 / ROWS)


def test_the_mean_is_the_plain_one_but_for_rounding() -> None:
    """With next to no noise: off by less than a unit over s for each client.  It sends 32 bits a
    number, of all rows."""
    sampler = fs.sampling.uniform(6)
    stages = fs.privacy.distributed(CLIP, 1e-6, sampler, 6, scale=4096.0, numbers=30)
    plain = [fs.stage.ball(CLIP), fs.stage.mean("uniform", denominator=6)]
    runs = [run_of(of(0.5, each, 24), people(), sampler=sampler) for each in (stages, plain)]
    shared, _ = (run.train(1, progress=False) for run in runs)
    assert [leaf.like.dtype for leaf in runs[0].shapes.wire.message.leaves] == [jnp.int32] * 3
    assert shared.bytes_up == 6 * (8 + 4 + 24 + 4 * (24 + 2))
    ids = {"w": np.arange(24)}
    for left, right in zip(*(jax.tree.leaves(run.params(ids)) for run in runs), strict=True):
        gap = np.abs(np.asarray(left) - np.asarray(right))
        assert 0 < gap.max() <= CLIP / 4096 + 1e-6


def test_a_sum_of_too_few_is_thrown_away() -> None:
    """Fewer clients than the threshold make no update; one whose update was not finite came, and
    added its share of the noise."""
    stage = fs.privacy.distributed(CLIP, NOISE, fs.sampling.uniform(7), 6, scale=SCALE)[-1]
    decode = jax.jit(stage.decode)
    for arrived, failed, moves in ((7, 0, True), (5, 1, True), (5, 0, False)):
        told = (np.arange(7) < failed).astype(np.float32)
        report = fs.types.ClientReport(*[np.zeros(7, np.float32)] * 4, failed=told)
        total = fs.types.Message({"w": np.zeros(50, np.int32)}, np.float32(arrived), report)
        update = decode((), total, jax.random.key(0))[0].update["w"]
        assert bool((update != 0).any()) == moves


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampler": fs.sampling.poisson(50)}, "the noise shows how many came"),
        ({"least": 51}, "from 1 to the 50 of a round"),
        ({"least": 0}, "from 1 to the 50"),
        ({"scale": 2.0**26}, "does not fit 32 bits"),
        ({"scale": 2.0**15, "noise": 4.0}, "drawn too coarsely"),
        ({"scale": 0.5}, "1 or more"),
        ({"noise": 0.0}, "must be positive"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    given = {"clip": 1.0, "noise": 1.0, "sampler": fs.sampling.uniform(50), "least": 40}
    with pytest.raises(InputError, match=words):
        fs.privacy.distributed(**{**given, **change})
