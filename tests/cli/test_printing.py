"""What a person sees fits a narrow terminal; what a file gets stays one line."""

import io
import json
import re
from pathlib import Path

import pytest
from tqdm import tqdm

from fedslice.cli.main import main
from fedslice.cli.printing import folded, print_line
from fedslice.simulation.progress import FORM, MOST

LINE = {
    "round": 12000,
    "train_loss": 0.5,
    "test_loss": 0.61,
    "auc": 0.7,
    "accuracy": 0.66,
    "log_loss": 0.61,
    "validation_loss": 0.62,
    "validation_auc": 0.7,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_fold_between_figures_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 60 columns, with no figure parted from its name; elsewhere the line is whole."""
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr("sys.stdout", stream)
        print_line(LINE)
        shown[type(stream)] = stream.getvalue()
    narrow, whole = shown[Terminal].rstrip("\n").split("\n"), shown[io.StringIO]
    assert max(map(len, narrow)) < 60
    assert all(re.search(r" \d\.\d{4},?$", line) for line in narrow)
    assert " ".join(line.strip() for line in narrow) == whole.strip()
    assert "log loss" not in whole  # it is the test loss
    assert "validation auc" not in whole


def test_paths_and_names_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "runs/a-very-long-name-of-a-folder/that-goes-on-and-on"
    assert path in folded(f"the same command with --out {path} goes on from there", Terminal())


def test_the_bar_fits_60_columns_with_its_loss() -> None:
    label = "scaffold-approximate"[:MOST]
    text = tqdm.format_meter(
        10_148, 20_000, 70, ncols=60, prefix=label, bar_format=FORM, postfix="loss 0.5547"
    )
    assert len(text) <= 60
    assert "loss 0.5547" in text
    assert "10148/20000" in text


def test_the_best_model_is_kept_without_patience(tmp_path: Path) -> None:
    """With a validation set, to the last round."""
    words = ["run", "movielens-lr", "--synthetic", "--scale", "0.02", "--rounds", "6"]
    more = ["--eval-every", "2", "--validation", "0.2", "--set", "cohort=10"]
    assert main([*words, *more, "--out", str(tmp_path / "r")]) == 0
    done = json.loads((tmp_path / "r" / "done.json").read_text())
    lines = [
        json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    ]
    assert done["rounds"] == 6
    assert done["best_round"] == min(lines, key=lambda line: line["validation_loss"])["round"]
    assert (tmp_path / "r" / "best" / "model.safetensors").exists()
