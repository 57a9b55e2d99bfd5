"""A real Ray cluster on this machine: other processes, the same bits; one of them is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import few
from laws import MODEL, RECIPES, sampler_of
from nodes import bits
from problems import people

import fedslice as fs
from fedslice.cli.main import main
from fedslice.errors import InputError

PEOPLE = people()


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


def test_processes_give_the_bits_of_one_and_so_do_those_after_a_kill(crew: Any) -> None:
    """SCAFFOLD has all that can be lost: rows, and what clients remember."""
    one, run = pair(crew, "scaffold-2", every=0.0)
    with run:
        run.train(2, progress=False)
        assert state(run) != state(one)
        one.train(4, progress=False)
        for victim in (run.team.workers[0], run.team.shards[0]):
            (pid,) = crew.get(crew.call(victim, "pid"))
            os.kill(pid, signal.SIGKILL)
            run.train(1, progress=False)
        assert state(run) == state(one)


def test_an_error_on_a_worker_is_that_error(crew: Any) -> None:
    member = crew.start(dict, busy=False)
    with pytest.raises(KeyError, match="absent"):
        crew.get(crew.call(member, "pop", "absent"))
    crew.end(member)


def test_more_workers_than_cores_are_refused(crew: Any) -> None:
    with pytest.raises(InputError, match="99 workers of 1 threads want 99 cores"):
        fs.cluster.ray(workers=99)


@pytest.mark.parametrize("workers", few(["1", "2"], "1"))
def test_on_the_command_line(crew: Any, workers: str, tmp_path: Path, capsys: Any) -> None:
    given = ["run", "movielens-lr", "--synthetic", "--scale", "0.05", "--rounds", "4"]
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
    assert main(["run", "movielens-lr", "--synthetic", "--scale", "0.05", *more]) == 2
    assert words in capsys.readouterr().err
