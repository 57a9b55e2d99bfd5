"""The rows of a run on disk as its checkpoint keeps them: a snapshot, and a log of what changed
since.

A *segment* is a file of rows: entries and their absolute new values, of all leaves.  The checkpoint
itself lists the segments that it is made of, in order, with their checksums, and is replaced in one
step; a segment never changes.  So at any moment the folder holds the old checkpoint with all of its
segments or the new one with all of its own, and rows that are read twice are the same.

A save writes the rows that were touched since the last one.  When the log would be larger than all
rows, it writes a new snapshot instead; when it is in too many files, one with all that changed
since the snapshot.  So what is written stays within twice what changed, and what is to be read
within twice what there is.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedslice.errors import CheckpointError
from fedslice.files import streamed
from fedslice.files.packed import checksum
from fedslice.files.sealed import header
from fedslice.round.disk import DiskMemory, DiskStore
from fedslice.round.mapped import KEPT, LOGGED, NEW, MappedRows

NAME = "checkpoint-rows-{:06d}.safetensors"
OURS = re.compile(r"checkpoint-rows-(\d{6})\.safetensors")
MOST = 64  # files of a log
SMALL = 1 << 20  # bytes that a log may always have

Segment = dict[str, str]  # its file, its checksum
Holder = DiskStore | DiskMemory


def holders(*parts: object) -> list[Holder]:
    """Those of a run's parts whose rows are on disk."""
    return [part for part in parts if isinstance(part, Holder)]


def groups(parts: Iterable[Holder]) -> list[MappedRows]:
    """All of their rows."""
    return [group for part in parts for group in part.groups.values()]


def listed(checkpoint: Path, token: str) -> list[Segment]:
    """The segments of the checkpoint that a run goes on from, known by its ``token``; nothing if
    there is another one now, or if a segment is gone."""
    about = header(checkpoint)
    if not token or about.get("checksum") != token:
        return []
    found: list[Segment] = about.get("segments", [])
    sizes = [(checkpoint.with_name(each["file"]), int(each["seal"].split()[0])) for each in found]
    whole = all(file.exists() and file.stat().st_size == size for file, size in sizes)
    return found if whole else []


def level(rows: Sequence[MappedRows], before: Sequence[Segment]) -> int:
    """Which rows the next segment has: ``NEW`` ones, all that were ``LOGGED``, or all."""
    if not before:
        return KEPT
    new = sum(np.count_nonzero(g.marks[: g.top] == NEW) * g.width for g in rows)
    log = sum(int(each["seal"].split()[0]) for each in before[1:])
    if new + log > max(SMALL, sum(group.made * group.width for group in rows)):
        return KEPT
    return LOGGED if len(before) > MOST else NEW


def add(
    folder: Path, rows: Sequence[MappedRows], before: list[Segment], least: int
) -> list[Segment]:
    """The segments of the next checkpoint, the last of which is written here."""
    arrays = {
        name: stream
        for group in rows
        for name, stream in group.streams(group.marked(least))
        if stream.shape[0] or least == KEPT
    }
    if not arrays:
        return before
    numbers = [int(found[1]) for file in folder.iterdir() if (found := OURS.fullmatch(file.name))]
    file = folder / NAME.format(1 + max(numbers, default=0))
    segment = {"file": file.name, "seal": streamed.write(file, arrays)}
    return [*before[: {KEPT: 0, LOGGED: 1, NEW: len(before)}[least]], segment]


def clear(folder: Path, kept: Iterable[Segment]) -> None:
    """Remove the segments that no checkpoint needs any more, or never did."""
    names = {each["file"] for each in kept}
    for file in folder.iterdir():
        if OURS.fullmatch(file.name) and file.name not in names:
            with suppress(OSError):
                file.unlink()


def drop(checkpoint: Path, written: Iterable[Segment]) -> None:
    """Remove segments that were written for a checkpoint that was not, unless it was after all."""
    needed = header(checkpoint).get("segments", [])
    for each in written:
        if each not in needed:
            with suppress(OSError):
                checkpoint.with_name(each["file"]).unlink()


def opened(
    folder: Path, segments: Iterable[Segment], rows: Sequence[MappedRows]
) -> list[streamed.Reader]:
    """The segments of a checkpoint, all of them found to be whole and of this run."""
    readers = []
    for each in segments:
        file = folder / each["file"]
        if not file.exists():
            raise CheckpointError(
                f"{file} is missing, a part of the checkpoint beside it: put it back from a copy,"
                " or start anew. Nothing was changed."
            )
        if checksum(file) != each["seal"]:
            raise CheckpointError(
                f"{file} is damaged: its checksum does not match; restore it from a copy or start"
                " anew"
            )
        reader = streamed.Reader(file)
        known = {name for group in rows for name in group.check(file, reader)}
        if surplus := sorted(reader.names - known):
            raise CheckpointError(
                f"{file} has rows that this run does not: {', '.join(surplus[:5])}. It was written"
                " with another model, algorithm or population. Use another folder for this one."
            )
        readers.append(reader)
    return readers


def load(parts: Sequence[Holder], readers: Sequence[streamed.Reader]) -> list[list[MappedRows]]:
    """New rows for each part, from a snapshot and its log."""
    if not parts:
        return []
    folder = Path(tempfile.mkdtemp(dir=next(iter(groups(parts))).folder.parent))
    try:
        made = [[group.anew(folder) for group in part.groups.values()] for part in parts]
        for number, reader in enumerate(readers):
            for group in (group for each in made for group in each):
                group.load(reader, LOGGED if number else KEPT)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return made


def replace(parts: Sequence[Holder], made: Sequence[Sequence[MappedRows]]) -> None:
    """Let each part go on with its new rows."""
    old = {group.folder for group in groups(parts)}
    for part, rows in zip(parts, made, strict=True):
        part.groups = dict(zip(part.groups, rows, strict=True))
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
