"""Differentially private runs from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedslice.cli.main import main
from fedslice.privacy.accounting.account import Guarantee, guarantee
from fedslice.privacy.accounting.mechanism import Central
from fedslice.privacy.accounting.release import HeatCounts


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALL = ["--synthetic", "--scale", "0.02", "--rounds", "4", "--eval-every", "4"]
NOISY = ["--set", "cohort=20", "--set", "noise=1", "--set", "clip=1"]
SUMMED = ["--set", "heat_privacy=sum:4:100"]


def test_a_private_run_says_what_it_tells(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert main(["run", "movielens-lr", *SMALL, *NOISY, *SUMMED, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    known = Guarantee.of(json.loads((out / "privacy.json").read_text()))
    assert str(known) in printed.out
    assert str(known).splitlines()[0] in printed.err  # before anybody trained
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert (settings["sampler"], settings["weights"]) == ("poisson", "uniform")
    clients = 121
    expected = guarantee(Central(clients, 20, 1.0, 4), HeatCounts(std=40.0, rows=100))
    assert known == expected


@pytest.mark.parametrize(
    ("who", "words"),
    [
        pytest.param("clients", "on every update before it is sent", marks=pytest.mark.every),
        ("shares:15", "Skellam noise"),
    ],
)
def test_who_adds_the_noise(who: str, words: str, capsys: Any) -> None:
    more = ["--algorithm", "fedavg", "--set", f"noise_by={who}"]
    assert main(["run", "movielens-lr", *SMALL, *NOISY, *more]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.every
def test_a_comparison_says_it_for_each(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "study"
    told = ["--set", "fedsubavg:heat_privacy=public"]
    both = ["compare", "movielens-lr", "fedavg", "fedsubavg", *SMALL, *NOISY, *told]
    assert main([*both, "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("Each client has epsilon") == 2
    assert main(["compare", "movielens-lr", "fedavg", *SMALL, *NOISY, "--out", str(out)]) == 0
    assert (out / "table.txt").read_text().count("Each client has epsilon") == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["noise=1"], "set clip too"),
        (["noise=1", "clip=1"], "heat_privacy=sum"),
        (["noise=1", "clip=1", "heat_privacy=public", "weights=examples"], "weights=uniform"),
        (["noise=1", "clip=1", "heat_privacy=public", "sampler=weighted"], "accounted for"),
        (["noise=1", "clip=1", "heat_privacy=public", "compress=sign"], "leave compress out"),
        (["geometry=1"], "set noise too"),
        (["secure=yes"], "set clip too"),
        (["noise=1", "clip=1", "heat_privacy=public", "noise_by=me"], "server, clients, shares"),
        (
            ["noise=1", "clip=1", "heat_privacy=public", "noise_by=shares:9", "secure=yes"],
            "for a secure sum by itself",
        ),
        (
            ["noise=1", "clip=1", "heat_privacy=public", "noise_by=clients", "clip_quantile=0.5"],
            "clip_quantile is for noise_by=server",
        ),
        (["secure=yes", "clip=1", "weights=examples"], "count alike"),
        (["secure=perhaps", "clip=1"], "no, yes, answers"),
        (["heat_privacy=tea"], "exact, public, response, sum"),
        (["heat_privacy=sum:1"], "heat_privacy"),
    ],
)
def test_private_settings_that_do_not_fit(settings: list[str], words: str, capsys: Any) -> None:
    changes = [word for change in settings for word in ("--set", change)]
    assert main(["run", "movielens-lr", *SMALL, "--set", "cohort=20", *changes]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.every
def test_a_secure_sum_costs_bytes_and_little_else(tmp_path: Path) -> None:
    told = []
    for name, change in (("plain", "weights=uniform"), ("secure", "secure=yes")):
        more = ["--set", "clip=5", "--set", "cohort=20", "--set", change]
        assert main(["run", "movielens-lr", *SMALL, *more, "--out", str(tmp_path / name)]) == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        told.append(json.loads(lines[-1]))
    assert told[0]["test_loss"] == pytest.approx(told[1]["test_loss"], abs=1e-4)
    assert told[1]["bytes_up"] > 5 * told[0]["bytes_up"]


def test_answers_about_rows_say_what_they_tell(capsys: Any) -> None:
    asked = "secure=answers:0.9375:0.0625:0.9375:0.0625"
    more = ["--set", "clip=5", "--set", "cohort=20", "--set", asked]
    assert main(["run", "movielens-lr", *SMALL, *more]) == 0
    shown = capsys.readouterr().out
    assert "epsilon = 2.02 in a round and 2.71 over all rounds" in shown
    assert "takes 88% of the rows" in shown
