"""One compilation cache for all tests and sessions: many compile the same rounds.  Parsed data:
each test its own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

ROOMY = 800 << 20  # bytes that a worker may have before it lets go of compiled code


def pytest_configure(config: pytest.Config) -> None:
    scratch = tempfile.TemporaryDirectory()
    config.add_cleanup(scratch.cleanup)
    os.environ["FEDSLICE_CACHE"] = str(Path(scratch.name, "0"))
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # tests compile more than they compute
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def _let_go() -> Iterator[None]:
    """Compiled code of one module is of little use to the next, and fills the memory."""
    yield
    if Path("/proc/self/statm").exists():
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > ROOMY:
            jax.clear_caches()


@pytest.fixture(autouse=True)
def _own_cache() -> None:
    """What one test parsed must not spare another the parsing."""
    last = Path(os.environ["FEDSLICE_CACHE"])
    os.environ["FEDSLICE_CACHE"] = str(last.with_name(str(int(last.name) + 1)))


@pytest.fixture(autouse=True)
def _no_leftover_float64() -> Iterator[None]:
    """Tests compare 32-bit results: no test may leave another precision behind."""
    yield
    assert not jax.config.jax_enable_x64
