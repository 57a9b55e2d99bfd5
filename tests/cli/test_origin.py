"""What a run's folder tells of the code around it: the commit, and whether it was changed."""

import subprocess
from pathlib import Path

import pytest

from fedslice.cli.origin import commit


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_users_repository(tmp_path: Path) -> None:
    try:
        git(tmp_path, "init", "-q")
    except OSError:
        pytest.skip("there is no git here")
    assert commit(tmp_path / ".") == ""  # no commit yet
    file = tmp_path / "analysis.py"
    file.write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "runs").mkdir()  # what nobody follows is no change
    (tmp_path / "runs" / "new").write_text("2")
    commit.cache_clear()
    name = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert commit(tmp_path / "runs") == name
    file.write_text("3")
    commit.cache_clear()
    assert commit(tmp_path) == f"{name} with changes"
