"""Files are found, read and fetched wherever and however packed they are; what is wrong with one is
said."""

import gzip
import hashlib
import io
import os
import random
import tarfile
import urllib.error
import urllib.request
import zipfile
from http.client import IncompleteRead
from pathlib import Path

import pytest

from fedslice.errors import DownloadError, InputError, MissingDataError
from fedslice.files import packed
from fedslice.tasks.base import Download
from fedslice.tasks.readers.files import File, fetch, locate, locate_all

TWEETS = "training.1600000.processed.noemoticon.csv"
LINES = ["0,caf\u00e9 \U0001f600", "", '4,"quoted, text"', "last"]
CONTENT = "\n".join(LINES).encode()
NOISE = random.Random(0).randbytes(20_000).hex().encode()  # it hardly compresses


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack(folder: Path, form: str) -> Path:
    """The same file, packed in many ways; returns what the user would give."""
    gz = gzip.compress(CONTENT)
    match form:
        case "file":
            return put(folder / TWEETS)
        case "renamed":
            return put(folder / "mine.txt")
        case "folder":
            return put(folder / TWEETS).parent
        case "below":
            return put(folder / "sent140" / TWEETS).parent.parent
        case "gzip":
            return put(folder / f"{TWEETS}.gz", gz)
        case "renamed gzip":
            return put(folder / "mine.csv", gz)
        case "folder with gzip":
            return put(folder / f"{TWEETS}.gz", gz).parent
        case "zip":
            return zipped(folder / "data.zip", {TWEETS: CONTENT, "readme.txt": b""})
        case "folder in zip":
            return zipped(
                folder / "DATA.ZIP", {f"__MACOSX/a/._{TWEETS}": b"x", f"a/b/{TWEETS}": CONTENT}
            )
        case "gzip in zip":
            return zipped(folder / "data.zip", {f"{TWEETS}.gz": gz})
        case "zip in folder":
            return zipped(folder / "data.zip", {TWEETS: CONTENT}).parent
        case _:
            (folder / "below").mkdir()
            return zipped(folder / "below" / "data.zip", {TWEETS: CONTENT}).parent.parent


FORMS = ["file", "renamed", "folder", "below", "gzip", "renamed gzip", "folder with gzip", "zip",
         "folder in zip", "gzip in zip", "zip in folder", "zip below folder"]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_file_however_it_is_packed(tmp_path: Path, form: str) -> None:
    file = locate(pack(tmp_path, form), "training.*.csv", needs="Sent140")["training.*.csv"]
    assert file.read() == CONTENT
    assert file.text() == CONTENT.decode()
    assert list(file.lines()) == LINES
    with file.open() as stream:
        assert stream.read(3) == CONTENT[:3]
        assert stream.seek(1) == 1
        assert stream.readline() == CONTENT[1:].partition(b"\n")[0] + b"\n"
        assert stream.tell() == CONTENT.index(b"\n") + 1


def test_the_name_is_the_packed_one_without_folders(tmp_path: Path) -> None:
    path = zipped(tmp_path / "data.zip", {f"a/b/{TWEETS}.gz": gzip.compress(b"")})
    file = locate(path, TWEETS, needs="")[TWEETS]
    assert file.name == f"{TWEETS}.gz"
    assert str(file) == f"a/b/{TWEETS}.gz in {path}"


def test_a_folder_named_like_the_pattern_or_like_a_zip_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    put(tmp_path / "a.zip" / "a.csv", b"1")
    assert locate(tmp_path, "a.csv", needs="")["a.csv"].read() == b"1"


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    put(tmp_path / ".fedslice" / "a.csv")
    put(tmp_path / "._a.csv")
    with pytest.raises(MissingDataError):
        locate(tmp_path, "*a.csv", needs="")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_encodings_line_ends_and_byte_order_marks(
    tmp_path: Path, encoding: str, end: str, mark: bytes
) -> None:
    file = File(
        put(tmp_path / "a.csv", mark + end.join(["caf\u00e9", "", "b\x0bc\u0085"]).encode(encoding))
    )
    assert list(file.lines(encoding)) == ["caf\u00e9", "", "b\x0bc\u0085"]
    assert file.text(encoding) == "caf\u00e9\n\nb\x0bc\u0085"


@pytest.mark.parametrize("read", [File.text, lambda file: list(file.lines())])
def test_text_in_another_encoding_is_refused(tmp_path: Path, read) -> None:
    file = File(put(tmp_path / "latin.csv", "caf\u00e9\n".encode("latin-1")))
    with pytest.raises(InputError, match=r"latin\.csv is not text in utf-8 .* Convert it"):
        read(file)


