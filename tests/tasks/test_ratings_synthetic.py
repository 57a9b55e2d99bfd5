"""The generator of ratings: the published figures of MovieLens-1M, and the taste that matrix
factorisation finds."""

import numpy as np
import pytest

from fedslice.tasks.generators.ratings import synthetic
from fedslice.tasks.movielens_lr import features
from fedslice.tasks.readers.ratings import Ratings


@pytest.fixture(scope="module")
def full() -> Ratings:
    return synthetic(seed=0)


def test_synthetic_has_the_published_counts(full: Ratings) -> None:
    assert np.bincount(full.gender).tolist() == [1709, 4331]
    assert np.bincount(full.age).tolist() == [222, 1103, 2096, 1193, 550, 496, 380]
    assert len(full.user) == pytest.approx(1_000_209, rel=0.01)
    per_user, per_movie = np.bincount(full.user), np.bincount(full.movie)
    assert (len(per_user), len(per_movie)) == (6040, 3706)
    assert (per_user.min(), per_user.max()) == (20, 2314)
    assert np.median(per_user) == pytest.approx(96, abs=1)
    assert per_movie.min() == 1
    assert per_movie.max() == pytest.approx(3428, rel=0.03)
    assert np.median(per_movie) == pytest.approx(123, abs=5)
    assert (per_movie == 1).sum() == pytest.approx(114, abs=20)


def test_synthetic_pairs_are_distinct_and_sorted(full: Ratings) -> None:
    pairs = full.user.astype(np.int64) * 3706 + full.movie
    assert len(np.unique(pairs)) == len(pairs)
    assert np.array_equal(np.lexsort((full.time, full.user)), np.arange(len(pairs)))


def test_synthetic_stars(full: Ratings) -> None:
    shares = np.bincount(full.rating.astype(int), minlength=6)[1:] / len(full.rating)
    assert shares == pytest.approx([0.056, 0.108, 0.261, 0.349, 0.226], abs=1e-4)
    counts = np.bincount(full.movie)
    means = np.bincount(full.movie, full.rating) / counts
    assert np.corrcoef(counts, means)[0, 1] > 0.25  # popular movies are the better rated


@pytest.mark.parametrize("scale", [0.002, 0.05, 0.3])
def test_synthetic_scales(scale: float) -> None:
    data = synthetic(seed=3, scale=scale)
    users, movies = len(data.gender), len(data.titles)
    assert (users, movies) == (round(6040 * scale), round(3706 * scale**0.5))
    per_user, per_movie = np.bincount(data.user), np.bincount(data.movie)
    assert (len(per_user), len(per_movie)) == (users, movies)
    assert per_user.min() >= 20
    assert per_user.max() < movies
    assert per_movie.min() >= 1
    assert len(np.unique(data.user.astype(np.int64) * movies + data.movie)) == len(data.user)
    assert (data.rating >= 4).mean() == pytest.approx(0.575, abs=0.01)
    assert data.gender.mean() == pytest.approx(4331 / 6040, abs=0.1)


def test_synthetic_depends_on_the_seed_alone() -> None:
    one, same, other = (synthetic(seed, scale=0.02) for seed in (1, 1, 2))
    for first, second in zip(one, same, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
    assert not np.array_equal(one.movie, other.movie)


def test_synthetic_refuses_a_scale_that_leaves_nobody() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.002"):
        synthetic(scale=0.001)


def test_heat_dispersion_of_the_training_split_is_the_number_of_men(full: Ratings) -> None:
    ids, rows, names = features(full)
    assert rows == len(names) == 37_069
    train = np.random.default_rng(0).random(len(ids)) < 0.8
    # Pairs are distinct, so a row that names a movie is held by as many users as it has ratings.
    heat = np.bincount(ids[train, 2:].ravel(), minlength=rows)
    _, first = np.unique(full.user[train], return_index=True)
    heat += np.bincount(ids[train][first, :2].ravel(), minlength=rows)
    assert heat.max() / heat[heat > 0].min() == 4331
    assert names[heat.argmax()] == "gender=M"


def solve(
    index: np.ndarray, size: int, features: np.ndarray, target: np.ndarray, penalty: list[float]
) -> np.ndarray:
    """Ridge regression for each value of ``index`` on its own rows."""
    width = features.shape[1]
    gram = np.empty((size, width, width))
    right = np.empty((size, width))
    for i in range(width):
        right[:, i] = np.bincount(index, features[:, i] * target, minlength=size)
        for j in range(width):
            gram[:, i, j] = np.bincount(index, features[:, i] * features[:, j], minlength=size)
    return np.linalg.solve(gram + np.diag(penalty), right[..., None])[..., 0]


def error(data: Ratings, rank: int) -> float:
    """RMSE on a held-out tenth of means and ``rank`` factors, by alternating least squares."""
    rng = np.random.default_rng(0)
    test = rng.random(len(data.user)) < 0.1
    users, movies = len(data.gender), len(data.titles)
    user, movie, rating = (column[~test] for column in (data.user, data.movie, data.rating))
    mean = float(rating.mean())
    of_user, of_movie = np.zeros((users, 1 + rank)), np.zeros((movies, 1 + rank))
    of_movie[:, 1:] = 0.1 * rng.standard_normal((movies, rank))
    for _ in range(10):
        known = np.hstack([np.ones((len(movie), 1)), of_movie[movie, 1:]])
        of_user = solve(
            user, users, known, rating - mean - of_movie[movie, 0], [5.0] + [8.0] * rank
        )
        known = np.hstack([np.ones((len(user), 1)), of_user[user, 1:]])
        of_movie = solve(
            movie, movies, known, rating - mean - of_user[user, 0], [3.0] + [8.0] * rank
        )
    left, right = of_user[data.user[test]], of_movie[data.movie[test]]
    guess = mean + left[:, 0] + right[:, 0] + (left[:, 1:] * right[:, 1:]).sum(1)
    return float(np.sqrt(np.mean((guess - data.rating[test]) ** 2)))


@pytest.mark.every
def test_taste_is_what_three_factors_find_beyond_means() -> None:
    plain, tasteful = (synthetic(seed=0, scale=0.25, taste=taste) for taste in (False, True))
    assert error(tasteful, 0) == pytest.approx(0.909, abs=0.02)
    assert error(tasteful, 3) == pytest.approx(0.845, abs=0.02)
    assert error(plain, 3) > error(plain, 0) - 0.005  # without taste there is nothing to find
    assert np.array_equal(plain.movie, tasteful.movie)
    shares = [np.bincount(data.rating.astype(int)) for data in (plain, tasteful)]
    assert np.abs(shares[0] - shares[1]).max() <= 2
