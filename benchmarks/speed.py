"""Speed and scaling, each as a ratio to a baseline in the same run.  `make bench`, on a quiet
machine.

The contestants take turns in short blocks, so that a slow moment of the machine hits all of them;
medians of blocks."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bare import BATCH, RATE, STEPS, Central, K, Sketch

import fedslice as fs


def alternate(contestants, blocks, rounds):
    """Median milliseconds a round of each contestant: a dict of functions that run a number of
    rounds."""
    for run in contestants.values():
        run(rounds)  # compile and warm up
    times = {name: [] for name in contestants}
    for _ in range(blocks):
        for name, run in contestants.items():
            start = time.perf_counter()
            run(rounds)
            times[name].append(1e3 * (time.perf_counter() - start) / rounds)
    return {name: statistics.median(values) for name, values in times.items()}


def engine(run):
    """All that a user sees switched on: reports are made and checked."""

    def rounds(count):
        for _ in run.rounds(count):
            pass

    return rounds


def loop(bare):
    def rounds(count):
        for _ in range(count):
            bare.step()

    return rounds


def movielens(blocks):
    task = fs.tasks.movielens_lr.synthetic()
    model, heat = task.model, task.train.heat(task.model)
    method = fs.recipes.fedsubavg(
        model, optax.sgd(RATE), fs.Work(steps=STEPS, batch=BATCH), heat=heat
    )
    plain = fs.recipes.fedavg(model, optax.sgd(RATE), fs.Work(steps=STEPS, batch=BATCH))
    pooled = fs.recipes.central(model, optax.sgd(RATE), fs.Work(steps=STEPS, batch=K * BATCH))
    found = alternate(
        {
            "bare sketch (NumPy + JAX)": loop(Sketch(task)),
            "CentralSGD, bare JAX": loop(Central(task)),
            "fedslice fedsubavg": engine(
                fs.simulate(method, task.train, sampler=fs.sampling.uniform(K))
            ),
            "fedslice fedavg": engine(
                fs.simulate(plain, task.train, sampler=fs.sampling.uniform(K))
            ),
            "fedslice central": engine(
                fs.simulate(pooled, task.train.pool(), sampler=fs.sampling.full())
            ),
        },
        blocks,
        200,
    )
    sketch, central = found["bare sketch (NumPy + JAX)"], found["CentralSGD, bare JAX"]
    print(f"\nMovieLens LR, {K} clients, {STEPS} steps, batch {BATCH}; per round")
    print(f"{'':<28}{'ms':>8}{'/ sketch':>10}{'/ central':>11}")
    for name, value in found.items():
        print(f"{name:<28}{value:>8.3f}{value / sketch:>10.2f}{value / central:>11.2f}")


def large_table(rows):
    """50 clients of 200 rows each of a table of `rows` x 16."""
    rng = np.random.default_rng(0)
    clients, held, examples = 50, 200, 400
    item = np.concatenate(
        [rng.choice(rows, held)[rng.integers(held, size=examples)] for _ in range(clients)]
    )
    people = fs.Population.from_arrays(
        np.repeat(np.arange(clients), examples),
        item=item,
        label=rng.random(len(item)).astype(np.float32),
    )
    table = fs.Table(rows=rows, shape=(16,), fields="item", init=jax.nn.initializers.normal(0.1))

    def loss(params, batch):
        return (jnp.sum(params["table"][batch["item"]], -1) - batch["label"]) ** 2

    model = fs.Model(lambda key: {}, loss, {"table": table})
    method = fs.recipes.fedsubavg(
        model, optax.sgd(0.01), fs.Work(epochs=1, batch=20), heat=people.heat(model)
    )
    return fs.simulate(method, people, sampler=fs.sampling.full())


def scaling(blocks):
    found = alternate(
        {f"10^{power}": engine(large_table(10**power)) for power in (4, 6, 8)}, blocks, 50
    )
    print("\nTable of V x 16, 50 clients of 200 rows each; per round")
    for name, value in found.items():
        print(f"V = {name:<8}{value:>8.3f} ms{value / found['10^4']:>8.2f}x")


def shell(arguments, folder):
    """Seconds of a command, with start-up and generated data; what it compiles is kept in the
    folder."""
    command = [sys.executable, "-m", "fedslice.cli.main", *arguments, "--synthetic"]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--out", tempfile.mkdtemp(dir=folder)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "FEDSLICE_COMPILED": f"{folder}/compiled"},
    )
    return time.perf_counter() - start


def whole_process():
    run = ["run", "movielens-lr", "--rounds", "1000", "--eval-every", "1000"]
    with tempfile.TemporaryDirectory() as folder:
        first, again = (shell(run, folder) for _ in range(2))
    print(f"\n1,000 rounds from the shell: {first:.1f} s, and {again:.1f} s with what was compiled")


def grid():
    """25 pairs of rates, 3 seeds, 100 rounds each, measured every 10, with the report."""
    axes = ["client_rate=0.01,0.03,0.1,0.3,0.9", "server_rate=0.3,0.5,0.7,0.9,1.2"]
    given = [word for axis in axes for word in ("--grid", axis)]
    with tempfile.TemporaryDirectory() as folder:
        seconds = shell(
            ["study", "movielens-lr", "fedsubavg", "--rounds", "100", "--seeds", "3", *given],
            folder,
        )
    print(f"\n75 runs of 100 rounds, 25 pairs of rates: {seconds:.1f} s in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=9)
    options = parser.parse_args()
    movielens(options.blocks)
    scaling(options.blocks)
    whole_process()
    grid()
