"""Runs on disk: damaged files, other runs' files, and kills at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from kinds import few
from problems import ROWS, people, run_of, state_bytes
from safetensors.numpy import save_file

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import CheckpointError
from fedslice.files.sealed import FORMAT, _checksum, load
from fedslice.files.writing import atomic_write
from fedslice.model import Model, Table
from fedslice.simulation.checkpoint import NAME, fingerprint


def model_of(width: tuple[int, ...] = ()) -> Model:
    def loss(params: Any, batch: Any) -> Any:
        score = params["w"][batch["item"]].reshape(len(batch["x"]), -1).sum(1)
        return (score + params["b"]["bias"] - batch["x"]) ** 2

    table = Table(ROWS, ("item",), width, jax.nn.initializers.ones)
    return Model(lambda key: {"b": {"bias": np.zeros((), np.float32)}}, loss, {"w": table})


MODEL = model_of()
METHOD = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3))  # traced once


def make(rounds: int = 0, **changes: Any) -> Any:
    settings = {"sampler": fs.sampling.uniform(3), "seed": 1} | changes
    population = settings.pop("population", people())
    method = settings.pop("method", METHOD)
    return run_of(method, population, rounds, **settings)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(2).save(tmp_path_factory.mktemp("good")).read_bytes()


def damage(content: bytes, how: str) -> bytes:
    if how == "truncated":
        return content[: len(content) // 2]
    if how == "one byte short":
        return content[:-1]
    if how == "empty":
        return b""
    if how == "another file":
        return b"PK" + bytes(500)
    at = {
        "first byte": 0,
        "header": 40,
        "middle of the rows": len(content) - 60,
        "last byte": len(content) - 1,
    }[how]
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


@pytest.mark.parametrize(
    "how",
    [
        "first byte",
        "header",
        "middle of the rows",
        "last byte",
        "truncated",
        "one byte short",
        "empty",
        "another file",
    ],
)
def test_damaged_files_are_refused_and_left_alone(good: bytes, how: str, tmp_path: Path) -> None:
    bad = damage(good, how)
    assert bad != good
    (tmp_path / NAME).write_bytes(bad)
    run = make()
    before = state_bytes(run)
    with pytest.raises(CheckpointError, match=NAME):
        run.restore(tmp_path)
    assert (tmp_path / NAME).read_bytes() == bad
    assert (run.round, state_bytes(run)) == (0, before)


def test_every_flipped_bit_is_noticed(good: bytes, tmp_path: Path) -> None:
    """Rows, names, shapes, but also the round number and all else that the header says about the
    run."""
    run, unnoticed = make(), []
    for at in range(8, len(good), 3):
        (tmp_path / NAME).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            run.restore(tmp_path)
        except CheckpointError:
            continue
        unnoticed.append((at, good[at - 12 : at + 5]))
    assert not unnoticed


def others() -> dict[str, tuple[dict[str, Any], str]]:
    fewer = people().select(np.arange(people().examples) != 3)
    changed = people()
    changed.columns["x"][4] += 1
    adam = fs.recipes.fedavg(
        MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3), server=optax.adam(0.1)
    )
    sgd = fs.recipes.fedsgd(MODEL, optax.sgd(0.1))

    def like(*client: optax.GradientTransformation, **more: Any) -> dict[str, Any]:
        rule = optax.chain(*client) if client else optax.sgd(0.1)
        return {"method": fs.recipes.fedavg(MODEL, rule, fs.Work(steps=2, batch=3), **more)}

    return {
        "client rate": (like(optax.sgd(0.1001)), "what is computed"),
        "server rate": (like(server=optax.sgd(0.5)), "what is computed"),
        "proximal term": (like(fs.client.proximal(0.01), optax.sgd(0.1)), "what is computed"),
        "schedule": (
            like(optax.sgd(0.1), fs.client.by_round(lambda round: 0.99**round)),
            "what is computed",
        ),
        "heat": (like(heat=people().heat(MODEL)), "what is computed"),
        "reduction": (like(reduce=fs.reduce.trimmed(0.3)), "what is computed"),
        "weights": (like(weights="uniform"), "what is computed"),
        "seed": ({"seed": 2}, "seed is 1, here 2"),
        "sampler": (
            {"sampler": fs.sampling.uniform(4)},
            r"sampler is 'uniform\(3\)', here 'uniform\(4\)'",
        ),
        "fewer examples": ({"population": fewer}, "population"),
        "one number": ({"population": changed}, "population"),
        "algorithm": ({"method": sgd}, "algorithm is 'fedavg', here 'fedsgd'"),
        "work": (
            {"method": fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=3, batch=3))},
            "work",
        ),
        "engine": ({"engine": "map", "threads": 1}, "engine"),
        "server optimizer": ({"method": adam}, "what is computed"),
        "table": (
            {
                "method": fs.recipes.fedavg(
                    model_of((2,)), optax.sgd(0.1), fs.Work(steps=2, batch=3)
                )
            },
            "what is computed",
        ),
    }


@pytest.mark.parametrize("what", list(others()))
def test_another_runs_file_is_refused_and_left_alone(
    good: bytes, what: str, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(good)
    changes, words = others()[what]
    run = make(**changes)
    before = state_bytes(run)
    with pytest.raises(CheckpointError, match=words):
        run.restore(tmp_path)
    assert (tmp_path / NAME).read_bytes() == good
    assert (run.round, state_bytes(run)) == (0, before)


def test_all_of_the_data_is_in_the_identity() -> None:
    """A change anywhere in three million numbers, not only where a sample would look."""
    x = np.zeros((1_000_003, 3), np.float32)
    fingerprints = {fingerprint(Population.from_arrays(np.zeros(len(x), int), x=x))}
    for place in (1, 1_500_001, x.size - 1):
        changed = x.copy()
        changed.reshape(-1)[place] = 1
        fingerprints.add(fingerprint(Population.from_arrays(np.zeros(len(x), int), x=changed)))
    assert len(fingerprints) == 4


def test_the_same_numbers_of_other_clients_or_types_are_other_data() -> None:
    """Boundaries between clients, names of columns, types and shapes count, not bytes alone."""
    zeros = np.zeros(4, np.float32)
    owners = ([0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0])
    populations = [Population.from_arrays(owner, x=zeros) for owner in owners]
    populations += [
        Population.from_arrays(owners[0], y=zeros),
        Population.from_arrays(owners[0], x=zeros.astype(np.int32)),
        Population.from_arrays(owners[0], x=zeros[:, None]),
    ]
    assert len({fingerprint(people) for people in populations}) == 7


def test_other_names_are_other_data() -> None:
    """Trained rows would come out under the new names."""
    one, other = (
        Population.from_arrays([0, 1], {"item": np.array(names)}, item=[0, 1])
        for names in (["x", "y"], ["y", "x"])
    )
    assert fingerprint(one) != fingerprint(other)


def rewrite(file: Path, about: dict[str, Any], extra: dict[str, Any]) -> None:
    """The checkpoint with other words in its header, or more leaves, and a checksum that fits."""
    known, leaves = load(file)
    known, leaves = known | about, leaves | extra
    save_file(
        leaves, file, {"fedslice": json.dumps(known | {"checksum": _checksum(known, leaves)})}
    )


def test_surplus_leaves_are_refused(tmp_path: Path) -> None:
    """As of a stateful algorithm of the same name."""
    rewrite(make(2).save(tmp_path), {}, {"memory['c']": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"leaves that this run does not: memory\['c'\]"):
        make().restore(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    """Whole and of this run, but not to be read as this version would."""
    rewrite(make(0).save(tmp_path), {"format": FORMAT + 1}, {})
    with pytest.raises(CheckpointError, match=rf"has format {FORMAT + 1}, this version reads"):
        make().restore(tmp_path)


def test_another_version_is_said_and_goes_on(tmp_path: Path) -> None:
    """What is computed cannot be compared then."""
    rewrite(make(2).save(tmp_path), {"versions": "fedslice 0.0", "program": "?"}, {})
    run = make()
    with pytest.warns(UserWarning, match=r"written with fedslice 0\.0, here"):
        run.restore(tmp_path)
    assert run.round == 2


@pytest.mark.parametrize("mode", few(["map", 2], 2))
def test_a_run_goes_on_with_other_cores(mode: Any, tmp_path: Path) -> None:
    make(2, engine=mode, threads=2).save(tmp_path)
    run = make(engine=mode, threads=3)
    run.restore(tmp_path)
    run.train(2, progress=False)
    assert state_bytes(run) == state_bytes(make(4, engine=mode, threads=1))


def test_rows_held_or_touched_is_part_of_a_run(tmp_path: Path) -> None:
    """With momentum on the server the two are different runs (see simulate), so one must not go on
    as the other."""
    method = fs.recipes.fedavg(
        MODEL, optax.sgd(0.1), fs.Work(steps=2, batch=3), server=optax.sgd(1.0, momentum=0.9)
    )
    make(1, method=method).save(tmp_path)
    with pytest.raises(CheckpointError, match="rows"):
        make(method=method, rows="held").restore(tmp_path)


@pytest.mark.parametrize("order", ["ram to disk", "disk to ram"])
def test_a_file_of_another_store_goes_on_or_is_refused(order: str, tmp_path: Path) -> None:
    kinds = {"ram": {}, "disk": {"store": tmp_path / "rows"}}
    source, target = order.split(" to ")
    first = make(2, **kinds[source])
    first.save(tmp_path)
    second = make(**kinds[target])
    try:
        second.restore(tmp_path)
    except CheckpointError:
        assert second.round == 0
    else:
        assert np.array_equal(second.table("w", np.arange(ROWS)), first.table("w", np.arange(ROWS)))


def test_a_refused_file_changes_nothing_on_disk_either(tmp_path: Path) -> None:
    wide = fs.recipes.fedavg(model_of((2,)), optax.sgd(0.1), fs.Work(steps=2, batch=3))
    make(2, store=tmp_path / "a").save(tmp_path)
    run = make(1, method=wide, store=tmp_path / "b")
    before = run.table("w", np.arange(ROWS))
    with pytest.raises(CheckpointError, match="another run"):
        run.restore(tmp_path)
    assert np.array_equal(run.table("w", np.arange(ROWS)), before)
    assert run.round == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint.*folder of a saved run"):
        make().restore(tmp_path / "nowhere")


def test_saving_twice_keeps_the_last_and_no_temporary_file(tmp_path: Path) -> None:
    run = make(1)
    run.save(tmp_path)
    for _ in run.rounds(1):
        pass
    run.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    again = make()
    again.restore(tmp_path)
    assert again.round == 2


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    atomic_write(file, b"old")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        atomic_write(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_checkpoint import make
folder, run = Path(sys.argv[1]), make()
if (folder / "checkpoint.safetensors").exists():
    run.restore(folder)
print("from", run.round, flush=True)
while run.round < 400:
    for _ in run.rounds(2):
        pass
    run.save(folder)
    print("saved", run.round, flush=True)
"""


def start(folder: Path, life: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, str(folder), *map(str, Path(__file__).parents[:2])]
    # sets come in another order in each life; code is compiled as in this process (conftest.py)
    order = {**os.environ, "PYTHONHASHSEED": str(life)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=order
    )


@pytest.mark.every
def test_kills_at_any_moment_change_nothing(tmp_path: Path) -> None:
    """Killed while it trains and saves as fast as it can, then left to finish: the bits of a run
    never stopped."""
    (tmp_path / f".{NAME}.999999.tmp").write_bytes(
        b"left over from a kill in the middle of a write"
    )
    begun = []
    for life, delay in enumerate((0.011, 0.037)):
        process = start(tmp_path, life)
        assert process.stdout is not None
        begun.append(int(process.stdout.readline().split()[1]))
        assert process.stdout.readline().startswith("saved")
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    run = make()
    run.restore(tmp_path)
    begun.append(run.round)
    assert begun[0] == 0
    assert (np.diff(begun) > 0).all()  # every life went on from where a killed one had saved
    list(run.rounds(400 - run.round))
    assert state_bytes(run) == state_bytes(make(400))
