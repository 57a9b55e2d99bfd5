"""Held rows and clients beyond memory: time, memory and disk, as ratios in the same run.

    python benchmarks/memory.py DIR --rows 1e8 --clients 5e5      tables: 6.4 GB of rows, a log
    python benchmarks/memory.py DIR --rows 0 --clients 3e6        many clients, cohorts up to 10,000

Populations are made by streaming into DIR, and removed at the end.  RssAnon is what a process has
in memory of its own; VmRSS also counts mapped pages of files, which the kernel may drop at will."""

import argparse
import math
import os
import shutil
import statistics
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedslice as fs

WIDTH, COHORT = 16, 50  # numbers of a row, clients of a round


class Meter:
    """The highest RssAnon and VmRSS since the last look, in GB."""

    def __init__(self):
        self.peak = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            self._note()
            time.sleep(0.02)

    def _note(self):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("RssAnon", "VmRSS"):
                self.peak[name] = max(self.peak.get(name, 0), int(rest.split()[0]) / 1e6)

    def look(self):
        self._note()
        found = f"RssAnon {self.peak['RssAnon']:.2f} GB, VmRSS {self.peak['VmRSS']:.2f} GB"
        self.peak = {}
        return found


METER = Meter()


def told(what, begun):
    print(f"{what:<58}{time.perf_counter() - begun:>9.2f} s   {METER.look()}", flush=True)


