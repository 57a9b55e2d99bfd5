"""Sent140 LSTM of the FedSubAvg paper: is this tweet happy or sad?  A client is a Twitter user.

Clients are the users with more than 40 tweets; a random fifth of the tweets is the test set.  The
paper is silent on the text: here tweets are cleaned (:func:`fedslice.tasks.readers.text.tweet`),
the first 25 words count, as in LEAF, the vocabulary is the words of the training tweets, and other
words are left out.

Target: training loss 0.380, the ordinary cross-entropy.  The paper's MovieLens loss is half of
that, averaged over two outputs, but this one cannot be: twice 0.380 is more than ln 2 = 0.693, the
loss of a model that has learned nothing, and the figure is the least loss of 1,000 rounds of
CentralSGD.

Data: Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision" (2009),
also as prepared by LEAF (:mod:`fedslice.tasks.readers.leaf`)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import bounded, csv_rows, shown
from fedslice.models.classifier_lstm import classifier_lstm
from fedslice.tasks.base import Target, Task, Workload
from fedslice.tasks.generators.sent140 import LONGEST, TWEETS, WORDS, generate
from fedslice.tasks.readers import leaf, text
from fedslice.tasks.readers.cache import cached
from fedslice.tasks.readers.files import File, locate

NAME = "sent140-lstm"
SETTINGS = {"cohort": 50, "steps": 10, "batch": 5, "weights": "examples"}
RATES = {"": 0.1, "fedadam": 1.0}
ALONE = {"fedadam": {"server_rate": 1.0, "server_b1": 0.9, "server_b2": 0.99}}
TARGET = Target("train_loss", 0.38)
PUBLISHED = {
    "rounds to target, CentralSGD": "980",
    "rounds to target, FedAvg": "1000+",
    "rounds to target, FedProx": "1000+",
    "rounds to target, Scaffold": "1000+",
    "rounds to target, FedAdam": "1000+",
    "rounds to target, FedSubAvg": "260",
    "rounds to target, FedSubAvg, 30 clients a round": "270",
    "rounds to target, FedSubAvg, 10 clients a round": "420",
}
OBSERVED = {  # on a tenth of LEAF's files: 1,472 clients with at least 4 tweets
    "measured on": "a tenth of LEAF's files, 1,472 clients with at least 4 tweets",
    "rounds to target, FedSubAvg": "60",
    "training loss after 100 rounds, FedAvg": "0.65 to 0.77",
}
CSV = "training.1600000.processed.noemoticon.csv"
NEEDS = (
    f"Sent140 is {CSV} (in trainingandtestdata.zip of http://help.sentiment140.com/for-students, or"
    " Kaggle's sentiment140), or the JSON files that LEAF makes of it. Give the file, its folder"
    " or its zip, or use --synthetic"
)


class Tweets(NamedTuple):
    """n tweets of N users, sorted by user; ``tokens`` index the V ``words``, -1 after the end."""

    owner: np.ndarray  # int32 [n]
    users: np.ndarray  # [N]
    tokens: np.ndarray  # int32 [n, 25]
    label: np.ndarray  # float32 [n], 1 for happy
    test: np.ndarray  # bool [n]
    words: np.ndarray  # [V]


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated tweets (:mod:`fedslice.tasks.generators.sent140` says what they match).

    >>> task = synthetic(scale=0.02)
    >>> len(task.train), task.train.columns["tokens"].shape[1]
    (29, 25)
    """
    data = generate(seed, scale)
    test = _fifth(len(data.owner))
    tokens, used = _known(text.pad(data.codes, data.lengths, LONGEST), test, WORDS)
    users = np.char.add("user ", np.arange(len(np.unique(data.owner))).astype(str))
    tweets = Tweets(
        data.owner,
        users,
        tokens,
        data.happy.astype(np.float32),
        test,
        np.char.add("w", used.astype(str)),
    )
    return _task(tweets, f"generated data, seed {seed}, scale {scale:g}")


def load(path: str | Path) -> Task:
    """The task on the real data: the CSV file, or LEAF's JSON, whose own split is kept if it has
    one."""
    parts = _sources(Path(path))
    files = [file for some in parts.values() for file in some]
    sizes = {part: len(some) for part, some in parts.items()}
    arrays = cached(files, f"{NAME} 1, {sizes}", lambda: _read(parts)._asdict())
    return _task(Tweets(**arrays), str(path))


def _task(data: Tweets, source: str) -> Task:
    names = {"tokens": data.words}
    people = Population.from_arrays(data.owner, names, tokens=data.tokens, label=data.label)
    people = Population(people.columns, people.offsets, data.users[people.clients], names)
    both = [people.select(~data.test), people.select(data.test)]
    train, test = (part.subset(np.flatnonzero(part.counts)).renumbered() for part in both)
    model = classifier_lstm(len(data.words))
    return Task(
        NAME,
        model,
        train,
        test,
        SETTINGS,
        RATES,
        TARGET,
        PUBLISHED,
        source,
        algorithms=ALONE,
        observed=OBSERVED,
    )


