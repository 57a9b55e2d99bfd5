"""A real Ray cluster on this machine: other processes, the same bits; one of them is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laws import MODEL, RECIPES, sampler_of
from nodes import bits
from problems import people

import fedslice as fs
from fedslice.cli import train
from fedslice.cli.main import main
from fedslice.cluster.crew import Here
from fedslice.errors import InputError

PEOPLE = people()
KINDS = "workers", "shards"  # of processes


@pytest.fixture(scope="module")
def crew() -> Iterator[Any]:
    """One cluster for all tests here; its processes find what tests are made of."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedslice[ray]'")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    made = fs.cluster.ray(workers=2, shards=1)
    assert signal.getsignal(signal.SIGTERM) is mine  # who saves on SIGTERM still does
    signal.signal(signal.SIGTERM, handler)
    yield made
    made.close()
    os.environ["PYTHONPATH"] = before


def pair(crew: Any, name: str, **given: Any) -> tuple[Any, Any]:
    method, sampler = RECIPES[name](MODEL, PEOPLE), sampler_of(name)
    same: Any = {"sampler": sampler, "engine": "map", "seed": 3}
    one = fs.simulate(method, PEOPLE, **same)
    return one, fs.cluster.simulate(method, PEOPLE, crew=crew, **same, **given)


def state(run: Any) -> Any:
    return bits([run.store.snapshot(), run.memory])


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.every)])
def test_processes_give_the_bits_of_one_and_so_do_those_after_a_kill(
    crew: Any, together: bool
) -> None:
    """SCAFFOLD has all that can be lost: rows, and what clients remember.  A worker and a shard are
    killed in one round, or in one after the other."""
    one, run = pair(crew, "scaffold-2", every=0.0)
    with run:
        run.train(2, progress=False)
        assert state(run) != state(one)
        one.train(4, progress=False)
        rounds = [KINDS, ()] if together else [KINDS[:1], KINDS[1:]]
        for victims in rounds:
            for kind in victims:
                (pid,) = crew.get(crew.call(getattr(run.team, kind)[0], "pid"))
                os.kill(pid, signal.SIGKILL)
            run.train(1, progress=False)
        assert state(run) == state(one)


def test_an_error_on_a_worker_is_that_error(crew: Any) -> None:
    member = crew.start(dict, busy=False, cores=1)
    with pytest.raises(KeyError, match="absent"):
        crew.get(crew.call(member, "pop", "absent"))
    crew.end(member)


def test_more_workers_than_cores_are_refused(crew: Any) -> None:
    with pytest.raises(InputError, match="99 workers of 1 threads want 99 cores"):
        fs.cluster.ray(workers=99)


@pytest.mark.every
@pytest.mark.parametrize("workers", ["1", "2"])
def test_on_the_command_line(crew: Any, workers: str, tmp_path: Path, capsys: Any) -> None:
    same_figures(workers, tmp_path, capsys)


def test_on_the_command_line_without_ray(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on a crew of this process, which gets what the command line says."""
    asked: list[Any] = []

    def here(address: str, **given: Any) -> Here:
        asked.append((address, given))
        return Here(workers=given["workers"], shards=1)

    monkeypatch.setattr(train, "ray", here)
    same_figures("2", tmp_path, capsys)
    assert asked == [("auto", {"workers": 2, "threads": 1})]


def same_figures(workers: str, tmp_path: Path, capsys: Any) -> None:
    given = ["run", "movielens-lr", "--synthetic", "--scale", "0.02", "--rounds", "4"]
    given += ["--set", "engine=map", "--json", "--eval-every", "4"]
    assert main([*given, "--ray", "auto", "--workers", workers, "--out", str(tmp_path / "a")]) == 0
    there = capsys.readouterr().out.splitlines()
    assert main([*given, "--out", str(tmp_path / "b")]) == 0
    here = capsys.readouterr().out.splitlines()
    assert there[:-1] == here[:-1]  # all figures; the last line has times
    names = ("a", "b")
    first, second = (Path(tmp_path, n, "model.safetensors").read_bytes() for n in names)
    assert first == second


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--workers", "2"], "say --ray auto"), (["--ray", "auto", "--store", "x"], "leave --store")],
)
def test_refusals_on_the_command_line(crew: Any, more: list[str], words: str, capsys: Any) -> None:
    assert main(["run", "movielens-lr", "--synthetic", "--scale", "0.02", *more]) == 2
    assert words in capsys.readouterr().err
