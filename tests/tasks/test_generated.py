"""Generated data are kept: the same arrays again, and never those of other arguments or code."""

from pathlib import Path

import numpy as np
import pytest

from fedslice.tasks.generators import keeping, ratings
from fedslice.tasks.generators.keeping import PREFIX, kept
from fedslice.tasks.readers.ratings import Ratings


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache in which small data are worth keeping."""
    monkeypatch.setenv("FEDSLICE_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(keeping, "WORTH", 0)
    return tmp_path / "home"


def entries(home: Path) -> set[Path]:
    return set(home.glob(f"{PREFIX}*"))


def assert_same(one: Ratings, two: Ratings) -> None:
    for name, column in one._asdict().items():
        other = getattr(two, name)
        assert (column.dtype, column.shape) == (other.dtype, other.shape)
        assert column.tobytes() == other.tobytes()


def refused(*arguments: float) -> Ratings:
    raise AssertionError("made anew")


def test_the_next_start_reads_what_the_first_one_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, first = ratings.generate(3, 0.01, True), ratings.synthetic(3, 0.01, taste=True)
    refused.__module__, refused.__qualname__ = ratings.__name__, "generate"
    monkeypatch.setattr(ratings, "generate", refused)
    again = ratings.synthetic(3, 0.01, taste=True)
    assert_same(plain, first)
    assert_same(plain, again)


def test_other_arguments_are_another_entry(home: Path) -> None:
    for arguments in ((0, 0.01, False), (1, 0.01, False), (0, 0.02, False), (0, 0.01, True)):
        assert_same(ratings.synthetic(*arguments), ratings.generate(*arguments))
    assert len(entries(home)) == 4


def test_other_code_is_another_entry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratings.synthetic(0, 0.01)
    monkeypatch.setattr(keeping, "_source", lambda module: "changed")
    ratings.synthetic(0, 0.01)
    assert len(entries(home)) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_entry_is_made_anew(home: Path, damage: str) -> None:
    plain = ratings.synthetic(0, 0.01)
    plain = Ratings(**{name: np.array(column) for name, column in plain._asdict().items()})
    (entry,) = entries(home)
    file = entry / "0.npy"
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] if damage == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_same(ratings.synthetic(0, 0.01), plain)
    assert file.read_bytes() == whole


def test_small_data_are_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WORTH", 1 << 30)
    ratings.synthetic(0, 0.01)
    assert not entries(home)


def test_the_newest_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratings.synthetic(0, 0.01)
    (first,) = entries(home)
    monkeypatch.setattr(keeping, "MOST", 1)
    home_of_files = home / "0123"  # what was parsed is not ours to delete
    home_of_files.mkdir()
    ratings.synthetic(1, 0.01)
    assert first not in entries(home)
    assert home_of_files.exists()


def test_where_nothing_can_be_written_all_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSLICE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(keeping, "WORTH", 0)
    assert_same(kept(ratings.generate, Ratings, 0, 0.01, False), ratings.generate(0, 0.01, False))
