"""fedslice compare: every algorithm as itself, the whole study in the table, what each ran with,
pictures."""

import json
import sys
from pathlib import Path

import pytest

from fedslice.cli import report, study
from fedslice.cli.catalogue import settings_of_all
from fedslice.cli.experiment import Experiment
from fedslice.cli.main import main
from fedslice.cli.settings import Settings
from fedslice.errors import InputError
from fedslice.tasks import quadratic

QUICK = ["example1", "--rounds", "2", "--eval-every", "1"]


def lines(text: str) -> dict[str, str]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


@pytest.mark.every
def test_mu_leaves_fedavg_alone_and_the_table_says_what_each_ran_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "mu=1", "--set", "fedavg:server_rate=0.5"]
    assert (
        main(
            [
                "compare",
                *QUICK,
                "fedavg",
                "fedprox",
                "--set",
                "steps=3",
                *changes,
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    caught = capsys.readouterr()
    assert "note: mu=1 is for fedprox only" in caught.err
    used = lines(caught.out.partition("ran with")[2])
    assert "mu 1" in used["fedprox"]
    assert "server_rate 1" in used["fedprox"]
    assert "server_rate 0.5" in used["fedavg"]
    assert "mu" not in used["fedavg"]
    assert "steps 3" in used["all"]
    recorded = [
        json.loads((tmp_path / f"{n}-seed0" / "settings.json").read_text())
        for n in ("fedavg", "fedprox")
    ]
    assert [each["settings"]["mu"] for each in recorded] == [0.0, 1.0]
    curves = [
        (tmp_path / f"{n}-seed0" / "metrics.jsonl").read_text() for n in ("fedavg", "fedprox")
    ]
    assert curves[0] != curves[1]


def test_a_setting_that_nobody_takes_stops_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", *QUICK, "fedavg", "fedsubavg", "--set", "mu=1", "--out", str(out)]) == 2
    assert "--set fedavg:mu=1" in capsys.readouterr().err
    assert not out.exists()


def test_a_second_comparison_in_the_same_folder_keeps_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with figures at other rounds; runs of other settings or lengths are told, not shown."""
    here = ["--out", str(tmp_path)]
    assert main(["compare", *QUICK, "fedavg", "fedsgd", *here]) == 0
    first = lines((tmp_path / "table.txt").read_text())
    assert main(["compare", *QUICK[:-1], "2", "fedsubavg", *here]) == 0
    second = lines((tmp_path / "table.txt").read_text())
    assert {"fedavg", "fedsgd", "fedsubavg"} <= second.keys()
    assert first["algorithm"] == second["algorithm"]
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    capsys.readouterr()
    assert (
        main(
            [
                "compare",
                "example1",
                "--rounds",
                "4",
                "fedavg",
                "--seeds",
                "5,6",
                "--set",
                "batch=2",
                *here,
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "fedavg-seed0 is left out of the table" in told.err
    assert "it has figures up to round 2, not 4" in told.err
    assert "fedsubavg" not in lines(told.out)


def test_runs_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    task = quadratic.example1(clients=4)
    settings = {"batch": 1, "mu": 0.5}
    folder = tmp_path / "fedavg-seed1"
    folder.mkdir()
    identity = {
        "task": task.name,
        "data": task.source,
        "algorithm": "fedavg",
        "seed": 1,
        "eval_every": 1,
    }
    (folder / "settings.json").write_text(json.dumps({**identity, "settings": settings}))
    (folder / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n')
    mine = Experiment(
        task,
        "fedavg",
        Settings({"batch": 1, "mu": 0.0}),
        2,
        eval_every=1,
        out=tmp_path / "fedavg-seed0",
    )
    groups = {"fedavg": [mine]}
    (note,) = study.read_back(tmp_path, task, 2, groups, [mine.out])
    assert "mu=0.5 there, mu=0.0 here" in note
    assert groups == {"fedavg": [mine]}
    mine.settings = Settings(settings)
    assert study.read_back(tmp_path, task, 2, groups, [mine.out]) == []
    assert [run.seed for run in groups["fedavg"]] == [0, 1]
    (folder / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    assert "left out" in study.read_back(tmp_path, task, 2, {}, [])[0]


def test_runs_side_by_side_are_those_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same curves, told in the same order."""
    told, order = [], [(n, seed) for n in ("fedavg", "fedsgd") for seed in (3, 1, 2)]
    for jobs in ("1", "3"):
        out = tmp_path / jobs
        given = [*QUICK, "fedavg", "fedsgd", "--seeds", "3,1,2", "--jobs", jobs, "--json"]
        assert main(["compare", *given, "--out", str(out)]) == 0
        caught = capsys.readouterr()
        lines = [json.loads(line) for line in caught.out.splitlines()]
        assert [(line["algorithm"], line["seed"]) for line in lines] == order
        names = [f"{name} seed {seed}: round 2" for name, seed in order]
        seen = [caught.err.index(name) for name in names]
        assert seen == sorted(seen)
        told.append([(out / f"{n}-seed{s}" / "metrics.jsonl").read_bytes() for n, s in order])
    assert told[0] == told[1]
    assert len(set(told[0])) > 1
    assert main(["compare", *QUICK, "fedavg", "--jobs", "-1"]) == 2
    assert "give a number of runs side by side" in capsys.readouterr().err


def test_a_seed_named_twice_is_no_second_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *QUICK, "fedavg", "--seeds", "1,2,1"]) == 2
    assert "a seed is named twice" in capsys.readouterr().err


def test_a_run_of_other_settings_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *QUICK, "--out", str(tmp_path)]) == 0
    assert main(["run", *QUICK, "--set", "client_rate=0.25", "--out", str(tmp_path)]) == 2
    assert (
        "other settings (client_rate=0.5 there, client_rate=0.25 here)" in capsys.readouterr().err
    )


