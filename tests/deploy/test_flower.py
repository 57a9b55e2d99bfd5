"""Over Flower itself: a SuperLink and SuperNodes on the loopback, with TLS and keys of nodes.

One deployment for all of it, since every letter takes seconds there; with a killed server app in
``make test-all``; all four algorithms, and a SuperNode that is killed: ``make flower``.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kinds import few

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'fedslice[flower]'")

from fedslice.cli.deployment import app, commands
from fedslice.cli.deployment.certificates import Certificates
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.loopback import NAME, Loopback
from fedslice.cli.export import read_model
from fedslice.cli.main import main
from fedslice.deploy import Schema
from fedslice.deploy.session import reports

LONGEST = 180.0


def until(done: Callable[[], bool], here: Loopback) -> None:
    end = time.monotonic() + LONGEST
    while not done():
        here.check()
        assert time.monotonic() < end, f"nothing came of it: {commands.failure(here.logs)}"
        time.sleep(0.05)


def processes(here: Loopback, program: str) -> list[int]:
    found = []
    for number in here.left():
        try:
            line = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        found += [number] if program.encode() in line else []
    return found


@pytest.mark.parametrize("killed", few([False, True], False))
def test_registered_nodes_train_and_a_killed_server_goes_on(
    killed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rounds = tmp_path / "trial", 2 if killed else 1
    task = ["--task", "quadratic", "--algorithm", "scaffold"]
    assert (
        main(["deploy", "init", str(folder), *task, "--nodes", "2", "--rounds", str(rounds)]) == 0
    )
    home, keys = folder / app.SERVER, Certificates(folder / "keys")
    said = f'folder="{home}" authenticated=true deadline=120'
    with Loopback(folder / "logs", folder / "flower", keys) as here:
        stranger, _ = keys.of_node("stranger")
        here.start_node("stranger", {"folder": str(tmp_path)}, stranger)
        for place in app.nodes_of(folder):
            commands.start_node(here, place)
        commands.submit(here, folder, said)
        if killed:
            until(lambda: commands.reached(home) == 1, here)
            for number in processes(here, "flwr-serverapp"):
                os.kill(number, signal.SIGKILL)
            here.flwr("stop", commands.run_of(here.logs), NAME)
            commands.submit(here, folder, said)
        until(lambda: commands.written(home) > 0, here)
        refused = (here.logs / "stranger.log").read_text()
    assert "Failed to activate SuperNode" in refused
    assert list(Schema.read(home).nodes) == ["node-0", "node-1"]
    assert [each.counted for each in reports(home)] == [("node-0", "node-1")] * rounds
    assert compare(folder, seed=0) == "bit for bit the model of the simulation of the same clients"
    assert read_model(home).tables["w"].values.any()
    assert not list(here.left())
    # all is done: the command says so, and compares
    assert main(["deploy", "local", str(folder)]) == 0
    assert "bit for bit" in capsys.readouterr().out
    assert main(["deploy", "local", str(folder), "--nodes", "3"]) == 2
