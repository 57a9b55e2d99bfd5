"""Differentially private runs from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedslice.cli.main import main
from fedslice.privacy.account import Guarantee, guarantee
from fedslice.privacy.mechanism import Central
from fedslice.privacy.release import HeatCounts

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
        (["heat_privacy=tea"], "exact, public, response, sum"),
        (["heat_privacy=sum:1"], "heat_privacy"),
    ],
)
def test_private_settings_that_do_not_fit(settings: list[str], words: str, capsys: Any) -> None:
    changes = [word for change in settings for word in ("--set", change)]
    assert main(["run", "movielens-lr", *SMALL, "--set", "cohort=20", *changes]) == 2
    assert words in capsys.readouterr().err
