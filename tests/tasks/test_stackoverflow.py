"""Stack Overflow: every form of the files, what becomes of the sentences, the generator's
statistics, both tasks."""

import gzip
import importlib
import sqlite3
import zipfile
import zlib

import jax
import msgpack
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.cli import catalogue, settings
from fedslice.data.halves import query
from fedslice.errors import InputError, MissingDataError
from fedslice.evaluation.gain import adapted
from fedslice.models.language_lstm import language_lstm
from fedslice.tasks import stackoverflow_lstm, stackoverflow_transformer
from fedslice.tasks.generators.stackoverflow import HELD_OUT, TRAIN, generate
from fedslice.tasks.readers import stackoverflow as so
from fedslice.tasks.readers.sentences import Corpus, population

# user -> sentences (tokens, date), not in the order of time; the last two of "7" were written in
# the same post
TRAINING = {
    "7": [
        ("how do i sort a list ?", "2012-03-01 10:00:00.5 UTC"),
        ("a list of lists", "2010-01-01 00:00:00 UTC"),
        ("use sort ( )", "2017-12-31 23:59:59.999 UTC"),
        ("it sorts in place", "2017-12-31 23:59:59.111 UTC"),
    ],
    "12": [("a", "2011-05-05 05:05:05.05 UTC")],
    "30": [
        ("", "2011-05-05 05:05:05 UTC"),
        ("caf\u00e9 \U0001f600 a a", "2011-05-06 05:05:05 UTC"),
    ],
    "41": [("", "2013-01-01 00:00:00 UTC")],
}
HELD = {"20": [("sort a zebra", "2018-06-01 00:00:00 UTC"), ("a list", "2009-06-01 00:00:00 UTC")]}
COMMON = ["a", "list", "sort"]  # 5, 2 and 2 times; every other word once


def fedjax(path, users):
    """As FedJAX writes: arrays are extensions of msgpack, zlib around all of it."""

    def pack(x):
        if x.dtype == object:
            return msgpack.ExtType(4, msgpack.packb((x.shape, list(x)), use_bin_type=True))
        return msgpack.ExtType(
            1, msgpack.packb((x.shape, x.dtype.name, x.tobytes()), use_bin_type=True)
        )

    base = sqlite3.connect(path)
    base.execute(
        "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, "
        "num_examples INTEGER NOT NULL)"
    )
    for user, posts in users.items():
        columns = {
            "creation_date": np.array([date.encode() for _, date in posts], object),
            "score": np.arange(len(posts), dtype=np.int64),
            "tags": np.array([b"python|list"] * len(posts), object),
            "title": np.array([b"t" * 300] * len(posts), object),
            "tokens": np.array([text.encode() for text, _ in posts], object),
            "type": np.array([b"answer"] * len(posts), object),
        }
        blob = zlib.compress(msgpack.packb(columns, default=pack, strict_types=True))
        base.execute(
            "INSERT INTO federated_data VALUES (?, ?, ?)", (user.encode(), blob, len(posts))
        )
    base.commit()
    base.close()


def message(number, content):
    """A field with a length of a protocol buffer message."""
    size, length = len(content), b""
    while size >= 128:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def example(**texts):
    """A tf.train.Example of texts and, as one feature that is none, the score -1 in a list of
    numbers."""
    score = message(3, message(1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
    features = {name: message(1, message(1, text.encode())) for name, text in texts.items()} | {
        "score": score
    }
    entries = (
        message(1, message(1, name.encode()) + message(2, value))
        for name, value in features.items()
    )
    return message(1, b"".join(entries))


def tff(path, splits):
    """As TensorFlow Federated writes: one row for each example, all splits in one file."""
    base = sqlite3.connect(path)
    base.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    base.execute(
        "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
    )
    base.execute("CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)")
    for split, users in splits.items():
        for user, posts in users.items():
            base.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, len(posts)))
            for text, date in posts:
                blob = example(
                    creation_date=date, title="t" * 300, tags="a|b", tokens=text, type="question"
                )
                base.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, user, blob))
    base.commit()
    base.close()


def hdf5(path, users):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as tree:
        for user, posts in users.items():
            for name, column in zip(
                ("tokens", "creation_date"), zip(*posts, strict=True), strict=True
            ):
                values = np.array([value.encode() for value in column], object)
                tree.create_dataset(
                    f"examples/{user}/{name}", data=values, dtype=h5py.special_dtype(vlen=bytes)
                )


