"""MovieLens: the readers on files in the official formats, the cache, the download."""

import gzip
import hashlib
import io
import urllib.error
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fedslice.tasks.readers import ratings as module
from fedslice.tasks.readers.files import fetch
from fedslice.tasks.readers.ratings import DOWNLOAD, Ratings, read

RATINGS = "2::30::3::978302109\n1::10::5::978300760\n1::30::4::978300019\n10::10::1::978300000\n"
USERS = "1::F::1::10::48067\n2::M::56::16::70072\n10::M::25::15::55117\n"
MOVIES = (
    "10::Toy Story (1995)::Animation|Comedy\n20::Unrated (1990)::War\n30::Misérables, Les::Drama\n"
)


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
    assert data.genre_names.tolist() == ["Animation", "Comedy", "Drama"]
    assert data.genres.tolist() == [[0, 1], [2, -1]]
    dtypes = [column.dtype.name for column in data[:6]]
    assert dtypes == ["int32", "int32", "float32", "int64", "int8", "int8"]


def test_reads_a_folder_a_parent_and_a_zip(tmp_path: Path) -> None:
    check(read(write(tmp_path / "parent" / "ml-1m")))
    check(read(tmp_path / "parent"))
    (tmp_path / "zipped").mkdir()
    check(read(write_zip(tmp_path / "zipped" / "ml-1m.zip")))
    check(read(tmp_path / "zipped"))


def test_tolerates_windows_lines_blank_ends_and_byte_order_marks(tmp_path: Path) -> None:
    texts = [text.replace("\n", "\r\n") + "\r\n\r\n" for text in (RATINGS, USERS, MOVIES)]
    check(read(write(tmp_path, *("\xef\xbb\xbf" + text for text in texts))))


def test_a_missing_last_line_end_and_a_repeated_rating_are_fine(tmp_path: Path) -> None:
    check(read(write(tmp_path, RATINGS.rstrip())))
    twice = read(write(tmp_path, RATINGS + "1::10::2::978300761\n"))
    assert twice.movie.tolist() == [1, 0, 0, 1, 0]


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = "1::30::4::5\n1::10::5::5\n2::10::1::5\n10::10::1::5\n"
    assert read(write(tmp_path, text)).movie.tolist() == [1, 0, 0, 0]


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
    (RATINGS, USERS.replace("F", "X"), MOVIES, "gender 'X' for user '1': expected one of"),
    (RATINGS, USERS.replace("56", "57"), MOVIES, "age '57' for user '2': expected one of"),
    (RATINGS, USERS + "11::M\n", MOVIES, "users.dat line 4: expected 5 fields"),
    (RATINGS, USERS, "10::Toy\n" + MOVIES, "movies.dat line 1: expected 3 fields"),
]


@pytest.mark.parametrize(
    ("ratings", "users", "movies", "message"), BAD, ids=[case[-1] for case in BAD]
)
def test_bad_content_is_named(
    tmp_path: Path, ratings: str, users: str, movies: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, ratings, users, movies))


def test_missing_files_are_listed_with_their_address(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=f"ratings.dat or .*not found .*u.data.*ratings.csv.*{module.SITE}"
    ):
        read(tmp_path / "nowhere")
    (write(tmp_path) / "users.dat").unlink()
    with pytest.raises(FileNotFoundError, match=f"^users.dat not found .*{DOWNLOAD.url}"):
        read(tmp_path)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ml-1m.zip")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"damaged .* again"):
        read(path)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes | OSError) -> list[str]:
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        if isinstance(content, OSError):
            raise content
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_fetch_downloads_once_and_replaces_a_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_zip(tmp_path / "made.zip").read_bytes()
    download = replace(DOWNLOAD, digest=f"md5:{hashlib.md5(content).hexdigest()}")
    asked = serve(monkeypatch, content)
    target = tmp_path / "data" / "ml-1m.zip"
    target.parent.mkdir()
    target.write_bytes(content[:50])
    assert fetch(download, target.parent) == fetch(download, target.parent) == target
    assert asked == [DOWNLOAD.url]
    assert list(target.parent.iterdir()) == [target]
    check(read(target))


