"""Who can be asked: devices charge at night, come in streaks, or follow a log.

An :class:`Availability` says of every client whether it can take part in a round, as a pure
function of (seed, round): a run that goes on after a kill, or another algorithm with the same seed,
meets the same clients.  :func:`fedslice.sampling.available` puts one before a sampler,

    cohort = draw(clients that are there).

Whoever is seldom there is seldom asked, and the mean over those who come is not the mean over all
(Wang et al., A Field Guide to Federated Optimization, 2021; Eichner et al., Semi-cyclic SGD, 2019).
Heat does not repair that: it corrects for who holds a row, not for who comes.
:func:`participation` tells how uneven it is before anybody trains.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.data.hashing import uniform
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import reading

WHO, ZONE = 101, 102  # what the random numbers are for
MOST_LOOKED_BACK = 10_000  # rounds without a change of mind, of which there are practically none


class Availability(NamedTuple):
    """``there(seed, round, clients)`` tells of each of so many clients whether it can be asked;
    ``name`` describes it."""

    name: str
    there: Callable[[int, int, int], np.ndarray]


def always() -> Availability:
    """Everybody, in every round.

    >>> always().there(0, 7, 3).tolist()
    [True, True, True]
    """
    return Availability("always()", lambda seed, round, clients: np.ones(clients, bool))


def sometimes(chances: float | Sequence[float]) -> Availability:
    """Each by itself, with a chance of its own or one for all: what stays the same all day.

    >>> sometimes([0.0, 1.0]).there(0, 7, 2).tolist()
    [False, True]
    """
    given = _shares("chances", chances)

    def there(seed: int, round: int, clients: int) -> np.ndarray:
        return uniform(np.arange(clients), WHO, seed, round) < _of_all(given, clients)

    return Availability(f"sometimes({_shown(given)})", there)


def diurnal(day: int = 24, low: float = 0.0, high: float = 1.0, zones: float = 1.0) -> Availability:
    """The rhythm of a day of so many rounds: client i is there in round t with the chance

        p_i(t) = low + (high - low) (1 + cos 2 pi (t / day - z_i)) / 2,

    where z_i, its time zone, lies anywhere in the first part ``zones`` of the day: with 0 all
    clients live in one place and come and go together, with 1 they are all around the globe.

    >>> noon, midnight = (diurnal(zones=0.0).there(0, t, 100).sum() for t in (0, 12))
    >>> int(noon), int(midnight)
    (100, 0)
    """
    if day < 2 or int(day) != day:
        raise InputError(f"day={day}: a day has a whole number of rounds, at least 2")
    if not 0 <= low <= high <= 1 or not 0 <= zones <= 1:
        raise InputError(
            f"low={low}, high={high}, zones={zones}: chances and parts of a day lie between 0 and 1"
        )

    def there(seed: int, round: int, clients: int) -> np.ndarray:
        zone = zones * uniform(np.arange(clients), ZONE, seed)
        rhythm = (1 + np.cos(2 * np.pi * (round / day - zone))) / 2
        return uniform(np.arange(clients), WHO, seed, round) < low + (high - low) * rhythm

    return Availability(f"diurnal({day}, {low:g}, {high:g}, {zones:g})", there)


def markov(share: float | Sequence[float], streak: float) -> Availability:
    """Streaks: who is there leaves with the chance 1 / ``streak`` a round, and comes back so that
    it is there for the ``share`` of all rounds, one for all or each its own.

    A chain that leaves with chance a and returns with chance b forgets with chance a + b, and then
    is there with chance b / (a + b), whatever it was before.  So its state is the one drawn when it
    last forgot: nothing has to be kept, and any round can be asked about.

    >>> coming = markov(share=0.5, streak=20)
    >>> days = np.array([coming.there(0, t, 1000) for t in range(3)])
    >>> round(float(days.mean()), 1), float((days[0] == days[1]).mean()) > 0.9
    (0.5, True)
    """
    given = _shares("share", share)
    if given.min() <= 0:
        raise InputError("share: with a share of 0 a client never comes; leave it out instead")
    if not streak >= 1:
        raise InputError(f"streak={streak}: a stay lasts at least one round")
    forgets = np.where(given < 1, 1 / streak / np.where(given < 1, 1 - given, 1), 1.0)
    if forgets.max() > 1 + 1e-9:  # 1 / 10 / (1 - 0.9) is a little more than 1
        raise InputError(
            f"share={_shown(given)} with streaks of {streak:g}: who is there so often stays at"
            f" least {1 / (1 - given[given < 1].max()):g} rounds at a time; give longer streaks"
        )

    def there(seed: int, round: int, clients: int) -> np.ndarray:
        chance, limit = _of_all(given, clients), _of_all(forgets, clients)
        state, open = np.zeros(clients, bool), np.arange(clients)
        for back in range(round, round - MOST_LOOKED_BACK, -1):  # below zero: before the first
            if not len(open):
                break
            drawn = uniform(open, WHO, seed, back)
            forgot = drawn < limit[open]
            # given that it forgot, drawn / limit is uniform again
            state[open[forgot]] = (drawn / limit[open] < chance[open])[forgot]
            open = open[~forgot]
        return state

    return Availability(f"markov({_shown(given)}, {streak:g})", there)


def trace(path: str | Path, population: Population, day: int | None = None) -> Availability:
    """From a CSV file with the columns ``client,start,end``: a line for each stay, from round
    ``start`` up to, and without, round ``end``.  After ``day`` rounds (default: the last end) it
    begins anew.  Clients are named as in the ``population``; those without a line never come.
    """
    file = Path(path)
    if not file.exists():
        raise MissingDataError(f"there is no file {file}: check the path")
    eligible = np.flatnonzero(population.counts)  # samplers see the clients that have data
    place = {str(population.clients[who]): at for at, who in enumerate(eligible)}
    with reading(file), file.open(newline="", encoding="utf-8") as stream:
        stays = [_stay(file, number, row) for number, row in enumerate(csv.DictReader(stream), 2)]
    known = np.array([(place[who], *span) for who, *span in stays if who in place], np.int64)
    if not len(known):
        raise InputError(
            f"{file} names {len(stays):,} stays, and none of this population's clients, who are"
            f" called {', '.join(list(place)[:3])}, ...: the names must be the same"
        )
    cycle = int(known[:, 2].max()) if day is None else day
    if cycle < 1:
        raise InputError(f"day={day}: a day has at least one round")

    def there(seed: int, round: int, clients: int) -> np.ndarray:
        if clients != len(eligible):
            raise InputError(
                f"the trace is for {len(eligible)} clients, this population has {clients}"
            )
        now = round % cycle
        found = np.zeros(clients, bool)
        found[known[(known[:, 1] <= now) & (now < known[:, 2]), 0]] = True
        return found

    return Availability(f"trace({file.name}, {len(known)} stays, {cycle})", there)


def _stay(file: Path, number: int, row: dict[str, str]) -> tuple[str, int, int]:
    try:
        start, end = int(row["start"]), int(row["end"])
        if not 0 <= start < end:
            raise ValueError("a stay starts in a round from 0 on and ends after it starts")
        return row["client"].strip(), start, end
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{file}, line {number}: {error}. A trace has the columns client,start,end, with rounds"
            " as whole numbers"
        ) from error


def participation(
    draw: Callable[[int], np.ndarray], clients: int, rounds: int
) -> tuple[np.ndarray, dict[str, float]]:
    """How often each of so many clients takes part in so many rounds of ``draw(round)``, such as
    ``run.cohort``, and what that says: the share that never does, the Gini coefficient of the
    others' turns and all (0: all alike, towards 1: always the same few).

    >>> times, told = participation(lambda round: np.array([0, 1]), clients=4, rounds=10)
    >>> times.tolist(), told
    ([10, 10, 0, 0], {'never': 0.5, 'gini': 0.5})
    """
    times = np.zeros(clients, np.int64)
    for number in range(rounds):
        np.add.at(times, draw(number), 1)
    rank = np.arange(1, clients + 1)
    total = max(1, int(times.sum()))
    gini = float(np.sum((2 * rank - clients - 1) * np.sort(times)) / (clients * total))
    return times, {"never": float((times == 0).mean()), "gini": gini}


def _shares(name: str, given: float | Sequence[float]) -> np.ndarray:
    values = np.atleast_1d(np.asarray(given, float))
    if values.ndim != 1 or not len(values) or not np.all((values >= 0) & (values <= 1)):
        raise InputError(f"{name}={given!r}: give a number between 0 and 1, or one for each client")
    return values


def _of_all(given: np.ndarray, clients: int) -> np.ndarray:
    if len(given) not in (1, clients):
        raise InputError(f"{len(given)} chances were given for {clients} clients with data")
    return np.broadcast_to(given, clients)


def _shown(given: np.ndarray) -> str:
    """One number, or what identifies many."""
    if len(given) == 1:
        return f"{given[0]:g}"
    return f"{len(given)} of mean {given.mean():.6g} and variance {given.var():.6g}"
