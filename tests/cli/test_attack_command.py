"""The command ``fedslice privacy attack``, on few clients and with few trials."""

import sys
from functools import lru_cache
from pathlib import Path

import pytest

from fedslice.cli import attack
from fedslice.cli.main import main
from fedslice.tasks import movielens_lr

SMALL = {"COHORTS": (5, 20), "NOISES": (1.0,), "PRIVATE": 10, "LATER": 2}
GIVEN = ["privacy", "attack", "--scale", "0.01", "--trials", "400", "--out"]


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(attack, name, value)


@lru_cache(maxsize=1)
def findings() -> attack.Findings:
    """Made once, under ``_tiny``."""
    return attack.study(movielens_lr.synthetic(0, 0.01), 400, 0)


def figures(text: str, line: str) -> list[float]:
    """The first number of each column of a line of a table."""
    row = next(row for row in text.splitlines() if row.startswith(line))
    return [float(cell.split()[0]) for cell in row[len(line) :].split("  ") if cell.strip()]


@pytest.mark.usefixtures("_tiny")
def test_attack_shows_tables_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GIVEN, str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for what in ("gender", "age group", "films it rated", "its rating of a film     "):
        right, guessed, _ = figures(text.replace(",", ""), what)
        assert right == 100
        assert guessed < 90
    plain, noisy = text.split("3. The sum")
    known = "did it take part? knows its data"
    assert min(figures(plain, known)) > 0.95
    assert figures(noisy, known)[0] < 0.6
    assert figures(noisy, "did it take part? no attacker can exceed") == [0.383]
    assert (tmp_path / "table.txt").read_text(encoding="utf-8").strip() in text
    assert (tmp_path / "attack.png").stat().st_size > 10_000
    assert attack.tables(findings()) in text  # made again, with the same seed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--trials", "10"], "too few to tell anything"),
        (["--scale", "0.01"], "too few for cohorts of 100"),
        (["--seed", "-1"], "whole number from 0"),
    ],
)
def test_what_cannot_be_attacked_is_refused(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["privacy", "attack", "--out", str(tmp_path / "out"), *given]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_tiny")
def test_without_matplotlib_there_are_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack, "study", lambda *given: findings())
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main([*GIVEN, str(tmp_path)]) == 0
    heard = capsys.readouterr()
    assert "pip install 'fedslice[plot]'" in heard.err
    assert "did it take part?" in heard.out
    assert [file.name for file in tmp_path.iterdir()] == ["table.txt"]
