"""A picture of a report: drawn once, given as SVG for the page or as PNG, SVG or PDF for a paper.

Colours are Okabe and Ito's, which colour-blind people can tell apart.  On the page, ink and grid
follow the reader's light or dark theme.
"""

import html
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.errors import InputError
from fedslice.files.writing import writing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
DASHES = ("-", "--", "-.", ":")
KINDS = ("png", "svg", "pdf")
ON_PAGE = ("#010203", "#040506")  # stand for the reader's ink and grid
THEMED = ("var(--ink)", "var(--grid)")
PRINTED = ("#222222", "#d9d9d9")
OWN_NAMES = re.compile(r' id="(?!m[0-9a-f]{10}|p[0-9a-f]{10}|h[0-9a-f]{10})[^"]*"')
WIDTH, HEIGHT = 5.4, 3.6


class Picture(NamedTuple):
    """``draw(axes)`` draws it.  ``name`` is a file's, ``title`` and ``caption`` a person's.

    >>> dot = Picture("dot", "A dot", "", lambda axes: axes.plot([1], [1], "o"))
    >>> dot.svg()[:4], dot.save(getfixture("tmp_path"), "pdf").name
    ('<svg', 'dot.pdf')
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Any], Any]
    height: float = HEIGHT

    def svg(self) -> str:
        """For a page: it takes the page's colours and the width that there is."""
        text = self._bytes("svg", ON_PAGE).decode()
        head, rest = text[text.index("<svg") :].split(">", 1)
        for own, given in zip(ON_PAGE, THEMED, strict=True):
            rest = rest.replace(own, given)
        box = re.search('viewBox="[^"]*"', head)
        assert box is not None
        label = html.escape(self.title, quote=True)
        # several pictures on one page must not share names; those that are referred to are hashes
        return (
            f'<svg {box[0]} role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg"'
            f' xmlns:xlink="http://www.w3.org/1999/xlink">{OWN_NAMES.sub("", rest).strip()}'
        )

    def save(self, folder: Path, kind: str) -> Path:
        """A file ``name.kind``: png, svg or pdf."""
        file = folder / f"{self.name}.{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        with writing(file):
            file.write_bytes(self._bytes(kind, PRINTED))
        return file

    def _bytes(self, kind: str, colours: tuple[str, str]) -> bytes:
        try:
            from matplotlib import rc_context
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise InputError("pictures need matplotlib: pip install 'fedslice[plot]'") from error
        stream = io.BytesIO()
        when = {"png": "", "svg": "Date", "pdf": "CreationDate"}[kind]
        style: Any = {**_style(*colours), "svg.hashsalt": self.name}
        with rc_context(style):
            figure = Figure(figsize=(WIDTH, self.height), layout="constrained")
            FigureCanvasAgg(figure)
            self.draw(figure.subplots())
            figure.savefig(
                stream,
                format=kind,
                dpi=160,
                metadata={when: None} if when else None,
                transparent=kind == "svg",
            )
        return stream.getvalue()


def _style(ink: str, grid: str) -> dict[str, Any]:
    inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inked, ink),
        "font.family": "sans-serif",
        "font.size": 9.5,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }
