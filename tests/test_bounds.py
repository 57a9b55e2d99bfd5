"""What pyproject.toml allows can be installed together and works: make test-oldest runs all tests with it."""

import re
from importlib.metadata import requires, version

from oldest import lowest


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def test_every_package_has_a_lowest_version() -> None:
    """One that is not met here, or has none, would make ``make test-oldest`` test something else."""
    for name, least in lowest().items():
        assert numbers(version(name)) >= numbers(least), name


def test_jax_trains_with_its_compilation_cache() -> None:
    """jax 0.6.0 and 0.6.1 give back what was compiled without its effect on donated arrays: nothing is trained."""
    assert numbers(lowest()["jax"]) >= (0, 6, 2)


def test_pyarrow_goes_with_numpy_2() -> None:
    """Wheels before 16.1 were built for NumPy 1, and say so since."""
    assert numbers(lowest()["pyarrow"]) >= (16, 1)
    assert numbers(lowest()["numpy"]) >= (2, 0)
    assert requires("fedslice") is not None
