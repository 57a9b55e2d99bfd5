"""Figures and settings as a person reads them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedslice.report.records import Cell


def words(name: str, first: bool = False) -> str:
    """A setting or figure as a person says it; ``first`` in a sentence.

    >>> words("validation_loss", first=True), words("auc", first=True)
    ('Validation loss', 'AUC')
    """
    words = name.replace("_", " ")
    words = words[:1].upper() + words[1:] if first else words
    return re.sub(r"(?i)\b(auc|rmse|ndcg)\b", lambda found: found[0].upper(), words)


def aim(target: Mapping[str, Any]) -> str:
    """A target."""
    return f"{words(target['metric'])} {target['value']:g}"


def span_text(found: Sequence[int]) -> str:
    """From the least to the most."""
    return str(found[0]) if min(found) == max(found) else f"{min(found)} to {max(found)}"


def given(cell: Cell, otherwise: str = "") -> str:
    """What a cell was given; ``otherwise`` where there is nothing to say."""
    told = ", ".join(f"{words(key)} {cell_text(value)}" for key, value in cell.varied.items())
    return told if otherwise and told else otherwise or (f" with {told}" if told else "")


def plus_minus(mean: float, spread: float, cell: Cell | None) -> str:
    """Mean and spread of a cell; a dash where there is none."""
    if math.isnan(mean):
        return "–"
    many = cell is not None and len(cell.runs) > 1
    return f"{mean:.4f} ± {spread:.4f}" if many else f"{mean:.4f}"


def cell_text(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
