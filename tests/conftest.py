"""One compilation cache for all tests and sessions: many tests compile the same tiny rounds."""

from collections.abc import Iterator

import jax
import pytest


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def _no_leftover_float64() -> Iterator[None]:
    """Tests compare 32-bit results: no test may leave another precision behind."""
    yield
    assert not jax.config.jax_enable_x64
