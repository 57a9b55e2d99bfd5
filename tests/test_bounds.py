"""What pyproject.toml allows can be installed together and works: ``make test-oldest`` runs all
tests with it."""

import re
from importlib.metadata import version

import pytest
from oldest import lowest


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def test_every_package_has_a_lowest_version() -> None:
    for name, least in lowest().items():
        assert numbers(version(name)) >= numbers(least), name


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("jax", (0, 6, 0)),  # a round that comes from its compilation cache trains nothing
        ("pyarrow", (15, 0, 2)),  # cannot be imported with NumPy 2
    ],
)
def test_what_is_known_to_fail_is_not_allowed(name: str, wrong: tuple[int, ...]) -> None:
    assert numbers(lowest()[name]) > wrong
