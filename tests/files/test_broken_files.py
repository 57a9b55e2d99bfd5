"""Whatever is in a file, a reader returns its data or says what is wrong with it: no traceback, no
endless memory.

The fuzzer makes a tiny right file for each reader and breaks it in seeded ways; what it can break
is an error of fedslice that names the file."""

import gzip
import io
import json
import pickle
import random
import sqlite3
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedslice.cli import recommend
from fedslice.data.loading import from_file
from fedslice.errors import FedsliceError, InputError
from fedslice.files.packed import File
from fedslice.tasks import amazon_din, gld_mobilenet, sent140_lstm, shakespeare_lstm, taobao_din
from fedslice.tasks.readers import cifar10 as cifar10_files
from fedslice.tasks.readers import leaf, ratings, stackoverflow
from fedslice.tasks.readers.stackoverflow_files import read as read_posts

LAST = 1_385_000_000
CASES = 40  # of each file


def right_ratings() -> dict[str, bytes]:
    lines = [
        f"{user}::{film}::{1 + (user + film) % 5}::97830{film}0"
        for user in (1, 2, 3)
        for film in (1, 2)
    ]
    users = "\n".join(f"{user}::{'FM'[user % 2]}::25::1::x" for user in (1, 2, 3))
    films = "1::Toy Story (1995)::Comedy|Drama\n2::Heat (1995)::Action"
    return {
        "ratings.dat": "\n".join(lines).encode(),
        "users.dat": users.encode(),
        "movies.dat": films.encode(),
    }


def right_csv_ratings() -> dict[str, bytes]:
    lines = [
        "userId,movieId,rating,timestamp",
        *(f"{user},{film},3.5,97830{film}0" for user in "123" for film in "12"),
    ]
    films = (
        'movieId,title,genres\n1,Toy Story (1995),Comedy|Drama\n2,"Heat, The (1995)",(no genres'
        " listed)\n"
    )
    return {"ratings.csv": "\n".join(lines).encode(), "movies.csv": films.encode()}


def right_tweets() -> dict[str, bytes]:
    rows = [
        f'"{4 * (n % 2)}","{n}","date","NO_QUERY","bob","so {n % 7} happy, ""yes"""'
        for n in range(42)
    ]
    return {"training.1600000.processed.noemoticon.csv": "\n".join(rows).encode("latin-1")}


def right_leaf() -> dict[str, bytes]:
    x = [[str(n), "date", "query", "bob", f"word{n % 7} is good"] for n in range(42)]
    return {
        "all_data.json": (
            json.dumps(
                {"users": ["bob"], "user_data": {"bob": {"x": x, "y": [0, 4] * 21}}}
            ).encode()
        )
    }


def right_roles() -> dict[str, bytes]:
    line = "to be, or not to be, that is the question: " * 4
    windows = [line[n : n + 80] for n in range(50)]
    users = {"HAMLET": {"x": windows, "y": [line[n + 80] for n in range(50)]}}
    return {"all_data.json": json.dumps({"users": list(users), "user_data": users}).encode()}


def right_plays() -> dict[str, bytes]:
    rows = [
        "hamlet@1\tACT I",
        "hamlet@2\tSCENE I",
        "hamlet@3\tHAMLET\tWords, words, words.",
        "hamlet@4\t\tAnd more.",
    ]
    return {"shakespeare.txt": "\n".join(rows * 4).encode()}


def msgpack_text(values: list[bytes]) -> bytes:
    flat = b"".join(bytes([0xC4, len(value)]) + value for value in values)
    body = bytes([0x92, 0x91, len(values), 0x90 + len(values)]) + flat
    return bytes([0xC7, len(body), 4]) + body


def message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


DATES = [b"2018-01-01 00:00:01 UTC", b"2018-01-02 00:00:01 UTC"]
SENTENCES = [b"how do i", b"like this"]


def database(script: str, rows: list[tuple[object, ...]], folder: Path) -> bytes:
    path = folder / "made.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as base:
        base.executescript(script.partition("|")[0])
        base.executemany(script.partition("|")[2], rows)
    base.close()
    return path.read_bytes()


