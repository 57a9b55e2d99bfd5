"""Heat without telling who holds what.

Heat correction needs n_m, how many clients hold row m; but S(i) is a client's history.  Two ways to
learn the one without the other:

**Randomised response** (Warner 1965; Ding et al. 2022, appendix F).  For every row of the table a
client says "yes" with probability p1 if it holds the row and p2 if not.  Of N clients Y say yes:

    n = (Y - N p2) / (p1 - p2)
    Var = [n p1 (1 - p1) + (N - n) p2 (1 - p2)] / (p1 - p2)^2

and with weights w_i, Y = sum of w_i over those who say yes, W and n their sums,

    n = (Y - W p2) / (p1 - p2)
    Var = [sum_holders w_i^2 p1 (1 - p1) + sum_others w_i^2 p2 (1 - p2)] / (p1 - p2)^2

where the sums of squares are estimated in the same way.  Nobody has to be trusted, but the
guarantee, epsilon = ln max(p1 / p2, (1 - p2) / (1 - p1)), is for **each row alone**: who would tell
two clients with wholly different sets apart sees up to |S| + |S'| rows of it.

**A noisy sum.**  Each client puts at most B of its rows, drawn at random, into a 0/1 vector; the
sum of all vectors, which a secure sum can compute, gets Gaussian noise (or Skellam noise, whole
numbers that devices can add in parts).  One client changes the sum by at most sqrt(B) in L2, so
noise of standard deviation z sqrt(B) is one Gaussian mechanism of multiplier z for the *whole* set:
the way to take.  Clients with more rows than B are counted on B of them, so n is then too small,
and c_m too large, on the rows that they share.
"""

from collections.abc import Mapping
from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from fedslice.data.hashing import GOLDEN, MIX1, splitmix
from fedslice.data.population import Population
from fedslice.data.submodel import WHOLE, Submodels
from fedslice.errors import InputError
from fedslice.heat import Heat, Release
from fedslice.model import Model

BLOCK = 1 << 24  # answers made at once
HEAT = 0x68656174  # a domain of its own: default_rng(seed) is also that of the first round's cohort
EXACT = 1 << 31  # answers made one by one


