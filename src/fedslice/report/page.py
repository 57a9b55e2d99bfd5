"""One self-contained page: no network, light and dark, readable on a phone and on paper."""

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from fedslice.errors import InputError
from fedslice.files.writing import atomic_write, writing
from fedslice.report.picture import KINDS, Picture
from fedslice.report.sections import Section
from fedslice.report.tables import Table

TEXTS = ("txt", "csv", "tex")


class Report(NamedTuple):
    """All of it; ``repeat`` has the command of every run, if it is known."""

    title: str
    lead: str
    findings: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    repeat: Mapping[str, str]

    def _repr_html_(self) -> str:
        return notebook(self)

    @property
    def tables(self) -> list[Table]:
        """Every table."""
        return [table for section in self.sections for table in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        """Every picture."""
        return [picture for section in self.sections for picture in section.pictures]


def page(report: Report) -> str:
    """The report as HTML.

    >>> text = page(Report("t", "A lead.", ["Found."], [], [], {}))
    >>> "<h1>t</h1>" in text, "http" in text
    (True, False)
    """
    style, script = (
        files("fedslice.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    found = _list("findings", report.findings)
    warned = _list("warnings", report.warnings)
    body = "\n".join(map(_section, report.sections))
    title = html.escape(report.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1><button id="theme" type="button">light / dark</button></header>
<p class="lead">{html.escape(report.lead)}</p>
{found}
{warned}
{body}
{_commands(report)}
</main>
<script>
{script}</script>
</body>
</html>
"""


def notebook(report: Report) -> str:
    """The page as a frame of its own inside a notebook's."""
    return (
        f'<iframe srcdoc="{html.escape(page(report), quote=True)}" width="100%" height="720"'
        ' style="border: 0"></iframe>'
    )


def _list(kind: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<div class="{kind}"><ul>{items}</ul></div>'


def _section(section: Section) -> str:
    text = f"<p>{html.escape(section.text)}</p>" if section.text else ""
    tables = "\n".join(table.html() for table in section.tables)
    pictures = "\n".join(map(_picture, section.pictures))
    drawn = f'<div class="grid">{pictures}</div>' if pictures else ""
    return f"<h2>{html.escape(section.title)}</h2>\n{text}\n{tables}\n{drawn}"


def _picture(picture: Picture) -> str:
    return (
        f'<figure class="picture" id="picture-{html.escape(picture.name)}">'
        f"<figcaption>{html.escape(picture.title)}</figcaption>\n{picture.svg()}\n"
        f'<p class="note">{html.escape(picture.caption)}</p></figure>'
    )


def _commands(report: Report) -> str:
    if not report.repeat:
        return ""
    text = "\n".join(f"{command}  # {folder}" for folder, command in report.repeat.items())
    return (
        "<h2>Repeat it</h2>\n<details><summary>The command of every run</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )


def write(report: Report, file: Path) -> Path:
    """The page as a file, all of it or nothing."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{file}: a report is a page, whose name ends in .html")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, page(report).encode())
    return file


def write_parts(report: Report, folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Every table as text, CSV and LaTeX, and every picture in these ``kinds``, for a paper."""
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise InputError(f"pictures as {', '.join(unknown)}: there are {', '.join(KINDS)}")
    found = [picture.save(folder, kind) for picture in report.pictures for kind in kinds]
    for table in report.tables:
        for ending, text in zip(TEXTS, (table.text(), table.csv(), table.latex()), strict=True):
            file = folder / f"{table.name}.{ending}"
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
            found.append(file)
    return found
