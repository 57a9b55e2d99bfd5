"""Run a task with an algorithm into a folder: exact settings, metrics of each evaluated round,
checkpoint, model.

settings.json            what was run
privacy.json             what it tells about each client, if it is differentially private
about.json               the command, the data and the versions it was run with
metrics.jsonl            one line for each evaluated round, the first of round 0
evaluation.json          the test set by heat and by client, when it has ended
done.json                how it ended: rounds, time, memory; or why it diverged
checkpoint.safetensors   from which the same command goes on after a kill, bit for bit
model.safetensors        the trained model, with names.json for its rows
features.json            of own data: how a row of them becomes what the model reads
best/                    the model of the round that was best on validation, with --patience
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedslice import cluster
from fedslice.cli import export
from fedslice.cli.catalogue import find_method
from fedslice.cli.clock import Clock
from fedslice.cli.folder import FREE, METRICS, SETTINGS, Folder, Line
from fedslice.cli.origin import origin
from fedslice.cli.patience import Patience
from fedslice.cli.scorer import Scorer
from fedslice.cli.settings import Settings
from fedslice.cli.stopping import Stopped, Stopping
from fedslice.cluster.crew import Crew
from fedslice.data.devices import Devices
from fedslice.errors import DivergedError, InputError
from fedslice.evaluation.cost import Cost
from fedslice.files.strict import as_json, parsed
from fedslice.files.writing import atomic_write
from fedslice.privacy.ledger import spent
from fedslice.report.records import ABOUT, DONE, EVALUATION, PRIVACY
from fedslice.round.program import once
from fedslice.simulation.progress import bar
from fedslice.simulation.run import Report, Run, simulate
from fedslice.tasks.base import Task

LAP = (
    100  # rounds timed at once: the median of laps leaves out those in which something was compiled
)
BEST = "best"
TRAFFIC = ("examples", "bytes_down", "bytes_up", "seconds")


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
    store: str | Path = "ram"
    stop: Stopping = field(default_factory=Stopping)
    about: Line = field(default_factory=dict)
    patience: int = 0  # evaluations without a better validation loss after which it stops; 0: none
    devices: Devices | None = None  # whose time is estimated; None: the published ones
    privacy: str = ""
    time: dict[str, float] = field(default_factory=dict)  # what took how many seconds
    cost: Cost | None = None
    crew: Crew | None = None  # None: this process
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.eval_every < 1:
            raise InputError("--rounds and --eval-every must be at least 1")
        self.waits = Patience(self.patience)
        self.waits.check(self.task.validation is not None)

    def ended(self) -> bool:
        """Whether this very run has ended in its folder, after as many rounds or diverged; then its
        lines are read."""
        assert self.out is not None
        files = [self.out / name for name in (SETTINGS, DONE, METRICS)]
        if not all(file.exists() for file in files):
            return False
        known, done = (json.loads(file.read_text(encoding="utf-8")) for file in files[:2])
        mine = json.loads(json.dumps(self._identity(self.scorer or Scorer(self.task))))
        if any(known.get(key) != value for key, value in mine.items() if key not in FREE):
            return False
        stopped = done.get("stopped") and done.get("patience") == self.patience
        early = done.get("diverged") or stopped
        if not early and done.get("rounds") != self.rounds:
            return False
        self.lines = [parsed(line) for line in files[2].read_text().splitlines()]
        return True

    def execute(self, run: Run | None = None) -> Line:
        """Train to the last round, from the checkpoint in ``out`` if there is one of this run."""
        scorer = self.scorer or Scorer(self.task)
        run = run or self.start()
        if run.algorithm.noise is not None:  # what will be told, before anybody trains
            planned = spent(run.algorithm, len(run.eligible), self.rounds)
            told = str(planned).splitlines()[0]
            self.tell(f"privacy after {self.rounds} rounds: {told}")
        with (
            nullcontext()
            if self.out is None
            else Folder(self.out, self._identity(scorer), self.tell)
        ) as folder:
            self.lines = [] if folder is None else folder.resume(run, self.rounds)
            if folder is not None:
                folder.write(ABOUT, {**self.about, **origin(self.task, run)})
            clock = Clock(saves=folder is not None)
            with bar(self.rounds - run.round, self.progress, self.algorithm) as advance:
                try:
                    self._train(run, scorer, folder, clock, advance)
                except DivergedError as error:
                    if folder is not None:
                        folder.write(DONE, {"diverged": str(error), "round": run.round})
                    raise
                except (Stopped, BrokenPipeError) as error:
                    if folder is not None:
                        self._save(run, folder, clock)
                    if isinstance(error, Stopped):
                        error.round, error.folder = run.round, self.out
                    else:
                        self.tell(
                            f"nobody reads the output any more: stopped after round {run.round}"
                        )
                    raise
            return self._finish(run, scorer, folder, clock)

    def _train(
        self,
        run: Run,
        scorer: Scorer,
        folder: Folder | None,
        clock: Clock,
        advance: Callable[[Report], None],
    ) -> None:
        if (
            not self.lines and not run.round
        ):  # where every curve starts, and what it is compared with
            with clock.on("evaluating"):
                figures, known = scorer(run), scorer.baseline()
            given = {f"baseline_{name}": value for name, value in known.items()}
            self._record(run, {"round": 0, **figures, **given, **self._traffic(run)}, folder)
        while True:
            self.stop.check()
            measured = self.lines[-1]["round"] if self.lines else 0
            if run.round > measured and run.round == self._goal(run.round - 1):
                with clock.on("evaluating"):
                    line = {"round": run.round, **scorer(run), **self._traffic(run)}
                if self.waits.best([*self.lines, line]) == run.round:
                    self._keep(run, folder)
                self._record(run, line, folder)
            if folder is not None and clock.due():
                self._save(run, folder, clock)  # after the line of this round
            if run.round == self.rounds or self.waits.ended(self.lines):
                return
            with self.stop.patient():
                self._lap(run, clock, advance)

    def _lap(self, run: Run, clock: Clock, advance: Callable[[Report], None]) -> None:
        """Some rounds up to the next evaluation, timed as one; fewer when it is time to save or to
        stop."""
        begun, first, planned = time.perf_counter(), run.round, run.planning
        for report in run.rounds(min(LAP, self._goal(first) - first) if clock.compiled else 1):
            if self.stop.asked:
                break
            advance(report)
            if clock.due():
                break
        run.wait()
        clock.lap(time.perf_counter() - begun, run.round - first, run.planning - planned)

    def _keep(self, run: Run, folder: Folder | None) -> None:
        """The best model so far, before its line is written: what is killed in between is measured
        again."""
        if folder is not None:
            with self.stop.patient():
                self._export(run, folder.path / BEST)

    def _export(self, run: Run, place: Path) -> None:
        place.mkdir(exist_ok=True)
        export.write_model(export.model_of(run)._replace(settings=self.settings.values), place)
        if self.task.features is not None:
            self.task.features.write(place)

    def _goal(self, done: int) -> int:
        """The round of the first evaluation after ``done`` rounds."""
        return min(self.rounds, (done // self.eval_every + 1) * self.eval_every)

    def _save(self, run: Run, folder: Folder, clock: Clock) -> None:
        with self.stop.patient(), clock.on("saving"):
            run.save(folder.path)
            if (told := run.spent()) is not None:
                text = json.dumps(told.as_dict(), indent=2)
                atomic_write(folder.path / PRIVACY, text.encode())
        clock.saved = time.perf_counter()

    def _traffic(self, run: Run) -> Line:
        """Examples and bytes since the first round, and the seconds that devices would have taken;
        training on pooled data sends nothing and runs on none."""
        if find_method(self.algorithm).pooled:
            return {**run.totals, "bytes_down": 0, "bytes_up": 0}
        self.cost = self.cost or Cost(run, self.devices)
        start: Line = {"round": 0, "bytes_up": 0, "seconds": 0.0}
        before = self.lines[-1] if self.lines else start
        seconds = self.cost(before["round"], before["bytes_up"], before["seconds"])
        return {**run.totals, "seconds": seconds}

    def start(self) -> Run:
        """The run, before its first round."""
        method = find_method(self.algorithm)
        population = self.task.train.pool() if method.pooled else self.task.train
        algorithm = once(
            self.task,
            ("algorithm", self.algorithm, self._drawn(), json.dumps(self.settings.values)),
            lambda: method.build(self.task, self.settings.seeded(self.seed)),
        )
        sampler = method.sampler(self.settings, self.task)
        text = self.settings.engine
        engine: str | int = int(text) if text.isdigit() else text
        given: Any = {"sampler": sampler, "seed": self.seed, "engine": engine}
        if self.crew is None:
            threads = self.settings.threads or None
            return simulate(algorithm, population, threads=threads, store=self.store, **given)
        if str(self.store).lower() != "ram":
            raise InputError(
                f"--store {self.store} with --ray: on a cluster tables are in the memory of its"
                " shards, so leave --store out"
            )
        run = cluster.simulate(algorithm, population, crew=self.crew, **given)
        if run.layout.reason:
            self.tell(f"the driver has the tables: {run.layout.reason}")
        return run

    def _drawn(self) -> int | None:
        """The seed, if the algorithm hangs on it: on heat that was told with noise.  Otherwise all
        seeds have the same one, which is traced once for them."""
        exact = self.settings.values.get("heat_privacy", "exact") in ("exact", "public")
        return None if exact else self.seed

    def _identity(self, scorer: Scorer) -> Line:
        return {
            "task": self.task.name,
            "data": self.task.source,
            "test_data": scorer.test_data,  # the training data are in the checkpoint
            "algorithm": self.algorithm,
            "seed": self.seed,
            "eval_every": self.eval_every,
            **({} if self.devices is None else {"devices": self.devices._asdict()}),
            "store": "ram" if str(self.store).lower() == "ram" else "mapped",
            "settings": self.settings.values,
        }

    def _record(self, run: Run, line: Line, folder: Folder | None) -> None:
        line = parsed(as_json(line))  # as a run that goes on will read it
        with self.stop.patient():
            self.lines.append(line)
            if folder is not None:
                folder.record(run, line)
        self.emit(line)

    @staticmethod
    def figures(line: Line) -> Line:
        """The measured figures of a line: losses and metrics."""
        return {key: value for key, value in line.items() if key not in ("round", *TRAFFIC)}

    def rounds_to_target(self) -> int | None:
        """The first evaluated round at which the task's target was met."""
        target = self.task.target
        return next((line["round"] for line in self.lines if target and target.reached(line)), None)

    def _finish(self, run: Run, scorer: Scorer, folder: Folder | None, clock: Clock) -> Line:
        if folder is not None:
            self._save(run, folder, clock)
            with self.stop.patient():
                with clock.on("evaluating"):
                    folder.write(EVALUATION, scorer.details(run))
                self._export(run, folder.path)
        self.time = clock.time
        found = run.spent()
        self.privacy = "\n".join(filter(None, [str(found or ""), _deniable(run)]))
        scale = 1024 if sys.platform != "darwin" else 1024**2
        done = {
            "done": True,
            "rounds": run.round,
            "rounds_to_target": self.rounds_to_target(),
            "ms_per_round": clock.ms_per_round(),
            "compile_s": clock.compile_s,
            "time": clock.time,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
            "out": str(self.out) if self.out else None,
            **self.waits.told(self.lines, run.round < self.rounds),
            **({"privacy": found.as_dict()} if found else {}),
        }
        if folder is not None:
            folder.write(DONE, done)
        self.emit(done)
        return done


def _deniable(run: Run) -> str:
    """What clients' answers tell about a row, if they give any that can be denied."""
    answers = run.algorithm.answers
    if answers is None or answers.everything:
        return ""
    return (
        "Rows: a client's answer about any one row can be denied with epsilon ="
        f" {answers.eps_1:.3g} in a round and {answers.eps_inf:.3g} over all rounds, of each row"
        f" alone; it takes {answers.p5:.0%} of the rows that it holds."
    )
