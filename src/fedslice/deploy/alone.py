"""Nobody else works in a node's folder: two processes would mix their memories up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedslice.errors import InputError
from fedslice.files.lock import hold

LOCK = "lock"
PATIENCE = 30.0  # seconds to wait for another process in the same folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have the folder for oneself, or be refused after a while.

    >>> with alone(getfixture("tmp_path")):
    ...     pass
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + PATIENCE
    try:
        while (lock := hold(folder / LOCK)) is None and time.monotonic() < end:
            time.sleep(0.05)
    except OSError as error:
        raise InputError(
            f"{folder} is on a file system that cannot lock ({error}): use another"
        ) from error
    if lock is None:
        raise InputError(f"another process works in {folder}: give each node a folder of its own")
    with lock:
        yield