def test_fetch_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"not the file")
    with pytest.raises(ValueError, match=f"expected {DOWNLOAD.digest}"):
        fetch(DOWNLOAD, tmp_path / "data")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_fetch_without_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, urllib.error.URLError("no route"))
    with pytest.raises(ConnectionError) as caught:
        fetch(DOWNLOAD, tmp_path / "data")
    for part in ("no route", DOWNLOAD.url, str(tmp_path / "data"), "--data-dir", "--synthetic"):
        assert part in str(caught.value)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_the_second_start_does_not_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    check(read(tmp_path))
    monkeypatch.setattr(module, "_parse", lambda form, files: pytest.fail("parsed again"))
    check(read(tmp_path))


def test_new_content_is_parsed(tmp_path: Path) -> None:
    check(read(write(tmp_path)))
    assert read(write(tmp_path, RATINGS.replace("::5::", "::2::"))).rating.tolist() == [4, 2, 3, 1]
    titles = read(write(tmp_path, movies=MOVIES.replace("Toy", "Tin"))).titles
    assert titles.tolist() == ["Tin Story (1995)", "Misérables, Les"]


@pytest.mark.parametrize("size", [3, 7, 40])
def test_lines_may_straddle_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK", size)
    text = "\xef\xbb\xbf" + RATINGS.replace("\n", "\r\n") + "\r\n\r\n"
    check(read(write(tmp_path, text)))
    check_latest(read(write_latest(tmp_path / "ml-latest", LATEST_RATINGS.replace("\n", "\r\n"))))
    with pytest.raises(ValueError, match=r"ratings\.dat line 5"):
        read(write(tmp_path, RATINGS + "1::10::5\n" + RATINGS))


# ml-100k: tab-separated ratings, users with their age in years, films with flags of genre, latin-1.
DATA = "2\t30\t3\t881250949\n1\t10\t5\t881250950\n1\t30\t4\t881250949\n"
PEOPLE = "1|24|F|technician|85711\n2|56|M|other|T8H1N\n"
ITEMS = [
    (
        "10",
        "Toy Story (1995)",
        "01-Jan-1995",
        "",
        "http://example.org/?Toy%20Story",
        *"0001110000000000000",
    ),
    ("20", "unknown", "", "", "", *"1000000000000000000"),
    (
        "30",
        "Misérables, Les (1995)",
        "01-Jan-1995",
        "",
        "http://example.org/",
        *"0000000010000000000",
    ),
]


