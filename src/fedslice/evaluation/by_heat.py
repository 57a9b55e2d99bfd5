"""Held-out figures by heat: how good is the model where few clients could teach it?

An example is as cold as the coldest row that it reads,

    h(x) = min { n_m : m is a row of any table that x reads },

with n_m the heat of the *training* clients.  The examples are divided at shares of themselves, by
default into thirds, *cold*, *warm* and *hot*, so that every group has enough of them to be
believed; rows that no training client holds make an example *unseen*.  FedAvg moves a row by the
n_m / N-th part of what its holders ask for, and FedSubAvg by all of it (Ding et al. 2022): where
the two differ, they differ among the cold.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.scores import Scores, tally
from fedslice.heat import Heat
from fedslice.model import Model

THIRDS = (1 / 3, 2 / 3)
UNSEEN = "unseen"


class HeatGroups(NamedTuple):
    """Examples in groups of like heat: ``of`` is the group of each example, ``names`` and
    ``spans`` (the lowest and highest heat in it) describe them, coldest first."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    of: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Examples in each group."""
        return np.bincount(self.of, minlength=len(self.names))

    def scores(self, model: Model, numbers: dict[str, np.ndarray]) -> Scores:
        """The figures of each group, in the place of clients, from the numbers of every example
        (:meth:`fedslice.Evaluator.numbers`); none of those that rank a client's own examples."""
        found = tally(model, [numbers], self.of, len(self.names))
        kept = [name for name, metric in model.figures.items() if not metric.by_client]
        return found._replace(
            pooled={name: found.pooled[name] for name in kept},
            clients={name: found.clients[name] for name in kept},
        )


def coldest(model: Model, population: Population, heat: Heat) -> np.ndarray:
    """h(x) of every example: the clients that hold the coldest row that it reads.  0: nobody does;
    all of them where it reads no row.

    >>> import fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> coldest(task.model, task.train, task.train.heat(task.model)).tolist()
    [1.0, 4.0, 4.0, 4.0]
    """
    heat.check({name: table.rows for name, table in model.tables.items()})
    found = np.full(population.examples, float(heat.clients))
    for name, table in model.tables.items():
        known, counts = heat.ids[name], heat.believed(name)
        for field in table.fields:
            ids = population.columns[field].reshape(population.examples, -1)
            if not len(known):
                held = np.zeros(ids.shape)
            else:
                place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
                held = np.where(known[place] == ids, counts[place], 0.0)
            held[ids < 0] = np.inf
            found = np.minimum(found, held.min(axis=1, initial=np.inf))
    return found


def heat_groups(
    model: Model, population: Population, heat: Heat, shares: Sequence[float] = THIRDS
) -> HeatGroups:
    """The examples of ``population`` by the heat of what they read, cut at these ``shares`` of
    them.  Examples of one heat stay together, so groups may be uneven, or fewer.

    >>> import fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> groups = heat_groups(task.model, task.train, task.train.heat(task.model), shares=(0.25,))
    >>> groups.names, groups.spans, groups.of.tolist()
    (('cold', 'hot'), ((1, 1), (4, 4)), [0, 1, 1, 1])
    """
    if not all(0 < share < 1 for share in shares) or list(shares) != sorted(set(shares)):
        raise InputError(f"shares={shares!r}: give ascending numbers between 0 and 1")
    cold = coldest(model, population, heat)
    seen = cold > 0
    ordered = np.sort(cold[seen])
    # a group ends with the last example of the heat at which its share is full
    places = [max(0, int(np.ceil(share * len(ordered))) - 1) for share in shares]
    ends = ordered[places] if len(ordered) else np.zeros(0)
    group = np.where(seen, 1 + np.searchsorted(ends, cold, side="left"), 0)
    labels = np.array([UNSEEN, *_names(len(shares) + 1)])
    kept, of = np.unique(group, return_inverse=True)
    spans = [(int(cold[of == i].min()), int(cold[of == i].max())) for i in range(len(kept))]
    return HeatGroups(tuple(labels[kept].tolist()), tuple(spans), of)


def _names(count: int) -> list[str]:
    """Words for up to three groups, numbers for more.

    >>> _names(3), _names(4)
    (['cold', 'warm', 'hot'], ['1 of 4', '2 of 4', '3 of 4', '4 of 4'])
    """
    words = {1: ["all"], 2: ["cold", "hot"], 3: ["cold", "warm", "hot"]}
    return words.get(count) or [f"{place} of {count}" for place in range(1, count + 1)]