def right_fedjax(folder: Path) -> dict[str, bytes]:
    items = (b"tokens", msgpack_text(SENTENCES)), (b"creation_date", msgpack_text(DATES))
    blob = bytes([0x82]) + b"".join(
        bytes([0xA0 + len(name)]) + name + value for name, value in items
    )
    script = (
        "PRAGMA page_size=512; CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples"
        " INTEGER);|"
    )
    rows = [(str(user).encode(), zlib.compress(blob), 2) for user in range(3)]
    return {
        "stackoverflow_train.sqlite": database(
            f"{script}INSERT INTO federated_data VALUES (?, ?, ?)", rows, folder
        )
    }


def right_tff(folder: Path) -> dict[str, bytes]:
    def entry(name: bytes, value: bytes) -> bytes:
        return message(1, message(1, name) + message(2, message(1, message(1, value))))

    blobs = [
        message(1, entry(b"tokens", text) + entry(b"creation_date", date))
        for text, date in zip(SENTENCES, DATES, strict=True)
    ]
    script = (
        "PRAGMA page_size=512; CREATE TABLE examples (split_name TEXT, client_id TEXT,"
        " serialized_example_proto BLOB);CREATE TABLE client_metadata (client_id TEXT, split_name"
        " TEXT, num_examples INTEGER);INSERT INTO client_metadata VALUES ('a', 'train', 2), ('b',"
        " 'heldout', 2);|INSERT INTO examples VALUES (?, ?, ?)"
    )
    rows = [
        (split, user, blob) for split, user in (("train", "a"), ("heldout", "b")) for blob in blobs
    ]
    return {"stackoverflow.sqlite": database(script, rows, folder)}


def right_hdf5(folder: Path) -> dict[str, bytes]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "made.h5", "w") as tree:
        for user in ("a", "b"):
            tree[f"examples/{user}/tokens"] = SENTENCES
            tree[f"examples/{user}/creation_date"] = DATES
    return {"stackoverflow_train.h5": (folder / "made.h5").read_bytes()}


def right_posts() -> dict[str, bytes]:
    rows = [f"{user},2018-01-0{day} 00:00:00,how do i" for user in "ab" for day in (1, 2)]
    return {"stackoverflow.csv": "\n".join(["user,time,text", *rows]).encode()}


def right_parquet_posts(folder: Path) -> dict[str, bytes]:
    columns = {"user": ["a", "a", "b"], "time": [1, 2, 3], "text": ["how do i", "x", "like this"]}
    return {"stackoverflow.parquet": parquet(columns)}


def parquet(columns: dict[str, list[object]]) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    sink = io.BytesIO()
    writer.write_table(arrow.table(columns), sink)
    return sink.getvalue()


def right_stars() -> dict[str, bytes]:
    rows = [f"A,B{n},{1 + n % 5}.0,{LAST - 86_400 * (30 - n)}" for n in range(42)]
    return {"ratings_Electronics.csv": "\n".join(rows).encode()}


def right_reviews() -> dict[str, bytes]:
    rows = [
        json.dumps(
            {
                "reviewerID": "A",
                "asin": f"B{n}",
                "overall": 5.0,
                "unixReviewTime": LAST - 86_400 * (30 - n),
            }
        )
        for n in range(42)
    ]
    return {"reviews_Electronics_5.json": "\n".join(rows).encode()}


def right_users() -> dict[str, bytes]:
    return {f"user_{user}": f"1\t{user}\t5\t0\n0\t{user}\t7\t5\n".encode() * 5 for user in (1, 2)}


def right_clicks() -> dict[str, bytes]:
    times = [taobao_din.CLICK_DAYS[0] + 80_000 * n for n in range(9)]
    rows = [
        f"{user},{user + n % 3},7,{'pv' if n else 'buy'},{time}"
        for user in (1, 2)
        for n, time in enumerate(times)
    ]
    return {"UserBehavior.csv": "\n".join(rows).encode()}


