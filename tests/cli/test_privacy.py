"""``fedslice privacy``: the answer before anybody trains."""

import json
import sys

import pytest

from fedslice.cli import main as cli
from fedslice.cli import privacy
from fedslice.cli.helpful import Parser

BASE = ["privacy", "--clients", "6040", "--cohort", "50"]


@pytest.mark.every
def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BASE, "--noise", "1", "--rounds", "200"]) == 0
    shown = capsys.readouterr().out
    assert "epsilon = 0.7501 at delta = 1e-05 under add-or-remove-one" in shown
    assert "by RDP under add-or-remove-one: epsilon = 1.208" in shown
    assert "Not covered: losses" in shown
    assert "deviation 0.02 C" in shown
    assert "From 2,500 numbers" in shown
    lines = shown.splitlines()
    heads, cells = next(
        (line.split()[1:], lines[place + 1].split()[1:])
        for place, line in enumerate(lines)
        if line.startswith("rounds ")
    )
    assert heads == ["50", "100", "200", "400", "800"]
    assert cells[2] == "0.75"
    assert sorted(cells, key=float) == cells


def test_json_of_fixed_cohorts(capsys: pytest.CaptureFixture[str]) -> None:
    """Noise of 2 C is the replaced sensitivity's 1; add-or-remove-one is Poisson's with half."""
    assert cli.main([*BASE, "--noise", "2", "--sampler", "uniform", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guarantee"]["epsilon"] == pytest.approx(1.5073, abs=6e-5)
    assert found["guarantee"]["neighbours"] == "replace-one"
    (other,) = found["others"]
    assert other["neighbours"] == "add-or-remove-one"
    assert other["epsilon"] == pytest.approx(0.7501, abs=6e-5)
    assert dict(map(tuple, found["by_noise"]))[2.0] == found["guarantee"]["epsilon"]
    assert found["std_of_mean_over_clip"] == pytest.approx(0.04)


def test_noise_and_rounds_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    everyone = ["privacy", "--clients", "100", "--sampler", "full", "--json"]
    assert cli.main([*everyone, "--epsilon", "2", "--rounds", "10"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1.999 < found["guarantee"]["epsilon"] <= 2
    assert cli.main([*everyone, "--epsilon", "2", "--noise", str(found["noise"])]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 10
    assert cli.main([*everyone[:-1], "--epsilon", "2", "--rounds", "10"]) == 0
    assert f"Noise multiplier {found['noise']:g} keeps" in capsys.readouterr().out


def test_heat_takes_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    heat = ["--heat-std", "30", "--heat-rows", "100", "--json"]
    everyone = ["privacy", "--clients", "100", "--sampler", "full", "--noise", "9"]
    assert cli.main([*everyone, *heat]) == 0
    both = json.loads(capsys.readouterr().out)["guarantee"]
    assert cli.main([*everyone, "--json"]) == 0
    assert both["epsilon"] > json.loads(capsys.readouterr().out)["guarantee"]["epsilon"]
    assert len(both["mechanisms"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--clients is missing"),
        (["--clients", "10"], "--cohort is missing"),
        (["--clients", "10", "--cohort", "5"], "give --noise, or --epsilon"),
        (["--clients", "10", "--cohort", "50", "--noise", "1"], "cohort of 50 out of 10"),
        (["--clients", "10", "--cohort", "5", "--noise", "0"], "without noise there is no"),
        (["--clients", "10", "--cohort", "5", "--noise", "1", "--rounds", "0"], "rounds=0"),
        (["--clients", "10", "--cohort", "5", "--noise", "1", "--delta", "2"], "delta=2"),
        (["--clients", "10", "--cohort", "5", "--noise", "1", "--epsilon", "1", "--rounds", "3"],
         "leave out the one"),
        (["--clients", "10", "--cohort", "5", "--noise", "1", "--sampler", "full"], "all 10"),
        (["--clients", "10", "--cohort", "5", "--noise", "1", "--heat-std", "1"], "--heat-rows"),
        (["--clients", "10", "--sampler", "full", "--epsilon", "-1"], "epsilon=-1"),
    ],
)  # fmt: skip
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["privacy", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("fedslice: ")


def test_a_large_delta_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["privacy", "--clients", "100", "--sampler", "full", "--noise", "9", "--delta", "0.1"]
    assert cli.main(asked) == 0
    assert capsys.readouterr().err.count("careful: delta 0.1 is not below 1/100") == 1


def test_without_the_accountant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert cli.main([*BASE, "--noise", "1"]) == 2
    assert "pip install 'fedslice[privacy]'" in capsys.readouterr().err


def test_there_is_room_for_subcommands() -> None:
    """Flags are checked by the command, not by the parser, so that another command can follow."""
    parser = Parser()
    place = privacy.add_to(parser.add_subparsers())
    place.add_subparsers(required=False).add_parser("attack").set_defaults(act=print)
    assert parser.parse_args(["privacy", "attack"]).act is print
    assert parser.parse_args(["privacy", "--clients", "9"]).act is privacy.command