def sentences(corpus, vocabulary):
    """The words again, ? for those outside the vocabulary, by user."""
    names = np.append(vocabulary, ["?", ""])
    rows = names[
        np.where(corpus.words < 0, len(names) - 1, np.minimum(corpus.words, len(vocabulary)))
    ]
    texts = [" ".join(word for word in row if word) for row in rows]
    starts = np.cumsum(corpus.counts) - corpus.counts
    parts = zip(corpus.users.tolist(), starts, corpus.counts, strict=True)
    return {user: texts[start : start + count] for user, start, count in parts}


EXPECTED = {
    "7": ["a list ? ?", "? ? ? sort a list ?", "? sort ? ?", "? ? ? ?"],
    "12": ["a"],
    "30": ["? ? a a"],
}


@pytest.mark.parametrize("form", ["fedjax", "fedjax.gz", "fedjax.zip", "tff", "hdf5"])
def test_every_form_gives_the_same_sentences(form, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    if form == "tff":
        tff(
            folder / "stackoverflow.sqlite",
            {"train": TRAINING, "heldout": HELD, "test": {"9": HELD["20"]}},
        )
    else:
        write, kind = (hdf5, "h5") if form == "hdf5" else (fedjax, "sqlite")
        for split, users in (("train", TRAINING), ("held_out", HELD)):
            write(folder / f"stackoverflow_{split}.{kind}", users)
    files = list(folder.iterdir())
    if form == "fedjax.zip":
        with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.name)
    for file in files if form in ("fedjax.gz", "fedjax.zip") else []:
        if form == "fedjax.gz":
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    data = so.load(folder, vocabulary=3)
    assert data.vocabulary.tolist() == COMMON
    by_name = {
        user: EXPECTED[user] for user in sorted(EXPECTED)
    }  # 41 wrote nothing but an empty sentence
    assert sentences(data.train, data.vocabulary) == by_name
    assert sentences(data.test, data.vocabulary) == {"20": ["a list", "sort a ?"]}
    written = np.datetime64("2011-05-05T05:05:05", "s").astype(np.int64)
    assert data.train.time[0] == written
    assert np.all(np.diff(data.train.time[-4:]) >= 0)


CSV = (
    '\ufeffuser,time,text\r\nx1,2015-01-02 00:00:00,"Use <b>sort</b>, see'
    ' &lt;https://a.b/c?d=1&amp;e=2&gt; or ""list"""\r\nx1,2015-01-01 00:00:00,"It\'s a'
    ' well-known\r\nnew line"\r\nx2,2015-01-01 00:00:00,""\r\nx2,2015-01-01 00:00:01,NA'
    " \U0001f600\r\nx3,2015-01-01 00:00:00,caf\u00e9 www.example.org\r\n"
)


@pytest.mark.parametrize("packed", ["plain", "gz", "zip", "latin-1", "folder"])
def test_a_csv_is_prepared_as_the_original(packed, tmp_path):
    path = tmp_path / "stackoverflow.csv"
    if packed == "latin-1":
        path.write_bytes(CSV.replace("\U0001f600", "").removeprefix("\ufeff").encode("latin-1"))
    elif packed == "gz":
        path = tmp_path / "stackoverflow.csv.gz"
        path.write_bytes(gzip.compress(CSV.encode()))
    elif packed == "zip":
        path = tmp_path / "any.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("deep/stackoverflow.csv", CSV)
    else:
        path.write_bytes(CSV.encode())
    data = so.load(tmp_path if packed == "folder" else path, vocabulary=100)
    held = data.test.users.tolist()  # one of the three, the same every time
    assert len(held) == 1
    everything = sentences(data.train, data.vocabulary) | sentences(data.test, data.vocabulary)
    assert sorted(everything) == ["x1", "x2", "x3"]
    wanted = {
        "x1": ["it's a well-known new line", 'use < b > sort < / b > , see < <url> or " list "'],
        "x2": ["na"],
        "x3": ["caf <url>"],
    }
    del wanted[held[0]], everything[held[0]]
    assert everything == wanted


def parquet(path, **columns):
    arrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(arrow.table(columns), path)


