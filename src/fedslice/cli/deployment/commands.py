"""``fedslice deploy init`` and ``fedslice deploy local``."""

import argparse
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.commands import free_folder, say, task_of
from fedslice.cli.deployment import app
from fedslice.cli.deployment.certificates import Certificates
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.loopback import NAME, Loopback
from fedslice.cli.deployment.recipe import recipe, telling
from fedslice.cli.export import MODEL
from fedslice.cli.settings import Settings
from fedslice.cli.stopping import Stopped
from fedslice.cli.text import change_of
from fedslice.cli.workloads import TASKS
from fedslice.data.population import Population
from fedslice.deploy.report import Report
from fedslice.deploy.schema import NAME as SCHEMA
from fedslice.deploy.schema import Schema
from fedslice.deploy.session import reports
from fedslice.errors import InputError, RoundError
from fedslice.files.lock import hold
from fedslice.types import Algorithm

TASK, SCALE, DEADLINE = "movielens-lr", 0.05, 120.0
PROJECT = "pyproject.toml"
OF_AN_APP = ("task", "algorithm", "nodes", "seed", "deadline", "set", "data", "data_dir", "trial")


def init(options: argparse.Namespace) -> None:
    """Write an app for some clients of a task."""
    _write(options, options.folder)
    print(f"try: fedslice deploy local {options.folder}")


def local(options: argparse.Namespace) -> int | None:
    """Train an app on this machine, and compare it with its simulation."""
    folder = options.folder or free_folder(Path("runs"), "deploy")
    if not (folder / PROJECT).exists():
        _write(options, folder)
    elif given := [name for name in OF_AN_APP if getattr(options, name)]:
        raise InputError(
            f"{folder} is an app already, and --{given[0].replace('_', '-')} is what one is made"
            " with: leave it out, or give another folder"
        )
    return _local(options, folder)


def _write(options: argparse.Namespace, folder: Path) -> None:
    if options.task is None:
        options.task = "lr" if options.data else TASK
        options.synthetic = options.synthetic or not (options.data or options.data_dir)
        if options.synthetic and options.scale is None:
            options.scale = SCALE
    task = task_of(options)
    known = TASKS[task.name].algorithm if task.name in TASKS else "fedsubavg"
    name = options.algorithm or known
    if find_method(name).pooled:
        raise InputError(f"{name} trains on the data of all: there is nothing to deploy")
    people = chosen(task.train, 4 if options.nodes is None else options.nodes)
    settings = fitting(settings_for(task, name, options.set), options.set, len(people))
    if settings.values.get("available", "always") != "always":
        raise InputError("available: a deployment sees who is there; leave this setting out")
    algorithm = recipe(name, task.model, people, settings.values)  # or it is refused here
    check_heat(algorithm, settings.values)
    client = algorithm.client
    personal = client.adapt is not None or client.serve is not None
    config = {
        "rounds": options.rounds or 3,
        "seed": options.seed or 0,
        "nodes": len(people),
        "deadline": options.deadline or DEADLINE,
        "folder": str(folder.resolve() / app.SERVER),
        "authenticated": False,
        "trial": bool(options.trial),
        "publish": "held" if personal else "no",
    }
    app.write(folder, task.model, name, settings.values, people, config)
    say(
        f"{folder}: {name} on {task.name} ({task.source}); {len(people)} of"
        f" {len(task.train):,} clients are nodes, with {people.examples:,} examples"
    )


def chosen(people: Population, nodes: int) -> Population:
    """The first clients that have any data, as a population of their own.

    >>> people = Population.from_arrays([5, 7, 7, 9], x=[1.0, 2.0, 3.0, 4.0])
    >>> chosen(people, 2).clients.tolist()
    [5, 7]
    """
    able = np.flatnonzero(people.counts)
    if not 1 <= nodes <= len(able):
        raise InputError(f"--nodes {nodes}: there are {len(able)} clients with data")
    return people.subset(able[:nodes]).renumbered()


def fitting(settings: Settings, changes: Sequence[str], nodes: int) -> Settings:
    """A cohort of more than there are becomes all of them, unless it was asked for; and below a
    secure sum, whose room nodes must know without knowing how many they are, so many are drawn.

    >>> fitting(Settings({"cohort": 50, "sampler": "full"}), [], 4).cohort
    4
    >>> fitting(Settings({"cohort": 50, "sampler": "full", "secure": "yes"}), [], 4).sampler
    'uniform'
    """
    asked = {change_of(change)[1] for change in changes}
    values = dict(settings.values)
    if values.get("cohort", 0) > nodes and "cohort" not in asked:
        values["cohort"] = nodes
    if values.get("secure", "no") != "no" and values.get("sampler") in ("full", "poisson"):
        if "sampler" in asked and values["sampler"] == "poisson":
            raise InputError(
                "sampler=poisson draws any number of nodes, and a node cannot know for how many a"
                " secure sum must have room: use sampler=uniform"
            )
        if values["sampler"] == "full":
            values["cohort"] = nodes
        values["sampler"] = "uniform"
    return Settings(values, settings.said)


