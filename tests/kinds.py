"""Of several of a kind a few: the others run with ``make test-all``."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which ``make test`` takes those that are ``kept``."""
    return [
        pytest.param(value, marks=[] if value in kept else pytest.mark.every) for value in values
    ]


def few_rows(rows: Iterable[tuple[Any, ...]], *kept: tuple[Any, ...]) -> list[Any]:
    """The same of a test with several parameters at once."""
    return [pytest.param(*row, marks=[] if row in kept else pytest.mark.every) for row in rows]
