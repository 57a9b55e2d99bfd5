"""Strict JSON: other programs refuse the NaN of Python's."""

import json
import math
from collections.abc import Mapping
from typing import Any


def as_json(value: Any) -> str:
    """Strict JSON: what is not a finite number becomes null.

    >>> as_json({"loss": math.nan, "bins": [1.5, math.inf]})
    '{"loss": null, "bins": [1.5, null]}'
    """
    return json.dumps(finite(value), allow_nan=False)


def parsed(text: str) -> dict[str, Any]:
    """A line of the log; null is a figure that was not a finite number.

    >>> parsed('{"round": 3, "loss": null}')
    {'round': 3, 'loss': nan}
    """
    return {key: math.nan if value is None else value for key, value in json.loads(text).items()}


def finite(value: Any) -> Any:
    """The same with None for what is not a finite number."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
