"""MovieLens in its public formats: ml-1m, ml-100k, and the CSV files of ml-latest(-small), ml-20m,
25m and 32m.

Data: Harper and Konstan, "The MovieLens Datasets" (2015).
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError
from fedslice.files.guard import bounded, csv_rows, shown
from fedslice.tasks.base import Download
from fedslice.tasks.readers.cache import cached
from fedslice.tasks.readers.files import File, locate

SITE = "https://files.grouplens.org/datasets/movielens/"
DOWNLOAD = Download(SITE + "ml-1m.zip", "ml-1m.zip", "md5:c4d9eecfca2ab87c1945afe126590906")
NEEDS = (
    "MovieLens, as a folder or a zip: ml-1m (ratings.dat, users.dat, movies.dat), ml-100k (u.data,"
    f" u.user, u.item), or ml-latest, ml-20m, 25m or 32m (ratings.csv, movies.csv), all from {SITE}"
)
GENDERS = ("F", "M")
AGES = ("1", "18", "25", "35", "45", "50", "56")  # first year of each MovieLens age group
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip  # the order of ml-100k's flags
_BLOCK = 1 << 24  # bytes parsed at once
_LINE = 1 << 26  # bytes without an end of line that no file of ratings has
_RECIPE = "ratings 1"  # to be raised when the same files would give other arrays


class Ratings(NamedTuple):
    """T ratings in columns, sorted by user and then time, of N users and M rated movies.

    >>> from fedslice.tasks.generators.ratings import synthetic
    >>> data = synthetic(seed=0, scale=0.01)
    >>> data.user.shape == data.rating.shape, data.gender.shape
    (True, (60,))
    """

    user: NDArray[np.int32]  # [T] in 0..N-1
    movie: NDArray[np.int32]  # [T] in 0..M-1
    rating: NDArray[np.float32]  # [T] stars, whole or half
    time: NDArray[np.int64]  # [T] seconds since 1970
    gender: NDArray[np.int8]  # [N] index into GENDERS, -1 where the data do not say
    age: NDArray[np.int8]  # [N] index into AGES, -1 where the data do not say
    user_names: NDArray[np.str_]  # [N] original user ids
    titles: NDArray[np.str_]  # [M]
    movie_names: NDArray[np.str_]  # [M] original movie ids
    genres: NDArray[np.int32]  # [M, most] index into genre_names, filled up with -1
    genre_names: NDArray[np.str_]


class _Format(NamedTuple):
    """One way in which MovieLens is published."""

    name: str
    ratings: str
    separator: bytes
    header: bytes
    stars: bytes  # a regular expression of a rating, and the same in words
    words: str
    movies: str
    read_movies: Callable[[File], dict[str, tuple[str, list[str]]]]  # by id: title and genres
    users: str | None = None
    read_users: Callable[[File], dict[str, tuple[int, int]]] | None = None  # by id: gender and age

    @property
    def files(self) -> list[str]:
        return sorted(name for name in (self.ratings, self.movies, self.users) if name)

    @property
    def address(self) -> str:
        return f"{SITE}{self.name}.zip"


def read(path: str | Path) -> Ratings:
    """Read MovieLens from a folder, from one below it, or from a zip; parsed once, then kept in the
    cache.

    Where there is more than one, ml-1m comes before ml-100k, and that before the CSV files.  For
    example ``read("data")`` where ``data/ml-1m.zip`` is the official download.
    """
    found = locate(
        Path(path),
        *(f"?{name}" for form in FORMATS for name in form.files),
        needs=f"This reads {NEEDS}",
    )
    form = max(
        FORMATS, key=lambda form: sum(name in found for name in form.files) / len(form.files)
    )
    needs = (
        f"{form.name} is {', '.join(form.files)}: download {form.address} and give the zip or"
        " folder"
    )
    files = locate(Path(path), *form.files, needs=needs)
    arrays = cached(files.values(), f"{_RECIPE} {form.name}", lambda: _parse(form, files)._asdict())
    return Ratings(**arrays)


def _parse(form: _Format, files: Mapping[str, File]) -> Ratings:
    blocks = zip(*_tables(form, files[form.ratings]), strict=True)
    owner, film, stars, time = (np.concatenate(parts) for parts in blocks)
    order = np.lexsort((time, owner))
    users, user = np.unique(owner[order], return_inverse=True)
    movies, movie = np.unique(film[order], return_inverse=True)
    raters, rated = users.astype(np.str_), movies.astype(np.str_)
    films = form.read_movies(files[form.movies])
    people = dict.fromkeys(raters.tolist(), (-1, -1))
    if form.users and form.read_users:
        people = form.read_users(files[form.users])
    for kind, used, listed, place in (
        ("user", raters, people, form.users),
        ("movie", rated, films, form.movies),
    ):
        if unknown := set(used.tolist()) - listed.keys():
            raise InputError(f"{form.ratings} has {kind} {min(unknown)}, not listed in {place}")
    if silent := len(people) - len(raters):  # officially everybody has rated
        advice = f"Download {form.address} again"
        raise InputError(
            f"{form.ratings} is cut off: {silent} users of {form.users} have no rating. {advice}"
        )
    gender, age = np.array([people[name] for name in raters.tolist()], np.int8).T.copy()
    titles = bounded((films[name][0] for name in rated.tolist()), files[form.movies].name)
    genres = _genres([films[name][1] for name in rated.tolist()])
    columns = user.astype(np.int32), movie.astype(np.int32), stars[order], time[order]
    return Ratings(*columns, gender, age, raters, titles, rated, *genres)


def _tables(form: _Format, file: File) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """User, movie, rating and time in blocks; NumPy's fast parser does not check lines, so check
    first."""
    whole = re.compile(
        b"(?:%b\n)*+" % form.separator.join((rb"\d{1,9}+", rb"\d{1,9}+", form.stars, rb"\d{1,15}+"))
    )
    number = 1
    for text in _blocks(file):
        if number == 1 and form.header:
            first, text = text.split(b"\n", 1)
            if first.strip() != form.header:
                raise _bad_line(form, file, 1, f"the header {form.header.decode()}", first)
            number = 2
            if not text:
                continue
        good = whole.match(text)
        if (end := good.end() if good else 0) < len(text):
            order = form.separator.decode().join(("user", "movie", "rating", "time"))
            bad = text[end:].split(b"\n")[0]
            raise _bad_line(
                form, file, number + text.count(b"\n", 0, end), f"{order}, {form.words}", bad
            )
        number += text.count(b"\n")
        table = (
            np.fromstring(text.replace(form.separator, b" "), np.float64, sep=" ").reshape(-1, 4).T
        )
        kinds = np.int32, np.int32, np.float32, np.int64
        yield tuple(column.astype(kind) for column, kind in zip(table, kinds, strict=True))
    if form.header and number == 2:
        raise _bad_line(form, file, 2, "a rating", b"")


def _blocks(file: File) -> Iterator[bytes]:
    """The lines in blocks, without byte order mark, carriage returns and blank lines at the end."""
    with file.open() as stream:
        text = stream.read(3).removeprefix(b"\xef\xbb\xbf")
        while more := stream.read(_BLOCK):
            text += more
            if len(text) > _BLOCK + _LINE:
                raise InputError(
                    f"{file.name} has a line of more than {_LINE:,} bytes: download it again"
                )
            # the last line stays: more of it, or nothing but blanks, may follow
            cut = text.rstrip().rfind(b"\n") + 1
            if cut:
                yield text[:cut].replace(b"\r\n", b"\n")
            text = text[cut:]
    yield text.rstrip() + b"\n"


def _bad_line(form: _Format, file: File, number: int, wanted: str, line: bytes) -> InputError:
    return InputError(
        f"{file.name} line {number}: expected {wanted}, got {shown(line)}. If cut off, download"
        f" {form.address} again"
    )


def _rows(file: File, separator: str, width: int) -> Iterator[list[str]]:
    """Fields of each line of a latin-1 file; refuses, with its number, a line that has too few or
    too many."""
    for number, line in enumerate(file.text("latin-1").rstrip().split("\n"), 1):
        row = line.split(separator)
        if len(row) != width:
            want = f"expected {width} fields separated by {separator!r}, got {shown(line)}"
            raise InputError(
                f"{file.name} line {number}: {want}. If cut off, download it again from {SITE}"
            )
        yield row


def _movies_dat(file: File) -> dict[str, tuple[str, list[str]]]:
    return {name: (title, genres.split("|")) for name, title, genres in _rows(file, "::", 3)}


def _users_dat(file: File) -> dict[str, tuple[int, int]]:
    return {
        name: (_place("gender", gender, GENDERS, file, name), _place("age", age, AGES, file, name))
        for name, gender, age, *_ in _rows(file, "::", 5)
    }


def _movies_item(file: File) -> dict[str, tuple[str, list[str]]]:
    rows = _rows(file, "|", 5 + len(GENRES))
    return {
        name: (title, [genre for genre, flag in zip(GENRES, rest[3:], strict=True) if flag == "1"])
        for name, title, *rest in rows
    }


def _users_user(file: File) -> dict[str, tuple[int, int]]:
    """Ages in years, which become the groups of ml-1m."""
    people = {}
    for name, age, gender, *_ in _rows(file, "|", 5):
        if not age.isdecimal():
            raise InputError(
                f"{file.name} has age {shown(age)} for user {shown(name)}: expected a number of"
                " years"
            )
        group = sum(int(age) >= int(first) for first in AGES[1:])
        people[name] = _place("gender", gender, GENDERS, file, name), group
    return people


def _movies_csv(file: File) -> dict[str, tuple[str, list[str]]]:
    lines = csv_rows(io.StringIO(file.text()), file.name)
    _, header = next(lines, (1, []))
    if absent := [name for name in ("movieId", "title", "genres") if name not in header]:
        first = shown(",".join(header))
        raise InputError(
            f"{file.name} has no column {' and '.join(absent)}: its first line is {first}"
        )
    films = {}
    for number, row in lines:
        if len(row) != len(header):
            want = f"expected {len(header)} fields, got {shown(','.join(row))}"
            raise InputError(
                f"{file.name} line {number}: {want}. If cut off, download it again from {SITE}"
            )
        cells = dict(zip(header, row, strict=True))
        genres = cells["genres"].split("|")
        films[cells["movieId"]] = (
            cells["title"],
            [genre for genre in genres if genre != "(no genres listed)"],
        )
    return films


def _place(what: str, value: str, known: tuple[str, ...], file: File, user: str) -> int:
    if value not in known:
        raise InputError(
            f"{file.name} has {what} {shown(value)} for user {shown(user)}: expected one of {known}"
        )
    return known.index(value)


def _genres(films: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], NDArray[np.str_]]:
    """Each film's genres as codes, filled up with -1, and the genres in alphabetical order."""
    names = sorted({genre for genres in films for genre in genres if genre})
    code = {name: place for place, name in enumerate(names)}
    codes = np.full((len(films), max(map(len, films), default=0)), -1, np.int32)
    for film, genres in enumerate(films):
        codes[film, : len(genres)] = [code.get(genre, -1) for genre in genres]
    return codes, np.array(names, np.str_)


_WHOLE_STARS = (b"[1-5]", "whole numbers, rating 1 to 5")
_HALF_STARS = (rb"(?:0\.5|[1-4](?:\.[05])?|5(?:\.0)?)", "numbers, rating 0.5 to 5 in half stars")
FORMATS = (
    _Format(
        "ml-1m",
        "ratings.dat",
        b"::",
        b"",
        *_WHOLE_STARS,
        "movies.dat",
        _movies_dat,
        "users.dat",
        _users_dat,
    ),
    _Format(
        "ml-100k",
        "u.data",
        b"\t",
        b"",
        *_WHOLE_STARS,
        "u.item",
        _movies_item,
        "u.user",
        _users_user,
    ),
    _Format(
        "ml-latest",
        "ratings.csv",
        b",",
        b"userId,movieId,rating,timestamp",
        *_HALF_STARS,
        "movies.csv",
        _movies_csv,
    ),
)