def test_published_and_measured_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["movielens-lr", "--synthetic", "--scale", "0.01", "--rounds", "1"]
    assert main(["compare", *small, "fedavg", "--out", str(tmp_path)]) == 0
    (row,) = (
        line
        for line in capsys.readouterr().out.splitlines()
        if line.strip().startswith("rounds to target, FedAvg ")
    )
    assert row.split()[-2:] == ["170", "830"]
    assert main(["tasks", "movielens-mf"]) == 0
    assert "measured with fedslice on the real data\n" in capsys.readouterr().out


# -- pictures --------------------------------------------------------------------------------------


def test_pictures_leave_the_users_matplotlib_alone(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    task = quadratic.example1(clients=4)
    before = matplotlib.get_backend()
    pyplot.switch_backend("svg")
    try:
        open_one = pyplot.figure().number
        for suffix in ("png", "svg", "pdf"):
            file = report.heat_picture(
                task.train.heat(task.model), tmp_path / f"heat.{suffix}", "heat"
            )
            assert file.stat().st_size > 1000
        assert matplotlib.get_backend() == "svg"
        assert pyplot.get_fignums() == [open_one]
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)


def test_an_unknown_kind_of_picture_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["heat", "example1", "--png", str(tmp_path / "h.xyz")]) == 2
    caught = capsys.readouterr()
    assert "h.xyz: a picture's name ends in" in caught.err
    assert ".png" in caught.err
    assert caught.out == ""


def test_without_matplotlib_the_table_comes_and_the_note_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", *QUICK, "fedavg", "--out", str(tmp_path)]) == 0
    caught = capsys.readouterr()
    assert caught.err.index("pip install 'fedslice[plot]'") < caught.err.index("fedavg seed 0")
    assert "rounds to" in caught.out
    with pytest.raises(InputError, match="matplotlib"):
        report.check_picture(Path("a.png"))


def test_an_algorithm_that_cannot_work_is_refused_before_the_others_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    weighted = ["--set", "sampler=weighted", "--set", "cohort=5"]
    assert main(["compare", *QUICK, "fedavg", "scaffold", *weighted, "--out", str(out)]) == 2
    assert "count once a round" in capsys.readouterr().err
    assert not out.exists()


def test_what_is_set_to_nothing_is_told_where_it_is_not_usual(tmp_path: Path) -> None:
    task = quadratic.example1(clients=4)
    changes = ["maml:first_order=no", "fedadam:server_b1=0"]
    settings, _ = settings_of_all(task, ["maml", "fedadam"], changes)
    told = study.ran_with(
        {name: [Experiment(task, name, each, 1)] for name, each in settings.items()}
    )
    assert "first_order no" in told["maml"]
    assert "server_b1 0" in told["fedadam"]
    assert "clip" not in told["all"]
