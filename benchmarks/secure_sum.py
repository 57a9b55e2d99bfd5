"""What a secure sum costs: bytes by turn, CPU of a participant and of the coordinator.

    python benchmarks/secure_sum.py
    python benchmarks/secure_sum.py --clients 50 100 --numbers 10000 --complete

Degree and threshold are those of ``degree(clients)``: a tenth corrupt, a tenth leaving, a server
that may lie.  A tenth of the participants leaves after it has shared its keys, which is the most
expensive time for the coordinator.  Bytes are of a participant none of whose neighbours leaves.
Everything runs in one process and thread; CPU is its time, of a participant the mean over those
that took part in the turn.
"""

import argparse

import numpy as np

from fedslice.privacy.secure.degree import degree
from fedslice.privacy.secure.parts import Parts, dense
from fedslice.privacy.secure.run import secure_sum
from fedslice.privacy.secure.sizes import sizes


def measure(clients, options):
    chosen = degree(clients, options.corrupt, options.left, complete=options.complete)
    parts = Parts([dense("w", options.numbers)])
    rng = np.random.default_rng(clients)
    # Few vectors for many participants: the benchmark's own memory stays small.
    several = [{"w": rng.integers(-(2**20), 2**20, options.numbers, np.int32)} for _ in range(10)]
    vectors = [several[number % 10] for number in range(clients)]
    leaving = rng.choice(clients, int(options.left * clients), replace=False)
    found = secure_sum(vectors, parts, chosen, dict.fromkeys(leaving.tolist(), 2))
    expected = sum(vectors[number]["w"].astype(np.int64) for number in found.stayed)
    if not np.array_equal(found.total["w"], expected):
        raise SystemExit(f"the sum of {clients} is wrong")
    return chosen, sizes(clients, chosen.neighbours, options.numbers), found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100, 250, 500, 1000])
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--corrupt", type=float, default=0.1)
    parser.add_argument("--left", type=float, default=0.1, help="share of participants that leaves")
    parser.add_argument("--complete", action="store_true", help="everybody is a neighbour")
    options = parser.parse_args()
    lines = [(clients, *measure(clients, options)) for clients in options.clients]

    print("| participants | k | t | up, by turn 0 to 4 | down, by turn 0 to 3 | up | down |")
    print("|---|---|---|---|---|---|---|")
    for clients, chosen, said, _ in lines:
        up, down = (" ".join(f"{size:,}" for size in sides) for sides in (said.up, said.down[:4]))
        total = " | ".join(f"{sum(sides):,}" for sides in (said.up, said.down))
        print(
            f"| {clients:,} | {chosen.neighbours} | {chosen.threshold} | {up} | {down} | {total} |"
        )
    print()
    print("| participants | participant, ms by turn 0 to 4 | ms | coordinator, s |")
    print("|---|---|---|---|")
    for clients, _, _, found in lines:
        each = 1000 * found.participant / (found.up > 0).sum(1)
        turns = " ".join(f"{value:.1f}" for value in each)
        print(f"| {clients:,} | {turns} | {each.sum():.0f} | {found.coordinator.sum():.2f} |")


if __name__ == "__main__":
    main()
