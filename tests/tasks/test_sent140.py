"""Sent140: both file formats and what can be wrong with them; generated tweets against the
published figures."""

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.tasks import sent140_lstm as sent140
from fedslice.tasks.base import Task
from fedslice.tasks.generators.sent140 import generate
from fedslice.tasks.logistic import logistic

LONG = " ".join(chr(ord("a") + i // 26) + chr(ord("a") + i % 26) for i in range(30))
# What a user may write, and what is left of it.
TWEETS = {
    "@bob I can't wait: http://t.co/x &amp; www.x.org": "<user> i cant wait <url> <url>",
    'He said "no, thanks" <b>twice</b>': "he said no thanks twice",
    "Caf\xe9, 10 000 \xa3!!": "café",
    "first\nsecond": "first second",
    "": "",
    "\u263a 42 :-)": "",
    LONG: " ".join(LONG.split()[:25]),
}
COUNTS = {"Ann": 50, "bob": 41, "eve": 40, "one": 1}  # eve and one have too few


def rows() -> list[list[str]]:
    """Polarity, id, date, query, user, text, users mixed: each writes every tweet in turn, then
    "day 1", "day 2"."""
    table = []
    texts = [text.replace("\u263a", "?") for text in TWEETS]  # the CSV is latin-1
    for number in range(max(COUNTS.values())):
        for user in [name for name, count in COUNTS.items() if number < count]:
            text = texts[number] if number < len(texts) else f"day {'x' * number} is fine"
            polarity = "4" if number % 3 == 0 else "0"
            table.append(
                [polarity, str(number), "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]
            )
    return table


def csv_bytes(table: list[list[str]] | None = None, end: str = "\n") -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end).writerows(
        rows() if table is None else table
    )
    return text.getvalue().encode("latin-1")


def leaf_bytes(table: list[list[str]], happy: int = 1) -> bytes:
    users = sorted({row[4] for row in table})
    data = {
        user: {
            "x": [[*row[1:], "training"] for row in table if row[4] == user],
            "y": [happy * (row[0] == "4") for row in table if row[4] == user],
        }
        for user in users
    }
    counts = [len(data[user]["y"]) for user in users]
    return json.dumps({"users": users, "num_samples": counts, "user_data": data}).encode()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def sentences(people: Population) -> list[tuple[str, str, float]]:
    """User, words and label of each tweet, sorted."""
    words = np.append(people.names["tokens"], "")
    texts = [" ".join(words[row]).strip() for row in people.columns["tokens"]]
    return sorted(
        zip(
            people.clients[people.owners].tolist(),
            texts,
            people.columns["label"].tolist(),
            strict=True,
        )
    )


def tweets(task: Task) -> list[tuple[str, str, float]]:
    return sorted(sentences(task.train) + sentences(task.test))


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"data/{sent140.CSV}", csv_bytes())
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "file": lambda folder: put(folder / "mine.csv", csv_bytes()),
    "folder": lambda folder: put(folder / sent140.CSV, csv_bytes()).parent,
    "gzip": lambda folder: put(folder / f"{sent140.CSV}.gz", gzip.compress(csv_bytes())),
    "zip": lambda folder: zipped(folder / "trainingandtestdata.zip"),
    "CRLF, BOM and blank lines": lambda folder: put(
        folder / "mine.csv", b"\xef\xbb\xbf" + csv_bytes(end="\r\n") + b"\r\n\r\n"
    ),
    "LEAF": lambda folder: (
        put(folder / "all_data" / "all_data.json", leaf_bytes(rows())).parent.parent
    ),
    "LEAF, y 0 or 4": lambda folder: put(folder / "all_data.json", leaf_bytes(rows(), happy=4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_load(form: str, tmp_path: Path) -> None:
    task = sent140.load(FORMS[form](tmp_path))
    assert task.train.clients.tolist() == task.test.clients.tolist() == ["Ann", "bob"]
    assert (task.train.counts + task.test.counts).tolist() == [50, 41]
    assert task.test.examples == round(0.2 * 91)
    assert np.unique(
        task.train.columns["tokens"][task.train.columns["tokens"] >= 0]
    ).tolist() == list(
        range(len(task.train.names["tokens"]))
    )  # the vocabulary is what the training tweets have
    known = set(task.train.names["tokens"].tolist())
    expected = []
    for user, number in [
        *(("Ann", number) for number in range(50)),
        *(("bob", number) for number in range(41)),
    ]:
        clean = (
            list(TWEETS.values())[number] if number < len(TWEETS) else f"day {'x' * number} is fine"
        )
        expected.append(
            (user, " ".join(w for w in clean.split() if w in known), float(number % 3 == 0))
        )
    assert tweets(task) == sorted(expected)
    padding = task.train.columns["tokens"] < 0
    assert (np.diff(padding.astype(int), axis=1) >= 0).all()  # at the end only
    assert (
        padding.all(axis=1).any() or (task.test.columns["tokens"] < 0).all(axis=1).any()
    )  # the empty tweets


def test_leaf_keeps_its_split_and_joins_its_files(tmp_path: Path) -> None:
    table = rows()
    late = [row for row in table if int(row[1]) >= 38]
    first = [row for row in table if int(row[1]) < 38 and row[4] in ("Ann", "eve")]
    second = [row for row in table if int(row[1]) < 38 and row[4] not in ("Ann", "eve")]
    put(tmp_path / "train" / "a.json", leaf_bytes(first))
    put(tmp_path / "train" / "b.json", leaf_bytes(second))
    put(tmp_path / "test" / "c.json", leaf_bytes(late))
    task = sent140.load(tmp_path)
    assert task.train.counts.tolist() == [38, 38]  # more than 40 together
    assert task.test.counts.tolist() == [12, 3]
    assert all("x" * 38 not in text for _, text, _ in sentences(task.train))
    assert sentences(task.test)[0] == (
        "Ann",
        "day is fine",
        0.0,
    )  # the rest of it no training tweet has


def test_second_start_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / sent140.CSV, csv_bytes())
    first = sent140.load(path)
    with monkeypatch.context() as patch:
        patch.setattr(sent140, "_read", None)
        again = sent140.load(path)
    assert tweets(again) == tweets(first)
    put(path, csv_bytes([*rows(), ["4", "9", "", "", "bob", "new words"]]))
    assert len(tweets(sent140.load(path))) == 92


def short(table: list[list[str]]) -> list[list[str]]:
    return [row for row in table if row[4] not in ("Ann", "bob")]


WRONG: dict[str, tuple[str, bytes, str]] = {
    "cut off": ("mine.csv", csv_bytes()[:-8], "cut off"),
    "a column missing": ("mine.csv", csv_bytes([*rows()[:2], rows()[2][:-1]]), "line 3"),
    "another polarity": (
        "mine.csv",
        csv_bytes([["3", *rows()[0][1:]]]),
        "line 1: expected polarity 0, 2 or 4",
    ),
    "nothing": ("mine.csv", b"", "has no tweets"),
    "nobody with enough": ("mine.csv", csv_bytes(short(rows())), "more than 40"),
    "gzip cut off": ("mine.csv.gz", gzip.compress(csv_bytes())[:-20], "download it again"),
    "JSON cut off": ("a.json", leaf_bytes(rows())[:-9], "download it again"),
    "JSON of something else": ("a.json", b'{"users": ["Ann"]}', "not a file of LEAF"),
    "x of something else": (
        "a.json",
        b'{"users": ["A"], "user_data": {"A": {"x": ["a"], "y": [0]}}}',
        "Sent140",
    ),
    "y of something else": ("a.json", leaf_bytes(rows(), happy=3), "y 0, 1 or 4"),
    "lengths differ": (
        "a.json",
        b'{"users": ["A"], "user_data": {"A": {"x": ["a"], "y": []}}}',
        "same length",
    ),
    "no examples": ("a.json", b'{"users": [], "user_data": {}}', "no examples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, tmp_path: Path) -> None:
    name, content, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        sent140.load(put(tmp_path / name, content))


@pytest.mark.parametrize("path", ["", "none.csv", "none.json"])
def test_missing_files_are_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="Sent140 is training"):
        sent140.load(tmp_path / path)


def test_neutral_tweets_are_left_out(tmp_path: Path) -> None:
    neutral = [["2", *row[1:]] for row in rows() if row[4] == "Ann"]
    task = sent140.load(put(tmp_path / "mine.csv", csv_bytes([*rows(), *neutral])))
    assert (task.train.counts + task.test.counts).tolist() == [50, 41]


# -- generated tweets ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated() -> Task:
    return sent140.synthetic(seed=0)


@pytest.fixture(scope="module")
def heat(generated: Task) -> np.ndarray:
    return np.asarray(generated.train.heat(generated.model).counts("embedding"))


def test_sizes_are_the_published_ones(generated: Task) -> None:
    counts = generated.train.counts + generated.test.counts
    assert (len(generated.train), counts.sum()) == (1473, 79_050)
    assert counts.min() > 40
    assert round(counts.mean()) == 54
    assert np.percentile(counts, 50) == pytest.approx(
        46, abs=2
    )  # most have little more than they must have
    busiest = np.sort(counts)[-10:]  # of the real users: 549 tweets to 236
    assert busiest[[0, -1]] == pytest.approx([236, 549], rel=0.05)
    assert generated.test.examples == 79_050 // 5


def test_heat_is_the_published_one(generated: Task, heat: np.ndarray) -> None:
    assert (heat.max(), heat.min()) == (1451, 1)
    dense = sum(
        leaf.size
        for leaf in jax.tree.leaves(jax.eval_shape(generated.model.init, jax.random.key(0)))
    )
    assert dense == 4 * 100 * (25 + 100 + 1) + 4 * 100 * (100 + 100 + 1) + 101
    held = dense + 25 * heat.sum() / 1473
    sparsity = generated.train.heat(generated.model).sparsity
    assert sparsity == pytest.approx(held / (dense + 25 * len(heat)))
    assert sparsity == pytest.approx(0.1309, abs=5e-5)  # the paper's is 0.1315
    assert np.mean(heat == 1) == pytest.approx(0.5, abs=0.05)


def test_heat_follows_zipfs_law(heat: np.ndarray) -> None:
    """If the r-th word's frequency is r^-s, the words with a heat of at least n are as many as
    n^(-1 / s)."""
    words = {bound: np.sum(heat >= bound) for bound in (3, 12, 20, 200)}
    assert np.log(words[20] / words[200]) / np.log(10) == pytest.approx(
        1 / 1.05, abs=0.1
    )  # common words
    assert (
        1 / 1.83 - 0.05 < np.log(words[3] / words[12]) / np.log(4) < 1 / 1.05 - 0.2
    )  # rare ones: beyond the knee


def test_words_and_labels(generated: Task) -> None:
    people = generated.train
    labels = people.columns["label"]
    assert 0.5 < labels.mean() < 0.65
    moods = np.bincount(people.owners, labels) / people.counts
    assert 0.12 < moods.std() < 0.22  # users differ more than chance alone makes them, 0.075
    assert (people.columns["tokens"] >= 0).sum(axis=1).mean() == pytest.approx(12.6, abs=0.3)


def test_rare_words_carry_a_signal(generated: Task, heat: np.ndarray) -> None:
    """Of a word with two users, who wrote it once each: their labels agree more often than by
    chance."""
    tokens, label = generated.train.columns["tokens"], generated.train.columns["label"]
    tweet, place = np.nonzero(tokens >= 0)
    word = tokens[tweet, place]
    twice = (heat == 2) & (np.bincount(word, minlength=len(heat)) == 2)
    mine = twice[word]
    happy = np.bincount(word[mine], label[tweet[mine]], minlength=len(heat))[twice]
    chance = label.mean() ** 2 + (1 - label.mean()) ** 2
    error = np.sqrt(chance * (1 - chance) / twice.sum())
    assert np.mean(happy != 1) > chance + 4 * error


def test_negation_turns_the_next_word() -> None:
    """Words stand with the label that they stand with most, but after a negation against it."""
    data = generate(seed=0)
    happy, tweet = (
        np.repeat(data.happy, data.lengths),
        np.repeat(np.arange(len(data.happy)), data.lengths),
    )
    counts = np.bincount(data.codes)
    charge = (
        np.bincount(data.codes, happy) / np.maximum(counts, 1) - data.happy.mean()
    )  # of each word
    after = np.append(False, np.isin(data.codes[:-1], (12, 30, 45)) & (tweet[1:] == tweet[:-1]))
    agree = np.where(counts > 200, charge, 0)[data.codes] * np.where(happy, 1, -1)
    for some, sign in ((agree[~after], 1), (agree[after], -1)):
        assert sign * some.mean() > 4 * some.std() / np.sqrt(len(some))


def test_seed_and_scale() -> None:
    one, same, other = (sent140.synthetic(seed=seed, scale=0.05) for seed in (1, 1, 2))
    assert all(
        np.array_equal(one.train.columns[name], same.train.columns[name])
        for name in ("tokens", "label")
    )
    assert (
        one.train.columns["tokens"].shape != other.train.columns["tokens"].shape
        or (one.train.columns["tokens"] != other.train.columns["tokens"]).any()
    )
    assert len(one.train) == round(1473 * 0.05)
    assert one.train.examples + one.test.examples == pytest.approx(79_050 * 0.05, abs=1)
    with pytest.raises(InputError, match=r"at least 0\.01"):
        sent140.synthetic(scale=0.001)


@pytest.mark.every
def test_heat_correction_helps(generated: Task) -> None:
    """With one weight a word, at the paper's settings: FedSubAvg learns what FedAvg does not in as
    many rounds."""
    model = logistic(len(generated.train.names["tokens"]))
    columns = {
        "features": generated.train.columns["tokens"],
        "label": generated.train.columns["label"],
    }
    people = Population(columns, generated.train.offsets, generated.train.clients)
    work = {"work": fs.Work(steps=10, batch=5), "weights": "examples"}
    methods = [
        fs.recipes.fedavg(model, optax.sgd(0.1), **work),
        fs.recipes.fedsubavg(model, optax.sgd(0.1), heat=people.heat(model), **work),
    ]
    losses = []
    for method in methods:
        run = fs.simulate(method, people, sampler=fs.sampling.uniform(50))
        run.train(100)
        losses.append(fs.evaluate(run, people.sample(5000)).pooled["loss"])
    assert losses[1] < 0.5 < 0.6 < losses[0]


def test_model_reads_the_columns() -> None:
    task = sent140.synthetic(scale=0.02)
    table = jnp.zeros((len(task.train.names["tokens"]), 25))
    params = jax.eval_shape(task.model.init, jax.random.key(0)) | {"embedding": table}
    batch = {name: column[:7] for name, column in task.train.columns.items()}
    assert jax.eval_shape(task.model.loss, params, batch).shape == (7,)


def test_workload() -> None:
    workload = sent140.WORKLOAD
    assert (workload.name, workload.load, workload.scale) == ("sent140-lstm", sent140.load, 1.0)
    assert workload.target is not None
    assert workload.target.reached({"train_loss": 0.38})
    assert workload.published["rounds to target, FedSubAvg"] == "260"
