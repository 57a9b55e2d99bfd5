"""A cluster on this machine beside the local engine, in one run: time, bytes, kills.

    python benchmarks/cluster.py                 # the LSTM of benchmarks/lstm.py: ms a round
    python benchmarks/cluster.py --bytes         # what a round moves, predicted and counted
    python benchmarks/cluster.py --kills 10      # a process killed at a random moment, ten times

Runs take turns, round by round; medians.  Hashes are of all trained numbers after as many rounds.
"""

import argparse
import hashlib
import os
import random
import signal
import statistics
import threading
import time

import jax
import numpy as np
import optax
from lstm import BATCH, RATE, STEPS, VOCABULARY, K, people

import fedslice as fs
from fedslice.cluster.crew import Here
from fedslice.models.classifier_lstm import classifier_lstm
from fedslice.reduce.sums import LARGE
from fedslice.types import Algorithm


def method(model, population) -> Algorithm:
    return fs.recipes.fedsubavg(
        model,
        optax.sgd(RATE),
        heat=population.heat(model),
        work=fs.Work(steps=STEPS, batch=BATCH),
        weights="uniform",
    )


def digest(run) -> str:
    found = hashlib.sha256()
    for name, leaf in sorted(run.store.snapshot().items()):
        found.update(name.encode() + leaf.tobytes())
    return found.hexdigest()[:16]


# -- time ------------------------------------------------------------------------------------------


def times(workers, turns):
    population, model = people(), classifier_lstm(VOCABULARY)
    algorithm, sampler = method(model, population), fs.sampling.uniform(K)
    crew = fs.cluster.ray(workers=sum(workers))  # they take turns on the cores that there are
    runs = {"local engine": fs.simulate(algorithm, population, sampler=sampler)}
    for count in workers:
        crew.workers = count
        name = f"Ray, {count} worker{'s' if count > 1 else ''}"
        runs[name] = fs.cluster.simulate(algorithm, population, crew=crew, sampler=sampler)
    spent = {name: [] for name in runs}
    for turn in range(turns + 1):  # the first one compiles
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in run.rounds(1):
                pass
            if turn:
                spent[name].append(1e3 * (time.perf_counter() - start))
    base = statistics.median(spent["local engine"])
    print(f"Sent140 LSTM, {K} clients, {STEPS} steps, batch {BATCH}; ms a round, {turns} rounds")
    for name, run in runs.items():
        middle = statistics.median(spent[name])
        print(f"{name:<20}{middle:>8.0f}{middle / base:>8.2f}   {digest(run)}")
    crew.close()


# -- bytes -----------------------------------------------------------------------------------------


def size(tree) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree) if isinstance(x, np.ndarray))


class Counting(Here):
    """Counts the arrays that go into and out of members."""

    def __init__(self, **given):
        super().__init__(**given)
        self.moved = {}

    def call(self, member, method, *given, returns=1):
        result = super().call(member, method, *given, returns=returns)
        each = self.moved.setdefault(method, [0, 0])
        each[0] += size(given)
        each[1] += size(result)
        return result


def predicted(run, plan, cohort) -> dict[str, int]:
    """From the plan alone: rows that workers read, rows that clients send, dense leaves."""
    rounds, wire = run.sharded, run.shapes.wire
    parts = rounds.parts(plan, cohort)
    rows = sum(len(p) for _, part in parts for p in rounds.read(plan, part).values())
    told = sum(wire.invitation.widths.values())
    sent = sum(int((p < len(plan.shared.union[n])).sum()) for n, p in plan.own.places.items())
    shapes = jax.eval_shape(lambda: run.shapes.trees(dict.fromkeys(run.spaces, 1)))
    tags = jax.tree.leaves(run.shapes.tags.values)
    values = jax.tree.leaves({"update": shapes.arrived.update, **shapes.arrived.extra})
    dense = [x.size * 4 for tag, x in zip(tags, values, strict=True) if not tag]
    large = sum(x for x in dense if x >= 4 * LARGE)
    return {
        "rows to workers": rows * told,
        "dense leaves to workers": len(parts) * wire.invitation.fixed,
        "rows of clients to shards": sent * sum(wire.message.widths.values()),
        "sums of large leaves, worker to worker": len(parts) * large,
        "small leaves of clients to the driver": K * (sum(dense) - large),
    }


def counted(crew) -> dict[str, int]:
    moved = crew.moved
    return {
        "into shards": moved["offer"][0] + moved["step"][0],
        "out of shards": moved["offer"][1] + moved["step"][1],
        "into workers": moved["push"][0] + moved["fold"][0],
        "out of workers": moved["push"][1] + moved["fold"][1],
    }


def volumes(workers):
    population, model = people(), classifier_lstm(VOCABULARY)
    algorithm, sampler = method(model, population), fs.sampling.uniform(K)
    for count in workers:
        crew = Counting(workers=count)
        run = fs.cluster.simulate(algorithm, population, crew=crew, sampler=sampler)
        plan, _ = run.planner.plan(0, run.cohort(0))
        guess = predicted(run, plan, run.cohort(0))
        for _ in run.rounds(1):
            pass
        real = counted(crew)
        print(f"{count} workers: predicted {sum(guess.values()) / 1e6:.2f} MB a round")
        for name, value in guess.items():
            print(f"    {name:<42}{value / 1e6:>8.3f}")
        both = real["out of shards"] + real["out of workers"] + guess["dense leaves to workers"]
        print(f"  counted {both / 1e6:.2f} MB: what left shards, workers and the driver")
        for name, value in real.items():
            print(f"    {name:<42}{value / 1e6:>8.3f}")


# -- kills -----------------------------------------------------------------------------------------


def kills(count, rounds, seed=0):
    task = fs.tasks.movielens_lr.synthetic(scale=0.1)
    model, population = task.model, task.train
    algorithm = fs.recipes.scaffold(
        model, 0.05, population=population, work=fs.Work(steps=5, batch=5), server_rate=0.5
    )
    sampler, rng = fs.sampling.uniform(20), random.Random(seed)
    local = fs.simulate(algorithm, population, sampler=sampler, engine="map")
    local.train(rounds, progress=False)
    print(f"no kill, one process: {digest(local)}")
    crew = fs.cluster.ray(workers=2)
    for number in range(count):
        run = fs.cluster.simulate(
            algorithm, population, crew=crew, sampler=sampler, engine="map", every=1.0
        )
        team = run.team
        for _ in run.rounds(3):  # compiled
            pass
        kind = rng.choice(["worker", "shard"])
        victim = rng.choice(team.workers if kind == "worker" else team.shards)
        (pid,) = crew.get(crew.call(victim, "pid"))
        after = rng.uniform(0, 4)
        timer = threading.Timer(after, lambda pid=pid: os.kill(pid, signal.SIGKILL))
        timer.start()
        run.train(rounds - 3, progress=False)
        ended = not timer.is_alive()
        timer.cancel()
        same = digest(run) == digest(local)
        moment = f"killed after {after:.2f} s" if ended else "ended before the kill"
        print(
            f"{number + 1:>3}  {kind:<7} {moment:<24} {digest(run)}  {'same' if same else 'OTHER'}"
        )
        run.close()
    crew.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2", help="numbers of workers (default: 1,2)")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200, help="of a run with a kill")
    options = parser.parse_args()
    workers = [int(each) for each in options.workers.split(",")]
    if options.kills:
        kills(options.kills, options.rounds)
    elif options.bytes:
        volumes(workers)
    else:
        times(workers, options.turns)


if __name__ == "__main__":
    main()
