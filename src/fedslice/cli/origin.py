"""What a run was made of, as far as it is not in its settings: data, versions, and the commit of
the repository that the user works in."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedslice.cli.folder import Line
from fedslice.simulation.run import Run
from fedslice.tasks.base import Task

PACKAGES = ("fedslice", "jax", "jaxlib", "optax", "numpy")
PATIENCE = 5  # seconds for git to answer, on a slow disk


def origin(task: Task, run: Run) -> Line:
    """What a run's folder tells of its data and of the code around it."""
    columns = {name: str(column.dtype) for name, column in sorted(task.train.columns.items())}
    about = {"source": task.source, "columns": columns, "hash": run.identity["population"]}
    place = Path(task.source)
    if task.source and place.exists():
        about["path"] = str(place.resolve())
    found: Line = {
        "data": about,
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    code = commit(Path.cwd())
    return {**found, "commit": code} if code else found


@cache
def commit(folder: Path) -> str:
    """The commit of the repository that ``folder`` is in, short, and whether files that it follows
    were changed since; nothing outside of a repository.

    >>> commit(getfixture("tmp_path"))
    ''
    """
    try:
        name = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or no commit yet
        return ""
    return f"{name} with changes" if changed else name


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=PATIENCE)
    return done.stdout.strip()
