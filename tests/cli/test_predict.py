"""From a file to a model and back: predictions by hand from the run folder's own arrays."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedslice.cli.export import read_model
from fedslice.cli.main import main
from fedslice.data.features import Features

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

HEAD = "user,item,tags,price,when,bought"
OWN = ["--client", "user", "--label", "bought", "--features", "item,tags,when:hour"]
OWN += ["--numbers", "price:4", "--lists", "tags", "--time", "when"]
SHORT = ["--rounds", "40", "--eval-every", "40"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with text labels, missing prices and tags, and a run on it."""
    home = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    rows = [HEAD]
    for n in range(800):
        item = int(12 * rng.random() ** 2)
        tags = "|".join(tag for tag in ("new", "sale") if rng.random() < 0.4)
        price = "" if n % 10 == 3 else f"{rng.random() * 20:.2f}"
        odds = (2.0 if item % 2 else -2.0) + ("sale" in tags)
        bought = "yes" if rng.random() < 1 / (1 + np.exp(-odds)) else "no"
        rows.append(
            f"u{n % 16},i{item},{tags},{price},2026-01-{1 + n // 30:02d} 0{n % 10}:00:00,{bought}"
        )
    (home / "log.csv").write_text("\n".join(rows) + "\n")
    data = ["--data", str(home / "log.csv"), *OWN, "--split", "time"]
    assert main(["run", "lr", *data, *SHORT, "--out", str(home / "run")]) == 0
    return home


def by_hand(folder: Path, row: dict[str, str]) -> float:
    """The probability from the arrays of the run folder and the row's text alone."""
    model, features = read_model(folder / "run"), Features.read(folder / "run")
    rows = model.tables["weight"]
    weight = dict(zip(rows.names, rows.values.tolist(), strict=True))
    score = float(model.dense["bias"]) + weight.get(f"item={row['item']}", 0.0)
    score += sum(weight.get(f"tags={tag}", 0.0) for tag in row["tags"].split("|"))
    score += weight.get(f"when:hour={int(row['when'][11:13])}", 0.0)
    bucket = next(column for column in features.columns if column.kind == "buckets")
    if row["price"]:
        place = sum(edge <= float(row["price"]) for edge in bucket.edges)
        score += weight.get(bucket.names[place], 0.0)
    return 1 / (1 + np.exp(-score))


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_predictions_are_those_of_the_formula_in_the_order_of_the_file(folder: Path) -> None:
    out = folder / "p.csv"
    assert main(["predict", str(folder / "run"), str(folder / "log.csv"), "-o", str(out)]) == 0
    found, given = read(out), read(folder / "log.csv")
    assert [row["user"] for row in found] == [row["user"] for row in given]
    chances = np.array([float(row["probability"]) for row in found])
    assert chances == pytest.approx([by_hand(folder, row) for row in given], abs=1e-5)
    assert {row["prediction"] for row in found} == {"no", "yes"}
    assert all(
        (row["prediction"] == "yes") == (p > 0.5) for row, p in zip(found, chances, strict=True)
    )
    # odd items sell: it has learned that
    odd = np.array([int(row["item"][1:]) % 2 == 1 for row in given])
    assert chances[odd].min() > chances[~odd].max() - 0.5
    assert chances[odd].mean() > 0.7 > 0.4 > chances[~odd].mean()


def test_unknown_values_are_padding_and_other_columns_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["u99,never seen,new,3.5,2027-01-01 05:00:00", "u1,i1,,,2027-01-01 06:00:00"]
    (folder / "new.csv").write_text("\n".join([HEAD.removesuffix(",bought"), *rows]) + "\n")
    out = folder / "new.parquet"
    assert main(["predict", str(folder / "run"), str(folder / "new.csv"), "-o", str(out)]) == 0
    assert "item: 1 values (50.0%) were not in the training data" in capsys.readouterr().err
    table = parquet.read_table(out).to_pydict()
    expected = [by_hand(folder, row) for row in read(folder / "new.csv")]
    assert table["probability"] == pytest.approx(expected, abs=1e-5)
    text = (folder / "new.csv").read_text()
    (folder / "bad.csv").write_text(text.replace("item", "thing", 1))
    assert main(["predict", str(folder / "run"), str(folder / "bad.csv")]) == 2
    assert "no column 'item'; it has user, thing" in capsys.readouterr().err
    assert main(["predict", str(folder / "run"), str(folder / "new.csv"), "-o", "x.doc"]) == 2
    assert main(["predict", str(folder), str(folder / "new.csv")]) == 2
    assert "holds no features.json" in capsys.readouterr().err
    assert main(["evaluate", str(folder / "run"), str(folder / "new.csv")]) == 2
    assert "no column 'bought'" in capsys.readouterr().err