# -- the real data ---------------------------------------------------------------------------------


def _sources(path: Path) -> dict[str, list[File]]:
    if not path.name.removesuffix(".gz").endswith(".json"):
        try:
            return {"csv": [locate(path, CSV, needs=NEEDS)[CSV]]}
        except MissingDataError:
            pass
    return leaf.find(path, NEEDS)


def _read(parts: dict[str, list[File]]) -> Tweets:
    """The tweets of the users who have enough of them."""
    test = None
    if "csv" in parts:
        owner, users, texts, happy = _read_csv(parts["csv"][0])
    else:
        owner, users, texts, happy, test = _read_leaf(parts)
    kept = np.flatnonzero((np.bincount(owner) > TWEETS)[owner])
    if not len(kept):
        raise InputError(
            f"no user has more than {TWEETS} tweets, as the task's clients do. {NEEDS}"
        )
    kept = kept[np.argsort(owner[kept], kind="stable")]
    clients, owner = np.unique(owner[kept], return_inverse=True)
    words = text.split_words(text.tweet([texts[place] for place in kept.tolist()]))
    rows = text.pad(words.codes, words.lengths, LONGEST)
    test = _fifth(len(kept)) if test is None else test[kept]
    tokens, used = _known(rows, test, len(words.vocabulary))
    names = bounded([users[client] for client in clients.tolist()], "the list of users")
    return Tweets(
        owner.astype(np.int32),
        names,
        tokens,
        happy[kept].astype(np.float32),
        test,
        words.vocabulary[used],
    )


def _read_csv(file: File) -> tuple[np.ndarray, list[str], Sequence[str], np.ndarray]:
    table = list(_rows(file))
    if not table:
        raise InputError(f"{file} has no tweets. {NEEDS}")
    polarity, names, texts = zip(*table, strict=True)
    index: defaultdict[str, int] = defaultdict(count().__next__)
    owner = np.fromiter(map(index.__getitem__, names), np.int32, len(names))
    return owner, list(index), texts, np.array(polarity) == "4"


def _rows(file: File) -> Iterator[tuple[str, str, str]]:
    """Polarity, user and text of each tweet that is happy (4) or sad (0); the small test file has
    neutral ones (2)."""
    for number, row in csv_rows((line + "\n" for line in file.lines("latin-1")), file, strict=True):
        if len(row) != 6 or row[0] not in ("0", "2", "4"):
            wanted = (
                "expected polarity 0, 2 or 4, id, date, query, user, text, got"
                f" {shown(','.join(row))}"
            )
            raise InputError(f"{file} line {number}: {wanted}. If it is cut off, download it again")
        if row[0] != "2":
            yield row[0], row[4], row[5]


def _read_leaf(
    parts: dict[str, list[File]],
) -> tuple[np.ndarray, list[str], Sequence[str], np.ndarray, np.ndarray | None]:
    found = leaf.read(parts)
    first = next(iter(parts.values()))[0]
    wrong = (
        f"{first} is not LEAF's Sent140: x must be [id, date, query, user, text], and y 0, 1 or 4."
        f" {NEEDS}"
    )
    try:
        texts = [tweet[4] for tweet in found.x]
        mark = np.array(found.y, np.float64)
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(wrong) from error
    if not (all(isinstance(each, str) for each in texts) and np.isin(mark, (0, 1, 4)).all()):
        raise InputError(wrong)
    return found.owner, found.users, texts, mark > 0, found.test


def _fifth(tweets: int) -> np.ndarray:
    """A random fifth, to test on."""
    return np.random.default_rng(0).permutation(tweets) < round(0.2 * tweets)


def _known(rows: np.ndarray, test: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of word codes as ids of the words of the training rows, other words left out; and those
    words' codes."""
    train = rows[~test]
    used = np.bincount(train[train >= 0], minlength=size) > 0
    # the last one for padding, -1
    ids = np.append(np.where(used, np.cumsum(used) - 1, -1), -1).astype(np.int32)
    tokens = ids[rows]
    order = np.argsort(tokens < 0, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.flatnonzero(used)


WORKLOAD = Workload(
    NAME,
    "Sent140, happy or sad tweet, with two LSTM layers of 100 (FedSubAvg paper)",
    synthetic,
    load,
    NEEDS,
    (CSV, "all_data*.json"),
    statistics={
        "clients": "1,473",
        "samples": "79,050",
        "samples per client": "54",
        "heat dispersion": "1,451",
        "sparsity": "13.15 %, the mean share of clients that hold a parameter",
    },
    settings=SETTINGS,
    learning_rates=RATES,
    target=TARGET,
    published=PUBLISHED,
    algorithms=ALONE,
    observed=OBSERVED,
)
