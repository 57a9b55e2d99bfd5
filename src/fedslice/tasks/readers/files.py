"""Find and fetch the files of a data set.

A loader names the files it takes; where they are and how they are packed is decided here, once for
all loaders."""

import os
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from fedslice.errors import DownloadError, InputError, MissingDataError
from fedslice.files.packed import DAMAGE, File, digest
from fedslice.tasks.base import Download

__all__ = ["File", "data_home", "fetch", "locate", "locate_all", "user_cache"]

_CHUNK = 1 << 20  # bytes received at a time


def data_home() -> Path:
    """Where data are looked for and downloaded to: the folder FEDSLICE_DATA, or that of
    :func:`user_cache`.

    >>> getfixture("monkeypatch").setenv("FEDSLICE_DATA", "data")
    >>> data_home().name
    'data'
    """
    return Path(os.environ.get("FEDSLICE_DATA") or user_cache())


def user_cache() -> Path:
    """Our folder in the user's cache: ``fedslice`` in XDG_CACHE_HOME or, by default, in
    ``~/.cache``.

    >>> getfixture("monkeypatch").setenv("XDG_CACHE_HOME", "/var/tmp/mine")
    >>> user_cache().as_posix()
    '/var/tmp/mine/fedslice'
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "fedslice"


def locate(path: Path, *patterns: str, needs: str) -> dict[str, File]:
    """The files that match the patterns, by pattern.

    ``path`` is a file, a zip or a folder, which is searched with its subfolders and the zips in
    both.  A pattern is a name, may have ``*`` and folders (``train/*.json``), and also matches with
    ``.gz`` appended.  All are required but those that begin with ``?`` (the key is without it); if
    all begin so, at least one must be there.  The first place that has all required files wins; if
    none has, each file is taken from the first place that has it.  A file given by name serves a
    sole required pattern whatever its name, and is completed by its neighbours where some are
    required. ``needs`` tells the user what to provide.

    >>> folder = Path(getfixture("tmp_path"))
    >>> _ = (folder / "ratings.csv").write_text("1,2")
    >>> sorted(locate(folder, "ratings.csv", "?movies.csv", needs="Download MovieLens"))
    ['ratings.csv']
    """
    required = [pattern for pattern in patterns if not pattern.startswith("?")]
    names = [pattern.removeprefix("?") for pattern in patterns]
    if len(names) == len(required) == 1 and _is_loose(path):
        return {names[0]: File(Path(path))}
    places: list[list[File]] = []
    damage: list[InputError] = []
    for place in _places(Path(path), names, bool(required), damage):
        places.append(place)
        if required and all(_matches(place, pattern) for pattern in required):
            places = [place]
            break
    hits = {
        name: next(filter(None, (_matches(place, name) for place in places)), []) for name in names
    }
    found = {name: _only(name, files) for name, files in hits.items() if files}
    missing = [name for name in required or names if name not in found]
    if missing and (required or not found):
        if damage:
            raise damage[0]
        raise MissingDataError(
            f"{(' and ' if required else ' or ').join(missing)} not found in {path}. {needs}"
        )
    return found


def locate_all(path: Path, pattern: str, needs: str) -> list[File]:
    """All files that match the pattern, in the first place that has one (see :func:`locate`),
    sorted by name.

    >>> folder = Path(getfixture("tmp_path"))
    >>> for part in range(3):
    ...     _ = (folder / f"part_{part}.json").write_text("{}")
    >>> [file.name for file in locate_all(folder, "part_*.json", needs="")]
    ['part_0.json', 'part_1.json', 'part_2.json']
    """
    if _is_loose(path):
        return [File(Path(path))]
    damage: list[InputError] = []
    for place in _places(Path(path), [pattern], False, damage):
        if files := _matches(place, pattern):
            return files
    if damage:
        raise damage[0]
    raise MissingDataError(f"{pattern} not found in {path}. {needs}")


def _is_loose(path: Path) -> bool:
    return Path(path).is_file() and Path(path).suffix.lower() != ".zip"


def _places(
    path: Path, names: list[str], neighbours: bool, damage: list[InputError]
) -> Iterator[list[File]]:
    """Lists of files that lie together: nearest first, loose before packed."""
    if _is_loose(path):
        if mine := [name for name in names if _matches([File(path)], name)]:
            others = _loose(path.parent) if neighbours else []
            yield [File(path), *(file for file in others if not _matches([file], *mine))]
        return
    if path.is_file():
        yield from _packed(path)
        return
    if not path.is_dir():
        return
    loose: list[File] = []
    below = [
        entry
        for entry in _entries(path)
        if entry.is_dir() and not entry.name.startswith((".", "__"))
    ]
    for folder in (path, *map(Path, below)):
        try:
            place = _loose(folder)
        except InputError as error:
            damage.append(error)  # matters only if nothing else has the files
            continue
        yield place
        loose += place
    for archive in (file.path for file in loose if file.path.suffix.lower() == ".zip"):
        try:
            yield from _packed(archive)
        except InputError as error:
            damage.append(error)


def _loose(folder: Path) -> list[File]:
    return [File(Path(entry)) for entry in _entries(folder) if entry.is_file()]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"cannot look into {folder} ({error.strerror}). Change its permissions or move it"
        ) from error


def _packed(path: Path) -> Iterator[list[File]]:
    """The members of a zip, by their folder in it, the outermost first."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [item.filename for item in archive.infolist() if not item.is_dir()]
    except DAMAGE as error:
        raise File(path).damaged(error) from error
    folders: dict[str, list[File]] = {}
    for member in sorted(members):
        folders.setdefault(member.rpartition("/")[0], []).append(File(path, member))
    for folder in sorted(folders, key=lambda name: (name.count("/") + bool(name), name)):
        if "__MACOSX" not in folder:  # copies of the names, without content
            yield folders[folder]


def _matches(place: Iterable[File], *patterns: str) -> list[File]:
    """Those that match one of the patterns; of a file and the same with gzip, the file."""
    hits: dict[str, File] = {}
    for file in place:
        for pattern in patterns:
            tail = "/".join(
                file.address.rsplit("/", pattern.count("/") + 1)[-pattern.count("/") - 1 :]
            )
            plain = tail.removesuffix(".gz")
            if not file.name.startswith("._") and (
                fnmatchcase(tail, pattern) or fnmatchcase(plain, pattern)
            ):
                hits.setdefault(plain, file)
    return list(hits.values())


def _only(pattern: str, files: list[File]) -> File:
    if len(files) > 1:
        several = ", ".join(map(str, files[:5]))
        raise InputError(
            f"{len(files)} files match {pattern}: {several}. Give the one you mean by its name"
        )
    return files[0]


def fetch(download: Download, folder: Path) -> Path:
    """Download the file into the folder unless it is there, check it, and return its path.

    A file that is there is kept if it has the right checksum, or is an archive that is not cut off.

    >>> folder = Path(getfixture("tmp_path"))
    >>> _ = (folder / "there.txt").write_text("abc")
    >>> fetch(Download((folder / "there.txt").as_uri(), "here.txt", ""), folder).read_text()
    'abc'
    """
    target = Path(folder, download.name)
    by_hand = (
        f"Download {download.url} by hand to {target} and pass `--data-dir {folder}`, or use"
        " `--synthetic`"
    )
    try:
        if target.is_file() and (zipfile.is_zipfile(target) or not _fault(target, download.digest)):
            return target
        with urllib.request.urlopen(download.url, timeout=30) as answer:
            target.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=target.parent) as scratch:
                whole = Path(scratch, target.name)
                _receive(answer, whole)
                if fault := _fault(whole, download.digest):
                    raise InputError(f"{download.url} gave {fault}. {by_hand}")
                whole.replace(target)  # atomic: a reader sees the whole file or none
    except (OSError, HTTPException) as error:
        raise DownloadError(f"could not download {download.name} ({error}). {by_hand}") from error
    return target


def _receive(answer: Any, whole: Path) -> None:
    announced = int(getattr(answer, "headers", {}).get("Content-Length") or 0)
    with (
        whole.open("wb") as sink,
        tqdm(
            total=announced or None, unit="B", unit_scale=True, desc=whole.name, disable=None
        ) as bar,
    ):
        while chunk := answer.read(_CHUNK):
            sink.write(chunk)
            bar.update(len(chunk))
        if sink.tell() < announced:
            raise OSError(f"the connection broke after {sink.tell():,} of {announced:,} bytes")


def _fault(path: Path, expected: str) -> str:
    """What is wrong with the file: by its checksum or, for want of one, by what an archive tells of
    itself."""
    kind, _, value = expected.partition(":")
    if value:
        found = digest(path, kind)
        return "" if found == value.lower() else f"{kind}:{found}, expected {expected}"
    try:
        if path.suffix == ".gz":
            with File(path).open() as stream:
                while stream.read(_CHUNK):
                    pass
        elif path.suffix == ".zip":
            zipfile.ZipFile(path).close()
    except (InputError, zipfile.BadZipFile) as error:
        return f"a damaged file ({error})"
    return ""
