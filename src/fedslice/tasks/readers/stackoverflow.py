"""Next word prediction on Stack Overflow: the data of both tasks, read or generated.  A client is a
user.

TensorFlow Federated's data set (2019): 342,477 training users with 135,818,730 sentences from
before 2018, 38,758 held-out users with 16,491,230, and 16,586,035 sentences of 204,088 users after
that; users with fewer than 100 had been left out.  Prepared as in Reddi et al., "Adaptive Federated
Optimization" (2021), and in FedRecon: at most 1,000 sentences of a user, each cut or padded to 20
words, the 10,000 most common words, begin and end of a sentence, and the others hashed to buckets.
The held-out users are the test set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.tasks.readers.cache import cached
from fedslice.tasks.readers.files import File, locate
from fedslice.tasks.readers.sentences import Corpus, Data, encode
from fedslice.tasks.readers.stackoverflow_files import TOKENS, Posts, read

CLIENTS, SENTENCES, VOCABULARY, LENGTH = 10_000, 1_000, 10_000, 20
# the first of each is needed, the others are for testing
_CHOICES = (
    *(
        [f"stackoverflow_{split}.{kind}" for split in ("train", "held_out", "test")]
        for kind in ("sqlite", "h5")
    ),
    *([f"stackoverflow.{kind}"] for kind in ("sqlite", "parquet", "csv")),
)
FILES = tuple(first for first, *_ in _CHOICES)
NEEDS = (
    "Stack Overflow is stackoverflow_train.sqlite with stackoverflow_held_out.sqlite of FedJAX,"
    " the same as .h5 or one stackoverflow.sqlite of TensorFlow Federated (unpack .lzma and"
    " .tar.bz2 first), or your own stackoverflow.csv or .parquet with the columns user, time and"
    f" text. {CLIENTS:,} users are read; load(path, clients=...) reads more."
)
STATISTICS = {
    "training clients": "342,477 with 135,818,730 sentences, before 2018",
    "held-out clients": "38,758 with 16,491,230 sentences",
    "test clients": "204,088 with 16,586,035 sentences, from 2018 on",
    "sentences per client": (
        "397 in the mean; users of fewer than 100 left out; the longest over 80,000"
    ),
}
_VERSION = 1  # of what is kept in the cache


def load(
    path: Path,
    clients: int = CLIENTS,
    sentences: int = SENTENCES,
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
) -> Data:
    """Read at most ``clients`` training users, drawn evenly, and a tenth as many held-out ones,
    through the cache.

    Without a file of held-out users a tenth of the users is held out.  Of each user the earliest
    ``sentences`` count.  For example ``load(Path("stackoverflow_train.sqlite"), clients=500)``.
    """
    if min(clients, sentences, vocabulary, length) < 1:
        raise InputError("clients, sentences, vocabulary and length must be at least 1")
    sources = _sources(Path(path))
    recipe = (
        f"stackoverflow, version {_VERSION}: {clients} {sentences} {vocabulary} {length},"
        f" {sorted(sources)}"
    )
    arrays = cached(
        sources.values(), recipe, lambda: _parse(sources, clients, sentences, vocabulary, length)
    )
    return Data.of(arrays)


def _sources(path: Path) -> dict[str, File]:
    """The file to train on, as "train", and that of held-out users, if there is one, as "test"."""
    given = path.name.removesuffix(".gz") if path.is_file() and path.suffix != ".zip" else ""
    for first, *others in _CHOICES:
        own = first.endswith((".csv", ".parquet"))  # may have any name, if it is given by it
        if given and (
            Path(first).suffix != Path(given).suffix
            or not (own or given.startswith("stackoverflow"))
        ):
            continue
        try:
            found = locate(path, first, *(f"?{name}" for name in others), needs=NEEDS)
        except MissingDataError:
            continue
        test = next((found[name] for name in others if name in found), None)
        test = found[first] if first == "stackoverflow.sqlite" else test  # which has all splits
        return {"train": found[first], **({"test": test} if test else {})}
    raise MissingDataError(f"none of {', '.join(FILES)} found in {path}. {NEEDS}")


def _parse(
    sources: dict[str, File], clients: int, sentences: int, vocabulary: int, length: int
) -> dict[str, np.ndarray]:
    more = {} if "test" in sources else {"train": clients + max(1, clients // 10)}
    limits = {"train": clients, "test": max(1, clients // 10), **more}
    posts = {
        part: _earliest(
            read(file, "train" if part == "train" else "held_out", _some(limits[part])), sentences
        )
        for part, file in sources.items()
    }
    if "test" not in posts:
        posts = _hold_out(posts["train"])
    for part, some in posts.items():
        if not len(some.users):
            raise InputError(
                f"{sources.get(part, sources['train'])} has no users of the {part} split"
            )
    tokenised = Path(sources["train"].name.removesuffix(".gz")).suffix in (".sqlite", ".h5")
    first, pattern = len(posts["train"].text), r"\S+" if tokenised else TOKENS
    rows, common = encode(
        [*posts["train"].text, *posts["test"].text], first, pattern, vocabulary, length
    )
    train, test = (
        Corpus(*posts[part][:3], mine)
        for part, mine in (("train", rows[:first]), ("test", rows[first:]))
    )
    return Data(train, test, common).arrays()


def _some(limit: int) -> Any:
    """A choice of at most ``limit`` users, evenly at random, the same every time."""

    def choose(users: Sequence[Any]) -> Sequence[Any]:
        if len(users) <= limit:
            return users
        return [
            users[place]
            for place in np.sort(np.random.default_rng(0).permutation(len(users))[:limit])
        ]

    return choose


def _earliest(posts: Posts, sentences: int) -> Posts:
    """Of each user the first sentences that are not empty; users who have none are left out."""
    owner = np.repeat(np.arange(len(posts.users)), posts.counts)
    order = np.lexsort((posts.time, owner))  # sentences of the same time stay as they were
    order = order[np.array([not text.isspace() and text != "" for text in posts.text], bool)[order]]
    counts = np.bincount(owner[order], minlength=len(posts.users))
    first = np.cumsum(counts) - counts
    order = order[np.arange(len(order)) - first[owner[order]] < sentences]
    return _pick(posts, counts > 0, np.minimum(counts, sentences), order)


def _pick(posts: Posts, users: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> Posts:
    texts = [posts.text[row] for row in rows.tolist()]
    return Posts(posts.users[users], counts[users], posts.time[rows], texts)


def _hold_out(posts: Posts) -> dict[str, Posts]:
    """One user for every ten that train."""
    users = len(posts.users)
    if users < 2:
        raise InputError("at least two users are needed: one to train on and one to hold out")
    held = np.zeros(users, bool)
    held[np.random.default_rng(0).permutation(users)[: max(1, users // 11)]] = True
    owner = np.repeat(np.arange(users), posts.counts)
    parts = (("train", ~held), ("test", held))
    return {
        part: _pick(posts, mine, posts.counts, np.flatnonzero(mine[owner])) for part, mine in parts
    }
