"""Shakespeare's plays, read: what each role says.  The data of the tasks on characters and on
words.

Formats: the plays as lines of ``play@offset TAB SPEAKER TAB text``, or LEAF (Caldas et al. 2018),
whose examples are 80 characters and the one after them, shifted by one: they are put together again
(:mod:`fedslice.tasks.readers.leaf`).
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import bounded, cause, shown
from fedslice.tasks.readers import leaf
from fedslice.tasks.readers.cache import cached
from fedslice.tasks.readers.files import File, locate

TEXT = "shakespeare.txt"
FILES = (TEXT, "all_data*.json")
NEEDS = (
    f"Shakespeare is {TEXT} with lines of play@offset, speaker and text, separated by tabs, or the"
    " JSON files of LEAF (https://github.com/TalwalkarLab/leaf). Give the file, its folder or its"
    " zip, or use --synthetic"
)
BEGIN, END = "\x02", "\x03"  # around a speech
STATISTICS = {
    "clients": "1,129 in LEAF; 715 in TensorFlow Federated",
    "characters": "4,226,158 in LEAF",
    "characters per client": "3,743, standard deviation 6,212, in LEAF",
    "speeches": "16,068 to train on, 2,356 to test, in TensorFlow Federated",
}
_ROW = re.compile(r"^([^@\t\n]+)@\d+\t([^\t\n]*)(?:\t(.*))?$", re.MULTILINE)
_ROLES = "\x00"  # between two roles' texts
_STAGE = re.compile(r"\[[^\[\]\x00\x02\x03]*\]|[|\t]")  # directions, braces


class Plays(NamedTuple):
    """Texts of N roles, those of one role together; ``test`` is None where the files do not say."""

    roles: np.ndarray  # [N]
    owner: np.ndarray  # int [texts]
    # characters of Latin-1, speeches between BEGIN and END where the files tell them apart
    texts: list[str]
    test: np.ndarray | None  # bool [texts]


def find(path: Path) -> dict[str, list[File]]:
    """The files by part: "text" for the plays, or those of LEAF."""
    if not path.name.removesuffix(".gz").endswith(".json"):
        try:
            return {"text": [locate(path, TEXT, needs=NEEDS)[TEXT]]}
        except MissingDataError:
            pass
    return leaf.find(path, NEEDS)


def prepared(
    path: Path, recipe: str, make: Callable[[Plays], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays that a task makes of the plays, through the cache; ``recipe`` is a name for how
    they are made."""
    parts = find(path)
    files = [file for some in parts.values() for file in some]
    sizes = {part: len(some) for part, some in parts.items()}
    return cached(files, f"{recipe}, {sizes}", lambda: make(read(parts)))


def read(parts: dict[str, list[File]]) -> Plays:
    """What :func:`find` found: ``read(find(Path("shakespeare.txt.zip"))).roles``."""
    return _read_text(parts["text"][0]) if "text" in parts else _read_leaf(parts)


def _read_text(file: File) -> Plays:
    """A speaker's lines follow its name; what is before the first act, or no play, is left out."""
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
    titles = np.strings.add(
        np.strings.add(plays[roles // len(speakers)], ": "), speakers[roles % len(speakers)]
    )
    return Plays(titles, np.arange(len(titles)), _texts(role, speech[spoken], line[spoken]), None)


def _rows(file: File) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play, speaker and text of each row."""
    content = file.text("latin-1")
    rows = _ROW.findall(content)
    lines = content.split("\n")
    if len(rows) != len(lines) - lines.count(""):
        number, bad = next(
            (n, line) for n, line in enumerate(lines, 1) if line and not _ROW.fullmatch(line)
        )
        raise InputError(
            f"{file} line {number}: expected play@offset, tab, speaker, tab, text, got {shown(bad)}"
        )
    if not rows:
        raise InputError(f"{file} is empty. {NEEDS}")
    play, name, line = zip(*rows, strict=True)
    return bounded(play, file), bounded(name, file), bounded(line, file)


def _texts(role: np.ndarray, speech: np.ndarray, line: np.ndarray) -> list[str]:
    """Each role's speeches, without stage directions; lines are in order."""
    order = np.argsort(role, kind="stable")
    role, speech = role[order], speech[order]
    old_role, old_speech = (np.append(False, each[1:] == each[:-1]) for each in (role, speech))
    before = np.where(old_speech, "\n", np.where(old_role, END + BEGIN, END + _ROLES + BEGIN))
    joined = (
        "".join(np.stack([before, line[order]], axis=1).ravel().tolist()).removeprefix(END + _ROLES)
        + END
    )
    joined = re.sub(r"\s*([\n\x02\x03])\s*", r"\1", re.sub(" +", " ", _STAGE.sub(" ", joined)))
    return joined.replace(BEGIN + END, "").split(_ROLES)


def _read_leaf(parts: dict[str, list[File]]) -> Plays:
    found = leaf.read(parts)
    test = np.zeros(len(found.owner), bool) if found.test is None else found.test
    starts = np.flatnonzero(np.append(True, np.diff(2 * found.owner + test) != 0))
    texts, first = [], []
    for start, stop in zip(
        starts, np.append(starts[1:], len(test)), strict=True
    ):  # a role's training or test part
        try:
            some = _stitch(found.x[start:stop], found.y[start:stop])
        except (TypeError, ValueError) as error:
            who = shown(found.users[found.owner[start]])
            what = f"{who}: x must be texts of one length, and y one character ({cause(error)})"
            raise InputError(f"{what}. {NEEDS}") from error
        texts.extend(some)
        first.extend([start] * len(some))
    roles = bounded(found.users, "the list of users")
    return Plays(roles, found.owner[first], texts, None if found.test is None else test[first])


def _stitch(x: list[str], y: list[str]) -> list[str]:
    """Texts from windows and the characters after them.

    A window that continues the one before adds only the character after it; any other one begins a
    new text.
    """
    after = np.frombuffer("".join(y).encode("latin-1", "replace"), np.uint8)
    if len(after) != len(x) or len(set(map(len, x))) > 1:
        raise ValueError("lengths differ")
    windows = np.frombuffer("".join(x).encode("latin-1", "replace"), np.uint8).reshape(len(x), -1)
    rows = np.concatenate([windows, after[:, None]], axis=1)
    new = np.append(True, (rows[1:, :-1] != rows[:-1, 1:]).any(axis=1))
    kept = np.repeat(new[:, None], rows.shape[1], axis=1)
    kept[:, -1] = True
    stream = rows[kept].tobytes().decode("latin-1")
    ends = np.cumsum(np.add.reduceat(kept.sum(axis=1), np.flatnonzero(new))).tolist()
    return [stream[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
