"""Nodes with files of their own and an agreed vocabulary, and what they do with the model."""

import csv
from pathlib import Path

import numpy as np
import pytest
from apps import SAME, link_of, session, written

from fedslice.cli.deployment import app, vocabulary
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.recipe import trained
from fedslice.cli.main import main
from fedslice.deploy import flower, own
from fedslice.deploy.session import train
from fedslice.errors import InputError

CATALOGUE = "item,category\n7,toys\n12,books\n007,toys\n31,\n"
FILES = {
    "ana": "user,item,category,clicked\nana,7,toys,1\nana,12,books,0\nana,99,toys,1\n",
    "ben": "user,item,category,clicked\nben,007,toys,0\nben,12,books,1\n",
    "cy": "user,item,category,clicked\ncy,31,,1\ncy,7,toys,0\ncy,12,books,0\n",
}
COLUMNS = ("--client", "user", "--label", "clicked", "--features", "item,category")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "compiled_in", lambda folder: None)


def catalogue(place: Path, text: str = CATALOGUE) -> Path:
    place.mkdir(exist_ok=True)
    for name, lines in FILES.items():
        (place / f"{name}.csv").write_text(lines)
    (place / "items.csv").write_text(text)
    return place / "items.csv"


def test_nodes_bring_their_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, folder = catalogue(tmp_path / "files"), tmp_path / "app"
    method = written(folder, "--vocabulary", str(words), *COLUMNS, "--nodes", "3")
    assert "each node: fedslice deploy data" in capsys.readouterr().out
    assert not (folder / "nodes").exists()  # whoever writes the app has seen nobody's data
    assert main(["deploy", "local", str(folder)]) == 2
    assert "fedslice deploy data" in capsys.readouterr().err
    for place, name in enumerate(FILES):
        file, node = tmp_path / "files" / f"{name}.csv", folder / "nodes" / str(place)
        assert main(["deploy", "data", str(folder), str(file), str(node)]) == 0
        told = capsys.readouterr()
        assert ("1 of 3 values of item are not in the vocabulary" in told.err) == (name == "ana")
        assert f"of node {place}" in told.out
    # values ascending, feature by feature: 007 12 31 7 | books toys
    mine = own.read(folder / "nodes" / "0" / "data")
    assert mine.columns["features"].tolist() == [[3, 5], [1, 4], [-1, 5]]
    assert mine.columns["label"].tolist() == [1, 0, 1]
    assert own.read(folder / "nodes" / "2" / "data").columns["features"][0].tolist() == [2, -1]
    assert method.MODEL.tables["weight"].rows == 6
    server = session(folder, method, link_of(folder, method))
    list(train(server, 2, lambda line: None))
    assert compare(folder, seed=0) == SAME
    rows = trained(server, vocabulary.read(folder / app.PACKAGE).names).tables["weight"]
    held = ["item=007", "item=12", "item=31", "item=7", "category=books", "category=toys"]
    assert rows.names == held
    np.testing.assert_array_equal(rows.heat, [1, 3, 1, 2, 3, 3])
    sent = (folder / "pyproject.toml").read_text()
    assert 'fab-include = ["fedslice_app/*.py", "fedslice_app/vocabulary.json"]' in sent


def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, folder = catalogue(tmp_path / "files"), tmp_path / "app"
    written(folder, "--vocabulary", str(words), *COLUMNS)

    def said(name: str, text: str, *more: str, node: str = "node-7") -> str:
        file = tmp_path / name
        file.write_text(text)
        place = str(tmp_path / node)
        assert main(["deploy", "data", str(folder), str(file), place, *more]) == 2
        return capsys.readouterr().err

    head, both = "user,item,category,clicked\n", FILES["ana"] + "ben,7,toys,1\n"
    assert "give the node a number" in said("a.csv", FILES["ana"])
    number = ("--number", "7")
    assert "--only NAME takes one" in said("b.csv", both, *number)
    assert "has no client 'cy'" in said("b.csv", both, *number, "--only", "cy")
    assert "must be 0 or 1" in said("c.csv", head + "ana,7,toys,2\n", *number)
    assert "none of the values of 'item'" in said("d.csv", head + "ana,1,toys,1\n", *number)
    assert "category" in said("e.csv", "user,item,clicked\nana,7,1\n", *number)
    assert not (tmp_path / "node-7").exists()
    file = str(tmp_path / "b.csv")
    given = ["deploy", "data", str(folder), file, str(tmp_path / "node-7"), *number]
    assert main([*given, "--only", "ben"]) == 0
    assert own.read(tmp_path / "node-7" / "data").numbers.tolist() == [7]
    # by another vocabulary the same ids mean something else
    other = tmp_path / "other"
    written(other, "--vocabulary", str(catalogue(tmp_path / "more", CATALOGUE + "3,\n")), *COLUMNS)
    digest = vocabulary.read(other / app.PACKAGE).digest
    assert digest in (other / app.PACKAGE / "client_app.py").read_text()
    with pytest.raises(InputError, match="by another vocabulary"):
        own.reader(digest)(tmp_path / "node-7" / "data")
    refused = [
        (["--vocabulary", str(words)], "goes with the columns"),
        (["--vocabulary", str(words), "--task", "quadratic", *COLUMNS], "leave --data"),
        (["--vocabulary", "nowhere.csv", *COLUMNS], "there is no file"),
        (["--vocabulary", str(words), *COLUMNS[:-1], "item,colour"], "lacks colour"),
    ]
    for arguments, why in refused:
        assert main(["deploy", "init", str(tmp_path / "no"), *arguments]) == 2
        assert why in capsys.readouterr().err


def test_a_node_predicts_and_recommends_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ("--task", "movielens-mf", "--synthetic", "--scale", "0.01", "--nodes", "2")
    method = written(tmp_path, *task, "--set", "steps=2", "--set", "reconstruct_steps=2")
    link = link_of(tmp_path, method)
    server = session(tmp_path, method, link)
    list(train(server, 1, lambda line: None))
    app_and_node = [str(tmp_path), str(tmp_path / "nodes" / "1")]
    assert main(["deploy", "predict", *app_and_node]) == 2
    assert "has published no model yet" in capsys.readouterr().err
    assert server.publish("held") == ["node-0", "node-1"]
    assert main(["deploy", "recommend", *app_and_node]) == 2
    assert "publish=all" in capsys.readouterr().err
    server.publish("all")
    table = tmp_path / "by_example.csv"
    assert main(["deploy", "predict", *app_and_node, "--out", str(table)]) == 0
    said = capsys.readouterr().out
    with table.open() as source:
        losses = np.array([float(line["loss"]) for line in csv.DictReader(source)])
    assert table.read_text().splitlines()[0] == "loss,accuracy"
    node = link.members["node-1"]
    assert len(losses) == node.data.examples
    assert f"loss {losses.mean():.4f}, rmse {np.sqrt(losses.mean()):.4f}" in said
    assert main(["deploy", "recommend", *app_and_node, "--top", "3"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    served = node.model()
    values = np.asarray(served.params["item"]) @ np.asarray(served.params["user"])
    scores = dict(zip(served.ids["item"].tolist(), values.tolist(), strict=True))
    unseen = sorted(set(scores) - set(np.asarray(node.data.columns["movie"]).tolist()))
    best = sorted(unseen, key=lambda item: -scores[item])[:3]
    assert [int(line[2]) for line in lines] == best
    assert [float(line[1]) for line in lines] == [pytest.approx(scores[i], abs=0.01) for i in best]
