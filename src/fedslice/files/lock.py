"""A file that one process holds at a time; a process that dies, however it does, lets go of it."""

from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


def hold(file: Path) -> IO[bytes] | None:
    """The file, open and locked until it is closed, or None if somebody else holds it.

    Raises ``OSError`` on file systems that cannot lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ours = hold(Path(folder) / "lock")
    ...     theirs = hold(Path(folder) / "lock")
    ...     ours.close()
    >>> theirs is None
    True
    """
    handle = file.open("ab")
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        except OSError:
            handle.close()
            raise
    return handle
