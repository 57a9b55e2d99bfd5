"""``fedslice deploy init``, ``fedslice deploy data`` and ``fedslice deploy local``."""

import argparse
import subprocess
import time
import tomllib
from pathlib import Path

from fedslice.cli.deployment import app, draft, vocabulary
from fedslice.cli.deployment.certificates import Certificates
from fedslice.cli.deployment.comparison import compare
from fedslice.cli.deployment.loopback import NAME, Loopback
from fedslice.cli.export import MODEL
from fedslice.cli.printing import say
from fedslice.cli.stopping import Stopped
from fedslice.cli.wanted import free_folder
from fedslice.deploy import own
from fedslice.deploy.report import Report
from fedslice.deploy.schema import NAME as SCHEMA
from fedslice.deploy.schema import Schema
from fedslice.deploy.session import reports
from fedslice.errors import InputError, RoundError
from fedslice.files.lock import hold

PROJECT = "pyproject.toml"
OF_AN_APP = (
    *("task", "algorithm", "nodes", "seed", "deadline", "set", "data", "data_dir", "vocabulary"),
    *("trial", "publish"),
)


def init(options: argparse.Namespace) -> None:
    """Write an app for some clients of a task, or for nodes with files of their own."""
    draft.write(options, options.folder)
    if options.vocabulary is None:
        print(f"try: fedslice deploy local {options.folder}")
    else:
        print(f"each node: fedslice deploy data {options.folder} FILE NODE --number I")


def data(options: argparse.Namespace) -> None:
    """Write a node's own file into its folder, in the terms of an app's vocabulary."""
    number = options.number
    if number is None and options.node.name.isdecimal():
        number = int(options.node.name)
    if number is None or not 0 <= number < 2**31:
        raise InputError("--number: give the node a number of its own, from 0 to 2147483647")
    words = vocabulary.read(options.folder / app.PACKAGE)
    mine = vocabulary.own_file(options.file, words, number, options.only)
    for name, (unknown, all_of_them) in mine.unknown.items():
        if unknown:
            say(
                f"note: {unknown:,} of {all_of_them:,} values of {name} are not in the vocabulary,"
                " and count as missing"
            )
    own.write(mine.data, options.node / "data", words.digest)
    print(
        f"{options.node / 'data'}: {mine.data.examples:,} examples of node {number}; start it with"
        f' --node-config \'name="node-{number}" folder="{options.node.resolve()}"\''
    )


def local(options: argparse.Namespace) -> int | None:
    """Train an app on this machine, and compare it with its simulation."""
    folder = options.folder or free_folder(Path("runs"), "deploy")
    if not (folder / PROJECT).exists():
        draft.write(options, folder)
    elif given := [name for name in OF_AN_APP if getattr(options, name)]:
        raise InputError(
            f"{folder} is an app already, and --{given[0].replace('_', '-')} is what one is made"
            " with: leave it out, or give another folder"
        )
    return _local(options, folder)


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
