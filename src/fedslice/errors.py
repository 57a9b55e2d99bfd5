"""Errors that tell the user what to do, each with the exit code the command line gives it; and
which name somebody may have meant."""

import difflib
from collections.abc import Iterable

CLOSE = 0.65  # of 1, where names are the same


def nearest(name: object, known: Iterable[str]) -> str:
    """The name that was perhaps meant, or all that there are: the end of an error message.

    >>> nearest("fedsubag", ["fedavg", "fedsubavg"]), nearest("hue", ["cohort", "steps"])
    ("did you mean 'fedsubavg'?", 'there are cohort, steps')
    """
    names = list(known)
    plain = {each.lower().replace("_", "-"): each for each in names}
    wanted = str(name).lower().replace("_", "-")
    close = difflib.get_close_matches(wanted, plain, 1, CLOSE)
    if close:
        return f"did you mean {plain[close[0]]!r}?"
    return f"there are {', '.join(names)}" if names else "there are none"


class FedsliceError(Exception):
    """Base of all errors raised on purpose.

    >>> FedsliceError.exit_code
    2
    """

    exit_code = 2


class InputError(FedsliceError, ValueError):
    """Wrong data, settings or usage."""


class MissingDataError(FedsliceError, FileNotFoundError):
    """A file that is needed is not there."""


class DownloadError(FedsliceError, ConnectionError):
    """A download failed; the message says how to do without it."""


class CheckpointError(FedsliceError):
    """A checkpoint is corrupt or belongs to another run."""


class WriteError(FedsliceError, OSError):
    """A file could not be written: the disk is full, say.  The message names it."""


class DivergedError(FedsliceError):
    """Training went to infinity, or every client failed."""

    exit_code = 3


class RoundError(FedsliceError):
    """A round of a deployment could not be completed; what was done before it is kept."""
