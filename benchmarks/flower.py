"""Over Flower with four SuperNodes on the loopback: is it the simulation, and seconds a round.

    python benchmarks/flower.py [FOLDER]

FedSubAvg, SCAFFOLD, FedRecon and FedSubAvg with quantisation, each compared bit by bit; then
FedSubAvg again, with a SuperNode that is killed (SIGKILL) after the first round: it costs its
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
TRIALS = {
    "fedsubavg": ["--task", "movielens-lr", *SMALL, "--algorithm", "fedsubavg"],
    "scaffold": ["--task", "movielens-lr", *SMALL, "--algorithm", "scaffold"],
    "fedrecon": ["--task", "movielens-mf", *SMALL, "--algorithm", "fedrecon"],
    "quantised": ["--task", "movielens-lr", *SMALL, "--set", "compress=quantise:127"],
}
ROUNDS, DEADLINE = 3, 40
SAME = "bit for bit the model of the simulation of the same clients"


def trained(folder: Path, killed: bool) -> list[float]:
    """When each round was over, in seconds."""
    home, times = folder / app.SERVER, []
    with Loopback(folder / "logs", folder / "flower") as here:
        for place in app.nodes_of(folder):
            commands.start_node(here, place)
        begin = time.monotonic()
        commands.submit(here, folder, f'folder="{home}" deadline={DEADLINE}')
        while not commands.written(home):
            here.check()
            if len(reports(home)) > len(times):
                times.append(time.monotonic() - begin)
                if killed and len(times) == 1:
                    here.kill("node-2")
            time.sleep(0.05)
    return times


def run(folder: Path) -> bool:
    same = True
    for name, arguments in [*TRIALS.items(), ("killed", TRIALS["fedsubavg"])]:
        place = folder / name
        command = ["deploy", "init", str(place), *arguments, "--rounds", str(ROUNDS)]
        assert main(command) == 0
        times = trained(place, killed=name == "killed")
        said = compare(place, seed=0)
        same &= said == SAME
        pace = (times[-1] - times[0]) / (len(times) - 1)
        counted = [len(each.counted) for each in reports(place / app.SERVER)]
        late = sorted({name for each in reports(place / app.SERVER) for name in each.late})
        first = f"first round after {times[0]:.1f} s, then {pace:.1f} s a round"
        print(f"{name}: {said}; {first}; counted {counted}, late {late}", flush=True)
    return same


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(not run(Path(sys.argv[1] if len(sys.argv) > 1 else scratch)))
