"""Run a task with an algorithm into a folder: exact settings, metrics of each evaluated round, checkpoint, model.

settings.json            what was run
metrics.jsonl            one line for each evaluated round, the first of round 0
checkpoint.safetensors   from which the same command goes on after a kill, bit for bit
model.safetensors        the trained model, with names.json for its rows
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedslice import clusters, export
from fedslice.catalogue import find_method
from fedslice.checkpoint import NAME as CHECKPOINT
from fedslice.checkpoint import atomic_write
from fedslice.errors import InputError
from fedslice.evaluate import Evaluator
from fedslice.kept import Kept
from fedslice.personal import Gain, Personal
from fedslice.progress import bar
from fedslice.registry import sampler_for
from fedslice.settings import Settings
from fedslice.simulate import Run, simulate
from fedslice.tasks.base import Task

TRAIN_SAMPLE = 10_000  # training examples on which the training loss is measured, as in the FedSubAvg paper
TRAIN_CLIENTS = 200  # training clients that rebuild their local leaves to be measured
LAP = 100  # rounds timed at once: the median of laps leaves out those in which something was compiled
SAVE_EVERY = 20.0  # seconds between checkpoints, unless FEDSLICE_SAVE_EVERY says otherwise
TRAFFIC = ("examples", "bytes_down", "bytes_up")

Line = dict[str, Any]


class Scorer:
    """Measures train loss, test loss and the task's metrics; made once for a task, used by all its runs."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.judges: tuple[Run, list[Callable[[], Gain]]] | None = None

    @cached_property
    def test(self) -> Evaluator:
        """The test set, or as much of it as the task asks for."""
        some = self.task.test if self.task.measured is None else self.task.test.sample(self.task.measured)
        return Evaluator(self.task.model, some)

    @cached_property
    def train(self) -> Evaluator:
        """A sample of the training data."""
        return Evaluator(self.task.model, self.task.train.sample(min(TRAIN_SAMPLE, self.task.measured or TRAIN_SAMPLE)))

    @cached_property
    def all(self) -> Evaluator:
        """All training data, by which clients choose among several models."""
        return Evaluator(self.task.model, self.task.train)

    def __call__(self, run: Run) -> dict[str, float]:
        """The figures of one evaluation."""
        client, gains, more = run.algorithm.client, [], {}
        if run.algorithm.server.several:  # each client with the model that suits its own training data
            gains = [clusters.gain(run, self.all, each) for each in (self.train, self.test)]
        elif client.serve or client.adapt or self.task.model.local:
            gains = [judge() for judge in self._judges(run)]
        if gains:
            train, test = (gain.after.pooled for gain in gains)
            spread = gains[1].spread("loss")
            more = {f"gain_{name}": spread[name] for name in ("mean", "p10", "worst", "share")}
        else:
            train, test = (each(run.params(each.ids())).pooled for each in (self.train, self.test))
        figures = {"train_loss": train["loss"], "test_loss": test["loss"]}
        return figures | {name: value for name, value in test.items() if name != "loss"} | more

    def _judges(self, run: Run) -> list[Callable[[], Gain]]:
        """What clients make of the model, or keep: some of the training clients, and those of the test set."""
        if self.judges is None or self.judges[0] is not run:
            self.judges = run, self._kept(run) if self._known(run) else self._adapting(run)
        return self.judges[1]

    def _known(self, run: Run) -> bool:
        """Whether clients keep models, and the test set is of the same clients."""
        return run.algorithm.client.serve is not None and np.array_equal(
            self.task.test.clients, self.task.train.clients
        )

    def _kept(self, run: Run) -> list[Callable[[], Gain]]:
        train = self.task.train
        chosen = np.random.default_rng(0).permutation(train.examples) < TRAIN_SAMPLE
        return [Kept(run, train.select(chosen)), Kept(run, self.task.test)]

    def _adapting(self, run: Run) -> list[Callable[[], Gain]]:
        adaptation = run.algorithm.client.adapt or self.task.adaptation
        if adaptation is None:
            raise InputError(f"{self.task.name} has local leaves and no way to rebuild them: use --algorithm fedrecon")
        train, test = self.task.train, self.task.test
        some = train.subset(np.random.default_rng(0).permutation(len(train))[:TRAIN_CLIENTS])
        split = self.task.settings.get("split", "half")  # the task's, so that all algorithms are judged alike
        judges = [Personal(each, adaptation, split=split) for each in (some, test)]
        return [lambda judge=judge: judge(run.params(judge.ids())) for judge in judges]  # type: ignore[misc]


