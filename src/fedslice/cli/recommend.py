"""What would a new user like?  The user's vector is rebuilt from a few ratings, with a trained
model and nothing else.

    u <- u - rate * gradient of the mean of (u . q_m - rating_m)^2 over a batch, q frozen
    score of a film: u . q_m

That is R of FedRecon (Singhal et al. 2021), on all of the user's ratings: what a device would do.
"""

import difflib
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from fedslice.cli.export import Exported, read_model
from fedslice.client.adapt import reconstruction
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation.gain import model_of
from fedslice.files.guard import csv_rows, shown
from fedslice.models.factorisation import HIGHEST, factorisation
from fedslice.types import Work

TABLE, FEWEST = "item", 10


class Recommendation(NamedTuple):
    """An item by name, its score in stars, and how many clients of the training had rated it."""

    name: str
    score: float
    heat: int


def recommend(
    model: Exported,
    ratings: Mapping[str, float],
    *,
    top: int = 10,
    steps: int = 50,
    rate: float = 0.1,
    batch: int = 5,
    fewest: int = FEWEST,
    seed: int = 0,
) -> list[Recommendation]:
    """The ``top`` items that the user has not rated, best first, among those that ``fewest``
    clients had rated.

    ``ratings`` maps names of items, as in the training data, to stars.  ``rate`` and ``batch`` are
    those of the reconstruction in training, ``steps`` the most that it has there: few ratings are
    gone through as often as it takes.

    >>> from fedslice.cli.export import Rows
    >>> vectors = np.array([[2.0, 0], [1.9, 0], [0, 2.0]], np.float32)
    >>> rows = Rows(np.arange(3), ["Alien", "Aliens", "Amour"], np.full(3, 20), vectors)
    >>> model = Exported({}, {"item": rows})
    >>> [each.name for each in recommend(model, {"Alien": 5.0}, steps=200)]
    ['Aliens', 'Amour']
    """
    if TABLE not in model.tables or model.tables[TABLE].values.ndim != 2:
        raise InputError(
            "this model has no table 'item' of vectors: train one with fedslice run movielens-mf"
        )
    rows = model.tables[TABLE]
    known = {name: place for place, name in enumerate(rows.names)}
    places = np.array([_place(name, known) for name in ratings], np.int32)
    stars = np.array(list(ratings.values()), np.float32)
    if not len(places):
        raise InputError("there are no ratings: give at least one item with its stars")
    for name, value in ratings.items():
        if not 0 < value <= HIGHEST:
            raise InputError(
                f"{name!r} has the rating {value}: stars are above 0, up to {HIGHEST:g}"
            )
    if not rate > 0:
        raise InputError(f"rate={rate} is not possible: give a positive number")
    if top < 1 or fewest < 0:
        raise InputError(f"top={top} must be at least 1, and fewest={fewest} not negative")
    person = Population.from_arrays(np.zeros(len(places), np.int32), movie=places, rating=stars)
    mine = factorisation(len(rows.ids), rows.values.shape[1])
    way = reconstruction(mine, optax.sgd(rate), Work(steps=steps, batch=batch), split="none")
    held = np.unique(places)
    user = model_of(way, {TABLE: jnp.asarray(rows.values[held])}, person, seed=seed)["user"]
    scores = rows.values @ np.asarray(user)
    if not np.isfinite(scores).all():
        raise InputError(
            f"rebuilding the user's vector diverged at rate={rate}: give a smaller one"
        )
    left = (rows.heat >= fewest) & ~np.isin(np.arange(len(scores)), places)
    if not left.any():
        raise InputError(
            f"no other item was rated by {fewest} clients of the training: give a smaller fewest"
        )
    best = np.argsort(np.where(left, -scores, np.inf), kind="stable")[: min(top, left.sum())]
    return [Recommendation(rows.names[i], float(scores[i]), int(rows.heat[i])) for i in best]


def _place(name: str, known: Mapping[str, int]) -> int:
    """Where the item of this name stands; "the matrix" will do for "Matrix, The (1999)" if no other
    has that name."""
    if name in known:
        return known[name]
    wanted = _plain(name)
    alike = [each for each in known if wanted in (_plain(each), _plain(_YEAR.sub("", each)))]
    if len(alike) == 1:
        return known[alike[0]]
    if alike:
        raise InputError(
            f"the model knows several items {name!r}: say which of {' | '.join(alike[:5])}"
        )
    near = [each for each in known if wanted and wanted in _plain(each)] or _nearest(wanted, known)
    hint = f"; is it one of: {' | '.join(near[:5])}?" if near else ""
    raise InputError(f"the model knows no item {name!r}{hint}")


def _nearest(wanted: str, known: Mapping[str, int]) -> list[str]:
    """Names like this one, as people write them: without the year, the article in front."""
    written = {_plain(_YEAR.sub("", each)): each for each in known}
    return [
        written[near] for near in difflib.get_close_matches(wanted, list(written), n=3, cutoff=0.6)
    ]


_YEAR = re.compile(r"\s*\((?:\d{4}|\D[^)]*)\)\s*$")  # "(1999)", or another title in brackets
_ARTICLE = re.compile(r"^(.*), (the|a|an|le|la|les|il|der|die|das|el)( \(.*)?$")


def _plain(name: str) -> str:
    """Small letters, and the article in front."""
    return _ARTICLE.sub(r"\2 \1\3", name.casefold().strip())


def read_ratings(file: Path) -> dict[str, float]:
    """A user's ratings from a CSV with a header: a column ``title`` (or item, movie, name) and a
    column ``rating``."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = file.read_text(encoding="latin-1")
    lines = csv_rows(io.StringIO(text), file)
    header = [cell.strip().casefold() for cell in next(lines, (1, []))[1]]
    title = next(
        (header.index(name) for name in ("title", "item", "movie", "name") if name in header), None
    )
    if title is None or "rating" not in header:
        first = shown(",".join(header))
        raise InputError(
            f"{file}: the first line must name the columns title and rating, but is {first}"
        )
    value, found = header.index("rating"), {}
    for number, row in lines:
        if not any(cell.strip() for cell in row):
            continue
        try:
            name, stars = row[title].strip(), float(row[value])
        except (IndexError, ValueError):
            name, stars = "", math.nan
        if not name or not math.isfinite(stars):
            raise InputError(
                f"{file} line {number}: expected a title and a number, got {shown(','.join(row))}"
            )
        found[name] = stars
    return found


def trained(folder: Path) -> tuple[Exported, dict[str, Any]]:
    """The model of a run folder, and how its clients rebuild their vectors."""
    model = read_model(folder)
    names = {"reconstruct_steps": "steps", "reconstruct_rate": "rate", "batch": "batch"}
    return model, {
        ours: model.settings[theirs] for theirs, ours in names.items() if theirs in model.settings
    }