def test_parquet_with_any_kind_of_time(tmp_path):
    users, text = [5, 5, 5, 6], ["late", "first", "also first", None]
    stamps = np.array(["2015-01-02", "2015-01-01", "2015-01-01", "2015-01-01"], "datetime64[ms]")
    kinds = {
        "stamps": stamps,
        "numbers": stamps.astype("datetime64[s]").astype(np.int64),
        "floats": stamps.astype("datetime64[s]").astype(np.int64) + 0.75,
        "texts": [
            "2015-01-02T00:00:00Z",
            "2015-01-01",
            "2015-01-01T00:00:00.5",
            "2015-01-01 00:00",
        ],
        "days": stamps.astype("datetime64[D]"),
    }
    for name, time in kinds.items():
        path = tmp_path / f"{name}.parquet"
        parquet(path, user=users, time=time, text=text)
        with pytest.raises(InputError, match="at least two users"):  # 6 wrote nothing
            so.load(path)
        more = np.append(time, time[:1]) if isinstance(time, np.ndarray) else [*time, time[0]]
        parquet(path, user=[*users, 8], time=more, text=[*text, "other"])
        data = so.load(path, vocabulary=9)
        everything = sentences(data.train, data.vocabulary) | sentences(data.test, data.vocabulary)
        mine = everything.get("5", [])
        assert [len(each.split()) for each in mine] == [1, 2, 1]
        assert set(data.train.time.tolist()) | set(data.test.time.tolist()) == {
            1420070400,
            1420156800,
        }


def test_sentences_are_cut_and_users_bounded(tmp_path):
    lengths = {"0": 19, "1": 20, "2": 21}
    users = {
        user: [(" ".join(["w"] * size), "2010-01-01 00:00:00 UTC")]
        for user, size in lengths.items()
    }
    many = [(f"w n{n}", f"20{10 + n}-01-01 00:00:00 UTC") for n in (3, 1, 2, 0)]
    fedjax(tmp_path / "stackoverflow_train.sqlite", users | {"3": many})
    fedjax(tmp_path / "stackoverflow_held_out.sqlite", {str(n): many for n in range(50)})
    data = so.load(tmp_path / "stackoverflow_train.sqlite", sentences=2, vocabulary=3, clients=200)
    assert data.train.counts.tolist() == [1, 1, 1, 2]
    assert data.vocabulary.tolist() == ["w", "n0", "n1"]  # the earliest; ties by the alphabet
    assert len(data.test.users) == 20
    assert data.test.users.tolist() == sorted(data.test.users.tolist())
    people = population(data.train, data.vocabulary)
    tokens, following = people.columns["tokens"], people.columns["next"]
    assert tokens.shape == following.shape == (5, 20)
    assert np.all(tokens[:3] == [3] + [0] * 19)
    assert following[0].tolist() == [0] * 19 + [3]
    assert following[1].tolist() == following[2].tolist() == [0] * 20
    assert tokens[3].tolist() == [3, 0, 1] + [-1] * 17
    assert following[3].tolist() == [0, 1, 3] + [-1] * 17
    few = so.load(tmp_path, clients=2, sentences=2)
    assert len(few.train.users) == 2
    np.testing.assert_array_equal(
        few.train.users, so.load(tmp_path, clients=2, sentences=2).train.users
    )


def test_other_words_go_to_buckets_that_are_the_same_for_all():
    words = np.array([[0, 2 + 700, 1, 2 + 33], [2 + 700, -1, -1, -1]], np.int32)
    corpus = Corpus(np.array(["a", "b"]), np.array([1, 1]), np.zeros(2, np.int64), words)
    people = population(corpus, np.array(["x", "y"]), buckets=500)
    assert people.columns["tokens"].tolist() == [[2, 0, -1, 1], [2, -1, -1, -1]]
    assert people.columns["bucket"].tolist() == [[-1, -1, 200, -1], [-1, 200, -1, -1]]
    assert people.columns["next"].tolist() == [[0, 203, 1, 36], [203, 2, -1, -1]]
    assert people.names["tokens"].tolist() == ["x", "y", "<sentence>"]
    whole = population(corpus, np.array(["x", "y"]))
    assert whole.columns["tokens"].tolist() == [[2, 0, 3, 1], [2, 3, -1, -1]]
    assert whole.columns["next"].tolist() == [[0, 3, 1, 3], [3, 2, -1, -1]]
    assert whole.names["tokens"].tolist() == ["x", "y", "<sentence>", "<unknown>"]