def right_displays() -> dict[str, bytes]:
    times = [taobao_din.DISPLAY_DAYS[0] + 80_000 * n for n in range(8)]
    rows = [
        "user,time_stamp,adgroup_id,pid,nonclk,clk",
        *(f"1,{time},{n % 3},p,0,{n % 2}" for n, time in enumerate(times)),
    ]
    features = "adgroup_id,cate_id\n0,5\n1,5\n2,6\n"
    return {"raw_sample.csv": "\n".join(rows).encode(), "ad_feature.csv": features.encode()}


def batch() -> bytes:
    return pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [3, 9]}, protocol=2)


def right_batches() -> dict[str, bytes]:
    return dict.fromkeys(cifar10_files.BATCHES, batch())


def right_archive() -> dict[str, bytes]:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name in cifar10_files.BATCHES:
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(batch())
            archive.addfile(member, io.BytesIO(batch()))
    return {"cifar-10-python.tar.gz": gzip.compress(sink.getvalue(), mtime=0)}


def right_npz() -> dict[str, bytes]:
    sink = io.BytesIO()
    images = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez_compressed(sink, x_train=images, y_train=[0, 1], x_test=images, y_test=[2, 3])
    return {"cifar10.npz": sink.getvalue()}


def png(width: int, height: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    sink = io.BytesIO()
    image.new("RGB", (width, height)).save(sink, "PNG")
    return sink.getvalue()


def right_sheets() -> dict[str, bytes]:
    labels = {"train_labels.json": json.dumps([1] * 10).encode(), "test_labels.json": b"[1, 2]"}
    return {**{f"{name}.png": png(1024, 2) for name in cifar10_files.BATCHES}, **labels}


def right_landmarks() -> dict[str, bytes]:
    rows = "user_id,image_id,class\n1,a,0\n1,b,1\n2,c,0\n"
    pictures = {f"{name}.png": png(8, 8) for name in "abcd"}
    return {
        "mini_gld_train_split.csv": rows.encode(),
        "mini_gld_test.csv": b"image_id,class\nd,1\n",
        **pictures,
    }


def right_log() -> dict[str, bytes]:
    rows = [f"u{n % 3},i{n % 5},{n % 2}" for n in range(12)]
    return {"clicks.csv": "\n".join(["user,item,clicked", *rows]).encode()}


def right_parquet_log(folder: Path) -> dict[str, bytes]:
    return {
        "clicks.parquet": parquet(
            {"user": list("aab"), "item": [["x"], ["y", "x"], []], "clicked": [0, 1, 1]}
        )
    }


def right_me() -> dict[str, bytes]:
    return {"me.csv": b'title,rating\n"Matrix, The (1999)",5\nAlien,4\n'}


def own(folder: Path, name: str) -> None:
    from_file(folder / name, client="user", features=["item"], label="clicked")


Reader = tuple[Callable[..., dict[str, bytes]], Callable[[Path], object]]
READERS: dict[str, Reader] = {
    "ml-1m": (right_ratings, ratings.read),
    "ml-latest": (right_csv_ratings, ratings.read),
    "tweets": (right_tweets, sent140_lstm.load),
    "tweets of LEAF": (right_leaf, sent140_lstm.load),
    "plays": (right_plays, shakespeare_lstm.load),
    "plays of LEAF": (right_roles, shakespeare_lstm.load),
    "FedJAX": (right_fedjax, stackoverflow.load),
    "TFF": (right_tff, stackoverflow.load),
    "HDF5": (right_hdf5, stackoverflow.load),
    "posts": (right_posts, stackoverflow.load),
    "posts in Parquet": (right_parquet_posts, stackoverflow.load),
    "stars": (right_stars, amazon_din.load),
    "reviews": (right_reviews, amazon_din.load),
    "users": (right_users, amazon_din.load),
    "clicks": (right_clicks, taobao_din.load),
    "displays": (right_displays, taobao_din.load),
    "batches": (right_batches, cifar10_files.read),
    "archive": (right_archive, cifar10_files.read),
    "npz": (right_npz, cifar10_files.read),
    "sheets": (right_sheets, cifar10_files.read),
    "landmarks": (right_landmarks, lambda folder: gld_mobilenet.load(folder, side=8)),
    "own CSV": (right_log, lambda folder: own(folder, "clicks.csv")),
    "own Parquet": (right_parquet_log, lambda folder: own(folder, "clicks.parquet")),
    "ratings of a user": (right_me, lambda folder: recommend.read_ratings(folder / "me.csv")),
}
SPICE = (
    b"\0",
    b"-1",
    b"9" * 30,
    b"nan",
    b"null",
    b"\xff\xfe",
    b'"',
    b"[[",
    b"{}",
    b"::",
    b",,",
    b"\t",
    b"\n\n",
    b"1e999",
)


def broken(content: bytes, chance: random.Random) -> bytes:
    """The content with one thing wrong."""
    place, other = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    kind = chance.randrange(6)
    if kind == 0:  # flipped bits
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 4, 32))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 1:
        return content[:place]
    if kind == 2:  # a piece twice
        return content[:other] + content[place:other] + content[other:]
    if kind == 3:
        return content[:place] + chance.choice(SPICE) + content[place:]
    if kind == 4:
        return content[:place] + content[other:]
    # two fields for each other
    parts = content.split(mark := chance.choice((b",", b"\n", b"\t", b'"', b":")))
    here, there = (chance.randrange(len(parts)) for _ in range(2))
    parts[here], parts[there] = parts[there], parts[here]
    return mark.join(parts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for data; nothing is cached."""
    (tmp_path / "full").write_text("")
    monkeypatch.setenv("FEDSLICE_CACHE", str(tmp_path / "full"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_file_is_read_or_refused(folder: Path, name: str) -> None:
    make, read = READERS[name]
    files = make(folder.parent) if make.__code__.co_argcount else make()
    write(folder, files)
    read(folder)  # the file itself is right
    chance = random.Random(name)
    messages = []
    for _ in range(CASES):
        chosen = chance.choice(list(files))
        write(folder, {**files, chosen: broken(files[chosen], chance)})
        try:
            read(folder)
        except FedsliceError as error:
            messages.append(str(error))
    assert 0 < max(map(len, messages)) <= 1_520


def refused(read: Callable[[], object], message: str) -> str:
    with pytest.raises(InputError, match=message) as caught:
        read()
    assert len(str(caught.value)) < 1_000
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"users": [["a"]], "user_data": {"a": {}}}', "not a file of LEAF"),
        (b'{"users": ["a", "a"], "user_data": {"a": {"x": [1], "y": [1]}}}', "names a user twice"),
        (b'{"users": ["%s"], "user_data": {}}' % (b"u" * 5_000_000), "not a file of LEAF"),
        (b"5", "not a file of LEAF"),
    ],
)
def test_json_that_is_not_leaf(folder: Path, content: bytes, message: str) -> None:
    write(folder, {"all_data.json": content})
    refused(lambda: leaf.read({"all": [File(folder / "all_data.json")]}), message)


def test_a_packed_file_may_not_fill_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 MB of nothing in 20 kB, with a bound of 10 MB: it stops there, in a zip and with gzip."""
    nothing = b"user,item\n" * (2 << 20)
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", nothing)
    write(folder, {"a.csv.gz": gzip.compress(nothing)})
    packed = File(folder / "a.zip", "a.csv"), File(folder / "a.csv.gz")
    assert all(len(file.read()) == len(nothing) for file in packed)  # below 256 MB nobody minds
    monkeypatch.setenv("FEDSLICE_UNPACK_GB", "0.01")
    for file in packed:
        assert "FEDSLICE_UNPACK_GB" in refused(file.read, "more than 10,737,418 unpacked")
        refused(lambda: deque(file.lines(), maxlen=0), "unpacked")
    refused(lambda: from_file(folder / "a.csv.gz", client="user", features=["item"]), "unpacked")
    monkeypatch.setenv("FEDSLICE_UNPACK_GB", "much")
    refused(packed[0].read, "give a number of GB")


def test_arrays_that_are_not_cifar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = right_npz()["cifar10.npz"]
    for content in (
        b"",
        b"PK",
        right[:-30],
        pickle.dumps([1]),
        right.replace(b"\x08\x00", b"\x63\x00"),
    ):
        write(folder, {"cifar10.npz": content})
        refused(lambda: cifar10_files.read(folder), "cifar10.npz")
    monkeypatch.setenv("FEDSLICE_UNPACK_GB", "0.000001")
    write(folder, {"cifar10.npz": right})
    refused(lambda: cifar10_files.read(folder), "unpacked")


def test_labels_that_are_no_list_of_numbers(folder: Path) -> None:
    for labels in (b"[[1, 2], [3]]", b'{"a": 1}', b"3", b"[" * 100_000, b'["a", "b"]'):
        write(folder, {**right_sheets(), "test_labels.json": labels})
        refused(lambda: cifar10_files.read(folder), "labels")
    ragged = pickle.dumps(
        {"data": np.zeros((2, 3072), np.uint8), "labels": [[1], [2, 3]]}, protocol=2
    )
    write(folder, right_batches())
    for path in folder.glob("*labels.json"):
        path.unlink()
    write(folder, {"test_batch": ragged})
    refused(lambda: cifar10_files.read(folder), "test_batch")


def test_a_pickle_cannot_ask_for_memory(folder: Path) -> None:
    """``r`` stores the top of the stack as memo 2^32 - 1: an unpickler with an array of memos takes
    64 GB for it."""
    write(folder, {**right_batches(), "test_batch": b"\x80\x02}r\xff\xff\xff\xff."})
    refused(lambda: cifar10_files.read(folder), "test_batch is not a CIFAR-10 batch")


@pytest.mark.parametrize(
    "value",
    [None, 7, "text", b"", zlib.compress(b"\x85"), zlib.compress(b"\x81\xa1x\xc7\x01\x04\x92")],
)
def test_values_of_a_database_that_are_no_posts(folder: Path, value: object) -> None:
    script = "CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples INTEGER);|"
    made = database(
        f"{script}INSERT INTO federated_data VALUES (?, ?, ?)",
        [(b"a", value, 1), (b"b", value, 1)],
        folder,
    )
    write(folder, {"stackoverflow_train.sqlite": made})
    refused(lambda: stackoverflow.load(folder), "stackoverflow_train.sqlite")
    blob = b"\xff" * 1_000_000 if value is None else value  # a number without end
    script = (
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto"
        " BLOB);CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples"
        " INTEGER);INSERT INTO client_metadata VALUES ('a', 'train', 1);|INSERT INTO examples"
        " VALUES ('train', 'a', ?)"
    )
    write(folder, {"stackoverflow_train.sqlite": database(script, [(blob,)], folder)})
    refused(lambda: stackoverflow.load(folder), "stackoverflow_train.sqlite")


def test_a_database_may_not_fill_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSLICE_UNPACK_GB", "0.01")
    script = "CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples INTEGER);|"
    rows = [(b"a", zlib.compress(bytes(20 << 20)), 1)]
    made = database(f"{script}INSERT INTO federated_data VALUES (?, ?, ?)", rows, folder)
    write(folder, {"stackoverflow_train.sqlite": made})
    told = refused(lambda: stackoverflow.load(folder), "unpacked")
    assert told.startswith(f"{folder / 'stackoverflow_train.sqlite'}: the data of its clients")


def test_hdf5_reads_no_other_file_and_only_lists_of_texts(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    secret, path = folder.parent / "secret", folder / "stackoverflow_train.h5"
    secret.write_bytes(b"the key".ljust(64, b"\0"))
    with h5py.File(folder.parent / "other.h5", "w") as tree:
        tree["tokens"] = SENTENCES
    layout = h5py.VirtualLayout((2,), "S9")
    layout[:] = h5py.VirtualSource(str(folder.parent / "other.h5"), "tokens", (2,), "S9")
    makers: dict[str, Callable[[object], object]] = {
        "other files": lambda user: user.create_dataset(
            "tokens", (2,), "S32", external=[(str(secret), 0, 64)]
        ),
        "in other files": lambda user: user.create_virtual_dataset("tokens", layout),
        "a link": lambda user: user.__setitem__(
            "tokens", h5py.ExternalLink(str(folder.parent / "other.h5"), "tokens")
        ),
        "link, which": lambda user: user.__setitem__(
            "tokens", h5py.SoftLink("/examples/a/creation_date")
        ),
        "not there": lambda user: None,
        "unpacked": lambda user: user.create_dataset("tokens", (1 << 40,), "S9", chunks=(1 << 10,)),
        "list of texts": lambda user: user.create_dataset("tokens", data=[1, 2]),
        "a list": lambda user: user.create_dataset("tokens", data=b"one"),
        "must be": lambda user: user.create_dataset("tokens", data=[SENTENCES, SENTENCES]),
        "be a list": lambda user: user.create_dataset("tokens", data=h5py.Empty("S9")),
        "1 sentences": lambda user: user.create_dataset("tokens", data=SENTENCES[:1]),
        "stackoverflow_train": lambda user: user.create_group("tokens"),
        r"train\.h5": lambda user: user.create_dataset(
            "tokens", data=np.zeros(2, [("a", "i4"), ("b", "S3")])
        ),
    }
    for message, make in makers.items():
        with h5py.File(path, "w") as tree:
            user = tree.create_group("examples/a")
            user["creation_date"] = DATES
            make(user)
        refused(lambda: read_posts(File(path), "train", lambda users: users), message)


def test_parquet_that_is_no_table_of_posts(folder: Path) -> None:
    good = {"user": ["a"], "time": [1], "text": ["x"]}
    for name, value in (
        ("user", {"a": 1}),
        ("user", ["a"]),
        ("time", {"a": 1}),
        ("time", "soon"),
        ("text", {"a": 1}),
    ):
        write(folder, {"stackoverflow.parquet": parquet({**good, name: [value]})})
        refused(lambda: stackoverflow.load(folder), "stackoverflow.parquet")


def test_endless_fields_and_lines_are_refused_in_short(folder: Path) -> None:
    """Of 2 MB that are wrong a message shows the beginning."""
    long = b"x" * 2_000_000
    cases: list[tuple[Callable[..., dict[str, bytes]], Callable[[Path], object], str, bytes]] = [
        (right_ratings, ratings.read, "ratings.dat", long),
        (right_ratings, ratings.read, "movies.dat", long),
        (right_ratings, ratings.read, "movies.dat", b"1::" + long + b"::Drama\n2::Heat::Action"),
        (right_ratings, ratings.read, "users.dat", b"1::" + long + b"::25::1::x"),
        (right_csv_ratings, ratings.read, "movies.csv", long),
        (right_csv_ratings, ratings.read, "movies.csv", b"movieId,title,genres\n1," + long),
        (right_csv_ratings, ratings.read, "movies.csv", b"movieId,title,genres\n" + long[:100_000]),
        (right_tweets, sent140_lstm.load, sent140_lstm.CSV, long),
        (right_plays, shakespeare_lstm.load, "shakespeare.txt", long),
        (
            right_plays,
            shakespeare_lstm.load,
            "shakespeare.txt",
            b"hamlet@1\tACT I\nhamlet@2\tHAMLET\t" + long,
        ),
        (right_stars, amazon_din.load, "ratings_Electronics.csv", b"A,B," + long + b",1"),
        (
            right_landmarks,
            gld_mobilenet.load,
            "mini_gld_train_split.csv",
            b"user_id,image_id,class\n" + long,
        ),
        (right_log, lambda folder: own(folder, "clicks.csv"), "clicks.csv", long),
        (
            right_me,
            lambda folder: recommend.read_ratings(folder / "me.csv"),
            "me.csv",
            b"title,rating\n" + long,
        ),
        (
            right_me,
            lambda folder: recommend.read_ratings(folder / "me.csv"),
            "me.csv",
            long[:100_000],
        ),
    ]
    for make, read, name, content in cases:
        write(folder, {**make(), name: content})
        try:
            refused(lambda: read(folder), name.split(".")[0])
        finally:
            for path in folder.iterdir():
                path.unlink()
