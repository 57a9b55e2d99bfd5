"""What would a new user like?  The user's vector is rebuilt from a few ratings, with a trained model and nothing else.

    u <- argmin over a few steps of sum (u . q_m - rating_m)^2,  q frozen;     score of a film m: u . q_m

That is R of FedRecon (Singhal et al. 2021), on all of the user's ratings: what a device would do.
"""

import csv
import difflib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from fedslice.client.adapt import reconstruction
from fedslice.errors import InputError
from fedslice.export import Exported, read_model
from fedslice.models.factorisation import factorisation
from fedslice.personal import model_of
from fedslice.population import Population

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
    """The ``top`` items that the user has not rated, best first, among those that ``fewest`` clients had rated.

    ``ratings`` maps names of items, as in the training data, to stars.  ``steps``, ``rate`` and ``batch`` are those of
    the reconstruction in training.

    >>> from fedslice.export import Rows
    >>> vectors = np.array([[2.0, 0], [1.9, 0], [0, 2.0]], np.float32)
    >>> model = Exported({}, {"item": Rows(np.arange(3), ["Alien", "Aliens", "Amour"], np.full(3, 20), vectors)})
    >>> [each.name for each in recommend(model, {"Alien": 5.0}, steps=200)]
    ['Aliens', 'Amour']
    """
    if TABLE not in model.tables or model.tables[TABLE].values.ndim != 2:
        raise InputError("this model has no table 'item' of vectors: train one with fedslice run movielens-mf")
    rows = model.tables[TABLE]
    known = {name: place for place, name in enumerate(rows.names)}
    places = np.array([_place(name, known) for name in ratings], np.int32)
    stars = np.array(list(ratings.values()), np.float32)
    if not len(places):
        raise InputError("there are no ratings: give at least one item with its stars")
    if not np.isfinite(stars).all():
        raise InputError("a rating is not a finite number")
    if top < 1 or fewest < 0:
        raise InputError(f"top={top} must be at least 1, and fewest={fewest} not negative")
    person = Population.from_arrays(np.zeros(len(places), np.int32), movie=places, rating=stars)
    mine = factorisation(len(rows.ids), rows.values.shape[1])
    way = reconstruction(mine, optax.sgd(rate), steps=steps, batch=batch, split="none")
    held = np.unique(places)
    user = model_of(way, {TABLE: jnp.asarray(rows.values[held])}, person, seed=seed)["user"]
    scores = rows.values @ np.asarray(user)
    scores[places] = -np.inf
    scores[rows.heat < fewest] = -np.inf
    best = np.argsort(-scores, kind="stable")[:top]
    return [Recommendation(rows.names[i], float(scores[i]), int(rows.heat[i])) for i in best if np.isfinite(scores[i])]


def _place(name: str, known: Mapping[str, int]) -> int:
    """Where the item of this name stands; "the matrix" will do for "Matrix, The (1999)" if no other has that name."""
    if name in known:
        return known[name]
    wanted = _plain(name)
    alike = [each for each in known if wanted in (_plain(each), _plain(_YEAR.sub("", each)))]
    if len(alike) == 1:
        return known[alike[0]]
    near = alike or [each for each in known if wanted in _plain(each)]
    near = near or difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"; is it one of: {' | '.join(near[:5])}?" if near else ""
    raise InputError(f"the model knows no item {name!r}{hint}")


_YEAR = re.compile(r"\s*\((?:\d{4}|\D[^)]*)\)\s*$")  # "(1999)", or another title in brackets
_ARTICLE = re.compile(r"^(.*), (the|a|an|le|la|les|il|der|die|das|el)( \(.*)?$")


def _plain(name: str) -> str:
    """Small letters, and the article in front."""
    return _ARTICLE.sub(r"\2 \1\3", name.casefold().strip())


def read_ratings(file: Path) -> dict[str, float]:
    """A user's ratings from a CSV with a header: a column ``title`` (or item, movie, name) and a column ``rating``."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = file.read_text(encoding="latin-1")
    lines = csv.reader(io.StringIO(text))
    header = [cell.strip().casefold() for cell in next(lines, [])]
    title = next((header.index(name) for name in ("title", "item", "movie", "name") if name in header), None)
    if title is None or "rating" not in header:
        raise InputError(f"{file}: the first line must name the columns title and rating, but is {','.join(header)!r}")
    value, found = header.index("rating"), {}
    for number, row in enumerate(lines, 2):
        if not any(cell.strip() for cell in row):
            continue
        try:
            found[row[title].strip()] = float(row[value])
        except (IndexError, ValueError):
            raise InputError(f"{file} line {number}: expected a title and a number, got {','.join(row)!r}") from None
    return found


def trained(folder: Path) -> tuple[Exported, dict[str, Any]]:
    """The model of a run folder, and how its clients rebuild their vectors."""
    model, file = read_model(folder), folder / "settings.json"
    settings = json.loads(file.read_text())["settings"] if file.exists() else {}
    names = {"reconstruct_steps": "steps", "reconstruct_rate": "rate", "batch": "batch"}
    return model, {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