def test_evaluate_gives_the_figures_of_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The later part of the file is the test set of the run."""
    lines = (folder / "log.csv").read_text().splitlines()
    # the cut is after the moment below which 80 % of the rows are
    moments = sorted(line.split(",")[4] for line in lines[1:])
    cut = moments[int(np.floor(0.8 * (len(moments) - 1)))]
    late = [line for line in lines[1:] if line.split(",")[4] > cut]
    (folder / "late.csv").write_text("\n".join([lines[0], *late]) + "\n")
    assert main(["evaluate", str(folder / "run"), str(folder / "late.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("auc", "log_loss", "calibration", "accuracy"):
        assert found[name] == pytest.approx(last[name], abs=1e-5)
    assert found["auc"] > 0.75


def test_settings_are_checked_before_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--data", str(tmp_path / "none.csv"), "--client", "u", "--label", "y"]
    cases: list[tuple[list[str], str]] = [
        (["run", "lr", *own, "--set", "chort=3"], "chort"),
        (["run", "lr", *own, "--rounds", "0"], "--rounds"),
        (["run", "lr", *own, "--numbers", "price:much"], "standard, buckets"),
        (["run", "fm", *own, "--option", "dimension=0"], "dimension"),
        (["run", "fm", *own, "--test", "1.5"], "held out shares of 1.5"),
        (["run", "lr", *own, "--option", "split=time"], "dimension (8), longest (64)"),
        (["compare", "lr", "fedavg", "fedprox", *own, "--set", "nothing=1"], "nothing"),
        (["run", "movielens-lr", *own], "your own data go with the tasks lr, fm, mf, din"),
        (["run", "lr", *own], "no file"),
    ]
    for arguments, words in cases:
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_local_users_are_rebuilt_from_their_labelled_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the users like odd items, half even ones: without their own rows nothing is known."""
    rng = np.random.default_rng(0)
    rows = ["user,item,stars"]
    for user in range(60):
        for item in rng.permutation(20)[:14]:
            stars = 5 if (item + user) % 2 else 1
            rows.append(f"u{user},i{item},{stars}")
    (tmp_path / "stars.csv").write_text("\n".join(rows))
    own = ["--data", str(tmp_path / "stars.csv"), "--client", "user", "--label", "stars"]
    own += ["--label-as", "number", "--split", "clients"]
    out = tmp_path / "run"
    assert (
        main(["run", "mf", *own, "--rounds", "150", "--eval-every", "150", "--out", str(out)]) == 0
    )
    given = [f"new,i{item},{'' if item > 13 else 5 if item % 2 else 1}" for item in range(20)]
    given += ["nobody,i3,"]
    (tmp_path / "new.csv").write_text("\n".join(["user,item,stars", *given]))
    capsys.readouterr()
    arguments = ["predict", str(out), str(tmp_path / "new.csv"), "-o", str(tmp_path / "p.csv")]
    assert main(arguments) == 0
    stars = np.array([float(row["prediction"]) for row in read(tmp_path / "p.csv")])
    assert stars[15:20:2].min() > 3.5 > 2.5 > stars[14:20:2].max()
    assert stars[20] == pytest.approx(3, abs=0.7)  # who never rated gets the items' mean
    plain = "\n".join(["user,item", "new,i15", "nobody,i3"])
    (tmp_path / "plain.csv").write_text(plain)  # nobody rated anything
    assert (
        main(["predict", str(out), str(tmp_path / "plain.csv"), "-o", str(tmp_path / "q.csv")]) == 0
    )
    mean = [float(row["prediction"]) for row in read(tmp_path / "q.csv")]
    assert mean[1] == pytest.approx(stars[20], abs=1e-6)
    capsys.readouterr()
    assert main(["evaluate", str(out), str(tmp_path / "stars.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rmse"] < 1.2
