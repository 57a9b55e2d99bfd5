"""Early stopping on validation: the round, the model that is kept, and an interrupted run."""

import json
from pathlib import Path

import pytest

from fedslice.cli import experiment
from fedslice.cli.main import main
from fedslice.cli.stopping import Stopped

RUN = ["run", "quadratic", "--scale", "0.4", "--rounds", "40", "--eval-every", "2"]
RUN += ["--validation", "0.2", "--set", "client_rate=0.9", "--set", "steps=5"]


def lines(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("patience") / "r"
    assert main([*RUN, "--patience", "3", "--out", str(out)]) == 0
    return out


def test_it_stops_after_so_many_evaluations_without_a_better_loss(stopped: Path) -> None:
    losses = [line["validation_loss"] for line in lines(stopped)]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 4 < 21
    done = json.loads((stopped / "done.json").read_text())
    assert done["best_round"] == 2 * best
    assert done["stopped"] == "no better validation loss in 3 evaluations"


def test_the_best_model_is_that_of_a_run_up_to_there(stopped: Path, tmp_path: Path) -> None:
    best = json.loads((stopped / "done.json").read_text())["best_round"]
    short = [str(best) if word == "40" else word for word in RUN]
    assert main([*short, "--out", str(tmp_path / "r")]) == 0
    assert (stopped / "best" / "model.safetensors").read_bytes() == (
        tmp_path / "r" / "model.safetensors"
    ).read_bytes()


def test_an_interrupted_run_stops_in_the_same_round(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, lap = [0], experiment.Experiment._lap

    def stopping(self: experiment.Experiment, *rest: object) -> None:
        lap(self, *rest)  # type: ignore[arg-type]
        ran[0] += 1
        if ran[0] == 4:
            raise Stopped(15)

    out = tmp_path / "r"
    with monkeypatch.context() as patch:
        patch.setattr(experiment.Experiment, "_lap", stopping)
        assert main([*RUN, "--patience", "3", "--out", str(out)]) == 128 + 15
    assert main([*RUN, "--patience", "3", "--out", str(out)]) == 0
    for name in ("metrics.jsonl", "model.safetensors", "best/model.safetensors"):
        assert (out / name).read_bytes() == (stopped / name).read_bytes()


def test_patience_needs_something_to_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quadratic", "--scale", "0.4", "--patience", "3"]) == 2
    assert "--validation 0.1" in capsys.readouterr().err


@pytest.mark.every
def test_without_patience_a_study_goes_on_with_what_had_stopped(tmp_path: Path) -> None:
    out = str(tmp_path / "s")
    grid = ["study", "quadratic", "fedavg", *RUN[2:], "--seeds", "1", "--out", out]
    assert main([*grid, "--patience", "3"]) == 0
    (cell,) = Path(out).glob("cells/fedavg/*")
    short = lines(cell)
    assert short[-1]["round"] < 40
    assert main(grid) == 0
    assert lines(cell)[: len(short)] == short
    assert lines(cell)[-1]["round"] == 40
