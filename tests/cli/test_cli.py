"""The command line as a script, a person and a careless person use it."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kinds import few
from safetensors.numpy import load_file

from fedslice.cli.main import main
from fedslice.data.purposes import Purposes
from fedslice.tasks import movielens_lr, own

SMALL = ["movielens-lr", "--synthetic", "--scale", "0.02", "--set", "cohort=10"]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_are_what_scripts_rely_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", *SMALL, "--algorithm", "fedsubavg", "--rounds", "7", "--seed", "3",
                 "--eval-every", "3", "--out", str(tmp_path / "r"), "--json"])  # fmt: skip
    rows = lines(capsys.readouterr().out)
    assert code == 0
    assert [row["round"] for row in rows[:-1]] == [0, 3, 6, 7]
    for row in rows[:-1]:
        assert {
            "train_loss",
            "test_loss",
            "log_loss",
            "auc",
            "accuracy",
            "examples",
            "bytes_down",
            "bytes_up",
        } <= set(row)
    assert rows[2]["examples"] == 6 * 10 * 10 * 5  # rounds x cohort x steps x batch
    assert rows[2]["bytes_down"] > rows[1]["bytes_down"] > rows[0]["bytes_down"] == 0
    last = rows[-1]
    assert last["done"] is True
    assert last["rounds_to_target"] is None
    assert last["out"] == str(tmp_path / "r")
    assert last["ms_per_round"] > 0
    assert last["compile_s"] > 0
    assert last["peak_rss_mb"] > 10
    settings = json.loads((tmp_path / "r" / "settings.json").read_text())
    assert settings["settings"]["cohort"] == 10
    assert settings["seed"] == 3
    assert lines((tmp_path / "r" / "metrics.jsonl").read_text()) == rows[:-1]


def test_more_rounds_go_on_and_equal_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *SMALL, "--json", "--eval-every", "4", "--out"]
    assert main([*command, str(tmp_path / "a"), "--rounds", "10"]) == 0
    whole = lines(capsys.readouterr().out)
    assert main([*command, str(tmp_path / "b"), "--rounds", "4"]) == 0
    capsys.readouterr()
    assert main([*command, str(tmp_path / "b"), "--rounds", "10"]) == 0
    caught = capsys.readouterr()
    assert "going on from round 4" in caught.err
    assert lines(caught.out)[:-1] == whole[2:-1]  # only what is new
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (
        tmp_path / "b" / "metrics.jsonl"
    ).read_bytes()
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_finished_run_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "run",
        *SMALL,
        "--json",
        "--rounds",
        "4",
        "--eval-every",
        "2",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(command) == 0
    first = lines(capsys.readouterr().out)
    assert main(command) == 0
    caught = capsys.readouterr()
    (last,) = lines(caught.out)
    assert last["rounds"] == 4
    assert "has its 4 rounds" in caught.err
    assert lines((tmp_path / "r" / "metrics.jsonl").read_text()) == first[:-1]


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in a process of its own, it goes on in this one, as does the run that nobody stops."""
    monkeypatch.setenv("FEDSLICE_SAVE_EVERY", "0.05")
    order = ["run", *SMALL, "--rounds", "400", "--eval-every", "20", "--json", "--out"]
    assert main([*order, str(tmp_path / "whole")]) == 0
    command = [sys.executable, "-m", "fedslice.cli.main", *order, str(tmp_path / "cut")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()  # training has begun
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert main([*order, str(tmp_path / "cut")]) == 0
    for name in ("metrics.jsonl", "names.json", "settings.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(np.array_equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nope"], "there is no task 'nope'"),
        (["run", *SMALL, "--algorithm", "nope"], "there is no algorithm 'nope'"),
        (["run", *SMALL, "--set", "colour=red"], "there is no setting 'colour'"),
        (["run", *SMALL, "--set", "batch=many"], "must be a whole number"),
        (["run", *SMALL, "--set", "batch"], "key=value"),
        (["run", *SMALL, "--set", "cohort=100000"], "make the cohort smaller"),
        (["run", *SMALL, "--set", "server=magic"], "there is no optimizer 'magic'"),
        (["run", *SMALL, "--set", "weights=heavy"], "weights='heavy'"),
        (["run", *SMALL, "--set", "sampler=nobody"], "there is no sampler"),
        (["run", *SMALL, "--set", "engine=warp"], "engine='warp'"),
        (["run", *SMALL, "--set", "client_rate=-1"], "learning rate"),
        (["run", *SMALL, "--rounds", "0"], "at least 1"),
        (["run", "movielens-lr", "--synthetic", "--scale", "0"], "--scale"),
        (["run", "movielens-lr", "--data-dir", "/no/such/folder"], "files.grouplens.org"),
        (
            ["run", "lr", "--data", "no.csv", "--client", "u", "--label", "y", "--features", "x"],
            "there is no file",
        ),
        (["run", "lr", "--data", "no.csv"], "--client, --label"),
        (["heat", "no.csv"], "--client user --features"),
        (["compare", *SMALL, "fedavg", "fedavg"], "twice"),
        (["compare", *SMALL, "fedavg", "--seeds", "many"], "--seeds"),
        (["export", "/no/such/run", "x.npz"], "finished run"),
    ],
)
def test_wrong_usage_says_what_to_do(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    caught = capsys.readouterr()
    assert words in caught.err
    assert caught.out == ""


def test_a_diverging_run_ends_with_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "run",
                *SMALL,
                "--set",
                "client_rate=1e6",
                "--rounds",
                "40",
                "--out",
                str(tmp_path / "r"),
            ]
        )
        == 3
    )
    assert "smaller client learning rate" in capsys.readouterr().err


