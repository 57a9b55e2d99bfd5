"""What all contestants share: the work, read from files, and the clock.  NumPy alone, for every
environment has that.

The work is a folder that `prepare.py` writes: inputs ``x`` [T, fields], labels ``y`` [T], the first
model, and which examples each client of each round goes through, ``schedule`` [R, K, S, B].  So all
train the same clients on the same batches from the same model, and must arrive at the same model:
after ``check`` rounds each one writes it, and `bench.py` compares.

    clock = Clock(job)
    for round in itertools.count():
        ...                              # one round
        if clock.tick(model):            # model(): the arrays by name
            break
"""

import argparse
import json
import os
import statistics
import time
from functools import cached_property
from pathlib import Path

import numpy as np

LONG_ENOUGH = 0.25  # seconds of a block of rounds, where one round is too short for a clock
FEWEST = 5  # blocks


class Job:
    """One workload for one contestant, from the command line: folder, result, seconds, settings."""

    def __init__(self, folder, result, seconds=10.0, **settings):
        self.folder, self.result, self.seconds = Path(folder), Path(result), seconds
        self.settings = settings
        spec = json.loads((self.folder / "spec.json").read_text())
        self.name, self.kind, self.sizes = spec["name"], spec["kind"], spec["sizes"]
        self.cohort, self.steps, self.batch = spec["cohort"], spec["steps"], spec["batch"]
        self.rate, self.clip, self.check = spec["rate"], spec["clip"], spec["check"]

    @classmethod
    def from_command_line(cls):
        parser = argparse.ArgumentParser(description="One contestant on one workload.")
        parser.add_argument("folder", help="what prepare.py wrote")
        parser.add_argument("result", help="the file to write, JSON; the model goes beside it")
        parser.add_argument("--seconds", type=float, default=10.0, help="to measure for")
        parser.add_argument("settings", nargs="*", help="name=value, of the contestant's own")
        given = parser.parse_intermixed_args()
        settings = dict(pair.split("=") for pair in given.settings)
        return cls(given.folder, given.result, given.seconds, **settings)

    def setting(self, name, default):
        return type(default)(self.settings.get(name, default))

    @cached_property
    def x(self):
        return np.load(self.folder / "x.npy")

    @cached_property
    def y(self):
        return np.load(self.folder / "y.npy")

    @cached_property
    def schedule(self):
        return np.load(self.folder / "schedule.npy")

    @cached_property
    def first(self):
        """The first model; a table of zeros is not worth a file."""
        with np.load(self.folder / "first.npz") as file:
            arrays = dict(file)
        if self.kind == "table":
            arrays["table"] = np.zeros((self.sizes["rows"], self.sizes["width"]), np.float32)
        return arrays

    def examples(self, round):
        """Example numbers [K, S, B] of a round; after the last one again the first."""
        return self.schedule[round % len(self.schedule)]

    def client(self, round, k):
        """Inputs and labels [S * B] of one client in the order of its batches."""
        chosen = self.examples(round)[k].reshape(-1)
        return self.x[chosen], self.y[chosen]

    @property
    def held(self):
        """The rows of a large table that anybody holds."""
        return np.unique(self.x)


class Clock:
    """Median milliseconds a round once ``check`` rounds are done, and the seconds to the first."""

    def __init__(self, job):
        self.job, self.rounds, self.times = job, 0, []
        self.start_up = 0.0
        self.last = self.begin = time.perf_counter()

    def tick(self, model, rounds=1):
        """Call it after so many rounds; true when that is enough."""
        took = time.perf_counter() - self.last
        if self.rounds == 0:
            self.start_up = age()
        elif self.rounds >= self.job.check:
            self.times.append(1e3 * took / rounds)
        self.rounds += rounds
        if self.rounds == self.job.check:
            self._keep(model())
            self.begin = time.perf_counter()
        done = time.perf_counter() - self.begin > self.job.seconds and len(self.times) >= FEWEST
        self._write(done)
        self.last = time.perf_counter()
        return done

    def blocks(self, run, model):
        """For rounds shorter than a clock sees, or that are still under way when a call returns:
        ``run(count)`` does so many and waits for them."""
        run(1)
        self.tick(model)
        run(self.job.check - 1)
        self.tick(model, self.job.check - 1)
        size, took = 1, 0.0
        while took < LONG_ENOUGH:
            size *= 2 if took else 1
            start = time.perf_counter()
            run(size)
            took = time.perf_counter() - start
        self.begin = self.last = time.perf_counter()
        while True:
            run(size)
            if self.tick(model, size):
                break

    def _keep(self, arrays):
        held = self.job.held if self.job.kind == "table" else ()
        if len(held) and len(arrays["table"]) != len(held):  # fedslice shows those alone
            arrays = {**arrays, "table": arrays["table"][held]}
        np.savez(self.job.result.with_suffix(".npz"), **arrays)

    def _write(self, done):
        """Also before the end, for a run that is stopped has told what it knew."""
        found = {
            "workload": self.job.name,
            "settings": self.job.settings,
            "start_up_s": self.start_up,
            "rounds": self.rounds,
            "ms": statistics.median(self.times) if self.times else None,
            "fastest_ms": min(self.times, default=None),
            "slowest_ms": max(self.times, default=None),
            "measurements": len(self.times),
            "complete": done,
        }
        draft = self.job.result.with_suffix(".part")
        draft.write_text(json.dumps(found))
        draft.rename(self.job.result)


def age():
    """Seconds since this process started."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - ticks / os.sysconf("SC_CLK_TCK")
