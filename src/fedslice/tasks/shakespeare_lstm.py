"""The next character in Shakespeare's plays: the usual small federated text task.  A client is a role of a play.

As in Reddi et al., "Adaptive Federated Optimization" (2021): 86 characters and 4 special tokens, sequences of 80, the
next character predicted at every place; embedding 8, two LSTM layers of 256, 820,522 parameters; 10 clients a round,
one epoch in batches of 4, client rate 1.  A role's speeches, each between a begin and an end token, are one text, cut
every 80 characters; the last fifth of it is for testing.  Roles of fewer than two sequences are left out.

Data: the plays as lines of ``play@offset TAB SPEAKER TAB text``, or LEAF (Caldas et al. 2018), whose examples are 80
characters and the one after them, shifted by one: they are put together again (:mod:`fedslice.tasks.leaf`).
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.models.language_lstm import language_lstm
from fedslice.population import Population
from fedslice.tasks import leaf
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.cache import cached
from fedslice.tasks.files import File, locate
from fedslice.tasks.shakespeare_synthetic import generate

NAME = "shakespeare-lstm"
LENGTH = 80
CHARACTERS = "\n !\"#$%&'()*,-./0123456789:;>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
SPECIALS = ("<padding>", "<begin>", "<end>", "<unknown>")  # padding, -1 here, keeps its row: the size is the published
BEGIN, END = "\x02", "\x03"  # as characters of a text
SETTINGS = {"cohort": 10, "epochs": 1, "batch": 4, "weights": "examples"}
RATES = {"": 1.0}
PUBLISHED = {
    "accuracy in 1,200 rounds, FedAvg": "56.9 %",
    "accuracy in 1,200 rounds, FedAvgM": "57.3 %",
    "accuracy in 1,200 rounds, FedAdagrad": "57.5 %",
    "accuracy in 1,200 rounds, FedAdam": "57.0 %",
    "accuracy in 1,200 rounds, FedYogi": "57.2 %",
}
TEXT = "shakespeare.txt"
NEEDS = (
    f"Shakespeare is {TEXT} with lines of play@offset, speaker and text, separated by tabs, or the JSON files of LEAF "
    "(https://github.com/TalwalkarLab/leaf). Give the file, its folder or its zip, or use --synthetic"
)
_MEASURED = 1000  # test sequences looked at while it trains
_TABLE = np.full(256, len(CHARACTERS) + SPECIALS.index("<unknown>"), np.int32)
_TABLE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(len(CHARACTERS))
_TABLE[[ord(BEGIN), ord(END)]] = len(CHARACTERS) + 1, len(CHARACTERS) + 2
_ROW = re.compile(r"^([^@\t\n]+)@\d+\t([^\t\n]*)(?:\t(.*))?$", re.MULTILINE)
_ROLES = "\x00"  # between two roles' texts
_STAGE = re.compile(r"\[[^\[\]\x00\x02\x03]*\]|[|\t]")  # directions, braces


class Sequences(NamedTuple):
    """n sequences of N roles, sorted by role and time; -1 after the end."""

    owner: np.ndarray  # int32 [n]
    roles: np.ndarray  # [N]
    tokens: np.ndarray  # int32 [n, 80]
    next: np.ndarray  # int32 [n, 80]
    test: np.ndarray  # bool [n]


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated speeches (:mod:`fedslice.tasks.shakespeare_synthetic` says what they match).

    >>> task = synthetic(scale=0.01)
    >>> len(task.train), task.train.columns["next"].shape[1]
    (11, 80)
    """
    texts = generate(seed, scale)
    roles = np.char.add("role ", np.arange(len(texts)).astype(str))
    return _task(_by_role(roles, texts), f"generated data, seed {seed}, scale {scale:g}")


def load(path: str | Path) -> Task:
    """The task on the real data: the plain text, or LEAF's JSON, whose own split is kept if it has one."""
    parts = _sources(Path(path))
    files = [file for some in parts.values() for file in some]
    read = _read_text if "text" in parts else _read_leaf
    sizes = {part: len(some) for part, some in parts.items()}
    arrays = cached(files, f"{NAME} 1, {sizes}", lambda: read(parts)._asdict())
    return _task(Sequences(**arrays), str(path))


