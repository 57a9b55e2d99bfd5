"""The site of all pages builds without warnings and needs nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.every
def test_the_site_builds_without_warnings_and_stands_alone(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package)
    command = [sys.executable, str(ROOT / "docs" / "build.py"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(tmp_path / "site").as_posix(): page.read_text(encoding="utf-8")
             for page in (tmp_path / "site").rglob("*.html")}  # fmt: skip
    assert {"index.html", "tutorial.html", "concepts.html", "search.html"} <= pages.keys()
    assert "Population.from_arrays" in pages["reference/populations.html"]
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"(\w+:)?//", text)
        loaded += re.findall(r"<link[^>]* rel=\"(?:stylesheet|preload)\"[^>]*href=\"\w*:?//", text)
        assert not loaded, f"{name} loads something from the network"
    styles = "".join(each.read_text() for each in (tmp_path / "site").rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)
