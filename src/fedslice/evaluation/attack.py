"""Attackers, and how often they are right.

A sum s of messages is published, with noise of standard deviation z if it is private:

    s = sum_{j in cohort} v_j + b v_i + N(0, z^2 I),     b = 0 or 1 by a fair coin

Others come as in Poisson sampling, and the attacker has to guess b: did client i take part?  Its
*advantage* is TPR - FPR, 0 for a guess and 1 for certainty.  All attackers here compute a
likelihood ratio from what they know (Homer et al. 2008; Shokri et al. 2017; Carlini et al. 2022):

    everyone   knows v_i and all others' messages: the attacker that differential privacy assumes
    data       knows v_i, and of each row the mean and the spread over the other clients
    rows       knows which rows i holds, not what it sends, and the same of others

If |v_i| <= 1 the release is mu-GDP with mu = 1/z (Dong, Roth & Su 2022), so that for any attacker

    TPR <= Phi(Phi^-1(FPR) + mu),     advantage <= 2 Phi(mu / 2) - 1

with equality for ``everyone`` when |v_i| = 1.  One release, and membership is a coin that the
attacker knows to be fair: nothing here is gained from sampling (amplification), nor lost over many
rounds (composition).
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.types import ClientReport, Message, Stage

NORMAL = NormalDist()
KNOWING = ("rows", "data", "everyone")
TINY = 1e-12  # of a row's mean square: where nothing is random, a difference is proof


class Measured(NamedTuple):
    """What an attacker reaches, with standard errors: advantage and area under the ROC curve."""

    advantage: float
    error: float
    auc: float
    auc_error: float
    trials: int


class Share(NamedTuple):
    """The share of right answers and its standard error; ``base`` is that of always giving the
    commonest answer."""

    right: float
    error: float
    base: float
    trials: int


class Trials(NamedTuple):
    """Rounds that were played: who was looked for, whether it took part, and who else did."""

    target: np.ndarray  # int [trials]
    present: np.ndarray  # bool [trials]
    others: np.ndarray  # bool [trials, clients], never the target itself


# -- what no attacker can exceed -------------------------------------------------------------------


def largest_advantage(noise: float) -> float:
    """2 Phi(1 / 2z) - 1, for one release with noise of multiplier z.

    >>> [round(largest_advantage(z), 3) for z in (0.5, 1.0, 2.0)]
    [0.683, 0.383, 0.197]
    """
    return 1.0 if noise == 0 else 2 * NORMAL.cdf(0.5 / noise) - 1


def largest_power(false: np.ndarray, noise: float) -> np.ndarray:
    """The bound on the true positive rate, at each false positive rate.

    >>> largest_power(np.array([0.0, 0.1, 0.5]), noise=1.0).round(2).tolist()
    [0.0, 0.39, 0.84]
    """
    inside = [
        NORMAL.cdf(NORMAL.inv_cdf(rate) + 1 / noise) if 0 < rate < 1 else rate for rate in false
    ]
    return np.array(inside)


# -- figures ---------------------------------------------------------------------------------------


def measure(score: np.ndarray, present: np.ndarray, threshold: float | None = None) -> Measured:
    """Advantage and AUC of ``score``, of which more speaks for ``present``; beyond ``threshold`` an
    attacker says yes.

    Without one, that which is best for every fourth trial is judged by the others: judged by the
    trials that it was found on, a mere guess would have an advantage, too.  The standard error is
    binomial, with one success and one failure added to each rate, so that certainty in a few trials
    is not taken for certainty; that of the AUC, for all trials, is DeLong's (1988).

    >>> coin = np.random.default_rng(0).random(1000) < 0.5
    >>> found = measure(np.random.default_rng(1).normal(2.0 * coin), coin)
    >>> round(found.advantage, 2), round(found.error, 2)  # 2 Phi(1) - 1 = 0.68
    (0.68, 0.03)
    >>> round(found.auc, 2), round(found.auc_error, 3)  # Phi(sqrt(2)) = 0.92
    (0.92, 0.008)
    """
    judged = (np.arange(len(score)) % 4 > 0) | (threshold is not None)
    for part in (judged, ~judged) if threshold is None else (judged,):
        if len(np.unique(present[part])) < 2:
            raise InputError(f"{len(score)} trials are too few to measure an attack: take 100")
    limit = _best(score[~judged], present[~judged]) if threshold is None else threshold
    said, there = score[judged] > limit, present[judged]
    area, spread = _area(score[present], score[~present])
    gain = float(said[there].mean() - said[~there].mean())
    error = sqrt(_variance(said[there]) + _variance(said[~there]))
    return Measured(gain, error, area, spread, len(score))


def _variance(said: np.ndarray) -> float:
    """Of the rate of yes."""
    rate = (np.sum(said) + 1) / (len(said) + 2)
    return float(rate * (1 - rate)) / (len(said) + 2)


def _best(score: np.ndarray, present: np.ndarray) -> float:
    """The threshold with the largest advantage: between two scores, half-way on a scale that is
    logarithmic far from zero, for proofs are orders of magnitude beyond hints."""
    order = np.argsort(score)
    score, present = score[order], present[order]
    below = np.cumsum(~present) / np.sum(~present) - np.cumsum(present) / np.sum(present)
    last = np.append(score[1:] != score[:-1], True)  # scores that tie stay together
    place = int(np.argmax(np.where(last, below, -np.inf)))
    ends = np.arcsinh(score[[place, min(place + 1, len(score) - 1)]])
    return float(np.sinh(ends.mean()))


def _area(high: np.ndarray, low: np.ndarray) -> tuple[float, float]:
    """The share of pairs in the right order, ties one half, and its standard error."""
    low, high = np.sort(low), np.sort(high)

    def under(values: np.ndarray, among: np.ndarray) -> np.ndarray:
        left, right = (np.searchsorted(among, values, side) for side in ("left", "right"))
        return (left + right) / 2 / len(among)

    for_high, for_low = under(high, low), 1 - under(low, high)
    error = sqrt(for_high.var(ddof=1) / len(high) + for_low.var(ddof=1) / len(low))
    return float(for_high.mean()), error


def curve(score: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC curve: false and true positive rates for all thresholds.

    >>> false, true = curve(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]))
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.0, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    order = np.argsort(-score, kind="stable")
    hit, score = present[order], score[order]
    last = np.append(score[1:] != score[:-1], True)
    true, false = (np.cumsum(each)[last] / max(1, each.sum()) for each in (hit, ~hit))
    return np.append(0.0, false), np.append(0.0, true)


def share(said: np.ndarray, truth: np.ndarray) -> Share:
    """How often what was ``said`` is the ``truth``.

    >>> share(np.array([1, 1, 0, 1]), np.array([1, 1, 0, 0]))[::2]
    (0.75, 0.5)
    """
    right, count = said == truth, len(truth)
    base = float(np.unique(truth, return_counts=True)[1].max() / count)
    return Share(float(right.mean()), sqrt(_variance(right)), base, count)


# -- did it take part? -----------------------------------------------------------------------------


def play(clients: int, cohort: float, count: int, rng: np.random.Generator) -> Trials:
    """So many rounds: a target, a coin, and others that come with probability cohort / clients.

    >>> trials = play(100, 10, 500, np.random.default_rng(0))
    >>> trials.others[np.arange(500), trials.target].any(), round(trials.others.sum(1).mean())
    (np.False_, 10)
    """
    if not 0 < cohort < clients:
        raise InputError(f"a cohort of {cohort:g} of {clients} clients: it must be a part of them")
    target = rng.integers(clients, size=count)
    others = rng.random((count, clients)) < cohort / clients
    others[np.arange(count), target] = False
    return Trials(target, rng.random(count) < 0.5, others)


def released(stages: Sequence[Stage], sums: np.ndarray, seed: int) -> np.ndarray:
    """Sums as the server publishes them: by the server halves of those ``stages`` that act on
    them, of an algorithm whose clients send updates alone (no adaptive bound).

    >>> from fedslice.data.sampling import poisson
    >>> from fedslice.stage.gaussian import noise
    >>> float(released([noise(3.0, poisson(5))], np.zeros(10_000), seed=0).std().round(1))
    3.0
    """
    key = jax.random.fold_in(jax.random.key(0), np.uint32(seed % 2**32))
    blank = ClientReport(*[jnp.zeros(1)] * 4)
    total = Message({"sum": jnp.asarray(sums)}, jnp.zeros(()), blank)
    for place, stage in reversed(list(enumerate(stages))):
        if stage.on_sum:
            total, _ = stage.decode((), total, jax.random.fold_in(key, place + 1))
    return np.asarray(total.update["sum"])


def membership(
    values: np.ndarray,
    held: np.ndarray,
    cohort: float,
    count: int,
    stages: Sequence[Stage] = (),
    seed: int = 0,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The scores of each kind of attacker in ``count`` rounds, and whether the target took part.

    ``values`` [clients, numbers] are everyone's messages, ``held`` which of the numbers are of rows
    that a client holds; ``stages`` those of a private algorithm, whose noise is added.  Sums are
    made on the target's rows alone: noise is independent from number to number, and nothing in
    other rows depends on the target.

    >>> values = np.eye(50, dtype=np.float32)  # each client holds a row that nobody else does
    >>> scores, present = membership(values, values > 0, cohort=10, count=200)
    >>> [measure(scores[knowing], present).advantage for knowing in KNOWING]
    [1.0, 1.0, 1.0]
    """
    if not values.any():
        raise InputError("all messages are zero: there is nothing to look for")
    trials = play(len(values), cohort, count, np.random.default_rng(seed))
    noise = next((stage.noise.multiplier for stage in stages if stage.noise), 0.0)
    known = _knowledge(values, held, cohort / len(values))
    ends = np.cumsum([len(known[client].rows) for client in trials.target])
    others = [
        values[np.ix_(np.flatnonzero(came), known[client].rows)].sum(0)
        for client, came in zip(trials.target, trials.others, strict=True)
    ]
    sums = [
        rest + known[client].sent if there else rest
        for rest, client, there in zip(others, trials.target, trials.present, strict=True)
    ]
    seen = np.split(released(stages, np.concatenate(sums), seed).astype(np.float64), ends[:-1])
    variance = noise**2 + TINY * known[0].typical
    scores = [
        _ratios(row, rest, known[client], variance)
        for row, rest, client in zip(seen, others, trials.target, strict=True)
    ]
    return dict(zip(KNOWING, np.array(scores).T, strict=True)), trials.present


