"""Over Flower with four SuperNodes on the loopback: is it the simulation, and seconds a round.

    python benchmarks/flower.py [FOLDER [TRIAL ...]]
    python benchmarks/flower.py FOLDER kills

FedSubAvg, SCAFFOLD, FedRecon and FedSubAvg with quantisation, each compared bit by bit.  FedSubAvg
with differential privacy and a secure sum, of which the server sees neither rows nor updates: with
noise by the server below a secure sum ("private"), and with shares of noise by the nodes
("shares").  Nodes tell the heat privately, by their own secrets, and the simulation is given what
they told; all noise is drawn from the seed (``--trial``), so that the simulation draws the same.
Then FedSubAvg again, with a SuperNode that is killed (SIGKILL) after the first round: it costs its
update, and the model is the simulation of those that counted.

``kills`` is SCAFFOLD with twenty SIGKILLs at random moments, of the server's process or of a
SuperNode and all that it started.  No round counts without all four (``least``), so the model must
be that of a run in which nothing happened.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedslice.cli.deployment import app, commands
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.loopback import NAME, Loopback
from fedslice.cli.main import main
from fedslice.deploy.session import REPORTS, reports

SMALL = ["--synthetic", "--scale", "0.05"]
LR = ["--task", "movielens-lr", *SMALL]
PRIVATE = [*LR, "--trial", "--set", "clip=1", "--set", "noise=1"]
TRIALS = {
    "fedsubavg": [*LR, "--algorithm", "fedsubavg"],
    "scaffold": [*LR, "--algorithm", "scaffold"],
    "fedrecon": ["--task", "movielens-mf", *SMALL, "--algorithm", "fedrecon"],
    "quantised": [*LR, "--set", "compress=quantise:127"],
    "private": [*PRIVATE, "--set", "secure=yes", "--set", "heat_privacy=response:4"],
    "shares": [*PRIVATE, "--set", "noise_by=shares:3", "--set", "heat_privacy=sum:1:50"],
    "killed": [*LR, "--algorithm", "fedsubavg"],
}
ROUNDS, DEADLINE, LONGEST = 3, 60, 900.0
SAME = "bit for bit the model of the simulation of the same clients"


def trained(folder: Path, killed: bool, trial: bool) -> list[float]:
    """When each round was over, in seconds."""
    home, times = folder / app.SERVER, []
    with Loopback(folder / "logs", folder / "flower") as here:
        for place in app.nodes_of(folder):
            commands.start_node(here, place, trial)
        begin = time.monotonic()
        commands.submit(here, folder, f'folder="{home}" deadline={DEADLINE}')
        while not commands.written(home):
            here.check()
            if len(reports(home)) > len(times):
                times.append(time.monotonic() - begin)
                if killed and len(times) == 1:
                    here.kill("node-2")
            if time.monotonic() - begin > LONGEST:
                raise TimeoutError(commands.failure(here.logs))
            time.sleep(0.05)
    return times


def run(folder: Path, names: list[str]) -> bool:
    same = True
    for name in names:
        place, trial = folder / name, "--trial" in TRIALS[name]
        command = ["deploy", "init", str(place), *TRIALS[name], "--rounds", str(ROUNDS)]
        assert main(command) == 0
        times = trained(place, name == "killed", trial)
        said = compare(place, seed=0, trial=trial)
        same &= said == SAME
        pace = (times[-1] - times[0]) / (len(times) - 1)
        counted = [len(each.counted) for each in reports(place / app.SERVER)]
        late = sorted({name for each in reports(place / app.SERVER) for name in each.late})
        first = f"first round after {times[0]:.1f} s, then {pace:.1f} s a round"
        print(f"{name}: {said}; {first}; counted {counted}, late {late}", flush=True)
    return same


# -- twenty kills ----------------------------------------------------------------------------------

KILLS = 20


def kills(folder: Path) -> bool:
    """Whether SCAFFOLD ends as it would have."""
    place = folder / "kills"
    assert main(["deploy", "init", str(place), *LR, "--algorithm", "scaffold"]) == 0
    home, chance, begin = place / app.SERVER, random.Random(0), time.monotonic()
    said = f'folder="{home}" deadline={DEADLINE} least=4 patience=60'
    with Loopback(place / "logs", place / "flower") as here:
        nodes = app.nodes_of(place)
        for node in nodes:
            commands.start_node(here, node)
        commands.submit(here, place, f"{said} rounds=1000")
        for number in range(KILLS):
            _until_round(here, home, commands.reached(home) + 1)
            time.sleep(chance.uniform(0, 8))
            if number % 2:
                victim = chance.choice(nodes)
                here.kill(f"node-{victim.name}")
                commands.start_node(here, victim)
                what = f"node-{victim.name}"
            else:
                _stop(here)
                commands.submit(here, place, f"{said} rounds=1000")
                what = "server"
            spent = time.monotonic() - begin
            print(
                f"kill {number + 1}: {what}, after round {commands.reached(home)} [{spent:.0f} s]",
                flush=True,
            )
        _stop(here)
        last = commands.reached(home) + 2
        commands.submit(here, place, f"{said} rounds={last}")
        _until(lambda: commands.written(home) > 0, here)
    _fill(home, last)
    found = compare(place, seed=0)
    tries = len(reports(home))
    print(f"kills: {found}; {KILLS} kills, {last} rounds in {tries} tries", flush=True)
    return found == SAME


def _stop(here: Loopback) -> None:
    """SIGKILL for the server's process; Flower is told, and lets go of its letters."""
    for number in here.left():
        line = Path(f"/proc/{number}/cmdline")
        if line.exists() and b"flwr-serverapp" in line.read_bytes():
            os.kill(number, signal.SIGKILL)
    here.flwr("stop", commands.run_of(here.logs), NAME)


def _until_round(here: Loopback, home: Path, round: int) -> None:
    _until(lambda: commands.reached(home) >= round, here)


def _until(done: Callable[[], bool], here: Loopback) -> None:
    end = time.monotonic() + LONGEST
    while not done():
        here.check()
        if time.monotonic() > end:
            raise TimeoutError(commands.failure(here.logs))
        time.sleep(0.05)


def _fill(home: Path, last: int) -> None:
    """Write down rounds whose report died with the server: all nodes counted, or they would not
    have."""
    known = {each.round: each for each in reports(home) if each.accepted}
    some = next(iter(known.values()))
    every = [known.get(round, some._replace(round=round)) for round in range(1, last + 1)]
    lines = [json.dumps(each._asdict()) for each in every]
    (home / REPORTS).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[2:] == ["kills"]:
        sys.exit(not kills(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        sys.exit(not run(place, sys.argv[2:] or list(TRIALS)))
