"""What rounds move: bytes as if every invitation and every message had been packed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.submodel import Submodels
from fedslice.model import Model
from fedslice.round.figures import Figures
from fedslice.round.plan import Traffic
from fedslice.round.touched import Turns
from fedslice.round.wire import Wire
from fedslice.types import Algorithm, Around

NEVER = np.iinfo(np.int64).max


class Moved(NamedTuple):
    """Bytes of one round: down, and up, which may take the round's figures to know."""

    down: int
    up: Callable[[Figures], int]


class Counter:
    """Counts for one run, whose cohorts ``cohort(round)`` gives again."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        wire: Wire,
        spaces: Mapping[str, Submodels],
        clients: int,
        cohort: Callable[[int], np.ndarray],
    ) -> None:
        self.model, self.wire, self.spaces, self.cohort = model, wire, spaces, cohort
        self.around = [stage.around for stage in algorithm.stages if stage.around]
        self.counted = any(leaf.like.counted for leaf in wire.message.codes)
        self.met = np.full(clients, NEVER)  # the round in which each takes part first,
        self.known = 0  # as far as these rounds tell

    def moved(self, traffic: Traffic) -> list[Moved]:
        """Of each round."""
        turns = traffic.turns
        down = _totals(turns, self.wire.down(traffic.rows_down))
        more = self._introduced(turns)
        if self.around:
            for turn, clients in enumerate(traffic.clients):
                both = self._around(traffic, turn)
                down[turn] += clients * both[0]
                more[turn] += clients * both[1]
        if self.counted:
            sent = [
                self._later(traffic.clients[turn], traffic.rows_sent(turn), new)
                for turn, new in enumerate(more)
            ]
        else:
            up = _totals(turns, self.wire.up(traffic.rows_up))
            sent = [_known(one + new) for one, new in zip(up, more, strict=True)]
        return [Moved(*each) for each in zip(down, sent, strict=True)]

    def _later(
        self, clients: int, rows: Mapping[str, np.ndarray], more: int
    ) -> Callable[[Figures], int]:
        """Bytes up where codes leave numbers out: how many, the round tells."""

        def sent(figures: Figures) -> int:
            items = [np.asarray(each)[:clients].astype(np.int64) for each in figures.items]
            found = self.wire.up(rows, items)
            one_by_one = isinstance(found, np.ndarray)
            return more + (int(found.sum()) if one_by_one else clients * int(found))

        return sent

    def _around(self, traffic: Traffic, turn: int) -> tuple[int, int]:
        """Bytes down and up of a client that go around its message: a secure sum's turns."""
        if not traffic.clients[turn]:
            return 0, 0
        message, tables = self.wire.message, self.model.tables
        given = Around(
            traffic.clients[turn],
            {name: tables[name].rows for name in self.spaces},
            {name: union[turn] for name, union in traffic.union.items()},
            {name: message.widths.get(name, 0) // 4 for name in self.spaces},
            message.fixed // 4,
        )
        both = [count(given) for count in self.around]
        return sum(down for down, _ in both), sum(up for _, up in both)

    def _introduced(self, turns: Turns) -> list[int]:
        """Bytes of naming S(i), once, by clients that take part for the first time (Ding et al.
        2022, algorithm 1, line 5).  Cohorts are a function of the seed: those of rounds before that
        a checkpoint has skipped are drawn again, and what is known stays true if one goes back."""
        while self.known < turns.first:
            self._meet(self.cohort(self.known), self.known)
            self.known += 1
        rounds = turns.first + turns.turn
        self._meet(turns.who[::-1], rounds[::-1])  # of several rounds the first one is kept
        self.known = max(self.known, turns.first + len(turns.ends) - 1)
        rows = {name: space.sizes_of(turns.who) for name, space in self.spaces.items()}
        new = self.met[turns.who] == rounds
        return _totals(turns, np.where(new, self.wire.slice(rows), 0))

    def _meet(self, who: np.ndarray, rounds: Any) -> None:
        fresh = self.met[who] > rounds
        self.met[who[fresh]] = rounds[fresh] if isinstance(rounds, np.ndarray) else rounds


def _totals(turns: Turns, bytes: Any) -> list[int]:
    """Of all clients of each round, whether or not they differ."""
    if isinstance(bytes, np.ndarray):
        return turns.total(bytes)
    return [int(bytes) * clients for clients in np.diff(turns.ends).tolist()]


def _known(bytes: int) -> Callable[[Figures], int]:
    return lambda figures: bytes
