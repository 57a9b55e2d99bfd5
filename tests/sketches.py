"""Pictures of a report that are composed but not painted, which is most of what a report takes:
tests/report has them painted."""

import html
from typing import Any

import pytest
from matplotlib.figure import Figure

from fedslice.report.picture import Picture


def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of pages tell what would be painted."""
    monkeypatch.setattr(Picture, "_bytes", sketch)


def sketch(picture: Picture, kind: str, colours: tuple[str, str]) -> bytes:
    axes = Figure().subplots()
    picture.draw(axes)
    told: list[Any] = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    told += [[line.get_label(), line.get_xydata().tolist()] for line in axes.lines]
    told += [each.get_offsets().tolist() for each in axes.collections]
    told += [each.get_extents().bounds for each in axes.patches]
    told += [each.get_array().tolist() for each in axes.images]
    told += [[each.get_text(), *each.get_position()] for each in axes.texts]
    return f'<svg viewBox="0 0 1 1"><desc>{html.escape(str(told))}</desc></svg>'.encode()
