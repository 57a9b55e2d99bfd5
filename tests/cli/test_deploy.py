"""``fedslice deploy init``: what it writes is enough for nodes and server, and has nobody's data in
what is sent; the comparison tells the same from the different.  Over Flower: tests/deploy."""

import inspect
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from apps import SAME, InOneProcess, in_one_process, link_of, session, written
from kinds import few

from fedslice.cli.deployment import app, recipe
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.main import main
from fedslice.data.population import Population
from fedslice.deploy import Program, columns_of, flower, own
from fedslice.deploy.link import silent
from fedslice.deploy.session import REPORTS, train
from fedslice.errors import InputError
from fedslice.model import Model


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "compiled_in", lambda folder: None)


@pytest.mark.parametrize("name", few(["fedsubavg", "scaffold", "ditto"], "scaffold"))
def test_what_is_written_is_enough_and_is_the_simulation(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = written(tmp_path, "--algorithm", name, "--nodes", "3", "--set", "client_rate=0.05")
    assert f"try: fedslice deploy local {tmp_path}" in capsys.readouterr().out
    link = link_of(tmp_path, method)
    list(train(session(tmp_path, method, link), 2, lambda line: None))
    assert compare(tmp_path, seed=0) == SAME
    home = tmp_path / app.SERVER
    told = (home / REPORTS).read_text().splitlines()
    (home / REPORTS).write_text(told[0].replace('"node-1", ', "", 2) + "\n" + told[1] + "\n")
    assert compare(tmp_path, seed=0).startswith("not the same: the largest difference")
    (home / REPORTS).write_text(told[1])
    assert compare(tmp_path, seed=0).startswith("not compared: the report of a round was lost")


def test_processes_are_started_followed_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``deploy local`` but for Flower: with keys, a second time, and when the server ends early."""
    pytest.importorskip("cryptography")
    in_one_process(monkeypatch)
    local = ["deploy", "local", str(tmp_path / "x")]
    assert main([*local, "--nodes", "3", "--rounds", "1", "--tls"]) == 0
    told = capsys.readouterr()
    assert "a SuperLink and 3 SuperNodes start" in told.err
    assert "3 nodes registered" in told.out
    assert "round 1: 3 of 3 nodes counted" in told.out
    assert told.out.endswith(f"compared: {SAME}\n")
    assert main([*local, "--rounds", "2"]) == 0
    told = capsys.readouterr()
    assert "round 2: 3 of 3" in told.out
    assert "round 1:" not in told.out
    monkeypatch.setattr(InOneProcess, "start", lambda *_: SimpleNamespace(poll=lambda: 1))
    assert main([*local, "--rounds", "3"]) != 0
    assert "the server ended before the last round" in capsys.readouterr().err
    assert main([*local, "--rounds", "2"]) == 0
    assert "all 2 rounds are done; --rounds 5 goes on" in capsys.readouterr().err


@pytest.mark.every
def test_draws_with_replacement_and_second_tries_are_simulated_too(tmp_path: Path) -> None:
    changes = ("--set", "sampler=weighted", "--set", "cohort=4")
    task = ("--task", "synthetic-glm", "--scale", "0.2", "--algorithm", "fedavg", "--nodes", "3")
    method = written(tmp_path, *task, *changes)
    link = link_of(tmp_path, method)
    server = session(tmp_path, method, link)
    rounds = train(server, 3, lambda line: None)
    link.faults = dict.fromkeys(link.members, silent)
    assert not next(rounds).accepted
    link.faults = {}
    assert all(report.accepted for report in rounds)
    assert compare(tmp_path, seed=0) == SAME


def test_nodes_and_server_make_the_same_program_from_what_they_know(tmp_path: Path) -> None:
    """A survey, heat and variates: nodes have their own data, the server what they said."""
    for name in ("mime", "scaffold-heat", "fedrecon"):
        folder = tmp_path / name
        method = written(folder, "--algorithm", name, "--nodes", "2")
        people = app.people_of(app.nodes_of(folder))
        columns = columns_of(method.MODEL, people)
        prints = {
            Program(method.algorithm(each), columns).fingerprint
            for each in (people, *(people.subset(np.array([place])) for place in (0, 1)))
        }
        assert len(prints) == 1, name


def test_the_data_are_the_clients_own(tmp_path: Path) -> None:
    from fedslice.tasks import quadratic

    written(tmp_path, "--nodes", "3")
    task = quadratic.random_quadratic(clients=50).task
    for place in range(3):
        mine = own.read(tmp_path / "nodes" / str(place) / "data")
        wanted = task.train.subset(np.array([place]))
        assert mine.numbers.tolist() == [place]
        for name, column in wanted.columns.items():
            np.testing.assert_array_equal(mine.columns[name], column)
    sent = [file for file in tmp_path.rglob("*") if file.match("fedslice_app/*.py")]
    assert len(sent) == 4  # and only these go to SuperLink and SuperNodes
    text = (tmp_path / "pyproject.toml").read_text()
    assert 'fab-include = ["fedslice_app/*.py"]' in text
    # Flower refuses what a run changes and the app does not name: all that the server asks for
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    asked = re.findall(r'config(?:\.get\(|\[)"(\w+)"', inspect.getsource(recipe.serve))
    assert set(config) == {*asked, "least", "spare"}


def test_what_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main(["deploy", "init", str(tmp_path / "x"), *arguments]) == 2
        return capsys.readouterr().err

    assert "there are 50 clients" in said("--task", "quadratic", "--nodes", "51")
    assert "there is nothing to deploy" in said("--task", "quadratic", "--algorithm", "central")
    assert "no local leaves" in said("--task", "quadratic", "--algorithm", "fedper")
    assert "who is there" in said("--task", "quadratic", "--set", "available=sometimes:0.5")
    assert not (tmp_path / "x").exists()
    written(tmp_path / "x")
    assert "is there already" in said("--task", "quadratic")
    assert main(["deploy", "local", str(tmp_path / "x"), "--algorithm", "fedavg"]) == 2
    assert "is an app already" in capsys.readouterr().err
    model = Model(lambda key: {"c": np.zeros(())}, lambda p, b: p["c"] - b["x"])
    people = Population.from_arrays([0], x=[1.0])
    with pytest.raises(InputError, match="does not say how it was made"):
        app.write(tmp_path / "y", model, "fedavg", {}, people, {"nodes": 1})
    damaged = tmp_path / "x" / "nodes" / "0" / "data" / "0.npy"
    damaged.write_bytes(damaged.read_bytes()[:90])
    with pytest.raises(InputError, match="cannot be read"):
        own.read(damaged.parent)
