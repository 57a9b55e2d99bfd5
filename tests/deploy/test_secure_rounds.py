"""Secure sums, noise of the nodes' own and hidden rows over a link: the simulation's model, to the
bit, of the clients that counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from hidden import (
    At,
    deployed,
    local,
    secure,
    shares,
    simulated,
    weighted,
    with_server_noise,
    with_shares,
)
from kinds import few
from laws import MODEL
from nodes import Deployment, bits

import fedslice as fs
from fedslice.deploy.link import late, silent
from fedslice.errors import InputError
from fedslice.types import Algorithm, Answers

ALL = list(range(7))
HALF = Answers(7 / 8, 1 / 8, 7 / 8, 1 / 8)


def partly_local(recipe: Callable[..., Algorithm], **settings: Any) -> Algorithm:
    """The bias stays on the node; the table goes through the sum."""
    model, stages = replace(MODEL, local=("bias",)), [fs.stage.clip(1.0), fs.stage.secure(7)]
    work = fs.Work(steps=2, batch=4)
    given = {"work": work, "stages": stages, "weights": "uniform", **settings}
    return recipe(model, optax.sgd(0.1), **given)


METHODS: dict[str, Callable[[], Algorithm]] = {
    "secure": secure,
    "answers": lambda: secure(HALF),
    "weighted": weighted,
    "momentum": lambda: secure(server=optax.adam(0.1), work=fs.Work(epochs=1, batch=4)),
    "server-noise": with_server_noise,
    "recon": lambda: partly_local(
        fs.recipes.fedrecon,
        reconstruction=optax.sgd(0.2),
        recover=fs.Work(steps=2, batch=4),
    ),
    "fedper": lambda: partly_local(fs.recipes.fedper),
}


@pytest.mark.parametrize(
    "name",
    few(METHODS, "answers"),  # of plain secure sums are most tests below
)
def test_a_sum_that_nobody_sees_into_is_the_simulations(name: str, tmp_path: Path) -> None:
    method = METHODS[name]()
    made = deployed(method, tmp_path)
    reports = [made.server.step() for _ in range(3)]
    for report in reports:
        assert report.accepted
        assert report.counted == report.asked == tuple(map(str, ALL))
        assert not report.excluded
    run = simulated(method, [ALL] * 3)
    assert made.same_model(run)
    assert not made.same_model(simulated(method, []))
    made.server.tell()
    assert not made.program.remembers or all(made.same_memory(run, i) for i in ALL)
    assert np.isnan(reports[0].loss) == (method.noise is not None)


def test_the_loss_is_the_mean_over_nodes_and_goes_through_the_sum(tmp_path: Path) -> None:
    method = secure()
    made = deployed(method, tmp_path)
    alone = []
    for client in ALL:
        run = simulated(method, [])
        run.cohort = lambda round, client=client: np.array([client])
        alone.append(next(run.rounds(1)).loss)
    assert made.server.step().loss == pytest.approx(np.mean(alone), abs=2e-5)


@pytest.mark.every
def test_shares_of_noise_below_a_secure_sum(tmp_path: Path) -> None:
    """Drawn from the seed they are those of a simulation that adds up the counted clients' shares;
    with five of seven there are five shares, and the mean is still over seven."""
    method = shares()
    made = deployed(method, tmp_path)
    counted = [ALL, [0, 1, 3, 5, 6], ALL]
    for expected in counted:
        gone = {str(i): silent for i in ALL if i not in expected}
        made.link.faults = gone
        report = made.server.step()
        assert report.counted == tuple(map(str, expected))
        assert np.isnan(report.loss)
    assert made.same_model(simulated(with_shares(method, counted), counted))
    assert not made.same_model(simulated(with_shares(method, [ALL] * 3), [ALL] * 3))
    guarantee = made.server.spent()
    assert guarantee == simulated(method, [ALL] * 3).spent()


def test_too_few_for_the_noise_move_nothing_and_are_accounted_for(tmp_path: Path) -> None:
    """Four of five that are needed: before numbers have left a round is tried again; after that it
    is over, and counts."""
    method = shares()
    made = deployed(method, tmp_path)
    before = bits(made.server.params())
    made.link.faults = {str(i): silent for i in (0, 1, 2)}
    report = made.server.step()
    assert not report.accepted
    assert "participants are left after turn 0, 5 must be" in str(report)
    made.link.faults = {str(i): At(3, silent, leave=True) for i in (0, 1, 2)}
    report = made.server.step()
    assert (report.accepted, report.counted, made.server.round) == (True, (), 1)
    assert bits(made.server.params()) == before
    assert made.server.spent() == fs.privacy.spent(method, clients=7, rounds=1)
    made.link.faults = {}
    report = made.server.step()
    assert report.counted == tuple(map(str, ALL))
    counted = [[], ALL]
    assert made.same_model(simulated(with_shares(method, counted), counted))


def test_without_noise_a_sum_that_broke_is_tried_again(tmp_path: Path) -> None:
    method = secure()
    made = deployed(method, tmp_path)
    made.link.faults = {str(i): At(8, silent, leave=True) for i in (0, 1, 2)}
    assert not made.server.step().accepted
    made.link.faults = {}
    assert made.server.step().counted == tuple(map(str, ALL))
    assert made.same_model(simulated(method, [ALL]))


def test_noise_of_each_node_for_itself(tmp_path: Path) -> None:
    """The sum of the counted nodes' updates, each with its noise on all rows, over seven; floats
    that are added in another order than in a simulation with noise on the sum: equal to rounding.
    """
    method = local()
    made = deployed(method, tmp_path)
    counted = [ALL, [0, 2, 3, 4, 6]]
    for expected in counted:
        made.link.faults = {} if expected == ALL else {"1": late, "5": silent}
        report = made.server.step()
        assert report.counted == tuple(map(str, expected))
        assert np.isnan(report.loss)  # nobody tells it
    rows = {"w": np.arange(24)}
    runs = [simulated(with_shares(method, each), each) for each in (counted, [ALL] * 2)]
    mine, theirs, others = (
        np.append(params["w"], params["bias"])
        for params in (made.server.params(rows), *(run.params(rows) for run in runs))
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(mine - others).max() > 0.01
    assert made.server.spent() == runs[1].spent()


# -- whoever leaves, in whichever turn -------------------------------------------------------------


def test_nodes_leave_in_every_turn(tmp_path: Path) -> None:
    """Two at each step: gone before their numbers left they do not count, after that they do.  In
    the union of rows they leave the round, or come back for the sum."""
    method = secure()
    made = deployed(method, tmp_path)
    counted = []
    for step in range(10):
        made.link.faults = {"2": At(step, silent, leave=True), "5": At(step, late)}
        report = made.server.step()
        assert report.accepted, report
        in_union, in_sum = step > 2, step > 7
        # one that is late once comes back with the next sum, if it was in the union
        five = in_sum or step in (3, 4)
        counted.append([0, 1, *([2] if in_sum else []), 3, 4, *([5] if five else []), 6])
        assert report.counted == tuple(map(str, counted[-1])), step
        assert {"2", "5"} <= set(report.late)
        assert in_union or report.counted == ("0", "1", "3", "4", "6")
    assert made.same_model(simulated(method, counted))


def test_with_momentum_rows_of_those_who_left_must_not_move(tmp_path: Path) -> None:
    """The union has rows that only they hold: such a round is tried again."""
    method = METHODS["momentum"]()
    made = deployed(method, tmp_path)
    counted = [ALL, [0, 1, 3, 4, 5, 6]]
    made.server.step()
    made.link.faults = {"2": At(6, silent, leave=True)}
    assert not made.server.step().accepted
    made.link.faults = {"2": silent}
    assert made.server.step().accepted
    assert made.same_model(simulated(method, counted))


def test_a_node_may_be_another_process_for_every_letter(tmp_path: Path) -> None:
    """Everything that it needs to go on is in its folder, and nobody else can read it."""
    method = shares()
    made = deployed(method, tmp_path)
    for name in made.link.members:
        made.link.members[name] = Reborn(made, int(name))
    modes = set()
    for _ in range(2):
        report = made.server.step()
        modes |= {
            file.stat().st_mode & 0o777
            for file in (tmp_path / "nodes").glob("*/*")
            if file.stat().st_size and file.suffix != ".safetensors"
        }
        assert report.counted == tuple(map(str, ALL))
    assert modes == {0o600}
    assert made.same_model(simulated(with_shares(method, [ALL] * 2), [ALL] * 2))
    made.server.tell()
    left = {file.name for file in (tmp_path / "nodes").glob("*/*") if file.stat().st_size}
    assert left == {"secret", "given.json"}
    # a trained model goes to nodes that hide their rows with all of them
    assert made.server.publish() == list(map(str, ALL))
    assert bits(made.node(3).model().params) == bits(made.server.params())


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("secure", (1, 4, 6, 9)),
        pytest.param("secure", range(10), marks=pytest.mark.every),
        pytest.param("shares", range(5), marks=pytest.mark.every),
    ],
)
def test_a_coordinator_that_dies_in_any_turn_goes_on_in_the_same_sum(
    name: str, turns: Sequence[int], tmp_path: Path
) -> None:
    """Before its letters went out, and when replies were on their way: each round in a later turn.
    Nobody is asked for anything twice, and everybody counts."""
    method = {"secure": secure, "shares": shares}[name]()
    made = deployed(method, tmp_path)
    deliver, counted = made.link.exchange, []
    for step in turns:
        for place in ALL:
            made.restart(place)
        calls = iter(range(100))

        def exchange(sent: Any, deadline: Any, step: int = step, calls: Any = calls) -> Any:
            now = next(calls)
            if now == step and step % 2:
                raise Killed
            replies = deliver(sent, deadline)
            if now == step:
                raise Killed
            return replies

        made.link.exchange = exchange
        with pytest.raises(Killed):
            made.server.step()
        made.link.exchange = deliver
        made.server = made.coordinator()
        report = made.server.step()
        assert report.counted == tuple(map(str, ALL)), (step, report)
        assert not report.excluded
        counted.append(ALL)
    expected = with_shares(method, counted) if name == "shares" else method
    assert made.same_model(simulated(expected, counted))


class Reborn:
    """A node that is made anew for every letter, as some transports do."""

    def __init__(self, made: Deployment, place: int) -> None:
        self.made, self.place = made, place

    def receive(self, letter: bytes) -> bytes:
        return self.made.node(self.place).receive(letter)


@pytest.mark.parametrize("what", ["noise", pytest.param("answers", marks=pytest.mark.every)])
def test_without_a_trial_noise_and_answers_are_the_nodes_own(what: str, tmp_path: Path) -> None:
    """Other folders, other draws; answers about a few rows may be the same by chance, but not in
    round after round."""
    method, rounds = (shares(), 1) if what == "noise" else (secure(HALF), 5)
    models = []
    for home in ("a", "b"):
        made = deployed(method, tmp_path / home, node={})
        for _ in range(rounds):
            assert made.server.step().counted == tuple(map(str, ALL))
        models.append(bits(made.server.params()))
    models.append(bits(simulated(method, [ALL] * rounds).params({"w": np.arange(24)})))
    assert len(set(map(b"".join, models))) == 3


def test_a_union_by_a_bloom_filter_has_all_rows_and_may_have_more(tmp_path: Path) -> None:
    method = secure()
    made = deployed(method, tmp_path)
    made.settings["union"] = {"w": 1}
    made.server = made.coordinator()
    for _ in range(2):
        made.server.step()
    assert made.same_model(simulated(method, [ALL] * 2))
    with pytest.raises(InputError, match="a Bloom filter takes for members"):
        deployed(METHODS["momentum"](), tmp_path / "momentum", union={"w": 4})