def test_the_vocabulary_is_that_of_the_training_users(tmp_path):
    fedjax(tmp_path / "stackoverflow_train.sqlite", TRAINING)
    fedjax(
        tmp_path / "stackoverflow_test.sqlite", {"1": [("zebra " * 15, "2018-01-01 00:00:00 UTC")]}
    )
    data = so.load(tmp_path, vocabulary=10_000)
    assert "zebra" not in data.vocabulary
    assert np.all(data.test.words[data.test.words >= 0] >= len(data.vocabulary))
    assert len(np.unique(data.test.words[data.test.words >= 0])) == 1


def test_the_second_time_nothing_is_parsed(tmp_path, monkeypatch):
    fedjax(tmp_path / "stackoverflow_train.sqlite", TRAINING)
    first = so.load(tmp_path, vocabulary=3)
    monkeypatch.setattr(so, "read", lambda *_: pytest.fail("read again"))
    second = so.load(tmp_path, vocabulary=3)
    for left, right in zip((*first.train, *first.test), (*second.train, *second.test), strict=True):
        np.testing.assert_array_equal(left, right)
    monkeypatch.undo()
    assert len(so.load(tmp_path, vocabulary=2).vocabulary) == 2


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _bad_blob(path):
    base = sqlite3.connect(path)
    blob = zlib.compress(msgpack.packb({"tokens": [b"a"], "creation_date": 3}))
    base.execute("UPDATE federated_data SET data = ?", (blob,))
    base.commit()
    base.close()


def _bad_date(path):
    path.unlink()
    fedjax(path, {"1": [("a", "yesterday")]})


def _no_date(path):
    path.unlink()
    fedjax(path, {"1": [("a", "")]})


def _other_tables(path):
    path.unlink()
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE birds (name TEXT)")
    base.close()


@pytest.mark.parametrize(
    ("harm", "said"),
    [(_cut, "download it again"), (_bad_blob, "download it again"), (_bad_date, "2018-02-28"),
     (_no_date, "no date"), (_other_tables, "birds")],
)  # fmt: skip
def test_damaged_databases_are_named(harm, said, tmp_path):
    path = tmp_path / "stackoverflow_train.sqlite"
    fedjax(path, {str(n): TRAINING["7"] * 30 for n in range(60)})
    harm(path)
    with pytest.raises(InputError, match=said):
        so.load(tmp_path)


def test_damaged_examples_and_empty_splits_are_named(tmp_path):
    path = tmp_path / "stackoverflow.sqlite"
    tff(path, {"train": TRAINING})
    with pytest.raises(InputError, match="no users of the test split"):
        so.load(path)
    base = sqlite3.connect(path)
    base.execute(
        "UPDATE examples SET serialized_example_proto = ?",
        (example(tokens="a", creation_date="2010")[:-3],),
    )
    base.commit()
    base.close()
    with pytest.raises(InputError, match="download it again"):
        so.load(path)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match="FedJAX"):
        so.load(tmp_path)
    path = tmp_path / "mine.csv"
    path.write_text("user,when,text\n1,2,a\n")
    with pytest.raises(InputError, match="no column time; it has user, when, text"):
        so.load(path)
    path.write_text("user,time,text\n1,2010-01-01,a\n")
    with pytest.raises(InputError, match="at least two users"):
        so.load(path)
    path.write_text("user,time,text\n1,2010-01-01\n")
    with pytest.raises(InputError, match="cannot be read"):
        so.load(path)
    with pytest.raises(InputError, match="at least 1"):
        so.load(path, clients=0)
    fedjax(tmp_path / "stackoverflow_held_out.sqlite", HELD)
    with pytest.raises(MissingDataError, match=r"stackoverflow_train\.sqlite"):
        so.load(tmp_path)
    with pytest.raises(MissingDataError, match=r"stackoverflow_train\.sqlite"):
        so.load((tmp_path / "stackoverflow_held_out.sqlite").rename(tmp_path / "other.sqlite"))
    (tmp_path / "stackoverflow_train.h5").write_bytes(b"x")
    monkeypatch.setitem(importlib.import_module("sys").modules, "h5py", None)
    with pytest.raises(InputError, match=r"fedslice\[data\]"):
        so.load(tmp_path / "stackoverflow_train.h5")


