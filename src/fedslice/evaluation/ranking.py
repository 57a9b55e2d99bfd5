"""Recommending: every item there is, ranked for every client, not a sampled few.

A client that has rebuilt its own leaves scores all items but those that it has rated already, in
training or to rebuild them.  What counts are its good ones among the rest:

    hit rate at k   the share of clients with a good item among the first k
    NDCG at k       sum over the good ones at places p <= k of 1 / log2(1 + p), over the best one

Ranking against a few sampled items would be quicker, and can put methods into another order
(Krichene and Rendle, "On Sampled Metrics for Item Recommendation", 2020).  Of equal scores every
order is equally likely.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from fedslice.data.halves import QUERY, SUPPORT
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import Gain, Personal
from fedslice.metrics import hit_rate, ndcg
from fedslice.simulation.run import Run
from fedslice.types import Array, Batch, Params

AT = 10
NAMES = (f"hit_rate@{AT}", f"ndcg@{AT}")
TOGETHER = 1 << 22  # scores at once


class Catalogue(NamedTuple):
    """All that can be recommended: ``scores(params)`` is a score for each of so many ``items``,
    from a client's model with all rows of its tables.  The field ``item`` says what an example is
    about, and it is good where the field ``label`` is ``least`` or more."""

    scores: Callable[[Params], Array]
    items: int
    item: str
    label: str
    least: float


class Pairs(NamedTuple):
    """Which client has which item."""

    client: np.ndarray
    item: np.ndarray


def ranked(
    scores: np.ndarray, seen: Pairs, good: Pairs, at: int = AT
) -> tuple[np.ndarray, np.ndarray]:
    """Hit rate and NDCG of each client, from its ``scores`` [clients, items]; NaN for one without a
    good item among those that it has not ``seen``.

    >>> scores = np.array([[0.9, 0.8, 0.1], [0.2, 0.3, 0.1]])
    >>> seen, good = Pairs(np.array([0]), np.array([0])), Pairs(np.array([0, 1]), np.array([1, 2]))
    >>> [each.tolist() for each in ranked(scores, seen, good, at=2)]
    [[1.0, 0.0], [1.0, 0.0]]
    """
    if at < 1:
        raise InputError(f"at={at}: a ranking is cut after 1 place or more")
    clients, items = scores.shape
    scores = scores.astype(np.float32)
    label = np.zeros(scores.shape, bool)
    label[good.client, good.item] = True
    label[seen.client, seen.item] = False
    scores[seen.client, seen.item] = -np.inf
    scores = np.where(np.isnan(scores), -np.inf, scores)
    cut = np.partition(scores, items - min(at, items), axis=1)[:, items - min(at, items)]
    # who stands below the first k has a place beyond them, whoever else does
    kept = (scores >= cut[:, None]) & (scores > -np.inf) | label
    owners, place = np.nonzero(kept)
    given = scores[owners, place], label[owners, place].astype(np.float64), owners, clients
    return hit_rate(_given, at=at).grouped(*given), ndcg(_given, at=at).grouped(*given)


class Recommending:
    """Judges a run by what its clients make of it, as :class:`fedslice.evaluation.gain.Personal`,
    and by how it ranks the ``catalogue`` for them.  What clients of the same name have in
    ``known``, the training data, counts as seen."""

    def __init__(self, judge: Personal, catalogue: Catalogue, known: Population) -> None:
        self.judge, self.catalogue = judge, catalogue
        people, part = judge.population, judge.part
        support, query = part == SUPPORT, part == QUERY
        liked = people.columns[catalogue.label] >= catalogue.least
        self.good = _pairs(people, catalogue.item, query & liked)
        rated = _pairs(people, catalogue.item, support)
        order = np.argsort(people.clients)
        place = np.searchsorted(people.clients, known.clients, sorter=order)
        place = order[np.minimum(place, len(order) - 1)]
        same = (people.clients[place] == known.clients)[known.owners]
        before = Pairs(place[known.owners][same], known.columns[catalogue.item][same])
        self.seen = Pairs(*(np.concatenate(both) for both in zip(rated, before, strict=True)))
        liked = known.columns[catalogue.label] >= catalogue.least
        self.likes = np.bincount(known.columns[catalogue.item][liked], minlength=catalogue.items)
        self.score = jax.jit(self._score)

    def popular(self) -> dict[str, float]:
        """The figures of what needs no training: the items that are liked most in the training
        data, for everybody."""
        shape = (len(self.judge.population), self.catalogue.items)
        scores = np.broadcast_to(self.likes.astype(np.float32), shape)
        return _means(ranked(scores, self.seen, self.good))

    def __call__(self, run: Run, clients: np.ndarray | None = None) -> Gain:
        """The run's present model; with ``clients``, by number, only these are judged."""
        gain = self.judge(run.params(self.judge.ids()), clients=clients)
        if gain.moved:  # their tables are no longer the common ones
            return gain
        model = self.judge.model
        spaces = {model.space_of[name]: table.rows for name, table in model.tables.items()}
        whole = run.params({name: np.arange(rows) for name, rows in spaces.items()})
        new = self._figures(whole, gain)
        pooled, each = _means(new), dict(zip(NAMES, new, strict=True))
        after = gain.after
        return gain._replace(
            after=after._replace(
                pooled={**after.pooled, **pooled},
                clients={**after.clients, **{name: each[name] for name in pooled}},
                more=after.more | set(pooled),
            )
        )

    def _figures(self, whole: Params, gain: Gain) -> tuple[np.ndarray, np.ndarray]:
        judged = np.flatnonzero(~np.isnan(gain.after.clients["loss"]))
        found = np.full((2, len(self.judge.population)), np.nan)
        step = max(1, TOGETHER // self.catalogue.items)
        for start in range(0, len(judged), step):
            some = judged[start : start + step]
            local = {name: leaf[some] for name, leaf in gain.local.items()}
            scores = np.asarray(self.score(whole, local))
            seen, good = (_of(each, some, len(found[0])) for each in (self.seen, self.good))
            found[:, some] = ranked(scores, seen, good)
        return found[0], found[1]

    def _score(self, whole: Params, local: Params) -> Array:
        return jax.vmap(lambda mine: self.catalogue.scores({**whole, **mine}))(local)


def _means(figures: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Over the clients that have a good item left to find."""
    known = (each[~np.isnan(each)] for each in figures)
    return {name: float(each.mean()) for name, each in zip(NAMES, known, strict=True) if len(each)}


def _given(params: Params, batch: Batch) -> Array:
    return batch["score"]


def _pairs(people: Population, item: str, which: np.ndarray) -> Pairs:
    return Pairs(people.owners[which], people.columns[item][which])


def _of(pairs: Pairs, some: np.ndarray, clients: int) -> Pairs:
    """The pairs of some clients, who are numbered anew."""
    place = np.full(clients, -1)
    place[some] = np.arange(len(some))
    kept = place[pairs.client] >= 0
    return Pairs(place[pairs.client[kept]], pairs.item[kept])
