"""Over Flower with four SuperNodes on the loopback: is it the simulation, and seconds a round.

    python benchmarks/flower.py [FOLDER [TRIAL ...]]

FedSubAvg, SCAFFOLD, FedRecon and FedSubAvg with quantisation, each compared bit by bit.  FedSubAvg
with differential privacy and a secure sum, of which the server sees neither rows nor updates: with
noise by the server below a secure sum ("private"), and with shares of noise by the nodes
("shares").  Nodes tell the heat privately, by their own secrets, and the simulation is given what
they told; all noise is drawn from the seed (``--trial``), so that the simulation draws the same.
Then FedSubAvg again, with a SuperNode that is killed (SIGKILL) after the first round: it costs its
update, and the model is the simulation of those that counted.
"""

import sys
import tempfile
import time
from pathlib import Path

from fedslice.cli.deployment import app, commands
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.loopback import Loopback
from fedslice.cli.main import main
from fedslice.deploy.session import reports

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        sys.exit(not run(place, sys.argv[2:] or list(TRIALS)))
