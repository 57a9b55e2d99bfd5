"""Which examples a client goes through: batches drawn independently, or shuffled passes.

All randomness is a hash of the client's stream: its batches do not depend on who else takes part.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fedslice.data.halves import QUERY, SUPPORT, assign
from fedslice.data.hashing import GOLDEN, splitmix
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.types import Work

Drawn: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Example numbers [K, S, B], real examples a batch [K, S], steps a client [K]."""
S32 = np.uint64(32)


class Pool(NamedTuple):
    """What a phase draws from: client i has ``counts[i]`` of the ``examples`` (None: of all), from
    ``begin[i]`` on."""

    begin: np.ndarray
    counts: np.ndarray
    examples: np.ndarray | None
    total: int
    most: int  # examples of the client that has the most

    def draw(
        self,
        cohort: np.ndarray,
        counts: np.ndarray,
        stream: np.ndarray,
        work: Work,
        room: Callable[[int], int],
    ) -> Drawn:
        """Batches for the clients of ``cohort``, who have ``counts`` examples here; ``room(steps)``
        is the length to pad to."""
        return _batches(self.begin[cohort], self.total, self.examples, counts, stream, work, room)


def _batches(
    begin: np.ndarray,
    total: int,
    examples: np.ndarray | None,
    counts: np.ndarray,
    stream: np.ndarray,
    work: Work,
    room: Callable[[int], int],
) -> Drawn:
    first = np.minimum(begin, max(0, total - 1))  # some other one, never used, if it has none
    if work.epochs is None:
        drawn = independent(stream, first, counts, work.steps or 1, work.batch)
    else:
        drawn = shuffled(stream, first, counts, work, room)
    return drawn if examples is None else (examples[drawn[0]], *drawn[1:])


def fresh(
    population: Population,
    cohort: np.ndarray,
    halves: np.ndarray,
    counts: np.ndarray,
    stream: np.ndarray,
    work: Work,
    room: Callable[[int], int],
) -> Drawn:
    """Batches from one of two halves that ``halves``, a stream for each client, draws for this
    round; as with fixed halves, support has the larger one, so that ``counts`` are the same in
    every round."""
    sizes = population.counts[cohort]
    owner = np.repeat(np.arange(len(cohort)), sizes)
    place = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
    order = np.lexsort((splitmix(halves[owner] + place.astype(np.uint64) * GOLDEN), owner))
    mixed = (population.offsets[cohort][owner] + place)[order]
    chosen = mixed[(2 * place < sizes[owner]) == (work.part == "support")]
    examples = chosen if len(chosen) else np.zeros(1, np.int64)  # never used
    begin = np.cumsum(counts) - counts
    drawn = _batches(begin, len(chosen), examples, counts, stream, work, room)
    if not np.any(none := counts == 0):
        return drawn
    own = np.minimum(population.offsets[cohort[none]], population.examples - 1)
    drawn[0][none] = own[:, None, None]  # never used; not that of whoever else is there
    return drawn


def pools(population: Population, works: Sequence[Work]) -> list[Pool]:
    """The pool of each phase."""
    parts = {work.split: assign(population, work.split) for work in works if work.part != "all"}
    found = []
    for work in works:
        if work.part == "all":
            found.append(
                Pool(
                    population.offsets[:-1],
                    population.counts,
                    None,
                    population.examples,
                    _most(population.counts),
                )
            )
            continue
        chosen = np.flatnonzero(
            parts[work.split] == {"support": SUPPORT, "query": QUERY}[work.part]
        )
        counts = np.bincount(population.owners[chosen], minlength=len(population))
        examples = chosen if len(chosen) else np.zeros(1, np.int64)  # never used
        found.append(Pool(np.cumsum(counts) - counts, counts, examples, len(chosen), _most(counts)))
    return found


