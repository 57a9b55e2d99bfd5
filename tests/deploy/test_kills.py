"""SIGKILL of coordinator and nodes at random moments within rounds: the same in the end."""

import multiprocessing
import random
import time
from pathlib import Path

import jax
import pytest
from killed import KILLS, ROUNDS, main

from fedslice.files.sealed import load


def round_of(home: Path) -> int:
    file = home / "server" / "checkpoint.safetensors"
    return load(file)[0]["round"] if file.exists() else 0


@pytest.mark.parametrize(
    ("name", "kills", "rounds"),
    [
        ("scaffold-2", 1, 20),
        pytest.param("scaffold-2", 2, 20, marks=pytest.mark.every),
        pytest.param("scaffold-2", KILLS, ROUNDS, marks=pytest.mark.every),
        pytest.param("shares", 2, 12, marks=pytest.mark.every),
    ],
)
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(
    name: str, kills: int, rounds: int, tmp_path: Path
) -> None:
    """Memories of two phases; and secure sums, which go on in the turn in which they were."""
    # theirs alone: one that is killed may leave half an entry
    cache = str(Path(str(jax.config.jax_compilation_cache_dir), "killed"))
    # processes begin without the threads and the compiled code of this one
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax", "optax", "fedslice", "fedslice.deploy"])
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    for home in (calm, wild):
        home.mkdir()
    begin = context.Process(target=main, args=(calm, cache, name, rounds))
    begin.start()
    begin.join()
    assert begin.exitcode == 0
    pace = float((calm / "pace").read_text())
    rng, killed, reached = random.Random(0), 0, []
    while killed < kills:
        (wild / "started").unlink(missing_ok=True)
        process = context.Process(target=main, args=(wild, cache, name, rounds))
        process.start()
        while process.is_alive() and not (wild / "started").exists():
            time.sleep(0.002)
        before = round_of(wild)
        while process.is_alive() and round_of(wild) == before:  # the first round compiles
            time.sleep(0.002)
        process.join(rng.uniform(0, 2) * pace)
        assert process.is_alive(), f"it ended after {killed} kills: make it longer"
        process.kill()
        process.join()
        killed += 1
        reached.append(round_of(wild))
    assert reached == sorted(reached)
    assert 0 < reached[-1] < rounds
    last = context.Process(target=main, args=(wild, cache, name, rounds))
    last.start()
    last.join()
    assert last.exitcode == 0
    assert (wild / "hash").read_text() == (calm / "hash").read_text()
