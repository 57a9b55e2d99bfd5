"""A table, in whatever a person wants it: text, HTML, CSV, LaTeX."""

import csv
import html
import io
from collections.abc import Sequence
from typing import NamedTuple

LONG = 12  # rows from which a table is folded on a page
# what LaTeX would read as its own; a cell is text
ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
    }
)


class Table(NamedTuple):
    """Cells under their heads.  ``name`` is a file's, ``title`` a person's; the first ``words``
    columns are words and stand to the left, the others are numbers; ``best`` are the places (row,
    column) of what is to be seen first, ``note`` says what the figures are.

    >>> table = Table("t", "T", ["a", "b"], [["x", "10"], ["yy", "9"]])
    >>> print(table.text())
    a    b
    x   10
    yy   9
    >>> print(table.csv(), end="")
    a,b
    x,10
    yy,9
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1
    best: frozenset[tuple[int, int]] = frozenset()

    def text(self) -> str:
        """Columns lined up."""
        widths = [
            max(len(row[i]) for row in (self.head, *self.rows)) for i in range(len(self.head))
        ]
        lines = [
            "  ".join(
                cell.ljust(w) if i < self.words else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (self.head, *self.rows)
        ]
        return "\n".join(line.rstrip() for line in lines)

    def html(self) -> str:
        """With its title and note, in a box that scrolls on a narrow screen."""
        head = "".join(self._cell("th", cell, place) for place, cell in enumerate(self.head))
        rows = (
            "".join(
                self._cell("td", cell, place, (number, place) in self.best)
                for place, cell in enumerate(row)
            )
            for number, row in enumerate(self.rows)
        )
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        shown = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>"
        )
        title = f"<figcaption>{html.escape(self.title)}</figcaption>"
        if len(self.rows) > LONG:
            title = ""
            summary = f"{html.escape(self.title)}, {len(self.rows)} rows"
            shown = f"<details><summary>{summary}</summary>{shown}</details>"
        return f'<figure class="table" id="{html.escape(self.name)}">{title}{shown}{note}</figure>'

    def _cell(self, kind: str, text: str, place: int, best: bool = False) -> str:
        marks = [*(["word"] if place < self.words else []), *(["best"] if best else [])]
        shown = f' class="{" ".join(marks)}"' if marks else ""
        return f"<{kind}{shown}>{html.escape(text)}</{kind}>"

    def csv(self) -> str:
        """For a spreadsheet."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.head, *self.rows])
        return stream.getvalue()

    def latex(self) -> str:
        """A ``table`` with plain rules, for any document class.

        >>> print(Table("t", "A_1", ["a", "b"], [["x", "10 %"]]).latex())
        \\begin{table}
        \\centering
        \\caption{A\\_1}
        \\begin{tabular}{lr}
        \\hline
        a & b \\\\
        \\hline
        x & 10 \\% \\\\
        \\hline
        \\end{tabular}
        \\end{table}
        """
        columns = "l" * self.words + "r" * (len(self.head) - self.words)
        rule = r"\hline"
        body = [self._line(number, row) for number, row in enumerate(self.rows)]
        head = " & ".join(cell.translate(ESCAPES) for cell in self.head) + r" \\"
        caption = self.title + (f". {self.note}" if self.note else "")
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{caption.translate(ESCAPES)}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                *[rule, head, rule, *body, rule],
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def _line(self, number: int, row: Sequence[str]) -> str:
        cells = [
            rf"\textbf{{{cell.translate(ESCAPES)}}}"
            if (number, place) in self.best
            else cell.translate(ESCAPES)
            for place, cell in enumerate(row)
        ]
        return " & ".join(cells) + r" \\"
