"""What was compiled is kept for the next start: JAX's cache on disk, in a folder of ours.

The folder is ``compiled`` in the user's cache, or what FEDSLICE_COMPILED says; ``off`` keeps
nothing.  A cache that the user has set up for JAX itself (JAX_COMPILATION_CACHE_DIR) is left as it
is.  Damaged entries are compiled again, and everything in the folder can be deleted at any time."""

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

import jax

from fedslice.tasks.readers.files import user_cache

VARIABLE, OFF = "FEDSLICE_COMPILED", ("off", "no", "0")
CACHE = "jax_compilation_cache_dir"
MOST = 1 << 30  # bytes kept


def keep_compiled() -> Path | None:
    """Have JAX keep what it compiles; the folder, or None if it is not ours to say."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() in OFF or getattr(jax.config, CACHE) is not None:
        return None
    place = (Path(given) if given else user_cache() / "compiled") / _machine()
    try:
        place.mkdir(parents=True, exist_ok=True)
        trim(place, MOST)
    except OSError:  # a full disk, or no right to write: no reason to stop
        return None
    jax.config.update(CACHE, str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place


def _machine() -> str:
    """A name for processors of this kind: a home may be shared by several, and machine code is for
    one of them."""
    told = platform.machine() + platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()


def trim(folder: Path, most: int) -> None:
    """Delete what was written first, until ``most`` bytes are left.

    >>> folder = getfixture("tmp_path")
    >>> for name in "abc":
    ...     _ = (folder / name).write_bytes(bytes(10))
    ...     os.utime(folder / name, (ord(name), ord(name)))
    >>> trim(folder, 20)
    >>> sorted(file.name for file in folder.iterdir())
    ['b', 'c']
    """
    with os.scandir(folder) as found:
        files = [(entry.stat(), entry.path) for entry in found if entry.is_file()]
    size = sum(about.st_size for about, _ in files)
    for about, path in sorted(files, key=lambda each: each[0].st_mtime):
        if size <= most:
            return
        with suppress(OSError):  # another process may do the same
            os.unlink(path)
        size -= about.st_size
