"""A study at full size: how long it takes, and whether SIGKILLs at random moments leave a trace.

5 x 5 rates, three algorithms and two seeds are 150 runs, each of 100 rounds on the generator of
MovieLens LR at scale 1.  The second study is killed at random moments and started again each time;
its page must be that of the first one, to the byte.

    python benchmarks/study.py [--kills 10] [--rounds 100] [--scale 1] [--keep DIR]
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATES = ["--grid", "client_rate=0.03,0.1,0.3,1,3", "--grid", "server_rate=0.1,0.3,1,3,10"]
ALGORITHMS = ["fedavg", "fedadam", "fedsubavg"]


def main() -> None:
    """Run both, and compare."""
    options = parsed()
    with tempfile.TemporaryDirectory() as scratch:
        home = options.keep or Path(scratch)
        task = ["movielens-lr", *ALGORITHMS, "--synthetic", "--scale", str(options.scale)]
        length = ["--rounds", str(options.rounds), "--seeds", "2", "--out", "study"]
        command = [sys.executable, "-m", "fedslice.cli.main", "study", *task, *RATES, *length]
        begun = time.perf_counter()
        whole = run(command, home / "whole")
        taken = time.perf_counter() - begun
        print(f"undisturbed: {taken:.0f} s")
        killed = run(command, home / "killed", options.kills, taken)
        same = whole == killed
        print(f"killed {options.kills} times: the page is {'the same' if same else 'ANOTHER'}")
    sys.exit(not same)


def run(command: list[str], place: Path, kills: int = 0, taken: float = 0.0) -> bytes:
    """The page of a study, whose process is killed so often, each time after up to a share of the
    time that a whole one takes."""
    place.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    for _ in range(kills):
        process = subprocess.Popen(
            command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(3, 3 + 1.5 * taken / max(1, kills)))
        process.kill()
        process.wait()
        ended = len(list(place.glob("study/cells/*/*/done.json")))
        print(f"  killed with {ended} cells ended", flush=True)
    subprocess.run(
        command, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return (place / "study" / "report.html").read_bytes()


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="a folder to leave both studies in")
    return parser.parse_args()


if __name__ == "__main__":
    main()