@dataclass
class Experiment:
    """One run of one algorithm on a task.  ``execute`` returns the final line."""

    task: Task
    algorithm: str
    settings: Settings
    rounds: int
    seed: int = 0
    eval_every: int = 10
    out: Path | None = None
    scorer: Scorer | None = None
    emit: Callable[[Line], None] = lambda line: None
    tell: Callable[[str], None] = lambda text: None
    progress: bool = False
    lines: list[Line] = field(default_factory=list)

    def execute(self, run: Run | None = None) -> Line:
        """Train to the last round, from the checkpoint in ``out`` if there is one of this very run."""
        if self.rounds < 1 or self.eval_every < 1:
            raise InputError("--rounds and --eval-every must be at least 1")
        scorer = self.scorer or Scorer(self.task)
        run = run or self.start()
        self.lines = self._open(run)
        for line in self.lines:
            self.emit(line)
        if not self.lines and not run.round:  # where every curve starts, and what it is compared with
            given = {f"baseline_{name}": value for name, value in self.task.baseline.items()}
            self._record({"round": 0, **scorer(run), **given, **self._traffic(run)})
        clock = _Clock()
        with bar(self.rounds - run.round, self.progress, self.algorithm) as advance:
            while run.round < self.rounds:
                stop = min(self.rounds, (run.round // self.eval_every + 1) * self.eval_every)
                for report in run.rounds(1 if not clock.compiled else min(LAP, stop - run.round)):
                    advance(report)
                clock.lap(run.round)
                if run.round == stop:
                    self._record({"round": run.round, **scorer(run), **self._traffic(run)})
                if self.out and clock.due():
                    run.save(self.out)  # after the line of this round, which a resumed run will not write again
                clock.skip()
        return self._finish(run, clock)

    def _traffic(self, run: Run) -> dict[str, int]:
        """Examples and bytes since the first round; training on pooled data sends nothing."""
        silent = {"bytes_down": 0, "bytes_up": 0} if find_method(self.algorithm).pooled else {}
        return {**run.totals, **silent}

    def start(self) -> Run:
        """The run, before its first round."""
        method = find_method(self.algorithm)
        population = self.task.train.pool() if method.pooled else self.task.train
        algorithm = method.build(self.task, self.settings)
        sampler = sampler_for(method, self.settings)
        text = self.settings.engine
        engine: str | int = int(text) if text.isdigit() else text
        return simulate(
            algorithm, population, sampler=sampler, seed=self.seed, engine=engine, threads=self.settings.threads or None
        )

    def _identity(self) -> Line:
        return {
            "task": self.task.name,
            "data": self.task.source,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "eval_every": self.eval_every,
            "settings": self.settings.values,
        }

    def _open(self, run: Run) -> list[Line]:
        """Make the folder, or take up the run that is in it; returns the lines of the rounds already done."""
        if self.out is None:
            return []
        file, mine = self.out / "settings.json", self._identity()
        if not file.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            if any(self.out.iterdir()):
                raise InputError(f"{self.out} holds other files: give --out an empty or a new folder")
            atomic_write(file, json.dumps(mine, indent=2).encode())
            return []
        try:
            known = json.loads(file.read_text())
        except ValueError as error:
            raise InputError(f"{file} is damaged ({error}): choose another --out") from error
        different = [key for key in mine if known.get(key) != mine[key]]
        if different:
            raise InputError(
                f"{self.out} holds a run with other {', '.join(different)}: choose another --out, or the same settings "
                "to go on with it. Nothing was changed."
            )
        if (self.out / CHECKPOINT).exists():
            run.restore(self.out)
            if run.round > self.rounds:
                raise InputError(f"{self.out} holds {run.round} rounds already: ask for more with --rounds")
            self.tell(f"going on from round {run.round} of the run in {self.out}")
        return self._past(run.round)

    def _past(self, done: int) -> list[Line]:
        """The metrics up to the checkpoint; what came after it will be computed again."""
        assert self.out is not None
        file = self.out / "metrics.jsonl"
        kept = []
        for text in file.read_text().splitlines() if file.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:  # a line cut off by a kill
                break
            regular = line["round"] % self.eval_every == 0 or line["round"] == self.rounds
            if line["round"] <= done and regular:
                kept.append(line)
        atomic_write(file, "".join(json.dumps(line) + "\n" for line in kept).encode())
        return kept

    def _record(self, line: Line) -> None:
        self.lines.append(line)
        self.emit(line)
        if self.out:
            with (self.out / "metrics.jsonl").open("a") as handle:
                handle.write(json.dumps(line) + "\n")
                handle.flush()
                os.fsync(handle.fileno())

    @staticmethod
    def figures(line: Line) -> Line:
        """The measured figures of a line: losses and metrics."""
        return {key: value for key, value in line.items() if key not in ("round", *TRAFFIC)}

    def rounds_to_target(self) -> int | None:
        """The first evaluated round at which the task's target was met."""
        target = self.task.target
        return next((line["round"] for line in self.lines if target and target.reached(line)), None)

    def _finish(self, run: Run, clock: "_Clock") -> Line:
        if self.out:
            run.save(self.out)
            export.write_model(export.model_of(run), self.out)
        scale = 1024 if sys.platform != "darwin" else 1024**2
        done = {
            "done": True,
            "rounds": run.round,
            "rounds_to_target": self.rounds_to_target(),
            "ms_per_round": clock.ms_per_round(),
            "compile_s": clock.compile_s,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
            "out": str(self.out) if self.out else None,
        }
        self.emit(done)
        return done


class _Clock:
    """Steady-state time a round: laps between evaluations, without the first round, which compiles."""

    def __init__(self) -> None:
        self.compile_s = 0.0
        self.compiled = False
        self.laps: list[tuple[float, int]] = []
        self.round: int | None = None
        self.saved = self.begun = time.perf_counter()
        text = os.environ.get("FEDSLICE_SAVE_EVERY", str(SAVE_EVERY))
        try:
            self.every = float(text)
        except ValueError:
            raise InputError(f"FEDSLICE_SAVE_EVERY={text!r} must be a number of seconds") from None

    def lap(self, round: int) -> None:
        now = time.perf_counter()
        if not self.compiled:
            self.compiled, self.compile_s = True, now - self.begun
        else:
            self.laps.append((now - self.begun, round - (self.round or 0)))
        self.begun, self.round = now, round

    def skip(self) -> None:
        self.begun = time.perf_counter()

    def due(self) -> bool:
        now = time.perf_counter()
        if now - self.saved < self.every:
            return False
        self.saved = now
        return True

    def ms_per_round(self) -> float | None:
        rates = [1e3 * seconds / rounds for seconds, rounds in self.laps if rounds]
        return statistics.median(rates) if rates else None
