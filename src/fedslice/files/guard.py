"""One guard at the door of all readers: what a broken file makes them raise becomes an error that
names the file.

Readers check what they expect to go wrong, and say so.  A file can be broken in more ways than
anybody expects; what is raised then is turned into an InputError here, with the cause in short and
the original error behind it.  Sizes are bounded as well, because a small file can ask for more
memory than there is.
"""

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import FedsliceError, InputError

SHOWN = 80  # characters of bad input in a message
CAUSE, MESSAGE = 200, 1_500  # characters of what went wrong, and of a whole message
RATIO, FLOOR, CEILING = 100, 256 << 20, 64 << 30  # see most_unpacked
UNPACK = "FEDSLICE_UNPACK_GB"
WIDEST = 1_000  # characters of a name or title


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Whatever goes wrong inside is an error of fedslice that names ``what`` is read; long messages
    are cut.

    >>> with reading("a.csv"):
    ...     {}["title"]
    Traceback (most recent call last):
    fedslice.errors.InputError: a.csv cannot be read (KeyError: 'title'). If it is damaged or cut
    off, download it again
    """
    try:
        yield
    except FedsliceError as error:
        said = text = str(error)
        if isinstance(error, InputError) and not _names(what, text):
            text = f"{what}: {text}"
        if len(text) > MESSAGE:
            text = f"{text[: MESSAGE - 300]} ... {text[-300:]}"
        if text == said:
            raise
        raise type(error)(text) from error
    except AssertionError:  # a mistake of ours
        raise
    except Exception as error:  # damaged data can raise anything
        raise unreadable(what, error) from error


def _names(what: object, text: str) -> bool:
    """Whether a message says which file it is about.  Of a folder it need not: it may be about an
    option."""
    if isinstance(what, Path) and what.is_dir():
        return True
    files = [Path(word).name for word in str(what).split() if "." in word or "/" in word]
    return not files or any(file in text for file in files)


def unreadable(what: object, why: object) -> InputError:
    """The error to raise when something cannot be read: ``why`` is an error or a text."""
    return InputError(
        f"{what} cannot be read ({cause(why)}). If it is damaged or cut off, download it again"
    )


def cause(why: object) -> str:
    """What went wrong, in short: an error's own words, with its kind where the words alone say
    little.

    >>> cause(KeyError("x")), cause(EOFError()), cause(OSError(13, "Permission denied", "a.csv"))
    ("KeyError: 'x'", 'EOFError', 'Permission denied')
    """
    if isinstance(why, MemoryError):
        return "it needs more memory than there is"
    if isinstance(why, RecursionError):
        return "it is nested too deeply"
    kind = type(why).__name__
    text = " ".join(str(getattr(why, "strerror", None) or why).split())
    if isinstance(why, (LookupError, TypeError, AttributeError)) or text.isdecimal():
        text = f"{kind}: {text}"
    return text if 0 < len(text) <= CAUSE else f"{text[:CAUSE]} ..." if text else kind


def shown(value: object) -> str:
    """Bad input as a message shows it: its beginning.

    >>> shown("a,b"), len(shown("x" * 10**6))
    ("'a,b'", 86)
    """
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r} ..."


def csv_rows(
    lines: Iterable[str], what: object, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV that are not empty, with the number of the line where each ends.

    >>> list(csv_rows(["a,b", "", "1,2"], "x.csv"))
    [(1, ['a', 'b']), (3, ['1', '2'])]
    """
    rows = csv.reader(lines, strict=strict)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:  # a field of more than 128 kB, for one
        raise unreadable(f"{what} line {rows.line_num}", error) from error


def bounded(values: Iterable[str], what: object) -> NDArray[np.str_]:
    """Names or titles as an array.  All entries take the room of the longest, so that one endless
    name is refused.

    >>> bounded(["Alien", "Amour"], "movies.csv").dtype
    dtype('<U5')
    """
    found = list(values)
    if (longest := max(map(len, found), default=0)) > WIDEST:
        name = next(each for each in found if len(each) == longest)
        raise InputError(
            f"{what} has a name of {longest:,} characters, {shown(name)}: more than {WIDEST:,}"
            " cannot be"
        )
    return np.array(found, np.str_)


def check_padded(what: str, longest: int, count: int, packed: int) -> None:
    """Refuse lists or names of which one is so long that all together, each with its room, would
    fill the memory.

    >>> check_padded("column 'item' has a list", 50, 10_000, packed=10**6)
    """
    if (size := 4 * longest * count) > most_unpacked(packed):
        raise InputError(
            f"{what} of length {longest:,}, and each of {count:,} would take the room of the"
            f" longest, {size:,} bytes together: shorten or leave out the long ones first; or set"
            f" {UNPACK} to the GB that it may have"
        )


def most_unpacked(packed: int) -> int:
    """How many bytes so many packed ones may become: 100 times as many, at least 256 MB, at most 64
    GB; or what the environment variable FEDSLICE_UNPACK_GB says.

    >>> most_unpacked(10) == 256 << 20, most_unpacked(1 << 30) == 64 << 30
    (True, True)
    """
    chosen = os.environ.get(UNPACK)
    if not chosen:
        return min(max(FLOOR, RATIO * packed), CEILING)
    try:
        return int(float(chosen) * (1 << 30))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{UNPACK}={shown(chosen)} is not possible: give a number of GB"
        ) from error


def check_unpacked(what: object, size: int, packed: int) -> None:
    """Refuse what becomes too large when it is unpacked: a damaged file, or one made to fill the
    memory."""
    if size > (most := most_unpacked(packed)):
        raise InputError(
            f"{what} has {packed:,} bytes and would be more than {most:,} unpacked: it is damaged,"
            f" or made to fill the memory. If it is right, set {UNPACK} to the GB that it may have"
        )