def write(folder, rows, clients, chunk=10_000):
    """Every row is held: client i has rows / clients of its own, scattered over the table, which
    most of its examples are about, and some of hot rows that many hold."""
    own = rows // clients
    step = next(s for s in range(rows * 5 // 8, rows) if math.gcd(s, rows) == 1)
    hot = max(1, rows // 100)
    with fs.Population.writer(folder) as writer:
        for start in range(0, clients, chunk):
            who = np.arange(start, min(clients, start + chunk))
            rng = np.random.default_rng(start)
            mine = (who[:, None] * own + np.arange(own)) * step % rows
            again = np.take_along_axis(mine, rng.integers(0, own, (len(who), own * 4 // 5)), 1)
            shared = (hot ** rng.random((len(who), own // 5))).astype(np.int64) - 1
            item = np.concatenate([mine, again, shared], 1).astype(np.int32)
            label = rng.random(item.shape, np.float32)
            owner = np.repeat(who, item.shape[1])
            writer.add(owner, item=item.ravel(), label=label.ravel())


def method(people, rows):
    table = fs.Table(rows=rows, shape=(WIDTH,), fields="item", init=jax.nn.initializers.normal(0.1))

    def loss(params, batch):
        return (jnp.sum(params["table"][batch["item"]], -1) - batch["label"]) ** 2

    model = fs.Model(lambda key: {}, loss, {"table": table})
    # a row of one client moves N / K times as far as its update
    rate = 0.01 * COHORT / len(people)
    return fs.recipes.fedsubavg(
        model, optax.sgd(rate), fs.Work(epochs=1, batch=20), heat=people.heat(model)
    )


def rounds(run, count):
    begun = time.perf_counter()
    for _ in run.rounds(count):
        pass
    return 1e3 * (time.perf_counter() - begun) / count


def touch_all(run, chunk=2_000):
    """Make every row, as rounds over all clients would: those of a client together."""
    (space,), (group,) = run.spaces.values(), run.store.groups.values()
    for start in range(0, len(run.population), chunk):
        end = min(len(run.population), start + chunk)
        slots = space.slots[space.offsets[start] : space.offsets[end]]
        fresh = slots[group.place[slots] == 0]
        group.take(fresh[np.sort(np.unique(fresh, return_index=True)[1])])


def simulate(people, rows, store, cohort=COHORT, **more):
    return fs.simulate(
        method(people, rows), people, sampler=fs.sampling.uniform(cohort), store=store, **more
    )


def tables(folder, rows, clients, blocks):
    """The same rounds with 10^4 held rows and with many."""
    small_rows, small_clients = 10_000, 10_000 // (rows // clients)
    print(f"\n{rows:,} held rows x {WIDTH}, {clients:,} clients of {rows // clients} of their own")
    begun = time.perf_counter()
    write(folder / "large", rows, clients)
    told("written by streaming", begun)
    write(folder / "small", small_rows, small_clients)
    begun = time.perf_counter()
    people = fs.Population.open(folder / "large")
    run = simulate(people, rows, folder / "rows")
    told("first start: S(i), heat, run", begun)
    del run
    begun = time.perf_counter()
    run = simulate(fs.Population.open(folder / "large"), rows, folder / "rows")
    told("next start", begun)
    few = fs.Population.open(folder / "small")
    runs = {
        "10^4 held rows, in memory": simulate(few, small_rows, "ram"),
        "10^4 held rows, on disk": simulate(few, small_rows, folder / "rows"),
        f"{rows:,} held rows, on disk": run,
    }
    for each in runs.values():
        rounds(each, 20)
    print(f"rounds that make their rows: {rounds(run, 100):.2f} ms")
    begun = time.perf_counter()
    touch_all(run)
    os.sync()  # what was made is not to be written while rounds are timed
    told(f"all {run.store.groups['table'].made:,} rows made", begun)
    times = {name: [] for name in runs}
    for each in runs.values():
        rounds(each, 100)
    for _ in range(blocks):
        for name, each in runs.items():
            times[name].append(rounds(each, 100))
    base = statistics.median(times["10^4 held rows, on disk"])
    for name, values in times.items():
        value = statistics.median(values)
        print(f"{name:<40}{value:>8.2f} ms a round{value / base:>8.2f}x")
    told("memory while training", time.perf_counter())
    checkpoints(folder, run, rows)


def checkpoints(folder, run, rows):
    saved = folder / "saved"
    for what, count in (("snapshot", 0), ("log of 100 rounds", 100), ("log of 100 more", 100)):
        if count:
            rounds(run, count)
        before = {file.name for file in saved.iterdir()} if saved.exists() else set()
        begun = time.perf_counter()
        run.save(saved)
        new = [file for file in saved.iterdir() if file.name not in before]
        size = sum(file.stat().st_size for file in new)
        told(f"saved, {what}: {size / 1e6:,.1f} MB", begun)
    again = simulate(run.population, rows, folder / "again")
    begun = time.perf_counter()
    again.restore(saved)
    told("restored", begun)
    same = all(
        np.array_equal(
            *(each.store.rows(lambda s: s, {"table": ids})[0][0]["table"] for each in (run, again))
        )
        for ids in np.random.default_rng(0).choice(rows, (20, 1_000))
    )
    print(f"20,000 rows read back are the same: {same}")


def cohorts(folder, clients, blocks):
    """Many clients of a few rows each; the time a client in cohorts of 10 to 10,000."""
    rows = 20 * clients
    begun = time.perf_counter()
    write(folder / "many", rows, clients)
    told(f"\n{clients:,} clients, {rows:,} held rows: written", begun)
    for what in ("first start", "next start"):
        begun = time.perf_counter()
        people = fs.Population.open(folder / "many")
        run = simulate(people, rows, folder / "rows")
        told(what, begun)
    del run
    for cohort in (10, 100, 1_000, 10_000):
        run = simulate(people, rows, folder / "rows", cohort)
        count = max(3, 1_000 // cohort)
        rounds(run, count)
        value = statistics.median(rounds(run, count) for _ in range(blocks))
        print(
            f"cohort of {cohort:>6,}: {value:>9.2f} ms a round, {1e3 * value / cohort:>7.1f} us a"
            f" client, {METER.look()}",
            flush=True,
        )
        del run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="on a disk with room: 30 GB for 10^8 rows")
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--clients", type=float, default=5e5)
    parser.add_argument("--blocks", type=int, default=7)
    options = parser.parse_args()
    place = options.folder / "fedslice-memory"
    place.mkdir(parents=True)
    try:
        if options.rows:
            tables(place, int(options.rows), int(options.clients), options.blocks)
        else:
            cohorts(place, int(options.clients), options.blocks)
    finally:
        shutil.rmtree(place)
