"""The commands and programs that stand on the pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shell_lines(page: Path) -> list[str]:
    """The commands of a page's blocks, fenced as sh or bash or indented, without comments; lines
    that end in a backslash are one."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    bare = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    program = r"(?:fedslice|make|python|pip|flwr|flower-\w+|ray) "
    indented = re.findall(rf"^    ({program}.*)$", bare, re.MULTILINE)
    lines = [line.strip() for line in [*fenced.split("\n"), *indented]]
    found = [re.sub(r"\s+# .*$", "", line) for line in lines if line and not line.startswith("#")]
    return [" ".join(line.split()) for line in found]


def programs(page: Path) -> list[str]:
    """The blocks of Python of a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
