"""The next word in Shakespeare's plays: FedRecon's model of Stack Overflow on a text that is small
and real.

A client is a role.  Its speeches are cut into sentences at . ? ! : ; and dashes, of which the first
20 words count, in small letters.  A tenth of the roles is held out; roles of fewer than four
sentences are left out.  The 1,000 most common words are four in five of all; the others are hashed
to 500 buckets whose vectors are local, for a role's rare words are the names and matters of its
play.  As in :mod:`fedslice.tasks.stackoverflow_lstm` a bucket is also a class to predict, and does
not count in the accuracy.  Support and query are a role's earlier and later half.  The LSTM has 128
units.

There are no published figures for it; settings and rates are ours.  Clients train with Adam, with
which the LSTM left the words' frequencies behind much sooner than with SGD."""

import re
from pathlib import Path

import numpy as np
import optax

from fedslice.client import reconstruction
from fedslice.errors import InputError
from fedslice.models.language_lstm import language_lstm
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.generators.shakespeare import plays as generate
from fedslice.tasks.readers import shakespeare, text
from fedslice.tasks.readers.sentences import Corpus, Data, encode, population
from fedslice.tasks.readers.shakespeare import Plays
from fedslice.types import Work

NAME = "shakespeare-words"
VOCABULARY, LENGTH, BUCKETS, FEWEST, HIDDEN = 1_000, 20, 500, 4, 128
COHORT, REBUILD = 20, 3.0
SETTINGS = {
    "cohort": COHORT,
    "epochs": 1,
    "batch": 16,
    "weights": "examples",
    "client": "adam",
    "split": "time",
    "reconstruct_steps": 100,
    "reconstruct_epochs": 1,
    "reconstruct_rate": REBUILD,
}
RATES = {"": 0.003}
_STOPS = re.compile(r"[.?!:;\x02\x03]+|--+")


def synthetic(
    seed: int = 0, scale: float = 1.0, *, buckets: int = BUCKETS, local: bool = True
) -> Task:
    """The task on generated speeches (:mod:`fedslice.tasks.generators.shakespeare` says what they
    match).

    As many roles and sentences as in the plays at scale 1; of the words one in nine is unknown,
    there one in five.

    >>> task = synthetic(scale=0.05)
    >>> task.model.local, task.train.columns["tokens"].shape[1]
    (('buckets',), 20)
    """
    return _task(
        sentences(generate(seed, scale)),
        f"generated data, seed {seed}, scale {scale:g}",
        buckets,
        local,
    )


def load(path: str | Path, *, buckets: int = BUCKETS, local: bool = True) -> Task:
    """The task on the plays, as plain text or LEAF's; with ``local=False`` the buckets' vectors are
    a global table.

    LEAF's own split, by the time of a role's speeches, is not used: roles are held out.
    """
    arrays = shakespeare.prepared(Path(path), f"{NAME} 1", lambda plays: sentences(plays).arrays())
    return _task(Data.of(arrays), str(path), buckets, local)


def sentences(plays: Plays) -> Data:
    """Sentences of the roles that train and of those held out, and the common words of the first.

    >>> texts = ["To be. Or not! To be? That is.", "Ay; no; ay; no"]
    >>> plays = Plays(np.array(["a", "b"]), np.array([0, 1]), texts, None)
    >>> data = sentences(plays)
    >>> data.train.counts.tolist(), data.test.counts.tolist()
    ([4], [4])
    """
    lines: list[list[str]] = [[] for _ in plays.roles]
    for owner, each in zip(plays.owner.tolist(), plays.texts, strict=True):
        pieces = _STOPS.split(each.replace("\n", " ").lower())
        lines[owner] += [piece for piece in pieces if re.search(text.WORD, piece)]
    kept = np.flatnonzero([len(some) >= FEWEST for some in lines])
    if len(kept) < 2:
        raise InputError(f"fewer than two roles have {FEWEST} sentences. {shakespeare.NEEDS}")
    held = np.zeros(len(kept), bool)
    held[np.random.default_rng(0).permutation(len(kept))[: max(1, len(kept) // 10)]] = True
    parts = kept[~held], kept[held]
    said = [[line for role in part for line in lines[role]] for part in parts]
    rows, common = encode([*said[0], *said[1]], len(said[0]), text.WORD, VOCABULARY, LENGTH)
    counts = [np.array([len(lines[role]) for role in part]) for part in parts]
    times = [np.concatenate([np.arange(count) for count in some]) for some in counts]
    words = rows[: len(said[0])], rows[len(said[0]) :]
    train, test = (
        Corpus(plays.roles[part], *more)
        for part, *more in zip(parts, counts, times, words, strict=True)
    )
    return Data(train, test, common)


def _task(data: Data, source: str, buckets: int, local: bool) -> Task:
    train, test = (
        population(corpus, data.vocabulary, buckets) for corpus in (data.train, data.test)
    )
    model = language_lstm(
        len(data.vocabulary),
        1 if buckets else 2,
        buckets=buckets,
        local_buckets=local,
        hidden=HIDDEN,
    )
    settings = {**SETTINGS, "cohort": min(COHORT, len(train))}
    rebuilt = (
        reconstruction(model, optax.sgd(REBUILD), Work(steps=100, epochs=1, batch=16), split="time")
        if local
        else None
    )
    return Task(NAME, model, train, test, settings, RATES, source=source, adaptation=rebuilt)


WORKLOAD = Workload(
    NAME,
    "the next word in Shakespeare's plays, with an LSTM of 128, 1,000 words and 500 local buckets"
    " of others; generated by default with a tenth of the roles, and shorter",
    synthetic,
    load,
    shakespeare.NEEDS,
    shakespeare.FILES,
    scale=0.1,
    statistics=shakespeare.STATISTICS,
    settings=SETTINGS,
    learning_rates=RATES,
    algorithm="fedrecon",
)