class _Known(NamedTuple):
    """What there is to know of one client, on the numbers of its rows."""

    rows: np.ndarray  # which these are
    sent: np.ndarray  # v_i
    mean: np.ndarray  # of the sum of the others
    variance: np.ndarray
    typical: float  # the mean square of what anybody sends


def _knowledge(values: np.ndarray, held: np.ndarray, rate: float) -> list[_Known]:
    """Of each client; others come with probability ``rate`` each, so that a sum over them has mean
    rate sum_j v_j and variance rate (1 - rate) sum_j v_j^2."""
    total, squares = values.sum(0, np.float64), (values.astype(np.float64) ** 2).sum(0)
    typical, known = float(squares.sum() / np.count_nonzero(values)), []
    for mine, rows in zip(values, map(np.flatnonzero, held), strict=True):
        sent = mine[rows]
        left = np.maximum(squares[rows] - sent.astype(np.float64) ** 2, 0)
        known.append(
            _Known(rows, sent, rate * (total[rows] - sent), rate * (1 - rate) * left, typical)
        )
    return known


def _ratios(seen: np.ndarray, others: np.ndarray, known: _Known, noise: float) -> list[float]:
    """Log-likelihood ratios, by ``KNOWING``.  For those who do not know the others, their sum is
    taken for normal, and its rows for independent."""
    variance = known.variance + noise
    beyond = seen - known.mean
    more = known.typical / variance
    rows = np.sum(beyond**2 / variance * (more / (1 + more)) - np.log1p(more)) / 2
    data = np.sum(known.sent * (beyond - known.sent / 2) / variance)
    everyone = np.sum(known.sent * (seen - others - known.sent / 2)) / noise
    return [float(rows), float(data), float(everyone)]