def check_query(works: Sequence[Work], pools: Sequence[Pool]) -> None:
    """Refuse to train or to judge where no client has anything to do it with."""
    for work, pool in zip(works, pools, strict=True):
        if work.part == "query" and not pool.counts.any():
            given = f" with split={work.split!r}" if isinstance(work.split, str) else ""
            raise InputError(
                f"no client has a query example{given}: use another split, or in training 'none'"
            )


def _most(counts: np.ndarray) -> int:
    return max(1, int(counts.max(initial=1)))


def independent(
    stream: np.ndarray, first: np.ndarray, counts: np.ndarray, steps: int, batch: int
) -> Drawn:
    """``steps`` batches, every example of them drawn from all of the client's; all of its examples,
    once, for a client that has no more than a batch."""
    draws = np.arange(1, 1 + steps * batch, dtype=np.uint64) * GOLDEN
    uniform = splitmix(stream[:, None] + draws) >> S32
    choice = ((uniform * counts[:, None].astype(np.uint64)) >> S32).astype(np.int64)
    few = counts <= batch
    if few.any():
        # padding: the client's last one
        each = np.minimum(np.arange(batch), np.maximum(counts[few, None] - 1, 0))
        choice[few] = np.tile(each, steps)
    examples = (choice + first[:, None]).reshape(len(counts), steps, batch)
    sizes = np.minimum(counts, batch).astype(np.int32)[:, None].repeat(steps, 1)
    return examples, sizes, np.where(counts > 0, steps, 0).astype(np.int32)


def steps_of(counts: np.ndarray, work: Work) -> np.ndarray:
    """The batches that passes over so many examples have.

    >>> steps_of(np.array([0, 7, 90]), Work(epochs=2, steps=9, batch=5))
    array([0, 4, 9], dtype=int32)
    """
    steps = -(-counts // work.batch) * (work.epochs or 1)
    return (steps if work.steps is None else np.minimum(steps, work.steps)).astype(np.int32)


def shuffled(
    stream: np.ndarray,
    begin: np.ndarray,
    counts: np.ndarray,
    work: Work,
    room: Callable[[int], int],
) -> Drawn:
    """Passes over the client's examples, each in a new order; at most ``work.steps`` batches of
    them."""
    batch = work.batch
    passes, steps = -(-counts // batch), steps_of(counts, work)
    length = room(int(steps.max(initial=1)))
    number = np.arange(length)
    # at the start of each batch
    left = counts[:, None] - batch * (number % np.maximum(passes, 1)[:, None])
    sizes = np.where(number < steps[:, None], np.minimum(left, batch), 0).astype(np.int32)
    # all passes of all clients that are needed, one after the other; an example stands in its
    # client's batches behind those of earlier passes, at its rank in the order of its own
    epoch, who = np.nonzero(np.arange(work.epochs or 1)[:, None] * passes < steps)
    end = np.cumsum(counts[who])
    first, before = end - counts[who], epoch * passes[who] * batch
    turn = np.repeat(np.arange(len(who)), counts[who])
    place = np.arange(len(turn))
    rank = place - first.take(turn)
    draws = splitmix(stream[who] + epoch.astype(np.uint64)).take(turn)
    bits = np.uint64(max(1, len(who) - 1).bit_length())
    hashed = splitmix(draws + rank.astype(np.uint64) * GOLDEN) >> bits
    order = np.argsort(turn.astype(np.uint64) << (np.uint64(64) - bits) | hashed)
    chosen = order + (begin[who] - first).take(turn)
    place += (who * (length * batch) + before - first).take(turn)
    flat = np.repeat(begin, length * batch)  # padding: the client's own data
    examples = flat.reshape(-1, length, batch)
    if work.steps is None:
        flat[place] = chosen
        return examples, sizes, steps
    due = rank < (steps[who] * batch - before).take(turn)
    flat[place[due]] = chosen[due]
    # the client's first example may be in none of its batches: pad with one that is
    real = np.arange(batch) < sizes[:, :, None]
    return np.where(real, examples, examples[:, :1, :1]), sizes, steps