def test_a_folder_of_another_run_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    assert main(["run", *SMALL, "--rounds", "2", "--out", str(out)]) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert main(["run", *SMALL, "--rounds", "2", "--seed", "1", "--out", str(out)]) == 2
    assert "other seed" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    checkpoint = out / "checkpoint.safetensors"
    damaged = bytearray(checkpoint.read_bytes())
    damaged[-1] ^= 1
    checkpoint.write_bytes(damaged)
    assert main(["run", *SMALL, "--rounds", "4", "--out", str(out)]) == 2
    assert "damaged" in capsys.readouterr().err
    assert checkpoint.read_bytes() == bytes(damaged)


def test_a_folder_with_other_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert main(["run", *SMALL, "--rounds", "2", "--out", str(tmp_path)]) == 2
    assert "empty or a new folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_compare_ends_with_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["fedavg", "fedsubavg", "central"]
    arguments = [
        "compare",
        *SMALL,
        *names,
        "--rounds",
        "6",
        "--eval-every",
        "3",
        "--seeds",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "rounds to train_loss 0.65" in table
    assert all(name in table for name in ("fedavg", "fedsubavg", "central", "6+"))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "table.txt").read_text().strip() in table
    assert (tmp_path / "fedavg-seed1" / "model.safetensors").exists()


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = ["user,item,category,clicked"]
    for _ in range(600):
        item = int(40 * rng.random() ** 2)
        rows.append(f"u{rng.integers(20)},film {item},c{item % 3},{int(item % 2)}")
    file = tmp_path / "clicks.csv"
    file.write_text("\n".join(rows))
    return file


