"""Files of LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018).

A file is one JSON object: ``users`` is a list of names and ``user_data[name]`` has the lists ``x``
and ``y`` of that user's examples.  A data set is one or several such files, named
``all_data...json``, or folders ``train`` and ``test``."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import cause, reading, shown
from fedslice.tasks.readers.files import File, locate_all


class Examples(NamedTuple):
    """n examples of N users, those of one user together; ``test`` is None where the files do not
    say."""

    owner: np.ndarray  # int32 [n]
    users: list[str]  # [N] in the order of first appearance
    x: list[Any]  # [n]
    y: list[Any]  # [n]
    test: np.ndarray | None  # bool [n]


def find(path: Path, needs: str) -> dict[str, list[File]]:
    """The files by part: "train" and "test" if there are folders of that name, or "all".  A file
    may have any name.

    >>> folder = Path(getfixture("tmp_path"))
    >>> _ = (folder / "all_data.json").write_text("{}")
    >>> list(find(folder, needs="Download LEAF"))
    ['all']
    """
    if not path.is_file() or path.suffix.lower() == ".zip":
        try:
            return {part: locate_all(path, f"{part}/*.json", needs) for part in ("train", "test")}
        except MissingDataError:
            pass
    return {"all": locate_all(path, "all_data*.json", needs)}


def read(parts: Mapping[str, Sequence[File]]) -> Examples:
    """The examples of all files; of a user those to train on come first."""
    index: defaultdict[str, int] = defaultdict(count().__next__)
    owners, xs, ys, tests = [], [], [], []
    for part, files in parts.items():
        for file in files:
            for user, x, y in _users(file):
                owners.append(np.full(len(x), index[user], np.int32))
                tests.append(np.full(len(x), part == "test"))
                xs.extend(x)
                ys.extend(y)
    if not xs:
        raise InputError(
            f"{next(file for files in parts.values() for file in files)} has no examples"
        )
    owner, test = np.concatenate(owners), np.concatenate(tests)
    order = np.argsort(owner, kind="stable")
    x, y = ([values[place] for place in order.tolist()] for values in (xs, ys))
    return Examples(owner[order], list(index), x, y, None if "all" in parts else test[order])


def _users(file: File) -> list[tuple[str, list[Any], list[Any]]]:
    with reading(file):
        content = json.loads(file.text())
    try:
        data = content["user_data"]
        found = [(user, data[user]["x"], data[user]["y"]) for user in content["users"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{file} is not a file of LEAF ({cause(error)}): it needs users, and for each user_data"
            " with x and y"
        ) from error
    if len({user for user, _, _ in found}) < len(found):
        raise InputError(f"{file} names a user twice: each must be once in users")
    for user, x, y in found:
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise InputError(
                f"{file}: x and y of user {shown(user)} must be lists of the same length"
            )
    return found