def _task(data: Sequences, source: str) -> Task:
    names = {"tokens": np.array([*CHARACTERS, *SPECIALS])}
    people = Population.from_arrays(data.owner, names, tokens=data.tokens, next=data.next)
    people = Population(people.columns, people.offsets, data.roles[people.clients], names)
    both = [people.select(~data.test), people.select(data.test)]
    train, test = (part.subset(np.flatnonzero(part.counts)) for part in both)
    model = language_lstm(len(CHARACTERS), len(SPECIALS), embedding=8, hidden=256, layers=2, project=None)
    return Task(NAME, model, train, test, SETTINGS, RATES, None, PUBLISHED, source, _MEASURED)


def _sources(path: Path) -> dict[str, list[File]]:
    if not path.name.removesuffix(".gz").endswith(".json"):
        try:
            return {"text": [locate(path, TEXT, needs=NEEDS)[TEXT]]}
        except MissingDataError:
            pass
    return leaf.find(path, NEEDS)


# -- sequences ----------------------------------------------------------------------------------------------------


def _by_role(roles: np.ndarray, texts: list[str]) -> Sequences:
    """The sequences of each role's text."""
    ids = _TABLE[np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8)]
    tokens, following, owner = _cut(ids, np.array([len(text) for text in texts], np.int64))
    return _split(owner, roles, tokens, following)