def test_empty_files_and_members(tmp_path: Path) -> None:
    for file in (
        File(put(tmp_path / "a.csv", b"")),
        File(zipped(tmp_path / "a.zip", {"a.csv": b""}), "a.csv"),
    ):
        assert file.read() == b""
        assert list(file.lines()) == []
    assert File(put(tmp_path / "b.csv.gz", gzip.compress(b""))).read() == b""


READERS = [
    File.read,
    File.text,
    lambda file: list(file.lines()),
    lambda file: file.open().read(1 << 22),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("cut", [0, 1, 9, 5000, -8, -1])
def test_a_gzip_that_is_cut_off_is_refused(tmp_path: Path, cut: int, read) -> None:
    whole = gzip.compress(NOISE)
    path = put(tmp_path / "a.csv.gz", whole[:cut])
    with pytest.raises(InputError, match=r"a\.csv\.gz cannot be read .* download it again"):
        read(File(path))


def test_a_gzip_with_wrong_bytes_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(NOISE))
    content[10_000:10_010] = bytes(10)
    with pytest.raises(InputError, match="download it again"):
        File(put(tmp_path / "a.csv.gz", bytes(content))).read()


@pytest.mark.parametrize("read", READERS)
def test_a_zip_with_wrong_bytes_is_refused(tmp_path: Path, read) -> None:
    path = zipped(tmp_path / "a.zip", {"a.csv": NOISE})
    content = bytearray(path.read_bytes())
    content[10_000:10_010] = bytes(10)
    path.write_bytes(content)
    file = locate(path, "a.csv", needs="")["a.csv"]
    with pytest.raises(InputError, match=r"a\.csv in .*a\.zip cannot be read .* download it again"):
        read(file)


def test_a_zip_that_is_cut_off_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"a.csv": NOISE})
    path.write_bytes(path.read_bytes()[:500])
    for place in (path, tmp_path):
        with pytest.raises(InputError, match=r"a\.zip cannot be read .* download it again"):
            locate(place, "a.csv", needs="")
        with pytest.raises(InputError, match=r"a\.zip cannot be read"):
            locate_all(place, "a.csv", needs="")
    put(tmp_path / "below" / "a.csv", b"1")
    assert locate(tmp_path, "a.csv", needs="")["a.csv"].read() == b"1"


def test_a_file_that_has_gone_is_refused(tmp_path: Path) -> None:
    for act in (File.read, File.fingerprint):
        with pytest.raises(InputError, match=r"gone\.csv cannot be read"):
            act(File(tmp_path / "gone.csv"))


