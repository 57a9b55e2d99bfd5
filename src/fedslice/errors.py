"""Errors that tell the user what to do, each with the exit code the command line gives it."""


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