def check_heat(algorithm: Algorithm, settings: Mapping[str, Any]) -> None:
    """Heat must come from those who know it: from rows that nodes name, or from the nodes that hide
    them, privately."""
    way = str(settings.get("heat_privacy", "exact"))
    if not settings.get("heat"):
        return
    told = telling(settings) is not None
    if algorithm.rows == "named" and told:
        raise InputError(
            f"heat_privacy={way}: nodes name their rows to the server here, which then needs no"
            " private answers about them. Hide them (secure=yes or noise_by=shares:LEAST), or use"
            " heat_privacy=public"
        )
    if algorithm.rows != "named" and not told:
        raise InputError(
            f"heat_privacy={way}: nodes hide their rows here, so that the server cannot count who"
            " holds which. Let nodes tell it privately: --set heat_privacy=response:2 or"
            " heat_privacy=sum:NOISE:ROWS; heat that is public knowledge goes into the app's"
            " method.py, as privacy.heat.public(...)"
        )


def _local(options: argparse.Namespace, folder: Path) -> int | None:
    config = tomllib.loads((folder / PROJECT).read_text())["tool"]["flwr"]["app"]["config"]
    rounds = options.rounds or config["rounds"]
    nodes = app.nodes_of(folder)
    home = folder / app.SERVER
    home.mkdir(parents=True, exist_ok=True)
    lock = hold(home / "lock")
    if lock is None:
        raise InputError(f"another process trains in {folder}: wait for it, or use another folder")
    with lock:
        done = reached(home)
        if done >= rounds and (home / MODEL).exists():
            say(f"all {rounds} rounds are done; --rounds {rounds + 3} goes on")
        else:
            try:
                _train(folder, nodes, rounds, options.tls, config.get("trial", False))
            except Stopped as stopped:
                say(f"stopped after round {reached(home)}; the same command goes on from there")
                return stopped.exit_code
            print(f"model: {home / MODEL}; try: fedslice export {home} model.npz")
        print(f"compared: {compare(folder, config['seed'], config.get('trial', False))}")
    return None


def reached(home: Path) -> int:
    """The last round that was accepted."""
    return max((each.round for each in reports(home) if each.accepted), default=0)


def _train(folder: Path, nodes: list[Path], rounds: int, tls: bool, trial: bool) -> None:
    begin = time.monotonic()
    keys = Certificates(folder.resolve() / "keys") if tls else None
    with Loopback(folder / "logs", folder.resolve() / "flower", keys) as here:
        say(f"a SuperLink and {len(nodes)} SuperNodes start on the loopback; logs: {here.logs}")
        for place in nodes:
            start_node(here, place, trial)
        said = f'rounds={rounds} folder="{folder.resolve() / app.SERVER}" nodes={len(nodes)}'
        run = submit(here, folder, f"{said} authenticated={'true' if tls else 'false'}")
        follow(here, run, folder / app.SERVER, begin)
    if reached(folder / app.SERVER) < rounds:
        raise RoundError(f"{failure(here.logs)}\nlogs: {here.logs}")


def start_node(here: Loopback, place: Path, trial: bool = False) -> None:
    """The SuperNode whose things are in this folder; with TLS its key is registered."""
    name, key = f"node-{place.name}", None
    if here.certificates is not None:
        key, public = here.certificates.of_node(name)
        here.flwr("supernode", "register", str(public), NAME, "--name", name)
    folder = place.resolve()
    compiled = folder.parent / "compiled"  # nodes of one machine compile the same
    config = {"folder": str(folder), "compiled": str(compiled)}
    here.start_node(name, {**config, "trial": True} if trial else config, key)


def submit(here: Loopback, folder: Path, config: str) -> "subprocess.Popen[bytes]":
    """Start the app; the process shows what the server says, and ends with it."""
    return here.start("run", "flwr", "run", str(folder), NAME, "--stream", "--run-config", config)


def follow(here: Loopback, run: "subprocess.Popen[bytes]", home: Path, begin: float) -> None:
    """Print a line for each new report until the model is there, or the run has ended."""
    before, shown, known = written(home), len(reports(home)), (home / SCHEMA).exists()
    while True:
        if not known and (home / SCHEMA).exists():
            known = True
            print(f"{len(Schema.read(home).nodes)} nodes registered{_after(begin)}", flush=True)
        ended = run.poll() is not None or written(home) > before
        for report in reports(home)[shown:]:
            print(f"{line(report)}{_after(begin)}", flush=True)
            shown += 1
        if ended:
            return
        here.check()
        time.sleep(0.1)


def _after(begin: float) -> str:
    return f" [{time.monotonic() - begin:.0f} s]"


def written(home: Path) -> int:
    """When the model was written, as the file system tells it; 0: not yet."""
    file = home / MODEL
    return file.stat().st_mtime_ns if file.exists() else 0


def run_of(logs: Path) -> str:
    """Flower's number of the run that was started last."""
    words = (logs / "run.log").read_text(errors="replace").split("started run ")
    return words[-1].split()[0]


def line(report: Report) -> str:
    """A report with the bytes that were sent.

    >>> line(Report(1, True, ("a",), ("a",), bytes_down=1200, bytes_up=64))
    'round 1: 1 of 1 nodes counted, loss 0.0000; 1.2 kB down, 0.1 kB up'
    """
    down, up = report.bytes_down / 1e3, report.bytes_up / 1e3
    return f"{report}; {down:,.1f} kB down, {up:,.1f} kB up"


def failure(logs: Path) -> str:
    """The last words of the server, or of the SuperLink."""
    for name in ("run.log", "superlink.log"):
        file = logs / name
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        errors = [each.strip() for each in lines if "Error" in each]
        if errors:
            return f"the server ended: {errors[-1]}"
    return "the server ended before the last round"
