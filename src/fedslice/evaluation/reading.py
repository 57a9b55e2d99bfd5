"""What the update of a single row gives away: its label, and who trains it.

A logistic regression moves the row of a feature, in each step that sees it, by

    rate * (y - p) / batch,     0 < p < 1

up if the label is 1 and down if it is 0, whatever the model.  So a row that one example of a client
mentions tells that example's label by its sign, in the client's message; and in a sum wherever
nobody else of the cohort trains that row, or the others do not outweigh it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.evaluation.attack import released
from fedslice.evaluation.overheard import Overheard
from fedslice.simulation.run import Run
from fedslice.types import Stage


class Telling(NamedTuple):
    """Examples with a row that no other example of their client mentions: the client's line among
    messages, the column of the coldest such row, and the label."""

    client: np.ndarray
    column: np.ndarray
    label: np.ndarray

    def trained(self, read: Overheard) -> "Telling":
        """Those whose row is in the client's message."""
        there = read.sent[self.client, self.column]
        return Telling(*(each[there] for each in self))

    @property
    def base(self) -> float:
        """How often the commonest label is right, for an example of a client drawn at random.

        >>> Telling(np.array([0, 0, 1]), np.array([1, 2, 1]), np.array([1, 0, 1])).base
        0.75
        """
        size = np.bincount(self.client)
        ones = np.bincount(self.client, self.label)[size > 0] / size[size > 0]
        return float(max(ones.mean(), 1 - ones.mean()))

    def read(self, values: np.ndarray) -> np.ndarray:
        """The labels that messages tell: 1 where the row went up.

        >>> one = Telling(np.array([0, 0]), np.array([1, 2]), np.array([1, 0]))
        >>> one.read(np.array([[0.0, 0.3, -0.1]])).tolist()
        [1, 0]
        """
        return (values[self.client, self.column] > 0).astype(np.int64)


def telling(run: Run, read: Overheard, field: str, label: str = "label") -> Telling:
    """The examples whose label can be read from a row that ``field`` names, of a table of single
    weights."""
    people = run.population
    table = next(name for name, table in run.model.tables.items() if field in table.fields)
    space = run.spaces[run.model.space_of[table]]
    position = space.positions[field].reshape(people.examples, -1)
    place = np.where(
        position < 0, len(space.slots), space.offsets[people.owners][:, None] + position
    )
    mentions = np.bincount(place.reshape(-1), minlength=len(space.slots) + 1)
    mentions[-1] = 0  # padding
    heat = np.append(np.bincount(space.slots, minlength=len(space.ids))[space.slots], 0)
    coldness = np.where(mentions[place] == 1, heat[place], len(people) + 1)
    coldest = np.argmin(coldness, axis=1)
    example = np.arange(people.examples)
    good = mentions[place][example, coldest] == 1
    slot = space.slots[place[example, coldest][good]]
    line = np.searchsorted(run.eligible, people.owners[good])
    truth = (people.columns[label][good] > 0.5).astype(np.int64)
    return Telling(line, read.columns[table].start + slot, truth)


def from_sums(
    values: np.ndarray,
    examples: Telling,
    cohort: float,
    count: int,
    stages: Sequence[Stage] = (),
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Labels as read from sums over a client and about ``cohort`` others, and the true ones.

    Each of ``count`` times a client is drawn, and one of its ``examples``.

    >>> alone = Telling(np.array([0, 1]), np.array([0, 1]), np.array([1, 0]))
    >>> said, truth = from_sums(np.array([[0.5, 0.0], [0.0, -0.5]]), alone, cohort=1, count=100)
    >>> bool((said == truth).all())
    True
    """
    if not len(examples.client):
        raise InputError("no example has a row of its own in any message: there is nothing to read")
    rng = np.random.default_rng(seed)
    order = np.argsort(examples.client, kind="stable")
    examples = Telling(*(each[order] for each in examples))
    clients, start, size = np.unique(examples.client, return_index=True, return_counts=True)
    drawn = rng.integers(len(clients), size=count)
    chosen = start[drawn] + rng.integers(size[drawn])
    target, column = examples.client[chosen], examples.column[chosen]
    sums = _sums(values, target, column, cohort, rng)
    said = (released(stages, sums, seed) > 0).astype(np.int64)
    return said, examples.label[chosen]


def training(
    values: np.ndarray,
    sent: np.ndarray,
    columns: np.ndarray,
    cohort: float,
    count: int,
    stages: Sequence[Stage] = (),
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Does a client that takes part train this row?  Scores of who sees the sum of that row alone,
    and the truth.

    The row is drawn from those of ``columns`` that some clients ``sent`` and others did not; a fair
    coin says whether the client is one of the former.  The score is how far the row moved.  With
    what clients hold in the place of what they sent, the question is whether it holds the row.

    >>> sent = np.array([[True, False], [False, True], [False, True]])
    >>> scores, truth = training(1.0 * sent, sent, np.array([0]), cohort=1, count=100)
    >>> bool((scores[truth] == 1).all()), float(scores[~truth].max()) <= 1
    (True, True)
    """
    senders = sent[:, columns].sum(0)
    columns = columns[(senders > 0) & (senders < len(sent))]
    if not len(columns):
        raise InputError("each of these rows is sent by all clients or by none: ask about others")
    rng = np.random.default_rng(seed)
    column, truth = rng.choice(columns, count), rng.random(count) < 0.5
    wanted = truth[:, None] == sent[:, column].T
    target = np.argmax(np.where(wanted, rng.random(wanted.shape), -1), axis=1)
    sums = _sums(values, target, column, cohort, rng)
    return np.abs(released(stages, sums, seed)), truth


def _sums(
    values: np.ndarray,
    target: np.ndarray,
    column: np.ndarray,
    cohort: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Of one column each: the target's number and those of a Poisson cohort of others."""
    others = rng.random((len(target), len(values))) < cohort / len(values)
    others[np.arange(len(target)), target] = True
    return np.einsum("tc,tc->t", others, values[:, column].T).astype(np.float32)
