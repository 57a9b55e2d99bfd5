"""Time a round of every algorithm on MovieLens LR as a multiple of FedAvg's, in one run.  On a
quiet machine."""

import argparse

from speed import alternate, engine

import fedslice as fs
from fedslice.cli.catalogue import ALGORITHMS, settings_for

MORE = {
    "fedavg, median": ("fedavg", ["reduce=median"]),
    "fedavg, trimmed 0.1": ("fedavg", ["reduce=trimmed:0.1"]),
    "fedavg, geometric": ("fedavg", ["reduce=geometric"]),
    "fedavg, krum": ("fedavg", ["reduce=krum:0.2:10"]),
    "fedavg, quantise": ("fedavg", ["compress=quantise:127"]),
    "fedavg, top 10 % + feedback": ("fedavg", ["compress=largest:0.1", "feedback=yes"]),
    "fedavg, sign + feedback": ("fedavg", ["compress=sign", "feedback=yes"]),
    "fedavg, adam server": ("fedavg", ["server=adam", "server_rate=0.01"]),
    "fedavg, all of S(i)": ("fedavg", []),
}


def run_of(task, name, changes, rows=None):
    method = ALGORITHMS[name]
    settings = settings_for(task, name, changes)
    people = task.train.pool() if method.pooled else task.train
    return fs.simulate(
        method.build(task, settings), people, sampler=method.sampler(settings), rows=rows
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    task = fs.tasks.movielens_lr.synthetic(scale=options.scale)
    alike = [name for name in ALGORITHMS if name != "fedpd"]  # which takes all clients
    contestants = {name: engine(run_of(task, name, [])) for name in alike}
    for title, (name, changes) in MORE.items():
        contestants[title] = engine(
            run_of(task, name, changes, "held" if "S(i)" in title else None)
        )
    found = alternate(contestants, options.blocks, 30)
    print(f"{'':<30}{'ms a round':>12}{'/ fedavg':>10}")
    for name, value in found.items():
        print(f"{name:<30}{value:>12.2f}{value / found['fedavg']:>10.1f}")
