"""Figures by groups of clients: small, medium and large ones, and those that the data tell apart.

A mean over clients hides whom a model serves badly.  *By size*: thirds of the clients by how many
examples they have to train on.  *By group*: any column of whole numbers or words in which all
examples of a client are alike, a gender, a country, a kind of device, if it has few values; of
several ids side by side, each is such a column.  *By turns*: thirds by the rounds in which clients
took part, for who is seldom there is seldom learnt from.
"""

from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.evaluation.scores import Scores

SIZES = ("small", "medium", "large")
TURNS = ("seldom", "sometimes", "often")
MOST = 12  # groups that a table has room for
WIDEST = 32  # columns of ids side by side that are looked at


class ClientGroups(NamedTuple):
    """Clients in groups: ``of`` is the group of each client (-1: none), ``names`` say which."""

    names: tuple[str, ...]
    of: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Clients in each group."""
        return np.bincount(self.of[self.of >= 0], minlength=len(self.names))

    def means(self, scores: Scores) -> dict[str, list[float]]:
        """The mean of each figure over the clients of each group; NaN where none has it.

        >>> groups = ClientGroups(("a", "b"), np.array([0, 0, 1, -1]))
        >>> groups.means(Scores({}, {"loss": np.array([1.0, 2.0, np.nan, 9.0])}))
        {'loss': [1.5, nan]}
        """
        found = {}
        for name, values in scores.clients.items():
            known = (self.of >= 0) & np.isfinite(values)
            count = np.bincount(self.of[known], minlength=len(self.names))
            total = np.bincount(self.of[known], values[known], minlength=len(self.names))
            found[name] = np.where(count > 0, total / np.maximum(count, 1), np.nan).tolist()
        return found


def by_size(people: Population, train: Population) -> ClientGroups:
    """Clients in thirds by their examples: those that they train on, or, for clients that do not,
    those that there are.  Clients of one size stay together, so groups may be uneven, or fewer.

    >>> people = Population.from_arrays([0, 1, 1, 2, 2, 2, 2], x=np.zeros(7))
    >>> by_size(people, people).names
    ('small, 1 examples', 'medium, 2 examples', 'large, 4 examples')
    """
    places = _places(people, train)
    sizes = people.counts if places is None else train.counts[places]
    return _thirds(people, sizes, SIZES, "examples")


def by_turns(people: Population, train: Population, times: np.ndarray) -> ClientGroups | None:
    """Clients in thirds by the rounds in which they took part, ``times`` for each client of the
    training data; None where others are measured.

    >>> people = Population.from_arrays([0, 1, 2], x=np.zeros(3))
    >>> by_turns(people, people, np.array([5, 0, 9])).names
    ('seldom, 0 rounds', 'sometimes, 5 rounds', 'often, 9 rounds')
    """
    places = _places(people, train)
    return None if places is None else _thirds(people, times[places], TURNS, "rounds")


def _places(people: Population, train: Population) -> np.ndarray | None:
    """Where these clients stand in the training data; None if not all of them do."""
    order = np.argsort(train.clients)
    if not len(order):
        return None
    place = np.minimum(np.searchsorted(train.clients, people.clients, sorter=order), len(order) - 1)
    found = order[place]
    return found if (train.clients[found] == people.clients).all() else None


def _thirds(
    people: Population, sizes: np.ndarray, words: tuple[str, str, str], unit: str
) -> ClientGroups:
    there = people.counts > 0
    ordered = np.sort(sizes[there])
    ends = ordered[[max(0, -(-len(ordered) * part // 3) - 1) for part in (1, 2)]]
    group = np.where(there, np.searchsorted(ends, sizes, side="left"), -1)
    kept = [place for place in range(3) if (group == place).any()]
    names = []
    for each in kept:
        low, high = sizes[group == each].min(), sizes[group == each].max()
        span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        names.append(f"{words[each]}, {span} {unit}")
    number = np.full(4, -1)
    number[kept] = np.arange(len(kept))
    return ClientGroups(tuple(names), number[group])


def by_columns(people: Population) -> dict[str, ClientGroups]:
    """The groups that columns make, by the column's name.

    >>> people = Population.from_arrays([7, 7, 8, 9], land=[3, 3, 5, 3], item=[1, 2, 1, 2])
    >>> {name: (each.names, each.of.tolist()) for name, each in by_columns(people).items()}
    {'land': (('3', '5'), [0, 1, 0])}
    """
    there = people.counts > 0
    start = np.minimum(people.offsets[:-1], max(0, people.examples - 1))
    found = {}
    for name, column in people.columns.items():
        wide = column.reshape(people.examples, -1) if people.examples else np.zeros((0, 0))
        if column.dtype.kind not in "iubU" or wide.shape[1] > WIDEST:
            continue
        for place in range(wide.shape[1]):
            first = wide[start, place]
            if not np.array_equal(first[people.owners], wide[:, place]):
                continue
            values = np.unique(first[there])
            if 2 <= len(values) <= MOST and len(values) < there.sum():
                of = np.where(there, np.searchsorted(values, first), -1)
                title, names = _named(people, name, values)
                title = f"{title} {place}" if title in found else title
                found[title] = ClientGroups(names, of)
    return found


def _named(people: Population, column: str, values: np.ndarray) -> tuple[str, tuple[str, ...]]:
    """What a column is about, and what its values are called; ids may be called ``gender=F``."""
    names = people.names.get(column)
    known = names is not None and values.dtype.kind in "iu" and values[0] >= 0
    if names is None or not known or values[-1] >= len(names):
        return column, tuple(map(str, values))
    words = [str(names[value]) for value in values]
    before = {word.partition("=")[0] for word in words if "=" in word}
    if len(before) == 1 and all("=" in word for word in words):
        return before.pop(), tuple(word.partition("=")[2] for word in words)
    return column, tuple(words)
