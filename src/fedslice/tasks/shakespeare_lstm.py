"""The next character in Shakespeare's plays: the usual small federated text task.  A client is a
role of a play.

As in Reddi et al., "Adaptive Federated Optimization" (2021): 86 characters and 4 special tokens,
sequences of 80, the next character predicted at every place; embedding 8, two LSTM layers of 256,
820,522 parameters; 10 clients a round, one epoch in batches of 4, client rate 1.  A role's
speeches, each between a begin and an end token, are one text, cut every 80 characters; the last
fifth of it is for testing.  Roles of fewer than two sequences are left out.  Of LEAF's files the
own split is kept if they have one."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.models.language_lstm import language_lstm
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.generators.shakespeare import plays as generate
from fedslice.tasks.readers import shakespeare
from fedslice.tasks.readers.shakespeare import BEGIN, END, Plays

NAME = "shakespeare-lstm"
LENGTH = 80
CHARACTERS = (
    "\n !\"#$%&'()*,-./0123456789:;>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
)
# padding, -1 here, keeps its row: the size is the published
SPECIALS = ("<padding>", "<begin>", "<end>", "<unknown>")
SETTINGS = {"cohort": 10, "epochs": 1, "batch": 4, "weights": "examples"}
RATES = {"": 1.0}
PUBLISHED = {
    "accuracy in 1,200 rounds, FedAvg": "56.9 %",
    "accuracy in 1,200 rounds, FedAvgM": "57.3 %",
    "accuracy in 1,200 rounds, FedAdagrad": "57.5 %",
    "accuracy in 1,200 rounds, FedAdam": "57.0 %",
    "accuracy in 1,200 rounds, FedYogi": "57.2 %",
}
_MEASURED = 1000  # test sequences looked at while it trains
_TABLE = np.full(256, len(CHARACTERS) + SPECIALS.index("<unknown>"), np.int32)
_TABLE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(len(CHARACTERS))
_TABLE[[ord(BEGIN), ord(END)]] = len(CHARACTERS) + 1, len(CHARACTERS) + 2


class Sequences(NamedTuple):
    """n sequences of N roles, sorted by role and time; -1 after the end."""

    owner: np.ndarray  # int32 [n]
    roles: np.ndarray  # [N]
    tokens: np.ndarray  # int32 [n, 80]
    next: np.ndarray  # int32 [n, 80]
    test: np.ndarray  # bool [n]


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated speeches (:mod:`fedslice.tasks.generators.shakespeare` says what they
    match).

    >>> task = synthetic(scale=0.01)
    >>> len(task.train), task.train.columns["next"].shape[1]
    (11, 80)
    """
    return _task(sequences(generate(seed, scale)), f"generated data, seed {seed}, scale {scale:g}")


def load(path: str | Path) -> Task:
    """The task on the real data: the plain text, or LEAF's JSON."""
    arrays = shakespeare.prepared(Path(path), f"{NAME} 1", lambda plays: sequences(plays)._asdict())
    return _task(Sequences(**arrays), str(path))


def _task(data: Sequences, source: str) -> Task:
    names = {"tokens": np.array([*CHARACTERS, *SPECIALS])}
    people = Population.from_arrays(data.owner, names, tokens=data.tokens, next=data.next)
    people = Population(people.columns, people.offsets, data.roles[people.clients], names)
    both = [people.select(~data.test), people.select(data.test)]
    train, test = (part.subset(np.flatnonzero(part.counts)).renumbered() for part in both)
    model = language_lstm(
        len(CHARACTERS), len(SPECIALS), embedding=8, hidden=256, layers=2, project=None
    )
    return Task(NAME, model, train, test, SETTINGS, RATES, None, PUBLISHED, source, _MEASURED)


def sequences(plays: Plays) -> Sequences:
    """The texts in pieces of 80 characters; where the files do not say which are for testing, a
    role's last fifth.

    >>> sequences(Plays(np.array(["Hamlet"]), np.array([0]), ["words, " * 40], None)).test.tolist()
    [False, False, False, True]
    """
    ids = _TABLE[np.frombuffer("".join(plays.texts).encode("latin-1", "replace"), np.uint8)]
    tokens, following, text = _cut(ids, np.array([len(each) for each in plays.texts], np.int64))
    owner = plays.owner[text].astype(np.int32)
    if plays.test is None:
        return _split(owner, plays.roles, tokens, following)
    return Sequences(owner, plays.roles, tokens, following, plays.test[text])


def _split(
    owner: np.ndarray, roles: np.ndarray, tokens: np.ndarray, following: np.ndarray
) -> Sequences:
    """Only roles that have at least two sequences; the last fifth of them, at least one, is to test
    on."""
    counts = np.bincount(owner, minlength=len(roles))
    kept = (counts >= 2)[owner]
    if not kept.any():
        raise InputError(f"no role has two sequences of {LENGTH} characters. {shakespeare.NEEDS}")
    clients, owner = np.unique(owner[kept], return_inverse=True)
    counts = counts[clients]
    rank = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    test = rank >= (counts - np.maximum(1, counts // 5))[owner]
    return Sequences(owner.astype(np.int32), roles[clients], tokens[kept], following[kept], test)


def _cut(ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts, one after the other, as pieces of 80 tokens and the tokens after each; and the text of
    each piece."""
    counts = np.maximum(0, -(-(lengths - 1) // LENGTH))
    text = np.repeat(np.arange(len(lengths)), counts)
    piece = np.arange(len(text)) - (np.cumsum(counts) - counts)[text]
    stop = np.cumsum(lengths)[text]
    place = (stop - lengths[text] + LENGTH * piece)[:, None] + np.arange(LENGTH + 1)
    window = np.append(ids, -1)[np.where(place < stop[:, None], place, len(ids))].astype(np.int32)
    tokens, following = window[:, :-1], window[:, 1:]
    return np.where(following < 0, -1, tokens), np.ascontiguousarray(following), text


WORKLOAD = Workload(
    NAME,
    "the next character in Shakespeare's plays, with two LSTM layers of 256 (Reddi et al. 2021);"
    " generated by default with a tenth of the roles, and shorter",
    synthetic,
    load,
    shakespeare.NEEDS,
    shakespeare.FILES,
    scale=0.1,
    statistics=shakespeare.STATISTICS,
    settings=SETTINGS,
    learning_rates=RATES,
    published=PUBLISHED,
)
