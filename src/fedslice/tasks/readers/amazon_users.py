"""Amazon Electronics as the FedSubAvg paper's authors publish it with their code: a file a user, a
line an example.

A line has four fields separated by tabs: 1 for five stars and 0 for less, the user, the product,
and the products the user gave five stars before, oldest first, separated by commas; 0 for none.
Users and products are numbers from 1.  The files ``user_data/users/user_1`` ... are those to train
on; ``central_data/amazon_test``, if it is there, has all users' later examples in the same form.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import shown
from fedslice.files.packed import File
from fedslice.tasks.readers.files import locate_all

PATTERN, TEST = "user_[0-9]*", "amazon_test"
_FOLDERS = (".", "users", "user_data/users", "federated_din_amazon/user_data/users")


class Examples(NamedTuple):
    """n examples, sorted by user, of N users and M products."""

    user: np.ndarray  # int32 [n]
    item: np.ndarray  # int32 [n]
    history: np.ndarray  # int32 [n, longest], filled up with -1
    five: np.ndarray  # bool [n]
    late: np.ndarray  # bool [n]: to test on
    user_names: np.ndarray  # [N]
    item_names: np.ndarray  # [M]


def find(path: Path, needs: str) -> list[File]:
    """The users' files in their order, then the file of test examples if there is one.

    ``path`` is the folder of the files, or one of those above it in the authors' repository.
    """
    folders = (path / folder for folder in _FOLDERS) if path.is_dir() else (path,)
    for folder in folders:
        try:
            found = locate_all(folder, PATTERN, needs)
        except MissingDataError:
            continue
        if not all(
            file.name.startswith("user_") for file in found
        ):  # a file given by name serves any pattern
            break
        above = (folder, folder.parent, folder.parent.parent, folder.parent.parent / "central_data")
        test = next(filter(None, (_test(place) for place in above if place.is_dir())), [])
        return sorted(found, key=lambda file: (len(file.name), file.name)) + test
    raise MissingDataError(f"{PATTERN} not found in {path}. {needs}")


def _test(place: Path) -> list[File]:
    return [File(place / TEST)] if (place / TEST).is_file() else []


def read(files: Sequence[File], longest: int) -> Examples:
    """The examples of these files with histories of the ``longest`` latest products.

    Without a file of test examples the last fifth of each user's is for testing.
    """
    rows: list[tuple[int, int, int]] = []
    pasts: list[list[int]] = []
    late: list[bool] = []
    for file in files:
        some = list(_lines(file, longest))
        rows += [example for example, _ in some]
        pasts += [past for _, past in some]
        tested = len(some) if file.name == TEST else 0 if files[-1].name == TEST else len(some) // 5
        late += [place >= len(some) - tested for place in range(len(some))]
    if not rows:
        raise InputError(f"{files[0]} and the files beside it have no examples")
    label, user, item = np.array(rows, np.int64).T
    history = np.full((len(rows), longest), -1, np.int64)
    history[np.arange(longest) < np.array(list(map(len, pasts)))[:, None]] = [
        each for past in pasts for each in past
    ]
    order = np.argsort(user, kind="stable")
    users, user = np.unique(user[order], return_inverse=True)
    items = np.unique(np.append(item, history[history >= 0]))
    ids = np.searchsorted(items, history[order])
    return Examples(
        user.astype(np.int32),
        np.searchsorted(items, item[order]).astype(np.int32),
        np.where(history[order] >= 0, ids, -1).astype(np.int32),
        label[order] == 1,
        np.array(late)[order],
        users.astype(np.str_),
        items.astype(np.str_),
    )


def _lines(file: File, longest: int) -> Iterator[tuple[tuple[int, int, int], list[int]]]:
    """Label, user and product of each line, and the latest products of its history."""
    for number, line in enumerate(file.lines(), 1):
        if not line:
            continue
        try:
            label, user, item, past = line.split("\t")
            example = int(label), int(user), int(item)
            history = [int(each) for each in past.split(",")[-longest:] if each != "0"]
        except ValueError as error:
            raise _wrong(file, number, line) from error
        if (
            example[0] not in (0, 1)
            or min(*example[1:], *history) < 1
            or max(*example, *history) >= 1 << 31
        ):
            raise _wrong(file, number, line)
        yield example, history


def _wrong(file: File, number: int, line: str) -> InputError:
    wanted = "label 0 or 1, user, product and history as numbers from 1, separated by tabs"
    return InputError(
        f"{file} line {number}: expected {wanted}, got {shown(line)}. If cut off, download it again"
    )
