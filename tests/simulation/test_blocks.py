"""Rounds in blocks: as round by round, to the bit, for whoever looks whenever."""

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from kinds import few
from laws import PEOPLE, method_of, sampler_of
from problems import run_of, state_bytes

from fedslice.errors import InputError
from fedslice.simulation import ahead
from fedslice.simulation.run import Run

NAMES = ["fedavg-epochs", "fedsubavg-adam", "scaffold-1", "mime", "ditto", "fedavg-topk"]
ROUNDS = 11


def a_run(name: str = "fedsubavg-adam", **settings: Any) -> Run:
    return run_of(method_of(name), PEOPLE, **{"sampler": sampler_of(name)} | settings)


def figures(run: Run, rounds: int) -> list[tuple[Any, ...]]:
    """Of reports that are read when all is over."""
    names = "round", "clients", "examples", "bytes_down", "bytes_up", "loss", "failed"
    return [tuple(getattr(one, name) for name in names) for one in list(run.rounds(rounds))]


@pytest.mark.parametrize("name", few(NAMES, "scaffold-1", "mime"))
def test_a_block_is_its_rounds_one_by_one(name: str) -> None:
    """State, clients' memory and reports; the padding grows in the same rounds."""
    together, apart = a_run(name), a_run(name)
    calls = counted(together)
    expected = []
    for _ in range(ROUNDS):
        expected += figures(apart, 1)
    assert figures(together, ROUNDS) == expected
    assert state_bytes(together) == state_bytes(apart)
    assert together.planner.capacity == apart.planner.capacity
    assert together.totals == apart.totals
    assert sum(calls) == ROUNDS
    assert len(calls) <= 3


def counted(run: Run) -> list[int]:
    """How many rounds are computed by each call, from now on."""
    calls: list[int] = []
    step = run.engine.several

    def noting(state: Any, memory: Any, plans: Any, start: int, stop: int) -> Any:
        calls.append(stop - start)
        return step(state, memory, plans, start, stop)

    run.engine.several = noting  # type: ignore[method-assign]
    return calls


def test_who_looks_in_between_sees_the_round_that_the_loop_is_in(tmp_path: Path) -> None:
    looked, expected = a_run(), a_run()
    seen, rows = {}, {}
    calls = counted(looked)
    for report in looked.rounds(ROUNDS):
        assert report.round == looked.round
        if report.round == 3:
            seen[3] = np.asarray(looked.params()["w"])
        elif report.round == 5:
            looked.save(tmp_path)
        elif report.round == 8:
            seen[8] = np.asarray(looked.store.state.server[0]["w"])
        elif report.round == 9:
            assert np.isfinite(report.loss)
    assert calls == [3, 2, 3, 1, 2]
    for _ in range(ROUNDS):
        expected.train(1, progress=False)
        if expected.round == 5:
            assert a_run_from(tmp_path) == state_bytes(expected)
        rows[expected.round] = np.asarray(expected.store.state.server[0]["w"])
    assert seen[3].tobytes() == rows[3].tobytes()
    assert seen[8].tobytes() == rows[8].tobytes()
    assert state_bytes(looked) == state_bytes(expected)


def a_run_from(folder: Path) -> bytes:
    run = a_run()
    run.restore(folder)
    assert run.round == 5
    return state_bytes(run)


def test_a_loop_that_is_left_has_done_what_it_asked_for() -> None:
    left, expected = a_run(), a_run()
    for report in left.rounds(ROUNDS):
        if report.round == 4:
            break
    assert left.round == 4
    expected.train(4, progress=False)
    assert state_bytes(left) == state_bytes(expected)
    assert left.totals == expected.totals
    left.train(3, progress=False)
    expected.train(3, progress=False)
    assert state_bytes(left) == state_bytes(expected)


def test_a_checkpoint_may_be_restored_within_a_loop(tmp_path: Path) -> None:
    run, expected = a_run(), a_run()
    run.train(2, progress=False)
    run.save(tmp_path)
    rounds = []
    for report in run.rounds(6):
        rounds.append(report.round)
        if len(rounds) == 3:
            run.restore(tmp_path)
    assert rounds == [3, 4, 5, 3, 4, 5]
    expected.train(5, progress=False)
    assert state_bytes(run) == state_bytes(expected)


def test_what_a_later_round_may_not_do_is_told_in_its_turn() -> None:
    """The rounds before it are done."""
    run = a_run()
    known = run.cohort

    def cohort(round: int) -> np.ndarray:
        if round == 3:
            raise InputError("round 4 has too many clients")
        return known(round)

    run.cohort = cohort  # type: ignore[method-assign]
    with pytest.raises(InputError, match="round 4 has"):
        run.train(5, progress=False)
    assert run.round == 3
    expected = a_run()
    expected.train(3, progress=False)
    assert state_bytes(run) == state_bytes(expected)


# -- in a thread of its own ------------------------------------------------------------------------


def test_reports_keep_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan holds all batches of a round: a list of reports must not fill the memory."""
    run, plans = a_run(), []
    block = run.planner.block

    def noting(*arguments: Any) -> Any:
        made = block(*arguments)
        plans.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(made.plans))
        return made

    monkeypatch.setattr(run.planner, "block", noting)
    reports = list(run.rounds(ROUNDS))
    state_bytes(run)  # waits
    gc.collect()
    assert len(reports) == ROUNDS
    assert plans
    assert not any(plan() is not None for plan in plans)


def test_few_large_plans_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for large, under_way in (False, ahead.LAG), (True, 2):
        if large:
            monkeypatch.setattr(ahead, "UNDER_WAY", 1)
        monkeypatch.setattr(ahead, "BLOCK", 1)  # round by round
        run = a_run()
        assert max(len(run._pending) for _ in run.rounds(ROUNDS)) == under_way


@pytest.mark.parametrize("name", few(NAMES, "scaffold-1"))
def test_a_round_beside_the_planning_of_the_next_is_the_same(name: str) -> None:
    """Clients in threads: the round is computed aside, and nothing about it differs."""
    beside, plain = a_run(name, engine="map", threads=2), a_run(name, engine="map", threads=1)
    assert beside._aside is not None
    assert plain._aside is None
    assert figures(beside, ROUNDS) == figures(plain, ROUNDS)
    assert state_bytes(beside) == state_bytes(plain)
    assert beside.totals == plain.totals


@pytest.mark.parametrize("store", ["ram", "disk"])
def test_a_round_that_fails_aside_is_taken_back_and_can_be_done_again(
    store: str, tmp_path: Path
) -> None:
    """It fails while a later one is planned: both are taken back, and those before are kept."""
    run, expected = (
        a_run(engine="map", **({"threads": 2} if store == "ram" else {"store": tmp_path / name}))
        for name in ("run", "expected")
    )
    step, planned, calls = run._step, [], []

    def failing(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 4:
            raise OSError("no space left on device")
        return step(*arguments)

    run._step = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        planned.extend(report.round for report in run.rounds(ROUNDS))
    assert run.round == 3
    assert planned[:3] == [1, 2, 3]
    assert figures(run, ROUNDS - 3) == figures(expected, ROUNDS)[3:]
    assert state_bytes(run) == state_bytes(expected)
    assert run.totals == expected.totals