def test_a_gzip_that_was_cut_off_is_named(tmp_path):
    fedjax(tmp_path / "full.sqlite", TRAINING)
    packed = gzip.compress((tmp_path / "full.sqlite").read_bytes())
    (tmp_path / "stackoverflow_train.sqlite.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"stackoverflow_train\.sqlite\.gz"):
        so.load(tmp_path)


def test_the_generator_has_the_published_shape():
    scale = 0.01
    data = generate(seed=1, scale=scale, sentences=10**6, vocabulary=10_000, length=2)
    train, held = data.train, data.test
    assert (len(train.users), len(held.users)) == (round(TRAIN * scale), round(HELD_OUT * scale))
    assert train.counts.mean() == pytest.approx(135_818_730 / 342_477, rel=0.05)
    assert held.counts.mean() == pytest.approx(16_491_230 / 38_758, rel=0.05)
    assert held.counts.min() == 100
    assert 1 <= train.counts.min() < 20  # most of a late user's sentences are from after 2018
    assert 2 * np.median(train.counts) < train.counts.mean()
    assert 20_000 < train.counts.max() < 90_000
    assert len(data.vocabulary) == 10_000


def test_the_generators_words_follow_zipf_and_many_are_held_by_few():
    data = generate(seed=1, scale=0.003, sentences=64, vocabulary=1_000)
    again = generate(seed=1, scale=0.003, sentences=64, vocabulary=1_000)
    np.testing.assert_array_equal(data.train.words, again.train.words)
    assert not np.array_equal(
        data.train.words, generate(seed=2, scale=0.003, sentences=64).train.words
    )
    words = data.train.words
    real = words >= 0
    assert 12 < real.sum(1).mean() < 13.5
    assert 0.12 < (words >= 1_000).sum() / real.sum() < 0.2
    counts = np.bincount(words[(words >= 0) & (words < 1_000)], minlength=1_000)
    assert np.all(np.diff(counts) <= 0)
    ranks = np.array([30, 1_000])
    slope = np.log(counts[ranks[0] - 1] / counts[-1]) / np.log(ranks[1] / ranks[0])
    assert 0.9 < slope < 1.5
    people = population(data.train, data.vocabulary)
    heat = people.heat(stackoverflow_transformer.transformer(1_000))
    held = heat.counts("embedding")
    assert held.max() == len(people)  # the begin of a sentence
    assert heat.dispersion > 40
    assert np.mean(held < len(people) / 10) > 0.25
    assert np.mean(held > len(people) / 2) < 0.25


@pytest.mark.every
def test_what_follows_a_generated_word_can_be_learned_also_for_cold_ones():
    size = 1_000
    data = generate(seed=0, scale=0.003, sentences=64, vocabulary=size)

    def pairs(corpus):
        before, after = corpus.words[:, :-1], corpus.words[:, 1:]
        real = (after >= 0) & (after < size) & (before < size)
        return before[real], after[real]

    before, after = pairs(data.train)
    seen = np.zeros((size, size))
    np.add.at(seen, (before, after), 1)
    best, usual = seen.argmax(1), seen.sum(0).argmax()
    before, after = pairs(data.test)
    hit = best[before] == after
    assert 0.3 < hit.mean() < 0.42  # about the published accuracies, 24% to 30% of all words
    held = population(data.train, data.vocabulary).heat(stackoverflow_transformer.transformer(size))
    cold = held.counts("embedding")[before] < len(data.train.users) / 10
    assert cold.mean() > 0.02
    assert hit[cold].mean() > 0.25
    assert (usual == after[cold]).mean() < 0.1


def test_what_follows_a_users_own_words_is_found_in_its_earlier_sentences_alone():
    size = 1_000
    test = generate(seed=0, scale=0.001, sentences=1_000, vocabulary=size).test
    owner = np.repeat(np.arange(len(test.users)), test.counts)
    late = (
        np.arange(len(owner)) - (np.cumsum(test.counts) - test.counts)[owner]
    ) * 2 >= test.counts[owner]
    before, after = test.words[:, :-1], test.words[:, 1:]
    real = (before >= size) & (after >= 0) & (after < size)
    who, when = (np.broadcast_to(each[:, None], before.shape)[real] for each in (owner, late))

    def accuracy(groups):
        """Of guessing what most often followed the unknown word in the first half of the group's
        sentences."""
        _, key = np.unique(groups * 2**22 + before[real], return_inverse=True)
        early, times = np.unique(np.stack([key, after[real]])[:, ~when], axis=1, return_counts=True)
        guess = np.full(key.max() + 1, -1)
        order = np.argsort(times, kind="stable")
        guess[early[0, order]] = early[1, order]  # the most frequent is written last
        return np.mean(guess[key[when]] == after[real][when])

    alone = np.bincount(after[real]).max() / real.sum()
    assert alone < 0.06
    assert accuracy(who.astype(np.int64)) > alone + 0.08


@pytest.mark.parametrize("module", [stackoverflow_lstm, stackoverflow_transformer])
def test_the_tasks_say_what_is_published(module, tmp_path):
    work = module.WORKLOAD
    assert work.settings["batch"] == 16
    method = catalogue.find_method(work.algorithm)
    assert set(work.settings) <= {*settings.COMMON, *method.options}
    task = module.synthetic(scale=0.0002)
    assert task.name == work.name
    assert task.settings["cohort"] <= len(task.train) == 68
    assert len(task.test) == 8
    assert task.model.fields(task.train.columns) - {"bucket"} == {"tokens", "next"}
    assert task.train.counts.max() <= 64
    assert (
        method.build(task, catalogue.settings_for(task, work.algorithm, [])).client.model
        is task.model
    )
    assert catalogue.find_method("fedavg").build(task, catalogue.settings_for(task, "fedavg", []))
    fedjax(tmp_path / "stackoverflow_train.sqlite", {str(n): TRAINING["7"] for n in range(20)})
    real = module.load(tmp_path)
    assert (len(real.train), len(real.test)) == (19, 1)
    assert real.settings["cohort"] == min(19, work.settings["cohort"])
    wide = jax.eval_shape(real.model.dense, jax.random.key(0))
    leaf = (
        wide["lstm"][0]["hidden"]
        if module is stackoverflow_lstm
        else wide["layer2"]["in"]["weight"]
    )
    assert leaf.shape == ((670, 2680) if module is stackoverflow_lstm else (96, 1536))


@pytest.mark.every
def test_the_model_learns_more_than_the_words_frequencies():
    """On the query half of unseen users, against NumPy's cross-entropy of the training targets'
    frequencies."""
    data = generate(scale=0.0003, sentences=32, vocabulary=200, length=8)
    train, test = (
        population(corpus, data.vocabulary, buckets=50) for corpus in (data.train, data.test)
    )
    model = language_lstm(
        200, specials=1, buckets=50, local_buckets=True, embedding=16, hidden=24, project=16
    )
    work = fs.Work(epochs=1, batch=8)
    method = fs.recipes.fedrecon(
        model, optax.adam(0.03), work, reconstruction=optax.sgd(3.0), recover=work, split="time"
    )
    run = fs.simulate(method, train, sampler=fs.sampling.uniform(20))
    assert adapted(run, test).after.pooled["loss"] == pytest.approx(np.log(251), abs=0.1)
    run.train(20)
    targets, judged = train.columns["next"], query(test, "time").columns["next"]
    counts = 1 + np.bincount(targets[targets >= 0], minlength=251)
    surprise = -np.log(counts / counts.sum())
    frequencies = np.mean([surprise[row[row >= 0]].mean() for row in judged])
    assert adapted(run, test).after.pooled["loss"] < frequencies - 0.05


@pytest.mark.every
def test_local_buckets_tell_what_only_the_client_knows():
    """One unknown word, after which each client always says the same word of its own: nobody else
    can know it.

    Before reconstruction one answer serves all clients, and words are spread evenly, so at most one
    in five is right; after it every unseen client is understood.
    """

    def speakers(words):
        owner = np.repeat(np.arange(len(words)), 8)
        fields = {"tokens": [5, -1], "bucket": [-1, 0]}  # the begin, the unknown word
        columns = {name: np.tile(field, (len(owner), 1)) for name, field in fields.items()}
        columns["next"] = np.stack([np.full(len(owner), 6), np.asarray(words)[owner]], axis=1)
        return fs.Population.from_arrays(owner, time=np.arange(len(owner)), **columns)

    model = language_lstm(
        5, specials=1, buckets=1, local_buckets=True, embedding=8, hidden=16, project=None
    )
    method = fs.recipes.fedrecon(
        model,
        optax.adam(0.01),
        fs.Work(epochs=1, batch=4),
        reconstruction=optax.sgd(3.0),
        recover=fs.Work(epochs=10, batch=4),
        split="time",
    )
    run = fs.simulate(method, speakers(np.arange(40) % 5), sampler=fs.sampling.uniform(20))
    run.train(15)
    gain = adapted(run, speakers([0, 1, 2, 3, 4] * 6))
    assert gain.before.pooled["accuracy"] <= 0.2
    assert gain.after.pooled["accuracy"] == 1.0
