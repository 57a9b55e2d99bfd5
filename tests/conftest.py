"""One compilation cache for the whole session: many tests compile the same tiny rounds."""

import os
import tempfile
from collections.abc import Iterator

import jax
import pytest

CACHE = "FEDSLICE_TEST_COMPILATION_CACHE"
made: list[tempfile.TemporaryDirectory[str]] = []


def pytest_configure() -> None:
    if CACHE not in os.environ:  # the controller makes it, the workers of pytest-xdist find it
        made.append(tempfile.TemporaryDirectory(prefix="fedslice-tests-"))
        os.environ[CACHE] = made[0].name
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure() -> None:
    for folder in made:
        folder.cleanup()
        os.environ.pop(CACHE, None)
    made.clear()


@pytest.fixture(autouse=True)
def _no_leftover_float64() -> Iterator[None]:
    """Tests compare 32-bit results: no test may leave another precision behind."""
    yield
    assert not jax.config.jax_enable_x64