def write_100k(
    folder: Path, data: str = DATA, people: str = PEOPLE, items: list[tuple[str, ...]] = ITEMS
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join("|".join(item) + "\n" for item in items)
    for name, content in (("u.data", data), ("u.user", people), ("u.item", text)):
        (folder / name).write_bytes(content.encode("latin-1"))
    return folder


def check_100k(data: Ratings) -> None:
    assert data.user.tolist() == [0, 0, 1]
    assert data.movie.tolist() == [1, 0, 1]
    assert data.rating.tolist() == [4, 5, 3]
    assert data.time.tolist() == [881250949, 881250950, 881250949]
    assert data.gender.tolist() == [0, 1]
    assert data.age.tolist() == [1, 6]  # 18 to 24, 56 and above
    assert data.titles.tolist() == ["Toy Story (1995)", "Misérables, Les (1995)"]
    names = data.genre_names
    assert [names[row[row >= 0]].tolist() for row in data.genres] == [
        ["Animation", "Children's", "Comedy"],
        ["Drama"],
    ]


def test_reads_ml_100k(tmp_path: Path) -> None:
    check_100k(read(write_100k(tmp_path / "parent" / "ml-100k")))
    check_100k(read(tmp_path / "parent"))
    check_100k(read(tmp_path / "parent" / "ml-100k" / "u.data"))


def test_ml_100k_with_windows_lines_gzip_or_in_a_zip(tmp_path: Path) -> None:
    folder = write_100k(
        tmp_path / "plain", DATA.replace("\n", "\r\n") + "\r\n", PEOPLE.replace("\n", "\r\n")
    )
    check_100k(read(folder))
    packed = tmp_path / "packed"
    packed.mkdir()
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as archive:
        for file in (file for file in folder.iterdir() if file.is_file()):
            (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            archive.write(file, f"ml-100k/{file.name}")
    check_100k(read(packed))
    check_100k(read(tmp_path / "ml-100k.zip"))


def test_ages_in_years_become_the_groups_of_ml_1m(tmp_path: Path) -> None:
    ages = [7, 17, 18, 24, 25, 34, 35, 44, 45, 49, 50, 55, 56, 73]
    people = "".join(f"{user}|{age}|M|other|0\n" for user, age in enumerate(ages, 1))
    data = "".join(f"{user}\t10\t3\t{user}\n" for user in range(1, len(ages) + 1))
    assert read(write_100k(tmp_path, data, people)).age.tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
        6,
        6,
    ]


BAD_100K = [
    (
        DATA + "1\t10\t5\n",
        PEOPLE,
        ITEMS,
        r"u.data line 4: expected user\tmovie\trating\ttime, .*download .*ml-100k.zip",
    ),
    (DATA.replace("\t", " "), PEOPLE, ITEMS, "u.data line 1"),
    (DATA + "3\t10\t5\t9\n", PEOPLE, ITEMS, "user 3, not listed in u.user"),
    (DATA, PEOPLE + "3|20|M|other|0\n", ITEMS, "cut off: 1 users of u.user"),
    (
        DATA,
        PEOPLE.replace("24", "old"),
        ITEMS,
        "u.user has age 'old' for user '1': expected a number of years",
    ),
    (DATA, PEOPLE.replace("F", "?"), ITEMS, r"u.user has gender '\?'"),
    (DATA, PEOPLE, [item[:-1] for item in ITEMS], "u.item line 1: expected 24 fields"),
    (DATA, PEOPLE, ITEMS[1:], "movie 10, not listed in u.item"),
]


@pytest.mark.parametrize(
    ("data", "people", "items", "message"), BAD_100K, ids=[case[-1] for case in BAD_100K]
)
def test_bad_content_of_ml_100k_is_named(
    tmp_path: Path, data: str, people: str, items: list[tuple[str, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write_100k(tmp_path, data, people, items))


# ml-latest and its kin: CSV with a header, half stars, quoted titles, UTF-8, nothing about the
# users.
LATEST_RATINGS = "userId,movieId,rating,timestamp\n2,40,0.5,5\n1,10,4.5,9\n1,30,4.0,5\n1,20,5,5\n"
LATEST_MOVIES = (
    'movieId,title,genres\n10,"American President, The (1995)",Comedy|Drama\n20,"""Great'
    ' Performances"" Cats (1998)",(no genres listed)\n30,Amélie 😀,Comedy\n40,Plain (2000),War\n'
)


def write_latest(folder: Path, ratings: str = LATEST_RATINGS, movies: str = LATEST_MOVIES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("ratings", ratings), ("movies", movies)):
        (folder / f"{name}.csv").write_bytes(text.encode())
    return folder


def check_latest(data: Ratings) -> None:
    assert data.user.tolist() == [0, 0, 0, 1]
    assert data.movie.tolist() == [2, 1, 0, 3]  # equal times keep the order of the file
    assert data.rating.tolist() == [4, 5, 4.5, 0.5]
    assert (data.gender.tolist(), data.age.tolist()) == ([-1, -1], [-1, -1])
    assert data.user_names.tolist() == ["1", "2"]
    titles = [
        "American President, The (1995)",
        '"Great Performances" Cats (1998)',
        "Amélie 😀",
        "Plain (2000)",
    ]
    assert data.titles.tolist() == titles
    assert data.genre_names.tolist() == ["Comedy", "Drama", "War"]
    assert data.genres.tolist() == [[0, 1], [-1, -1], [0, -1], [2, -1]]


def test_reads_ml_latest(tmp_path: Path) -> None:
    folder = write_latest(tmp_path / "parent" / "ml-25m")
    for path in (folder, tmp_path / "parent", folder / "ratings.csv"):
        check_latest(read(path))
    with zipfile.ZipFile(tmp_path / "ml-latest-small.zip", "w") as archive:
        for name in ("ratings.csv", "movies.csv"):
            archive.write(folder / name, f"ml-latest-small/{name}")
    check_latest(read(tmp_path / "ml-latest-small.zip"))


def test_ml_latest_with_windows_lines_and_byte_order_marks(tmp_path: Path) -> None:
    texts = (
        "\ufeff" + text.replace("\n", "\r\n") + "\r\n" for text in (LATEST_RATINGS, LATEST_MOVIES)
    )
    check_latest(read(write_latest(tmp_path, *texts)))


def test_films_without_any_genre(tmp_path: Path) -> None:
    data = read(write_latest(tmp_path, "userId,movieId,rating,timestamp\n1,20,3.5,1\n"))
    assert (data.genres.shape, len(data.genre_names)) == ((1, 0), 0)
    assert read(tmp_path).genres.shape == (1, 0)  # from the cache


BAD_LATEST = [
    (
        LATEST_RATINGS.replace(",timestamp", ""),
        LATEST_MOVIES,
        "line 1: expected the header userId,movieId,rating,time",
    ),
    (LATEST_RATINGS.split("\n", 1)[1], LATEST_MOVIES, "line 1: expected the header"),
    ("userId,movieId,rating,timestamp\n", LATEST_MOVIES, "ratings.csv line 2: expected a rating"),
    ("", LATEST_MOVIES, "ratings.csv line 1"),
    (
        LATEST_RATINGS + "1,30,4.0\n",
        LATEST_MOVIES,
        "ratings.csv line 6: .*'1,30,4.0'. If cut off, download",
    ),
    (LATEST_RATINGS + "1,30,5.5,5\n", LATEST_MOVIES, "line 6: .*half stars"),
    (LATEST_RATINGS + "1,30,3.7,5\n", LATEST_MOVIES, "line 6: .*half stars"),
    (LATEST_RATINGS + "1,30,0.0,5\n", LATEST_MOVIES, "line 6: .*half stars"),
    (
        LATEST_RATINGS + "1,50,3.5,5\n",
        LATEST_MOVIES,
        "ratings.csv has movie 50, not listed in movies.csv",
    ),
    (LATEST_RATINGS, LATEST_MOVIES.replace(",genres", ",kinds"), "movies.csv has no column genres"),
    (LATEST_RATINGS, "", "movies.csv has no column movieId and title and genres"),
    (LATEST_RATINGS, LATEST_MOVIES + "50,Cut o", "movies.csv line 6: expected 3 fields"),
]


@pytest.mark.parametrize(
    ("ratings", "movies", "message"), BAD_LATEST, ids=[case[-1] for case in BAD_LATEST]
)
def test_bad_content_of_ml_latest_is_named(
    tmp_path: Path, ratings: str, movies: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write_latest(tmp_path, ratings, movies))


def test_of_several_sets_ml_1m_comes_first(tmp_path: Path) -> None:
    check_latest(read(write_latest(tmp_path / "a").parent))
    check_100k(read(write_100k(tmp_path / "b").parent))
    check(read(write(tmp_path / "c").parent))


def test_an_incomplete_set_is_named_by_what_it_lacks(tmp_path: Path) -> None:
    (write_latest(tmp_path) / "movies.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"^movies.csv not found .* ml-latest is movies.csv, ratings.csv"
    ):
        read(tmp_path)
