"""Figures that are more than a mean over examples: ratios, roots, and the exact area under the ROC
curve.

A model's metric is a function ``f(params, batch) -> [batch]``, whose mean over examples is taken,
or one of these.  The less, the better, but for those made with ``more``, AUC, and plain functions
that are called accuracy and the like."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from fedslice.arrays import Array, Batch, Params

PerExample: TypeAlias = Callable[[Params, Batch], Array]


class Metric(NamedTuple):
    """``values`` gives two numbers for each example, [batch] each; ``figure`` makes one of those of
    many examples, and ``grouped(left, right, owners, clients)`` one for each client (NaN where it
    has none).  With ``more`` a larger figure is better."""

    values: Callable[[Params, Batch], tuple[Array, Array]]
    figure: Callable[[np.ndarray, np.ndarray], float]
    grouped: Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]
    more: bool = False


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
    return float(_areas(score, label, np.zeros(len(score), np.int64), 1)[0])


def _areas(score: np.ndarray, label: np.ndarray, owners: np.ndarray, clients: int) -> np.ndarray:
    """Mann-Whitney for each client: (rank sum of its positives - n1 (n1 + 1) / 2) / (n1 n0), ties
    at mean rank."""
    order = np.lexsort((score, owners))
    score, label, owners = score[order], label[order] > 0.5, owners[order]
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
