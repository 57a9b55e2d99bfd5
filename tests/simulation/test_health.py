"""When a run is stopped, how far it looks back, and what of that a checkpoint keeps: with reports
written by hand, so that no round is computed."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import run_of

import fedslice as fs
from fedslice.errors import DivergedError, InputError
from fedslice.model import Model, Table
from fedslice.round.figures import Figures
from fedslice.round.touched import Turns
from fedslice.simulation.ahead import LAG
from fedslice.simulation.report import Report
from fedslice.simulation.run import Run

MODEL = Model(lambda key: {"m": jnp.zeros(())}, lambda p, b: (p["m"] - b["x"]) ** 2)

METHOD = fs.recipes.fedavg(MODEL, optax.sgd(0.1), fs.Work(steps=1, batch=1))


def a_run(**settings: Any) -> Run:
    """Of three clients; nothing is compiled before its first round."""
    people = fs.Population.from_arrays([0, 1, 2], x=[1.0, 2.0, 3.0])
    return run_of(METHOD, people, **settings)


def report(
    start: float = 1.0, loss: float = 1.0, failed: int = 0, norm: float = 1.0, clients: int = 3
) -> Report:
    values = jnp.array([loss, start, failed, norm], jnp.float32)
    return Report(7, clients, 2, 100, lambda: Figures(values, ()), lambda figures: 10)


def check(run: Run, *starts: float) -> None:
    for start in starts:
        run._check(report(start))


def test_a_loss_over_ten_times_the_first_stops_the_run_in_the_third_round_in_a_row() -> None:
    """Not in the second; a round between starts the count anew; ten times is not over ten."""
    run = a_run()
    check(run, 2.0, 21.0, 21.0, 20.0, 30.0, 30.0)
    assert (run.first_loss, run.high) == (2.0, 2)
    with pytest.raises(DivergedError, match="round 7: the training loss 30 is over 10 times that"):
        check(run, 30.0)


def test_stop_above_is_what_the_user_says() -> None:
    run = a_run(stop_above=2.0)
    check(run, 1.0, 1.9, 1.9, 1.9, 2.1, 2.1)
    with pytest.raises(DivergedError, match="over 2 times"):
        check(run, 2.1)


def test_a_first_loss_of_zero_leaves_room_for_a_hundredth() -> None:
    """It counts as 0.001, so that a model which starts at its optimum may move."""
    run = a_run()
    check(run, 0.0, 0.0099, 0.0099, 0.0099, 0.011, 0.011)
    with pytest.raises(DivergedError, match=r"0\.011 is over 10 times"):
        check(run, 0.011)


def test_a_negative_first_loss_counts_by_its_size() -> None:
    run = a_run()
    check(run, -2.0, 19.0, 19.0, 19.0, 21.0, 21.0)
    with pytest.raises(DivergedError, match="over 10 times"):
        check(run, 21.0)


def test_only_the_loss_of_the_offered_model_counts() -> None:
    """Local steps may overshoot where the average of their ends does not."""
    run = a_run()
    for _ in range(5):
        run._check(report(start=1.0, loss=1e6))
    assert run.high == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"norm": np.inf}, "the aggregated update is not finite"),
        ({"norm": np.nan}, "the aggregated update is not finite"),
        ({"loss": np.nan}, "the cohort's mean loss is not finite"),
        ({"failed": 3}, "none of the 3 clients sent a finite update and loss"),
    ],
    ids=str,
)
def test_what_is_not_finite_stops_the_run_at_once(wrong: dict[str, Any], words: str) -> None:
    run = a_run()
    check(run, 1.0)
    with pytest.raises(DivergedError, match=words):
        run._check(report(**wrong))


def test_a_round_of_nobody_is_no_failure_and_no_first_loss() -> None:
    """Poisson sampling draws nobody now and then; its loss is zero, of which ten times is
    nothing."""
    run = a_run()
    run._check(report(start=0.0, loss=0.0, norm=0.0, clients=0))
    assert run.first_loss is None
    run._check(report(start=5.0, failed=2))
    assert run.first_loss == 5.0


@pytest.mark.parametrize(("room", "found"), [(1, LAG + 1), (20, 40)])
def test_a_bad_round_is_found_soon(room: int, found: int) -> None:
    """Reports are read ``LAG`` rounds later, or when the next block is under way, so that host and
    device need not wait for each other."""
    run = a_run()
    run._room, bad = room, report(norm=np.nan).figures.values
    run._step = lambda *_: Figures(np.tile(bad, (room, 1)), ())  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match="in round 1: "):
        for _ in run.rounds(100):
            pass
    assert run.round == found


def test_a_checkpoint_keeps_health_and_totals(tmp_path: Path) -> None:
    """And nothing of the run that it takes the place of: neither rounds under way nor what they
    moved."""
    first, second = a_run(), a_run()
    check(first, 2.0, 30.0, 30.0)
    first._uncounted += [report(), report()]
    first.round, first.log = 5, b"so far"
    first.planner.capacity["clients"] = 9
    first.save(tmp_path)
    check(second, 100.0)
    second._pending.append(report(norm=np.nan))
    second._uncounted.append(report())
    second.restore(tmp_path)
    assert (second.first_loss, second.high, second.round, second.log) == (2.0, 2, 5, b"so far")
    assert second.totals == {"examples": 4, "bytes_down": 200, "bytes_up": 20} == second.totals
    assert second.planner.capacity["clients"] == 9
    second.wait()  # nothing to wait for
    with pytest.raises(DivergedError, match="over 10 times"):
        check(second, 30.0)


def test_saving_waits_for_the_rounds_under_way(tmp_path: Path) -> None:
    """A checkpoint of a run that went wrong would only be good for going wrong again."""
    run = a_run()
    run._pending.append(report(norm=np.nan))
    with pytest.raises(DivergedError, match="not finite"):
        run.save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_seeds_have_31_bits(seed: int) -> None:
    with pytest.raises(InputError, match="give a whole number from 0 to 2147483647"):
        a_run(seed=seed)


def test_reports_read_their_own_figures() -> None:
    one = report(start=2.0, loss=3.0, failed=1, norm=4.0)
    assert (one.start_loss, one.loss, one.failed, one.update_norm) == (2.0, 3.0, 1, 4.0)
    assert str(one) == "round 7: 3 clients, 1 failed, loss 3.0000"
    assert str(report()) == "round 7: 3 clients, loss 1.0000"


def sliced(**settings: Any) -> Run:
    """Three clients that hold the rows 0 and 1, 1, and 2 to 4."""
    model = Model(
        lambda key: {}, lambda p, b: (p["w"][b["item"]] - 1) ** 2, {"w": Table(9, "item")}
    )
    people = fs.Population.from_arrays([0, 0, 1, 2, 2, 2], item=[0, 1, 1, 2, 3, 4])
    settings = {"sampler": fs.sampling.uniform(1), **settings}
    return run_of(
        fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=1)), people, **settings
    )


def test_a_client_names_its_rows_once_in_a_life_of_the_run() -> None:
    """12 bytes and 4 for each row.  Back in round 0, from a checkpoint, nobody has been there; in a
    run that begins in round 1 those of round 0 have."""
    run = sliced()
    cohorts = [np.array(cohort) for cohort in ([0, 1], [1, 2], [0, 1, 2])]
    run._counter.cohort = lambda round: cohorts[round]
    named = [12 + 8 + 12 + 4, 12 + 12, 0]
    assert run._counter._introduced(Turns.of(0, cohorts)) == named
    assert run._counter._introduced(Turns.of(0, cohorts[:1])) == named[:1]
    other = sliced()
    other._counter.cohort = lambda round: cohorts[round]
    assert other._counter._introduced(Turns.of(1, cohorts[1:])) == named[1:]


def test_rounds_over_all_rows_are_another_run() -> None:
    rows = [sliced(rows=rows).identity["rows"] for rows in (None, "held", "all")]
    assert rows == ["touched", "held", "all"]