def _split(owner: np.ndarray, roles: np.ndarray, tokens: np.ndarray, following: np.ndarray) -> Sequences:
    """Only roles that have at least two sequences; the last fifth of them, at least one, is to test on."""
    counts = np.bincount(owner, minlength=len(roles))
    kept = (counts >= 2)[owner]
    if not kept.any():
        raise InputError(f"no role has two sequences of {LENGTH} characters. {NEEDS}")
    clients, owner = np.unique(owner[kept], return_inverse=True)
    counts = counts[clients]
    rank = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    test = rank >= (counts - np.maximum(1, counts // 5))[owner]
    return Sequences(owner.astype(np.int32), roles[clients], tokens[kept], following[kept], test)


def _cut(ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts, one after the other, as pieces of 80 tokens and the tokens after each; and the text of each piece."""
    counts = np.maximum(0, -(-(lengths - 1) // LENGTH))
    text = np.repeat(np.arange(len(lengths)), counts)
    piece = np.arange(len(text)) - (np.cumsum(counts) - counts)[text]
    stop = np.cumsum(lengths)[text]
    place = (stop - lengths[text] + LENGTH * piece)[:, None] + np.arange(LENGTH + 1)
    window = np.append(ids, -1)[np.where(place < stop[:, None], place, len(ids))].astype(np.int32)
    tokens, following = window[:, :-1], window[:, 1:]
    return np.where(following < 0, -1, tokens), np.ascontiguousarray(following), text


# -- the real data ------------------------------------------------------------------------------------------------


def _read_text(parts: dict[str, list[File]]) -> Sequences:
    """The plays: a speaker's lines follow its name; what is before the first act, or not a play, is left out."""
    file = parts["text"][0]
    play, name, line = _rows(file)
    plays, play = np.unique(play, return_inverse=True)
    row = np.arange(len(play))
    act = np.strings.startswith(name, "ACT ")
    begin = np.full(len(plays), len(row))
    np.minimum.at(begin, play[act], row[act])
    speech = np.maximum.accumulate(np.where(name != "", row, 0))  # the row where it began
    heading = act | np.strings.startswith(name, "SCENE")
    spoken = np.flatnonzero((speech >= begin[play]) & ~heading[speech] & (line != ""))
    if not len(spoken):
        raise InputError(f"{file} has no speech after a line with ACT. {NEEDS}")
    speakers, speaker = np.unique(np.strings.strip(name[speech[spoken]]), return_inverse=True)
    roles, role = np.unique(play[spoken] * len(speakers) + speaker, return_inverse=True)
    titles = np.strings.add(np.strings.add(plays[roles // len(speakers)], ": "), speakers[roles % len(speakers)])
    return _by_role(titles, _texts(role, speech[spoken], line[spoken]))


def _rows(file: File) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play, speaker and text of each row."""
    content = file.text("latin-1")
    rows = _ROW.findall(content)
    lines = content.split("\n")
    if len(rows) != len(lines) - lines.count(""):
        number, bad = next((n, line) for n, line in enumerate(lines, 1) if line and not _ROW.fullmatch(line))
        raise InputError(f"{file} line {number}: expected play@offset, tab, speaker, tab, text, got {bad[:80]!r}")
    if not rows:
        raise InputError(f"{file} is empty. {NEEDS}")
    play, name, line = zip(*rows, strict=True)
    return np.array(play), np.array(name), np.array(line)


def _texts(role: np.ndarray, speech: np.ndarray, line: np.ndarray) -> list[str]:
    """Each role's speeches, without stage directions; lines are in order."""
    order = np.argsort(role, kind="stable")
    role, speech = role[order], speech[order]
    old_role, old_speech = (np.append(False, each[1:] == each[:-1]) for each in (role, speech))
    before = np.where(old_speech, "\n", np.where(old_role, END + BEGIN, END + _ROLES + BEGIN))
    joined = "".join(np.stack([before, line[order]], axis=1).ravel().tolist()).removeprefix(END + _ROLES) + END
    joined = re.sub(r"\s*([\n\x02\x03])\s*", r"\1", re.sub(" +", " ", _STAGE.sub(" ", joined)))
    return joined.replace(BEGIN + END, "").split(_ROLES)


def _read_leaf(parts: dict[str, list[File]]) -> Sequences:
    found = leaf.read(parts)
    test = np.zeros(len(found.owner), bool) if found.test is None else found.test
    starts = np.flatnonzero(np.append(True, np.diff(2 * found.owner + test) != 0))
    streams, lengths, groups = [], [], []
    for start, stop in zip(starts, np.append(starts[1:], len(test)), strict=True):  # a role's training or test part
        try:
            stream, sizes = _stitch(found.x[start:stop], found.y[start:stop])
        except (TypeError, ValueError) as error:
            what = f"{found.users[found.owner[start]]!r}: x must be texts of one length, and y one character ({error})"
            raise InputError(f"{what}. {NEEDS}") from error
        streams.append(stream)
        lengths.append(sizes)
        groups.append(np.full(len(sizes), start))
    ids, roles = _TABLE[np.concatenate(streams)], np.array(found.users)
    tokens, following, run = _cut(ids, np.concatenate(lengths))
    group = np.concatenate(groups)[run]
    if found.test is None:
        return _split(found.owner[group], roles, tokens, following)
    return Sequences(found.owner[group], roles, tokens, following, test[group])


def _stitch(x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Texts, as bytes, and their lengths, from windows and the characters after them.

    A window that continues the one before adds only the character after it; any other one begins a new text.
    """
    after = np.frombuffer("".join(y).encode("latin-1", "replace"), np.uint8)
    if len(after) != len(x) or len(set(map(len, x))) > 1:
        raise ValueError("lengths differ")
    windows = np.frombuffer("".join(x).encode("latin-1", "replace"), np.uint8).reshape(len(x), -1)
    rows = np.concatenate([windows, after[:, None]], axis=1)
    new = np.append(True, (rows[1:, :-1] != rows[:-1, 1:]).any(axis=1))
    kept = np.repeat(new[:, None], rows.shape[1], axis=1)
    kept[:, -1] = True
    return rows[kept], np.add.reduceat(kept.sum(axis=1), np.flatnonzero(new))


WORKLOAD = Workload(
    NAME,
    "the next character in Shakespeare's plays, with two LSTM layers of 256 (Reddi et al. 2021); generated by default "
    "with a tenth of the roles, and shorter",
    synthetic,
    load,
    NEEDS,
    (TEXT, "all_data*.json"),
    scale=0.1,
    statistics={
        "clients": "1,129 in LEAF; 715 in TensorFlow Federated",
        "characters": "4,226,158 in LEAF",
        "characters per client": "3,743, standard deviation 6,212, in LEAF",
        "speeches": "16,068 to train on, 2,356 to test, in TensorFlow Federated",
    },
    settings=SETTINGS,
    learning_rates=RATES,
    published=PUBLISHED,
)