def test_a_tar_in_gzip_can_be_read_through(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(put(tmp_path / "batch", b"123"), "folder/batch")
    with (
        locate(tmp_path, "a.tar.gz", needs="")["a.tar.gz"].open() as stream,
        tarfile.open(fileobj=stream) as archive,
    ):
        assert archive.extractfile("folder/batch").read() == b"123"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    put(tmp_path / "users.dat")
    with pytest.raises(MissingDataError) as caught:
        locate(
            tmp_path,
            "users.dat",
            "ratings.dat",
            "?movies.dat",
            "b.dat",
            needs="Download the data from there.",
        )
    assert (
        str(caught.value)
        == f"ratings.dat and b.dat not found in {tmp_path}. Download the data from there."
    )


@pytest.mark.parametrize("form", ["nothing", "folder", "zip", "other file"])
def test_nothing_found(tmp_path: Path, form: str) -> None:
    path = {
        "nothing": tmp_path / "no",
        "folder": tmp_path,
        "zip": tmp_path / "a.zip",
        "other file": tmp_path / "x",
    }
    zipped(tmp_path / "a.zip", {"b.txt": b""})
    put(tmp_path / "x")
    with pytest.raises(MissingDataError, match=r"a\.csv or b\.csv not found in .*Give one"):
        locate(path[form], "?a.csv", "?b.csv", needs="Give one")
    if form != "other file":  # a file given by name serves a sole pattern
        with pytest.raises(MissingDataError, match="Give one"):
            locate_all(path[form], "a.csv", needs="Give one")


def test_optional_files_may_be_missing_and_have_keys_without_the_mark(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"a")
    assert {
        key: file.read() for key, file in locate(tmp_path, "a.csv", "?b.csv", needs="").items()
    } == {"a.csv": b"a"}
    put(tmp_path / "b.csv", b"b")
    assert set(locate(tmp_path, "?a.csv", "?b.csv", needs="")) == {"a.csv", "b.csv"}


def test_files_are_taken_from_one_place_if_one_has_all(tmp_path: Path) -> None:
    put(tmp_path / "ratings.csv", b"of something else")
    put(tmp_path / "ml" / "ratings.csv", b"r")
    put(tmp_path / "ml" / "movies.csv", b"m")
    put(tmp_path / "other" / "tags.csv", b"of something else")
    found = locate(tmp_path, "ratings.csv", "movies.csv", "?tags.csv", needs="")
    assert {key: file.read() for key, file in found.items()} == {
        "ratings.csv": b"r",
        "movies.csv": b"m",
    }


def test_files_in_several_places_are_brought_together_if_none_has_all(tmp_path: Path) -> None:
    put(tmp_path / "train" / "a.json", b"1")
    put(tmp_path / "test" / "a.json", b"2")
    found = locate(tmp_path, "train/*.json", "test/*.json", needs="")
    assert {key: file.read() for key, file in found.items()} == {
        "train/*.json": b"1",
        "test/*.json": b"2",
    }
    path = zipped(tmp_path / "leaf.zip", {"data/train/a.json": b"1", "data/test/a.json": b"2"})
    found = locate(path, "train/*.json", "test/*.json", needs="")
    assert {key: file.read() for key, file in found.items()} == {
        "train/*.json": b"1",
        "test/*.json": b"2",
    }


def test_a_file_given_by_name_is_completed_by_its_neighbours(tmp_path: Path) -> None:
    put(tmp_path / "ml" / "ratings.dat", b"r")
    put(tmp_path / "ml" / "users.dat", b"u")
    put(tmp_path / "ml" / "other.txt")
    found = locate(tmp_path / "ml" / "ratings.dat", "ratings.dat", "users.dat", needs="")
    assert {key: file.read() for key, file in found.items()} == {
        "ratings.dat": b"r",
        "users.dat": b"u",
    }
    assert set(locate(tmp_path / "ml" / "users.dat", "?ratings.dat", "?users.dat", needs="")) == {
        "users.dat"
    }
    assert set(locate(tmp_path / "ml" / "users.dat", "users.dat", "?ratings.dat", needs="")) == {
        "users.dat",
        "ratings.dat",
    }
    put(tmp_path / "ml" / "ratings2.dat", b"another")
    found = locate(tmp_path / "ml" / "ratings.dat", "ratings*.dat", "users.dat", needs="")
    assert {key: file.read() for key, file in found.items()} == {
        "ratings*.dat": b"r",
        "users.dat": b"u",
    }
    with pytest.raises(MissingDataError, match=r"other\.txt"):
        locate(tmp_path / "ml" / "other.txt", "ratings.dat", "users.dat", needs="")


def test_a_file_of_another_name_serves_only_a_pattern_that_must_be_there(tmp_path: Path) -> None:
    path = put(tmp_path / "mine.txt")
    assert locate(path, "a.csv", needs="")["a.csv"] == File(path)
    with pytest.raises(MissingDataError, match=r"a\.csv not found in .*mine\.txt\. Give it"):
        locate(path, "?a.csv", needs="Give it")


def test_a_file_is_preferred_to_itself_with_gzip(tmp_path: Path) -> None:
    put(tmp_path / "a.csv.gz", gzip.compress(b"packed"))
    put(tmp_path / "a.csv", b"loose")
    assert locate(tmp_path, "*.csv", needs="")["*.csv"].read() == b"loose"


def test_several_files_for_one_are_refused_and_for_many_are_sorted(tmp_path: Path) -> None:
    for part in (2, 0, 1):
        put(tmp_path / f"part{part}.csv", str(part).encode())
    with pytest.raises(
        InputError, match=r"3 files match part\*\.csv: .*part0\.csv, .* by its name"
    ):
        locate(tmp_path, "part*.csv", needs="")
    assert [file.read() for file in locate_all(tmp_path, "part*.csv", needs="")] == [
        b"0",
        b"1",
        b"2",
    ]
    assert [file.name for file in locate_all(tmp_path / "part1.csv", "part*.csv", needs="")] == [
        "part1.csv"
    ]


def test_a_folder_that_may_not_be_read_is_refused_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = put(tmp_path / "closed" / "a.csv").parent
    scandir = os.scandir

    def refuse(folder: Path):  # permissions do not bind every user
        if folder == closed:
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    for place in (closed, tmp_path):
        with pytest.raises(
            InputError, match=r"cannot look into .*closed \(Permission denied\).* permissions"
        ):
            locate(place, "a.csv", needs="")
    put(tmp_path / "open" / "a.csv", b"1")
    assert locate(tmp_path, "a.csv", needs="")["a.csv"].read() == b"1"


def test_a_fingerprint_is_of_content_not_of_time_or_name(tmp_path: Path) -> None:
    first = File(put(tmp_path / "a.csv"))
    before = first.fingerprint()
    os.utime(first.path, (1, 1))
    assert first.fingerprint() == before == File(put(tmp_path / "b.csv")).fingerprint()
    put(first.path, CONTENT.swapcase())
    assert first.fingerprint() != before
    path = zipped(tmp_path / "a.zip", {"a": CONTENT, "b": CONTENT})
    assert File(path, "a").fingerprint() != File(path, "b").fingerprint()


@pytest.mark.parametrize("place", [0, 499, 999])
def test_a_fingerprint_of_a_large_file_samples_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(packed, "WHOLE", 500)
    monkeypatch.setattr(packed, "BLOCK", 4)
    monkeypatch.setattr(packed, "BLOCKS", 3)  # at 0, 498 and 996
    content = bytearray(1000)
    file = File(put(tmp_path / "a", bytes(content)))
    os.utime(file.path, ns=(5, 5))
    before = file.fingerprint()
    assert file.fingerprint() == before
    content[place] = 1
    put(file.path, bytes(content))
    os.utime(file.path, ns=(5, 5))
    changed = file.fingerprint()
    assert changed != before
    os.utime(file.path, ns=(6, 6))
    assert file.fingerprint() != changed


def test_every_byte_of_a_file_of_64_megabytes_counts(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(packed.WHOLE)
    before = File(path).fingerprint()
    with path.open("r+b") as stream:
        stream.seek(packed.WHOLE // 2 + 12_345)
        stream.write(b"1")
    assert File(path).fingerprint() != before


class Answer(io.BytesIO):
    """What a server sends, and what it announced."""

    def __init__(self, content: bytes, announced: int | None = None):
        super().__init__(content)
        self.headers = {} if announced is None else {"Content-Length": str(announced)}


def serve(
    monkeypatch: pytest.MonkeyPatch, content: bytes | Exception, announced: int | None = None
) -> list[str]:
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> Answer:
        asked.append(address)
        if isinstance(content, Exception):
            raise content
        return Answer(content, announced)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


URL = "https://example.org/a.csv"


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_fetch_downloads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    asked = serve(monkeypatch, CONTENT, len(CONTENT))
    download = Download(URL, "a.csv", f"{kind}:{hashlib.new(kind, CONTENT).hexdigest().upper()}")
    target = tmp_path / "data" / "a.csv"
    assert fetch(download, target.parent) == fetch(download, target.parent) == target
    assert asked == [URL]
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_fetch_replaces_a_file_that_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = zipped(tmp_path / "made.zip", {"a": b"1"}).read_bytes()
    asked = serve(monkeypatch, content)
    for name in ("a.zip", "a.bin"):
        put(tmp_path / name, content[:30])
        assert (
            fetch(
                Download(URL, name, f"sha256:{hashlib.sha256(content).hexdigest()}"), tmp_path
            ).name
            == name
        )
        assert (tmp_path / name).read_bytes() == content
    assert len(asked) == 2


def test_fetch_keeps_a_whole_zip_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, b"")
    path = zipped(tmp_path / "a.zip", {"a": b"1"})
    assert fetch(Download(URL, "a.zip", "md5:00"), tmp_path) == path
    assert not asked


def test_fetch_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"not the file")
    old = put(tmp_path / "a.csv", b"cut off")
    with pytest.raises(
        InputError, match=rf"{URL} gave md5:\w+, expected md5:00. Download .*a\.csv and pass"
    ):
        fetch(Download(URL, "a.csv", "md5:00"), tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [old.read_bytes()] == [b"cut off"]


@pytest.mark.parametrize(
    "error", [urllib.error.URLError("no route"), TimeoutError("no route"), IncompleteRead(b"1")]
)
def test_fetch_without_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error
) -> None:
    serve(monkeypatch, error)
    with pytest.raises(DownloadError) as caught:
        fetch(Download(URL, "a.csv", "md5:00"), tmp_path / "data")
    for part in (
        str(error),
        URL,
        str(tmp_path / "data" / "a.csv"),
        f"--data-dir {tmp_path / 'data'}",
        "--synthetic",
    ):
        assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_fetch_notices_a_broken_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"12", announced=1000)
    with pytest.raises(DownloadError, match="after 2 of 1,000 bytes"):
        fetch(Download(URL, "a.csv", ""), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.csv.gz", "a.zip"])
def test_fetch_without_checksum_notices_an_archive_that_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = (
        gzip.compress(NOISE)
        if name == "a.csv.gz"
        else zipped(tmp_path / "b.zip", {"a": NOISE}).read_bytes()
    )
    target = put(tmp_path / "data" / name, whole[:-30])
    serve(monkeypatch, whole[:-20])
    with pytest.raises(InputError, match=rf"{URL} gave a damaged file .* by hand to"):
        fetch(Download(URL, name, ""), target.parent)
    assert target.read_bytes() == whole[:-30]
    asked = serve(monkeypatch, whole)
    for _ in range(2):
        assert fetch(Download(URL, name, ""), target.parent).read_bytes() == whole
    assert len(asked) == 1


def test_fetch_into_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, CONTENT)
    with pytest.raises(DownloadError, match=r"could not download a\.csv"):
        fetch(Download(URL, "a.csv", ""), put(tmp_path / "data"))
