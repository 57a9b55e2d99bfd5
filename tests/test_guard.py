"""What a round costs, counted: compilations, calls, transfers, bytes, Python.  Counts do not depend
on how busy the machine is; a change that makes them grow fails here, and says so.

The bounds are what was counted when they were written, and a tenth.  Lower them when a change makes
a round cheaper."""

import sys
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.simulation.run import Run

CALLS = 165  # of Python and of C functions, a round
PLAN = 125_000  # bytes that go to the device, a round: batches, places, the union
TOUCHED = 1_350_000  # bytes that the compiled round reads and writes, by XLA's own count
COUNTED = (0, 10), (0, 11)  # versions of JAX of whose compiler that is


@pytest.fixture(scope="module")
def run() -> Run:
    """LR as on MovieLens, 50 clients, 10 steps, batch 5, of fewer clients; in steady state."""
    task = fs.tasks.movielens_lr.synthetic(scale=0.05)
    heat, work = task.train.heat(task.model), fs.Work(steps=10, batch=5)
    method = fs.recipes.fedsubavg(task.model, optax.sgd(0.1), work, heat=heat)
    found = fs.simulate(method, task.train, sampler=fs.sampling.uniform(50), engine="vmap")
    found.train(4 * found._room, progress=False)
    return found


class Compilations:
    """How often JAX compiles; it has no way to stop listening."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, name: str, *_: Any, **__: Any) -> None:
        self.count += name.endswith("backend_compile_duration")


@pytest.fixture(scope="module")
def compilations() -> Compilations:
    found = Compilations()
    jax.jit(lambda x: x * 3.21 - 7)(np.float32(2))
    assert found.count == 1  # it hears them
    return found


def test_a_run_compiles_one_program_once(run: Run, compilations: Compilations) -> None:
    before = compilations.count
    run.train(64, progress=False)
    assert compilations.count == before
    assert len(run.engine.whole.programs()) == 1


def test_rounds_go_to_the_device_in_blocks_and_come_back_as_one_array(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen rounds are one call with one set of arrays, and their figures are read once."""
    calls: list[int] = []
    step = run.engine.several

    def noting(state: Any, memory: Any, plans: Any, start: int, stop: int) -> Any:
        calls.append(stop - start)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(plans)) / (stop - start)
        assert size < PLAN
        return step(state, memory, plans, start, stop)

    monkeypatch.setattr(run.engine, "several", noting)
    run.train(64, progress=False)
    assert calls == [16] * 4
    assert run._ahead is not None
    assert len(run._ahead._read) == 1


def test_a_round_makes_few_calls_of_functions(run: Run) -> None:
    """What Python does in a round: planning and reports of sixteen rounds share theirs."""
    counted, rounds = 0, 8 * run._room

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for _ in run.rounds(rounds):
            pass
    finally:
        sys.setprofile(before)
    assert counted / rounds < CALLS


def compiled(run: Run, slots: int | None = None) -> Any:
    """The program of a block, as if so many rows were held."""
    rounds = range(run._room)
    plans = run.planner.block(0, [run.cohort(round) for round in rounds], run._room).plans

    def wide(tag: str, leaf: Any) -> Any:
        shape = (slots, *leaf.shape[1:]) if tag and slots else leaf.shape
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    state = jax.tree.map(wide, run.shapes.tags.state, run.store.state)
    given = state, run.memory, plans, np.zeros(2, np.int32), run.engine.key
    program, values = run.engine.whole._find(given)
    return program.lower(values, *given).compile()  # type: ignore[attr-defined]


def test_a_round_changes_tables_in_place(run: Run) -> None:
    """Memory beside the state does not grow with it: no copy of a table, in no round of a block."""
    small, large = (compiled(run, slots).memory_analysis() for slots in (10_000, 1_000_000))
    assert large.alias_size_in_bytes > 4_000_000  # given and got back as the same memory
    assert large.temp_size_in_bytes == small.temp_size_in_bytes


@pytest.mark.skipif(
    not COUNTED[0] <= jax.__version_info__[:2] < COUNTED[1], reason="another compiler's count"
)
def test_a_round_touches_few_bytes(run: Run) -> None:
    costs = compiled(run).cost_analysis()
    assert (costs[0] if isinstance(costs, list) else costs)["bytes accessed"] < TOUCHED