def test_own_file_to_named_rows(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "run"
    arguments = [
        "--data",
        str(clicks),
        "--client",
        "user",
        "--label",
        "clicked",
        "--features",
        "item,category",
    ]
    assert main(["run", "lr", *arguments, "--rounds", "60", "--out", str(out)]) == 0
    for ending in ("parquet", "npz", "safetensors"):
        assert main(["export", str(out), str(tmp_path / f"w.{ending}")]) == 0
    table = parquet.read_table(tmp_path / "w.parquet").to_pydict()
    weight = dict(zip(table["name"], table["weight"], strict=True))
    # Items of odd number are always clicked, of even number never: the signs are what the data say.
    assert weight["item=film 1"] > 0.1 > -0.1 > weight["item=film 2"]
    assert dict(zip(table["name"], table["heat"], strict=True))["category=c0"] == 20
    npz = np.load(tmp_path / "w.npz")
    assert npz["weight"].tolist() == table["weight"]
    assert npz["weight.names"].tolist() == table["name"]
    assert main(["export", str(out), str(tmp_path / "w.doc")]) == 2
    assert "give a name ending in .safetensors, .npz" in capsys.readouterr().err


def test_a_run_starts_at_round_0_beside_a_baseline(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clicks are rare here: accuracy stands at the majority's rate, log loss and AUC do not."""
    rng = np.random.default_rng(1)
    item, label = rng.integers(0, 4, 500), rng.random(500)
    label = (label < np.array([0.02, 0.05, 0.1, 0.3])[item]).astype(int)
    rows = [f"u{n % 25},i{item[n]},{label[n]}" for n in range(500)]
    clicks.write_text("\n".join(["user,item,clicked", *rows]))
    columns = [
        "--data",
        str(clicks),
        "--client",
        "user",
        "--label",
        "clicked",
        "--features",
        "item",
    ]
    out = ["--set", "client_rate=0.5", "--out", str(tmp_path / "run")]
    assert (
        main(["run", "lr", *columns, *out, "--rounds", "30", "--eval-every", "15", "--json"]) == 0
    )
    first, *_, last, _ = lines(capsys.readouterr().out)
    task = own.from_data(clicks, Purposes("user", "clicked", ["item"]))
    train, test = (part.columns["label"] for part in (task.train, task.test))
    rate = train.mean(dtype=np.float64)
    loss = np.mean(np.where(test > 0, -np.log(rate), -np.log(1 - rate)))
    assert first["round"] == 0
    assert first["log_loss"] == first["test_loss"] == pytest.approx(np.log(2))
    assert first["auc"] == first["baseline_auc"] == 0.5
    assert first["baseline_log_loss"] == pytest.approx(loss)
    assert first["baseline_accuracy"] == pytest.approx(1 - test.mean())
    assert last["accuracy"] == pytest.approx(first["baseline_accuracy"])
    assert last["auc"] > 0.6
    assert last["log_loss"] < first["log_loss"]
    assert (
        main(["run", "lr", *columns, *out, "--rounds", "45", "--eval-every", "15", "--json"]) == 0
    )
    assert [line.get("round") for line in lines(capsys.readouterr().out)] == [45, None]
    assert (
        main(["compare", "lr", *columns, "fedavg", "--rounds", "2", "--out", str(tmp_path / "c")])
        == 0
    )
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("baseline"))
    gap = abs(rate - test.mean(dtype=np.float64))
    figures = (1 - test.mean(), loss, gap)
    assert row.split()[1:] == ["0.5000", *(f"{figure:.4f}" for figure in figures)]


def test_one_example_is_not_enough(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks.write_text("user,item,clicked\na,x,1\n")
    columns = [
        "--data",
        str(clicks),
        "--client",
        "user",
        "--label",
        "clicked",
        "--features",
        "item",
    ]
    assert main(["run", "lr", *columns]) == 2
    assert (
        "a fifth of the examples is held out, and here are 1: give three or more"
        in capsys.readouterr().err
    )


def test_features_that_are_no_categories_and_those_without_values(
    clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clicks.write_text("user,when,item\na,2020-01-01 10:00:00,\nb,2020-01-01 10:00:01,\n")
    file = ["heat", str(clicks), "--client", "user", "--features"]
    assert main([*file, "when"]) == 2
    assert "--text when" in capsys.readouterr().err
    assert main([*file, "when", "--text", "when", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert main([*file, "item"]) == 2
    assert "none of the features item has any value" in capsys.readouterr().err


def test_heat_of_a_file_and_a_task(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ["heat", str(clicks), "--client", "user", "--features", "item,category"]
    assert main([*file, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["clients"] == 20
    assert figures["examples"] == 600
    assert sum(figures["histogram"]["rows"]) == figures["rows"]
    assert main([*file, "--png", str(tmp_path / "h.png")]) == 0
    assert "clients  #" in capsys.readouterr().out
    assert (tmp_path / "h.png").exists()
    assert main(["heat", "example1"]) == 0
    assert "heat dispersion" in capsys.readouterr().out


def test_labels_other_than_0_and_1_are_numbers_or_classes(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clicks.write_text(clicks.read_text().replace(",1\n", ",7\n"))  # the last line keeps its 1
    given = ["--data", str(clicks), "--client", "user", "--label", "clicked", "--features", "item"]
    short = ["--rounds", "2", "--eval-every", "2", "--out", str(tmp_path / "run")]
    assert main(["run", "lr", *given, *short]) == 0
    found = capsys.readouterr()
    assert "label: clicked, a number, mean" in found.err
    assert "baseline rmse" in found.out
    assert main(["run", "fm", *given, "--label-as", "classes"]) == 2
    assert "fm predicts 0 or 1, or a number, not 3 classes" in capsys.readouterr().err
    assert main(["run", "lr", *given, "--label-as", "binary"]) == 2
    assert "must have two values to be binary" in capsys.readouterr().err


def test_own_data_are_told_by_their_values_and_too_few_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seconds since 1970 are whole numbers: each would get a weight of its own without a word."""
    file = tmp_path / "clicks.csv"
    how = [
        "run",
        "lr",
        "--data",
        str(file),
        "--client",
        "user",
        "--label",
        "clicked",
        "--features",
        "item,stamp",
    ]
    rows = [f"{n % 9},{n % 3},{1_700_000_000 + 61 * n},{n % 2}" for n in range(2_000)]
    file.write_text("\n".join(["user,item,stamp,clicked", *rows]))
    assert main([*how, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().err
    assert "features: item 3 values, stamp 1,600 values\n" in told
    assert (
        "note: stamp has a value of its own in nearly every example: bucket it or leave it out"
        in told
    )
    assert "note: item" not in told
    file.write_text("\n".join(["user,item,stamp,clicked", *rows[:2]]))
    assert main(how) == 2
    assert (
        "a fifth of the examples is held out, and here are 2: give three or more"
        in capsys.readouterr().err
    )


def test_demo_draws_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedslice.cli import workloads as registry

    small = replace(
        registry.TASKS["movielens-lr"],
        synthetic=lambda scale: movielens_lr.synthetic(scale=0.02),
    )
    monkeypatch.setitem(registry.TASKS, "movielens-lr", small)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert "Do cold rows learn?\nalgorithm  unseen  cold (" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {
        "curves.png",
        "by-heat.png",
        "table.txt",
    }


def test_a_kill_during_an_evaluation_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of round r must not be there before the line of round r: a resumed run would not
    write it again."""
    from fedslice.cli import experiment

    monkeypatch.setenv("FEDSLICE_SAVE_EVERY", "0")
    command = ["run", *SMALL, "--rounds", "9", "--eval-every", "3", "--out", str(tmp_path / "r")]
    calls, score = [0], experiment.Scorer.__call__

    def killed(self: experiment.Scorer, run: experiment.Run) -> dict[str, float]:
        calls[0] += 1
        if calls[0] == 3:  # rounds 0, 3, 6
            raise KeyboardInterrupt
        return score(self, run)

    monkeypatch.setattr(experiment.Scorer, "__call__", killed)
    assert main(command) == 130
    assert main(command) == 0
    rounds = [
        json.loads(line)["round"]
        for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    ]
    assert rounds == [0, 3, 6, 9]


def test_compare_goes_on_after_a_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", *SMALL, "fedsubavg", "fedsgd", "--set", "client_rate=300"]
    assert main([*arguments, "--rounds", "20", "--out", str(tmp_path)]) == 3
    caught = capsys.readouterr()
    assert "fedsubavg seed 0: training diverged" in caught.err
    assert "fedsgd" in caught.out
    assert "fedsubavg" not in caught.out


def test_unwritable_places_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["run", *SMALL, "--rounds", "2", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize("setting", few(["epochs=1", "sampler=full"], "epochs=1"))
def test_central_sees_as_many_examples_as_the_others(setting: str, tmp_path: Path) -> None:
    seen = {}
    for name in ("fedavg", "central"):
        out = tmp_path / name
        command = ["run", *SMALL, "--algorithm", name, "--rounds", "3", "--set", setting]
        assert main([*command, "--out", str(out)]) == 0
        last = (out / "metrics.jsonl").read_text().splitlines()[-1]
        seen[name] = json.loads(last)["examples"]
    # clients' sizes vary, cohorts are small
    assert seen["central"] == pytest.approx(seen["fedavg"], rel=0.5)


def test_tasks_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedslice.cli.workloads import TASKS

    assert main(["tasks"]) == 0
    listed, _, own_models = capsys.readouterr().out.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == list(TASKS)
    assert [line.split()[0] for line in own_models.splitlines()[1:]] == ["lr", "fm", "mf", "din"]
    for name in TASKS:
        assert main(["tasks", name, "--data-dir", str(tmp_path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["name"] == name
        assert shown["settings"]
        assert "--synthetic" in shown["data"]
        if TASKS[name].load is not None:
            assert "nothing; fedslice data" in shown["data"][f"in {tmp_path}"]
            assert shown["data"]["needed"]
            # a task of our own
            assert ("published results" in shown) is (name != "shakespeare-words")
    assert main(["tasks", "amazon-din"]) == 0
    text = capsys.readouterr().out
    assert "auc at least 0.6" in text
    assert "123,147" in text
    assert main(["tasks", "no-such"]) == 2
    assert "there is no task 'no-such'; there are amazon-din" in capsys.readouterr().err


def test_options_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They reach the task, are part of what a run folder is for, and are refused by name where
    there are none."""
    small = [
        "movielens-mf",
        "--synthetic",
        "--scale",
        "0.02",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert (
        main(
            [
                "run",
                *small,
                "--option",
                "split=time",
                "--option",
                "local=no",
                "--algorithm",
                "fedavg",
            ]
        )
        == 0
    )
    assert "121 clients" in capsys.readouterr().err  # all of them train
    kept = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert kept["data"].endswith("; split=time, local=no")
    assert main(["run", *small, "--option", "split=users", "--algorithm", "fedavg"]) != 0
    for given, message in {
        "splt=time": "the options of movielens-mf here are split (users), part (test), local (yes)",
        "split": "write name=value",
        "local=perhaps": "this must be yes or no",
        "split=rows": "split is users or time",
    }.items():
        assert main(["run", *small[:-1], str(tmp_path / "other"), "--option", given]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", "amazon-din", "--synthetic", "--option", "a=b"]) == 2
    assert "the options of amazon-din here are none" in capsys.readouterr().err
    assert main(["tasks", "stackoverflow-lstm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["clients"] == "10000, real data only"


def test_data_found_and_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "amazon").mkdir()
    (tmp_path / "amazon" / "ratings_Electronics.csv").write_text("A,B,5.0,1000\n")
    assert main(["tasks", "amazon-din", "--data-dir", str(tmp_path)]) == 0
    assert "ratings_Electronics.csv" in capsys.readouterr().out
    assert main(["data", "amazon-din", "--dir", str(tmp_path)]) == 0
    assert "ratings_Electronics.csv" in capsys.readouterr().out
    assert main(["data", "taobao-din", "--dir", str(tmp_path)]) == 2
    assert "UserBehavior.csv" in capsys.readouterr().err
    assert main(["data", "quadratic"]) == 0
    assert "is generated" in capsys.readouterr().err


def test_the_page_of_the_tasks_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--markdown"]) == 0
    assert capsys.readouterr().out == (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(
        encoding="utf-8"
    )


def test_local_leaves_are_rebuilt_when_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ReconEval: without it a fresh user vector predicts about 0 stars, an error of 3.7."""
    command = [
        "run",
        "movielens-mf",
        "--synthetic",
        "--scale",
        "0.02",
        "--rounds",
        "20",
        "--eval-every",
        "10",
        "--json",
    ]
    assert main([*command, "--set", "cohort=20", "--out", str(tmp_path / "r")]) == 0
    rows = lines(capsys.readouterr().out)
    assert rows[0]["rmse"] > rows[1]["rmse"]
    assert rows[1]["rmse"] < 2
    assert rows[1]["gain_share"] > 0.9
    assert json.loads((tmp_path / "r" / "settings.json").read_text())["algorithm"] == "fedrecon"
    names = json.loads((tmp_path / "r" / "names.json").read_text())["item"]
    (tmp_path / "me.csv").write_text(f"title,rating\n{names[0]},5\n{names[1]},1\n")
    assert (
        main(
            [
                "recommend",
                "--model",
                str(tmp_path / "r"),
                "--user",
                str(tmp_path / "me.csv"),
                "--top",
                "3",
            ]
        )
        == 0
    )
    assert len(capsys.readouterr().out.strip().splitlines()) >= 4


@pytest.mark.parametrize(
    "names",
    [["fedavg", "ditto"], pytest.param(["fedavg", "reptile", "maml"], marks=pytest.mark.every)],
)
def test_personal_models_are_judged_after_adapting(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ditto by what clients keep, Reptile by what they adapt, FedAvg as it is; all in one table."""
    small = [
        "movielens-lr",
        *names,
        "--synthetic",
        "--scale",
        "0.02",
        "--set",
        "cohort=20",
        "--rounds",
        "4",
    ]
    assert main(["compare", *small, "--out", str(tmp_path / "c")]) == 0
    table = capsys.readouterr().out
    assert "gain share" in table
    for name in names:
        line = json.loads(
            (tmp_path / "c" / f"{name}-seed0" / "metrics.jsonl").read_text().splitlines()[-1]
        )
        assert ("gain_mean" in line) == (name != "fedavg")
