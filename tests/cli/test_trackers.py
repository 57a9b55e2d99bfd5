"""Figures where people watch them: read back with each tracker's own reader."""

import json
from pathlib import Path

import pytest

from fedslice.cli.main import main
from fedslice.cli.trackers import KINDS, open_tracker
from fedslice.errors import InputError

RUN = ["run", "quadratic", "--scale", "0.4", "--rounds", "4", "--eval-every", "2"]


def losses(out: Path) -> dict[int, float]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return {line["round"]: line["train_loss"] for line in lines}


@pytest.mark.filterwarnings("ignore")  # of its own packages
def test_mlflow_has_every_figure_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    out = tmp_path / "r"
    assert main([*RUN, "--track", "mlflow", "--out", str(out)]) == 0
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    known = client.get_experiment_by_name("fedslice")
    (run,) = client.search_runs([known.experiment_id])
    seen = client.get_metric_history(run.info.run_id, "train_loss")
    assert {each.step: each.value for each in seen} == losses(out)
    assert run.data.params["cohort"] == "10"
    assert run.info.status == "FINISHED"


def test_tensorboard_has_event_files_and_the_run_is_as_without(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert main([*RUN, "--track", "tensorboard", "--out", str(tmp_path / "a" / "r")]) == 0
    (events,) = (tmp_path / "a" / "tensorboard" / "r").iterdir()
    assert events.read_bytes().count(b"train_loss") == 3
    assert main([*RUN, "--out", str(tmp_path / "b" / "r")]) == 0
    assert losses(tmp_path / "a" / "r") == losses(tmp_path / "b" / "r")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*given: object) -> None:
        raise ImportError("no such package")

    monkeypatch.setitem(KINDS, "wandb", ("wandb", missing))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pip install wandb"):
        open_tracker("wandb", tmp_path / "r", "r", {})
    assert main([*RUN, "--track", "paper", "--out", str(tmp_path / "r")]) == 2
