"""Figures that are more than a mean over examples: ratios, roots, the exact area under the ROC
curve, calibration, and how well each client's examples are ranked.

A model's metric is a function ``f(params, batch) -> [batch]``, whose mean over examples is taken,
or one of these.  The less, the better, but for those made with ``more``, AUC, and plain functions
that are called accuracy and the like."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from fedslice.arrays import Array, Batch, Params
from fedslice.errors import InputError

PerExample: TypeAlias = Callable[[Params, Batch], Array]


class Metric(NamedTuple):
    """``values`` gives two numbers for each example, [batch] each; ``figure`` makes one of those of
    many examples, and ``grouped(left, right, owners, clients)`` one for each client (NaN where it
    has none).  With ``more`` a larger figure is better.  One that is ``by_client`` means something
    for the examples of one client alone: over all it is the mean over clients."""

    values: Callable[[Params, Batch], tuple[Array, Array]]
    figure: Callable[[np.ndarray, np.ndarray], float]
    grouped: Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]
    more: bool = False
    by_client: bool = False


# names of plain functions that are better the larger
RISING = ("accuracy", "auc", "precision", "recall", "f1")


def ratio(f: Callable[[Params, Batch], tuple[Array, Array]], more: bool = False) -> Metric:
    """Sum of the first over sum of the second: right answers over words that count, say.

    >>> words = ratio(lambda params, batch: (batch["right"], batch["words"]))
    >>> words.figure(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    0.5
    """
    return _sums(f, lambda share: share, more)


def mean(f: PerExample, more: bool = False) -> Metric:
    """The mean over examples, as a plain function's.

    >>> mean(lambda params, batch: batch["x"]).figure(np.array([1.0, 2.0]), np.ones(2))
    1.5
    """
    return _sums(_counting(f), lambda share: share, more)


def root(f: PerExample) -> Metric:
    """The root of the mean over examples: RMSE from squared errors.

    >>> root(lambda params, batch: batch["error"] ** 2).figure(np.array([4.0, 14.0]), np.ones(2))
    3.0
    """
    return _sums(_counting(f), np.sqrt)


def auc(score: PerExample, label: str = "label") -> Metric:
    """Area under the ROC curve of ``score`` for the field ``label``, 0 or 1; exact, ties count one
    half.

    >>> curve = auc(lambda params, batch: batch["score"])
    >>> curve.figure(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    return Metric(
        lambda params, batch: (score(params, batch), batch[label]), _area, _areas, more=True
    )


def calibration(chance: PerExample, label: str = "label", bins: int = 10) -> Metric:
    """Expected calibration error: examples in ``bins`` of equal width by their predicted ``chance``
    of the field ``label``, and the mean, weighted by their sizes, of |mean chance - mean label|
    (Guo et al. 2017).  0: what is said to happen in 3 of 10 cases does.

    >>> error = calibration(lambda params, batch: batch["chance"])
    >>> round(error.figure(np.array([0.25, 0.25, 0.9, 0.9]), np.array([0, 1, 1, 1])), 3)
    0.175
    """

    def grouped(
        left: np.ndarray, right: np.ndarray, owners: np.ndarray, clients: int
    ) -> np.ndarray:
        group = owners * bins + np.clip((left * bins).astype(np.int64), 0, bins - 1)
        gaps = np.bincount(group, left - right, minlength=clients * bins)
        sizes = np.bincount(owners, minlength=clients)
        total = np.abs(gaps).reshape(clients, bins).sum(1)
        return np.where(sizes > 0, total / np.maximum(sizes, 1), np.nan)

    return Metric(
        lambda params, batch: (chance(params, batch), batch[label]),
        lambda left, right: float(grouped(left, right, np.zeros(len(left), np.int64), 1)[0]),
        grouped,
    )


def ndcg(score: PerExample, label: str = "label", at: int = 10) -> Metric:
    """Normalised discounted cumulative gain at k: each client's examples ranked by ``score``, gain
    1 / log2(1 + place) for each positive among the first k, over that of the best ranking; the mean
    over clients that have a positive.  Of equal scores every order is equally likely.

    >>> ranking = ndcg(lambda params, batch: batch["score"], at=2)
    >>> round(ranking.figure(np.array([0.9, 0.5, 0.1]), np.array([0, 1, 0])), 4)
    0.6309
    """
    _at_least_one(at)

    def grouped(
        left: np.ndarray, right: np.ndarray, owners: np.ndarray, clients: int
    ) -> np.ndarray:
        ranks = _ranked(left, right, owners, clients)
        places = np.arange(len(left)) - ranks.start[ranks.owners]
        gain = np.where(places < at, 1 / np.log2(2 + places), 0.0)
        ties = np.bincount(ranks.tie, gain) / np.maximum(np.bincount(ranks.tie), 1)
        got = np.bincount(ranks.owners, np.where(ranks.good, ties[ranks.tie], 0), minlength=clients)
        positives = np.bincount(ranks.owners, ranks.good, minlength=clients).astype(np.int64)
        ideal = np.append(0, np.cumsum(1 / np.log2(2 + np.arange(at))))[np.minimum(positives, at)]
        return np.where(positives > 0, got / np.where(positives > 0, ideal, 1), np.nan)

    return _ranking(score, label, grouped)


def hit_rate(score: PerExample, label: str = "label", at: int = 10) -> Metric:
    """Hit rate at k: of the clients that have a positive, the share that has one among the k
    examples of its own that ``score`` puts first.  Of equal scores every order is equally likely.

    >>> hits = hit_rate(lambda params, batch: batch["score"], at=1)
    >>> hits.figure(np.array([0.5, 0.5, 0.1]), np.array([0, 1, 0]))
    0.5
    """
    _at_least_one(at)

    def grouped(
        left: np.ndarray, right: np.ndarray, owners: np.ndarray, clients: int
    ) -> np.ndarray:
        ranks = _ranked(left, right, owners, clients)
        size, good = np.bincount(ranks.tie), np.bincount(ranks.tie, ranks.good)
        first = (
            np.flatnonzero(np.append(True, np.diff(ranks.tie) > 0))
            if len(left)
            else np.zeros(0, int)
        )
        owner, before = ranks.owners[first], first - ranks.start[ranks.owners[first]]
        room = np.clip(at - before, 0, size)  # of a tie's members, how many are among the first
        # none of its positives is among them: (size - good choose room) / (size choose room)
        miss = np.where(
            size - good >= room, np.exp(_choose(size - good, room) - _choose(size, room)), 0.0
        )
        missed = np.zeros(clients)
        with np.errstate(divide="ignore"):
            np.add.at(missed, owner, np.log(miss))
        positives = np.bincount(ranks.owners, ranks.good, minlength=clients)
        return np.where(positives > 0, 1 - np.exp(missed), np.nan)

    return _ranking(score, label, grouped)


class _Ranks(NamedTuple):
    """Examples by client and falling score: whose, which tie, whether positive; where each client's
    begin."""

    owners: np.ndarray
    tie: np.ndarray
    good: np.ndarray
    start: np.ndarray


def _ranked(score: np.ndarray, label: np.ndarray, owners: np.ndarray, clients: int) -> _Ranks:
    order = np.lexsort((-score, owners))
    score, good, owners = score[order], label[order] > 0.5, owners[order]
    new = np.ones(len(score), bool)
    new[1:] = (score[1:] != score[:-1]) | (owners[1:] != owners[:-1])
    return _Ranks(owners, np.cumsum(new) - 1, good, np.searchsorted(owners, np.arange(clients)))


def _ranking(
    score: PerExample,
    label: str,
    grouped: Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray],
) -> Metric:
    return Metric(
        lambda params, batch: (score(params, batch), batch[label]),
        lambda left, right: float(grouped(left, right, np.zeros(len(left), np.int64), 1)[0]),
        grouped,
        more=True,
        by_client=True,
    )


def _choose(many: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Logarithm of the binomial coefficient, 0 where it is none."""
    logs = np.append(0.0, np.cumsum(np.log(np.arange(1, int(many.max(initial=0)) + 1))))
    many, few = many.astype(np.int64), np.minimum(few, many).astype(np.int64)
    return np.asarray(logs[many] - logs[few] - logs[many - few])


def _at_least_one(at: int) -> None:
    if at < 1 or int(at) != at:
        raise InputError(f"at={at}: a ranking is cut after a whole number of places, 1 or more")


def _counting(f: PerExample) -> Callable[[Params, Batch], tuple[Array, Array]]:
    def values(params: Params, batch: Batch) -> tuple[Array, Array]:
        each = f(params, batch)
        return each, jnp.ones_like(each)

    return values


def _sums(
    f: Callable[[Params, Batch], tuple[Array, Array]],
    after: Callable[[np.ndarray | float], np.ndarray | float],
    more: bool = False,
) -> Metric:
    def figure(left: np.ndarray, right: np.ndarray) -> float:
        return float(after(left.sum() / right.sum())) if right.sum() else float("nan")

    def grouped(
        left: np.ndarray, right: np.ndarray, owners: np.ndarray, clients: int
    ) -> np.ndarray:
        top, bottom = (np.bincount(owners, each, minlength=clients) for each in (left, right))
        return np.asarray(
            after(np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan))
        )

    return Metric(f, figure, grouped, more)


def _area(score: np.ndarray, label: np.ndarray) -> float:
    """The share of all pairs in which the positive one has the larger score, ties one half."""
    good = label > 0.5
    positives = np.count_nonzero(good)
    pairs = positives * (len(good) - positives)
    if not pairs:
        return float("nan")
    score = score.astype(np.float64) + 0.0  # -0 becomes 0, to which it is equal
    bits = score.view(np.int64)
    if np.any(bits & 1) or not np.all(np.isfinite(score)):  # 32-bit numbers leave many bits free
        high, low = np.sort(score[good]), np.sort(score[~good])
        below, not_above = np.searchsorted(low, high), np.searchsorted(low, high, side="right")
        return float((below.sum() + not_above.sum()) / 2 / pairs)
    # the last bit says which are positive, so one sort is enough
    bits = np.sort((bits | good).view(np.float64)).view(np.int64)
    place = np.flatnonzero((bits & 1).astype(bool))
    before = place.sum() - positives * (positives - 1) // 2  # negatives
    return float((before + _ties(bits)) / pairs)


def _ties(bits: np.ndarray) -> float:
    """What is added to the negatives before each positive, in the order of :func:`_area`: of equal
    scores negatives come first, which are half too many, but below zero they come last."""
    follows = np.flatnonzero(bits[1:] == bits[:-1] ^ 1)  # where positives and negatives meet
    last = np.append(np.flatnonzero(bits[1:] != bits[:-1]), len(bits) - 1)  # of each run of a kind
    place = np.searchsorted(last, follows)
    before = last[place] - np.where(place > 0, last[place - 1], -1)
    pairs = before * (last[place + 1] - last[place])
    return float(np.where(bits[follows] < 0, pairs, -pairs).sum() / 2)


def _rising(score: np.ndarray) -> np.ndarray | None:
    """Whole numbers below 2^32 that rise as the scores do, if these are 32-bit numbers: together
    with what belongs to a score they are sorted many times faster."""
    narrow = score.astype(np.float32) + np.float32(0)  # -0 becomes 0, to which it is equal
    if not np.array_equal(narrow, score):  # also where one is NaN
        return None
    bits = narrow.view(np.int32)
    # of numbers below zero, the larger have smaller bits
    return (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64) + (1 << 31)


def _by_owner(
    score: np.ndarray, good: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, or numbers that are equal where they are, whether they are of positives, and owners;
    by owner and rising score."""
    rising = _rising(score)
    if rising is None or np.any(owners >= 1 << 30):
        order = np.lexsort((score, owners))
        return score[order], good[order], owners[order]
    key = np.sort(owners.astype(np.int64) << 33 | rising << 1 | good)
    return key >> 1 & 0xFFFFFFFF, (key & 1).astype(bool), key >> 33


def _areas(score: np.ndarray, label: np.ndarray, owners: np.ndarray, clients: int) -> np.ndarray:
    """Mann-Whitney for each client: (rank sum of its positives - n1 (n1 + 1) / 2) / (n1 n0), ties
    at mean rank."""
    score, label, owners = _by_owner(score, label > 0.5, owners)
    start = np.searchsorted(owners, np.arange(clients))
    rank = np.arange(1, len(score) + 1) - start[owners]
    new = np.ones(len(score), bool)
    new[1:] = (score[1:] != score[:-1]) | (owners[1:] != owners[:-1])
    group = np.cumsum(new) - 1
    rank = (
        (np.bincount(group, rank) / np.maximum(np.bincount(group), 1))[group]
        if len(score)
        else rank
    )
    good = np.bincount(owners, label, minlength=clients)
    pairs = good * (np.bincount(owners, minlength=clients) - good)
    above = np.bincount(owners, np.where(label, rank, 0), minlength=clients) - good * (good + 1) / 2
    return np.asarray(np.where(pairs > 0, above / np.where(pairs > 0, pairs, 1), np.nan))