class Response(NamedTuple):
    """Randomised response: "yes" with probability ``p1`` for a row that is held, ``p2`` for
    others.

    >>> Response(0.75, 0.25).epsilon
    1.0986122886681098
    """

    p1: float
    p2: float

    @property
    def epsilon(self) -> float:
        """Of each row alone."""
        gains = (self.p1, self.p2), (1 - self.p2, 1 - self.p1)
        return max(log(top / low) if low > 0 else inf for top, low in gains if top > 0)

    def estimate(self, yes: np.ndarray, total: float) -> np.ndarray:
        """n of the (weighted) number that said yes, of ``total``."""
        return (yes - total * self.p2) / (self.p1 - self.p2)

    def variance(self, held: np.ndarray, total: float) -> np.ndarray:
        """Of that estimate, from the (squared) weights of those who hold the row, and of all."""
        held = np.clip(held, 0, total)
        spread = held * self.p1 * (1 - self.p1) + (total - held) * self.p2 * (1 - self.p2)
        return spread / (self.p1 - self.p2) ** 2

    def answer(self, held: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
        """What a client that holds the rows ``held`` says of all ``rows``: what a device sends.

        >>> Response(1.0, 0.0).answer(np.array([0, 2]), 4, np.random.default_rng(0)).tolist()
        [True, False, True, False]
        """
        chance = np.full(rows, self.p2)
        chance[held] = self.p1
        return rng.random(rows) < chance


def symmetric(epsilon: float) -> Response:
    """p1 = e^epsilon / (1 + e^epsilon) = 1 - p2: as likely to lie about a row that is held as about
    one that is not.

    >>> round(symmetric(1.0).p1, 4), round(symmetric(1.0).epsilon, 4)
    (0.7311, 1.0)
    """
    if not 0 < epsilon <= 50:
        raise InputError(f"epsilon={epsilon}: give a positive number, such as 1 (of each row)")
    return Response(1 / (1 + exp(-epsilon)), 1 / (1 + exp(epsilon)))


class Summed(NamedTuple):
    """A noisy sum: noise of ``multiplier`` times sqrt(``most``), for clients that put at most
    ``most`` rows into it; ``kind`` is ``"gaussian"`` or ``"skellam"``."""

    multiplier: float
    most: int
    kind: str = "gaussian"

    @property
    def error(self) -> float:
        """Standard error of each count.

        >>> Summed(2.0, most=100).error
        20.0
        """
        return self.multiplier * sqrt(self.most)


class Reports(NamedTuple):
    """What clients told: for each table, and each of its rows, the sums of 1, w and w^2 over those
    who said yes (or, for a noisy sum, the noisy count)."""

    mechanism: Response | Summed
    tally: Mapping[str, np.ndarray]  # float64 [rows, 3]
    weights: np.ndarray  # w of every client that was asked: its examples
    like: Heat  # tables, widths and fields; no counts


def respond(
    population: Population, model: Model, epsilon: float | Response = 1.0, seed: int = 0
) -> Reports:
    """Every client's randomised responses, added up: what a server would receive.

    >>> import fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=400)
    >>> heat = estimate(respond(task.train, task.model, epsilon=2.0))
    >>> [round(float(n)) for n in heat.counts("w")], heat.errors["w"][:, 0].round(1).tolist()
    ([-7, 404], [8.5, 8.5])
    """
    how = epsilon if isinstance(epsilon, Response) else symmetric(epsilon)
    if not 0 <= how.p2 < how.p1 <= 1:
        raise InputError(f"p1={how.p1}, p2={how.p2}: p1 must be larger, both from 0 to 1")
    weights = population.counts[population.counts > 0].astype(np.float64)
    rng = np.random.default_rng((seed, HEAT))
    tally = {
        name: _answers(space, population.counts, model.tables[name].rows, how, rng)
        for name, space in _spaces(population, model).items()
    }
    return Reports(how, _by_table(tally, model), weights, _like(population, model))


def count(
    population: Population,
    model: Model,
    noise: float,
    most: int,
    kind: str = "gaussian",
    seed: int = 0,
) -> Reports:
    """The sum of the clients' capped sets of rows with noise of multiplier ``noise``.

    ``most`` (B) is shared by all tables of a client.

    >>> import fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=400)
    >>> heat = estimate(count(task.train, task.model, noise=2.0, most=2))
    >>> heat.errors["w"][:, 0].round(2).tolist(), heat.release.multiplier
    ([2.83, 2.83], 2.0)
    """
    if not noise > 0 or most < 1 or int(most) != most:
        raise InputError(
            f"noise={noise}, most={most}: give noise above 0 and a whole number of rows, the most"
            " that one client counts for"
        )
    if kind not in ("gaussian", "skellam"):
        raise InputError(f"kind={kind!r}: the noise is 'gaussian' or 'skellam'")
    how, rng = Summed(noise, int(most), kind), np.random.default_rng((seed, HEAT))
    spaces = _spaces(population, model)
    kept = _capped(population, spaces, how.most, seed)
    tally = {}
    for name, space in spaces.items():
        rows = np.bincount(space.ids[space.slots[kept[name]]], minlength=model.tables[name].rows)
        tally[name] = np.repeat((rows + _noise(how, len(rows), rng))[:, None], 3, axis=1)
    weights = population.counts[population.counts > 0].astype(np.float64)
    return Reports(how, _by_table(tally, model), weights, _like(population, model))


def estimate(reports: Reports, floor: float = 1.0) -> Heat:
    """Heat with standard errors.  Estimates below ``floor`` standard errors are taken for so many:
    with less than one, cold rows were seen to diverge in every trial."""
    if not floor >= 1:
        raise InputError(
            f"floor={floor}: below one standard error N / n is noise, and training diverges; use 1"
            " or more"
        )
    how, weights = reports.mechanism, reports.weights
    clients, total = len(weights), float(weights.sum())
    mass, errors = {}, {}
    for table, tally in reports.tally.items():
        if isinstance(how, Summed):
            mass[table] = np.stack([tally[:, 0], np.full(len(tally), np.nan)], 1)
            errors[table] = np.stack([np.full(len(tally), how.error), mass[table][:, 1]], 1)
            continue
        squares = float((weights**2).sum())
        found = [
            how.estimate(tally[:, column], all_of_it)
            for column, all_of_it in enumerate((clients, total, squares))
        ]
        mass[table] = np.stack(found[:2], 1)
        variance = [how.variance(found[0], clients), how.variance(found[2], squares)]
        errors[table] = np.sqrt(np.stack(variance, 1))
    ids = {table: np.arange(len(tally)) for table, tally in reports.tally.items()}
    return reports.like._replace(
        ids=ids, mass=mass, errors=errors, floor=floor, release=_release(how)
    )


def public(heat: Heat) -> Heat:
    """Heat that was public knowledge before, from other sources than these clients: nothing is
    spent on it."""
    return heat._replace(release=Release("taken for public, known without these clients' data"))


def _release(how: Response | Summed) -> Release:
    if isinstance(how, Response):
        return Release(
            f"randomised response, epsilon = {how.epsilon:.3g} of each row alone (a whole set S"
            " costs up to |S| times as much)",
            epsilon=how.epsilon,
        )
    return Release(
        f"a sum of at most {how.most} rows a client with {how.kind} noise of multiplier"
        f" {how.multiplier:g}",
        multiplier=how.multiplier,
        rows=how.most,
        kind=how.kind,
    )


def _spaces(population: Population, model: Model) -> dict[str, Submodels]:
    spaces = population.spaces(model)
    for name in spaces:
        if (rows := model.tables[name].rows) > WHOLE:
            raise InputError(
                f"table {name!r} has {rows:,} rows, and every client would answer for each: up to"
                f" {WHOLE:,} are possible"
            )
    return spaces


def _by_table(spaces: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    return {name: spaces[space] for name, space in model.space_of.items()}


def _like(population: Population, model: Model) -> Heat:
    exact = population.heat(model)
    return exact._replace(ids={}, mass={})


def _answers(
    space: Submodels, counts: np.ndarray, rows: int, how: Response, rng: np.random.Generator
) -> np.ndarray:
    """Sums of 1, w and w^2 over the clients that say yes, for every row."""
    asked = np.flatnonzero(counts)
    if len(asked) * rows > EXACT:
        return _in_law(space, len(asked), rows, how, rng)
    tally = np.zeros((rows, 3))
    each = max(1, BLOCK // rows)
    for start in range(0, len(asked), each):
        some = asked[start : start + each]
        yes = np.empty((len(some), rows), bool)
        for place, client in enumerate(some):
            span = slice(space.offsets[client], space.offsets[client + 1])
            yes[place] = how.answer(space.ids[space.slots[span]], rows, rng)
        weight = counts[some].astype(np.float64)
        tally += (np.stack([np.ones(len(some)), weight, weight**2]) @ yes).T
    return tally


def _in_law(
    space: Submodels, clients: int, rows: int, how: Response, rng: np.random.Generator
) -> np.ndarray:
    """Where clients times rows are too many to draw one by one: how many say yes is a sum of two
    binomial numbers.  Weights cannot be told so."""
    held = np.zeros(rows, np.int64)
    held[space.ids] = np.bincount(space.slots, minlength=len(space.ids))
    yes = rng.binomial(held, how.p1) + rng.binomial(clients - held, how.p2)
    return np.stack([yes, np.full(rows, np.nan), np.full(rows, np.nan)], 1)


def _noise(how: Summed, size: int, rng: np.random.Generator) -> np.ndarray:
    if how.kind == "gaussian":
        return rng.normal(0, how.error, size)
    half = how.error**2 / 2
    return (rng.poisson(half, size) - rng.poisson(half, size)).astype(np.float64)


def _capped(
    population: Population, spaces: Mapping[str, Submodels], most: int, seed: int
) -> dict[str, np.ndarray]:
    """For each space, which entries of its list of S(i) are counted: at most ``most`` of a client,
    over all spaces, those with the smallest hashes of client and row, so that it does not depend
    on who else is there."""
    owners, ranks, names = [], [], []
    key = splitmix(
        splitmix(np.array([seed], np.uint64)) + population.numbers.astype(np.uint64) * MIX1
    )
    for place, space in enumerate(spaces.values()):
        owner = np.repeat(np.arange(len(population)), space.sizes)
        row = space.ids[space.slots].astype(np.uint64) + np.uint64(place << 56)
        owners.append(owner)
        ranks.append(splitmix(key[owner] + row * GOLDEN))
        names.append(np.full(len(owner), place))
    owner, rank, name_of = (np.concatenate(parts) for parts in (owners, ranks, names))
    order = np.lexsort((rank, owner))
    first = np.searchsorted(owner[order], np.arange(len(population)))
    within = np.arange(len(order)) - first[owner[order]]
    kept = np.zeros(len(order), bool)
    kept[order[within < most]] = True
    return {name: kept[name_of == place] for place, name in enumerate(spaces)}
