"""MovieLens-1M: the reader on files in the official format, the download, the generator."""

import hashlib
import io
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedslice.tasks import ratings as module
from fedslice.tasks.ratings import Ratings, features, fetch_ml1m, read_ml1m, synthetic

RATINGS = "2::30::3::978302109\n1::10::5::978300760\n1::30::4::978300019\n10::10::1::978300000\n"
USERS = "1::F::1::10::48067\n2::M::56::16::70072\n10::M::25::15::55117\n"
MOVIES = "10::Toy Story (1995)::Animation\n20::Unrated (1990)::Drama\n30::Misérables, Les::Drama\n"


def write(folder: Path, ratings: str = RATINGS, users: str = USERS, movies: str = MOVIES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("ratings", ratings), ("users", users), ("movies", movies)):
        (folder / f"{name}.dat").write_bytes(text.encode("latin-1"))
    return folder


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("ratings", RATINGS), ("users", USERS), ("movies", MOVIES)):
            archive.writestr(f"ml-1m/{name}.dat", text.encode("latin-1"))
    return path


def check(data: Ratings) -> None:
    assert data.user.tolist() == [0, 0, 1, 2]
    assert data.movie.tolist() == [1, 0, 1, 0]  # user 1 rated movie 30 before movie 10
    assert data.rating.tolist() == [4, 5, 3, 1]
    assert data.time.tolist() == [978300019, 978300760, 978302109, 978300000]
    assert data.gender.tolist() == [0, 1, 1]
    assert data.age.tolist() == [0, 6, 2]
    assert data.user_names.tolist() == ["1", "2", "10"]  # numeric order, not that of strings
    assert data.movie_names.tolist() == ["10", "30"]  # unrated movies get no index
    assert data.titles.tolist() == ["Toy Story (1995)", "Misérables, Les"]
    dtypes = [column.dtype.name for column in data[:6]]
    assert dtypes == ["int32", "int32", "float32", "int64", "int8", "int8"]


def test_reads_a_folder_a_parent_and_a_zip(tmp_path: Path) -> None:
    check(read_ml1m(write(tmp_path / "parent" / "ml-1m")))
    check(read_ml1m(tmp_path / "parent"))
    (tmp_path / "zipped").mkdir()
    check(read_ml1m(write_zip(tmp_path / "zipped" / "ml-1m.zip")))
    check(read_ml1m(tmp_path / "zipped"))


def test_tolerates_windows_lines_blank_ends_and_byte_order_marks(tmp_path: Path) -> None:
    texts = [text.replace("\n", "\r\n") + "\r\n\r\n" for text in (RATINGS, USERS, MOVIES)]
    check(read_ml1m(write(tmp_path, *("\xef\xbb\xbf" + text for text in texts))))


def test_a_missing_last_line_end_and_a_repeated_rating_are_fine(tmp_path: Path) -> None:
    check(read_ml1m(write(tmp_path, RATINGS.rstrip())))
    twice = read_ml1m(write(tmp_path, RATINGS + "1::10::2::978300761\n"))
    assert twice.movie.tolist() == [1, 0, 0, 1, 0]


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = "1::30::4::5\n1::10::5::5\n2::10::1::5\n10::10::1::5\n"
    assert read_ml1m(write(tmp_path, text)).movie.tolist() == [1, 0, 0, 0]


BAD = [
    (RATINGS + "1::10::5\n", USERS, MOVIES, "ratings.dat line 5: .*'1::10::5'"),
    (RATINGS + "1::10::5::9::9\n", USERS, MOVIES, "ratings.dat line 5"),
    ("1::10::5\n1::10::5::9::9\n", USERS, MOVIES, "ratings.dat line 1"),
    ("1::10::4.5::9\n" + RATINGS, USERS, MOVIES, "line 1: .*whole numbers"),
    ("1::10::6::9\n" + RATINGS, USERS, MOVIES, "line 1: .*rating 1 to 5"),
    ("1::10::5::9\n\n" + RATINGS, USERS, MOVIES, "ratings.dat line 2"),
    ("", USERS, MOVIES, "ratings.dat line 1"),
    (RATINGS[:-32], USERS, MOVIES, "line 3: .*cut off, download https"),
    (RATINGS[:60], USERS, MOVIES, "cut off: 1 users of users.dat have no rating. Download https"),
    (RATINGS + "11::10::5::9\n", USERS, MOVIES, "has user 11, not listed in users.dat"),
    (RATINGS + "1::11::5::9\n", USERS, MOVIES, "has movie 11, not listed in movies.dat"),
    (RATINGS, USERS.replace("F", "X"), MOVIES, "gender 'X': expected one of"),
    (RATINGS, USERS.replace("56", "57"), MOVIES, "age '57': expected one of"),
    (RATINGS, USERS + "11::M\n", MOVIES, "users.dat line 4: expected 5 fields"),
    (RATINGS, USERS, "10::Toy\n" + MOVIES, "movies.dat line 1: expected 3 fields"),
]


@pytest.mark.parametrize(("ratings", "users", "movies", "message"), BAD, ids=[case[-1] for case in BAD])
def test_bad_content_is_named(tmp_path: Path, ratings: str, users: str, movies: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_ml1m(write(tmp_path, ratings, users, movies))


def test_missing_files_are_listed_with_their_address(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"movies.dat and ratings.dat and users.dat not"):
        read_ml1m(tmp_path / "nowhere")
    (write(tmp_path) / "users.dat").unlink()
    with pytest.raises(FileNotFoundError, match=f"^users.dat not found .*{module.URL}"):
        read_ml1m(tmp_path)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ml-1m.zip")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"damaged .* again"):
        read_ml1m(path)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes | OSError) -> list[str]:
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        if isinstance(content, OSError):
            raise content
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_fetch_downloads_once_and_replaces_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_zip(tmp_path / "made.zip").read_bytes()
    monkeypatch.setattr(module, "MD5", hashlib.md5(content).hexdigest())
    asked = serve(monkeypatch, content)
    target = tmp_path / "data" / "ml-1m.zip"
    target.parent.mkdir()
    target.write_bytes(content[:50])
    assert fetch_ml1m(target.parent) == fetch_ml1m(target.parent) == target
    assert asked == [module.URL]
    assert list(target.parent.iterdir()) == [target]
    check(read_ml1m(target))


def test_fetch_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"not the file")
    with pytest.raises(ValueError, match=f"expected {module.MD5}"):
        fetch_ml1m(tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_fetch_without_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, urllib.error.URLError("no route"))
    with pytest.raises(ConnectionError) as caught:
        fetch_ml1m(tmp_path / "data")
    for part in ("no route", module.URL, str(tmp_path / "data"), "--data-dir", "--synthetic"):
        assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


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


def test_features_name_what_they_hold(tmp_path: Path) -> None:
    ids, rows, names = features(read_ml1m(write(tmp_path)))
    assert ids.dtype == np.int32
    assert (ids.shape, rows, len(set(names))) == ((4, 5), 29, 29)
    assert names[ids[1]].tolist() == [
        "gender=F",
        "age=1",
        "movie=Toy Story (1995)",
        "gender=F & movie=Toy Story (1995)",
        "age=1 & movie=Toy Story (1995)",
    ]
    assert names[ids[2, 4]] == "age=56 & movie=Misérables, Les"


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
