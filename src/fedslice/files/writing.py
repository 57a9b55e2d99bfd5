"""Writing that survives: a file is replaced whole or not at all, and what goes wrong names it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedslice.errors import FedsliceError, WriteError


@contextmanager
def writing(file: Path, rest: str = "") -> Iterator[None]:
    """Whatever goes wrong while ``file`` is written becomes an error that names it."""
    try:
        yield
    except FedsliceError:
        raise
    except OSError as error:
        raise WriteError(f"{file} could not be written: {error.strerror or error}{rest}") from error


@contextmanager
def replacing(file: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path; what is written there takes the place of ``file`` in one step that survives
    a crash; a ``private`` one is its owner's alone."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with writing(
            file,
            ". If there was one before, it is intact; make room or mend the disk and try again.",
        ):
            temporary.touch()
            if private:
                temporary.chmod(0o600)
            mode = temporary.stat().st_mode  # by the umask; some writers make it private
            yield temporary
            if temporary.stat().st_mode != mode:
                temporary.chmod(mode & 0o777)
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)


def atomic_write(file: Path, content: bytes, private: bool = False) -> None:
    """Replace ``file`` in one step; a ``private`` one is its owner's alone."""
    with replacing(file, private) as temporary:
        temporary.write_bytes(content)
