"""Apps whose nodes hide their rows: where the heat comes from, what is compared and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import SAME, link_of, session, written

import fedslice as fs
from fedslice.cli.deployment import app
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.recipe import trained
from fedslice.cli.main import main
from fedslice.deploy import flower, heated
from fedslice.deploy.session import population_of, train
from fedslice.errors import InputError

SUMS = ("--algorithm", "fedsubavg", "--nodes", "4", "--set", "clip=1")
RESPONSES = ("--set", "heat_privacy=response:3")
NOISE = ("--trial", "--set", "noise=0.5")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "compiled_in", lambda folder: None)


@pytest.mark.parametrize(
    "changes",
    [
        ("--set", "secure=yes", *RESPONSES),
        pytest.param((*NOISE, "--set", "secure=yes", *RESPONSES), marks=pytest.mark.every),
        pytest.param(
            (*NOISE, "--set", "noise_by=shares:3", "--set", "heat_privacy=sum:1:2"),
            marks=pytest.mark.every,
        ),
    ],
    ids=["secure", "server-noise", "shares"],
)
def test_fedsubavg_in_secure_sums_is_the_simulation(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    method, trial = written(tmp_path, *SUMS, *changes), "--trial" in changes
    link = link_of(tmp_path, method, trial=trial)
    secret: dict[str, Any] = {"secret": 0} if trial else {}
    server = session(tmp_path, method, link, heat=method.HEAT, **secret)
    reports = list(train(server, 2, lambda line: None))
    assert [len(report.counted) for report in reports] == [4, 4]
    assert all(
        not len(rows) for node in server.schema.nodes.values() for rows in node.rows.values()
    )
    assert compare(tmp_path, seed=0, trial=trial) == SAME
    # all rows are in the model, whoever holds them
    rows = trained(server, {}).tables["w"]
    every = np.arange(method.MODEL.tables["w"].rows)
    np.testing.assert_array_equal(rows.ids, every)
    np.testing.assert_array_equal(rows.values, server.params({"w": every})["w"])
    assert rows.values.any()
    # the heat was asked for once, and is what the algorithm is made with
    told = heated.read(tmp_path / app.SERVER)
    assert told.release is not None
    assert told.clients == 4
    again = session(tmp_path, method, link, heat=method.HEAT, **secret)
    assert again.round == 2
    with pytest.raises(InputError, match="was told in another way"):
        session(tmp_path, method, link, heat=fs.privacy.heat.symmetric(0.5), **secret)
    known = population_of(tmp_path / app.SERVER, server.schema, method.MODEL)
    for table, mass in told.mass.items():
        np.testing.assert_array_equal(known.heat(method.MODEL).mass[table], mass)


@pytest.mark.every
def test_noise_by_secrets_is_not_compared_but_said(tmp_path: Path) -> None:
    method = written(tmp_path, *SUMS, "--set", "secure=yes", "--set", "noise=0.5", *RESPONSES)
    server = session(tmp_path, method, link_of(tmp_path, method), heat=method.HEAT)
    list(train(server, 1, lambda line: None))
    assert compare(tmp_path, seed=0).startswith("not compared: the noise hangs on secrets")


@pytest.mark.every
def test_noise_by_secrets_is_not_that_of_a_trial(tmp_path: Path) -> None:
    method = written(tmp_path, *SUMS, "--set", "secure=yes", "--set", "noise=0.5", *RESPONSES)
    server = session(tmp_path, method, link_of(tmp_path, method), heat=method.HEAT)
    list(train(server, 1, lambda line: None))
    drawn_from_the_seed = written(
        tmp_path / "trial", *SUMS, *NOISE, "--set", "secure=yes", *RESPONSES
    )
    link = link_of(tmp_path / "trial", drawn_from_the_seed, trial=True)
    other = session(tmp_path / "trial", drawn_from_the_seed, link, heat=method.HEAT, secret=0)
    list(train(other, 1, lambda line: None))
    rows = {"w": np.arange(method.MODEL.tables["w"].rows)}
    assert not np.array_equal(server.params(rows)["w"], other.params(rows)["w"])


def test_heat_that_nobody_could_tell_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*changes: str) -> str:
        pairs = [each for change in changes for each in ("--set", change)]
        task = ["--task", "quadratic", "--algorithm", "fedsubavg"]
        assert main(["deploy", "init", str(tmp_path / "x"), *task, *pairs]) == 2
        return capsys.readouterr().err

    assert "nodes hide their rows here" in said("secure=yes", "clip=1")
    assert "nodes hide their rows here" in said("secure=yes", "clip=1", "heat_privacy=public")
    assert "nodes name their rows" in said("heat_privacy=response:1")
    private = "secure=yes", "clip=1", "noise=1", "heat_privacy=response:1"
    assert "any number of nodes" in said(*private, "sampler=poisson")
    assert not (tmp_path / "x").exists()
