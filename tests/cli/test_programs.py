"""What was compiled is kept, also where entries are damaged; and where to, is the user's to say."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from fedslice.cli.programs import CACHE, keep_compiled


def train(kept: Path, out: Path) -> str:
    """The metrics of a short run in a process of its own."""
    told = ["run", "example1", "--rounds", "2", "--out", str(out)]
    environment = {**os.environ, "FEDSLICE_COMPILED": str(kept)}
    subprocess.run([sys.executable, "-m", "fedslice.cli.main", *told], env=environment, check=True)
    return (out / "metrics.jsonl").read_text()


def test_damaged_programs_are_compiled_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = train(kept, tmp_path / "one")
    entries = [file for file in kept.glob("*/*") if file.is_file()]
    assert any(file.name.startswith("jit_whole") for file in entries)
    for place, file in enumerate(entries):
        data = file.read_bytes()
        file.write_bytes((data[: len(data) // 2], b"", b"nothing of the kind")[place % 3])
    assert train(kept, tmp_path / "two") == first


def cache() -> object:
    return getattr(jax.config, CACHE)


@pytest.fixture
def _nothing_set() -> Iterator[None]:
    """As if JAX had no cache."""
    before = cache()
    jax.config.update(CACHE, None)
    yield
    jax.config.update(CACHE, before)


@pytest.mark.usefixtures("_nothing_set")
def test_the_folder_is_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSLICE_COMPILED", str(tmp_path / "mine"))
    place = keep_compiled()
    assert place is not None
    assert place.parent == tmp_path / "mine"
    assert cache() == str(place)
    assert keep_compiled() is None  # there is one now
    jax.config.update(CACHE, None)
    monkeypatch.setenv("FEDSLICE_COMPILED", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keep_compiled() == tmp_path / "fedslice" / "compiled" / place.name


@pytest.mark.usefixtures("_nothing_set")
def test_nothing_is_kept_if_switched_off_or_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for told in ("off", str(tmp_path / "file")):
        monkeypatch.setenv("FEDSLICE_COMPILED", told)
        assert keep_compiled() is None
        assert cache() is None
