"""The lowest version of each package that pyproject.toml allows, as constraints for pip: see ``make
test-oldest``."""

import re
import tomllib
from pathlib import Path

# extras that want newer packages than others, or that tests do without
APART = ("flower", "torch", "track")


def lowest() -> dict[str, str]:
    """Of each package that fedslice, its extras or its tests need."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    extras = project["optional-dependencies"]
    groups = project["dependencies"], *(extras[name] for name in extras if name not in APART)
    needed = [
        each for group in groups for each in group if not each.startswith(f"{project['name']}[")
    ]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in needed)


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in lowest().items()))
