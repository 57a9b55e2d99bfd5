"""Secure sums over the rows of the cohort's union: what travels, and what is left out."""

from typing import Any

import numpy as np
import optax
import pytest
from linear import linear
from problems import ROWS, assert_params_close, people, run_of

import fedslice as fs
from fedslice.errors import InputError
from fedslice.privacy.rows import answers, union
from fedslice.privacy.secure.degree import degree
from fedslice.privacy.secure.parts import Parts, dense, rows
from fedslice.privacy.secure.run import secure_sum
from fedslice.round.answers import answered, take_part
from fedslice.types import Answers

WORK = fs.Work(steps=2, batch=4)
DENIABLE = Answers(7 / 8, 1 / 8, 3 / 4, 1 / 4)


def method(how: Answers | None = None, heat: fs.Heat | None = None, **more: Any) -> Any:
    stages = [fs.stage.clip(1.0), fs.stage.secure(7, answers=how)]
    settings = {"weights": "uniform", "heat": heat} | more
    return fs.recipes.fedavg(linear(), optax.sgd(0.1), WORK, stages=stages, **settings)


def held_by(client: int) -> np.ndarray:
    space = people().spaces(linear())["w"]
    return space.ids[space.slots[space.offsets[client] : space.offsets[client + 1]]]


def test_the_whole_union_changes_nothing_but_bytes() -> None:
    plain = fs.recipes.fedavg(
        linear(), optax.sgd(0.1), WORK, weights="uniform", stages=[fs.stage.clip(1.0)]
    )
    runs = [run_of(each, people(), 3) for each in (plain, method())]
    assert_params_close(runs[0].params(), runs[1].params(), rtol=0, atol=1e-5)


def test_counted_bytes_are_those_of_the_real_messages() -> None:
    """One round of all seven clients: the secure sum that finds the union, the union as ids, the
    answers as bits, the secure sum itself; and the message without the numbers that went there."""
    run = run_of(method(), people())
    report = run.train(1, progress=False)
    held = [held_by(client) for client in range(7)]
    chosen = degree(7)
    asked = union(
        held, ROWS, most=min(ROWS, 1 << (len(np.unique(np.concatenate(held))) - 1).bit_length())
    )
    assert asked.ids.tolist() == np.unique(np.concatenate(held)).tolist()
    parts = Parts([dense("dense", 2), rows("w", asked.ids, 1)])  # the bias and the weight
    vector = {"dense": np.zeros(2, np.int32), "w": np.zeros((len(asked.ids), 1), np.int32)}
    summed = secure_sum([vector] * 7, parts, chosen)
    wire, count = run.shapes.wire, {"w": len(asked.ids)}
    told = len(parts.pack()) - 8 * len(asked.ids)  # ids are told once, with the union
    bits = -(-len(asked.ids) // 8)
    up = asked.outcome.up.sum() + summed.up.sum() + 7 * (bits - 4 * parts.size)
    down = asked.outcome.down.sum() + 7 * len(asked.plan.parts.pack())
    down += summed.down.sum() + 7 * (told + 8 * len(asked.ids))
    assert report.bytes_up == up + 7 * wire.up(count)
    assert report.bytes_down == down + 7 * wire.down(count)


def test_answers_have_their_probabilities() -> None:
    """Of 200 clients and 300 rows: p5 of those that are held, p6 of others, in any round; and over
    rounds the first answer stays."""
    rng = np.random.default_rng(0)
    key, ids = rng.integers(0, 2**63, 200).astype(np.uint64), np.arange(300, dtype=np.uint64)
    held = rng.random((200, 300)) < 0.3
    drawn = np.stack([answered(DENIABLE, key, ids, held, round) for round in range(6)])
    p5, p6 = DENIABLE.p5, 1 / 8 * (3 / 4 - 1 / 4) + 1 / 4
    for expected, some in ((p5, held), (p6, ~held)):
        share = drawn[0][some].mean()
        assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / some.sum())
    both = (drawn[0] & drawn[1])[held].mean()
    again = 7 / 8 * (3 / 4) ** 2 + 1 / 8 * (1 / 4) ** 2  # not p5^2
    assert abs(both - again) < 4.5 * np.sqrt(again * (1 - again) / held.sum())
    assert abs(both - p5**2) > 6 * np.sqrt(again * (1 - again) / held.sum())


def test_left_out_rows_are_corrected_for() -> None:
    """400 clients with a row of their own each, whose update is 1 in FedSubAvg: it is 1 / p5 where
    the client took its row, else 0, and so 1 on average."""
    clients = 400
    table = fs.Table(rows=clients, fields="item")
    model = fs.Model(lambda key: {}, lambda p, b: -p["w"][b["item"]], {"w": table})
    population = fs.Population.from_arrays(np.arange(clients), item=np.arange(clients))
    stages = [fs.stage.clip(9.0), fs.stage.secure(clients, bound=9.0, answers=DENIABLE)]
    recipe = fs.recipes.fedsubavg(
        model,
        optax.sgd(1.0),
        fs.Work(steps=1, batch=1),
        heat=population.heat(model),
        weights="uniform",
        stages=stages,
    )
    moved = np.asarray(run_of(recipe, population, 1).table("w", np.arange(clients)))
    p5 = DENIABLE.p5
    np.testing.assert_allclose(moved[moved > 0], 1 / p5, rtol=1e-3)
    assert abs(moved.mean() - 1) < 4 * np.sqrt((1 - p5) / p5 / clients)
    assert 0 < (moved == 0).mean() < 1


def test_a_row_that_was_not_taken_is_zeros_and_is_not_trained() -> None:
    never = Answers(0.5, 0.0, 1.0, 0.0)
    run = run_of(method(never), people(), 1)
    plan, traffic = run.planner.plan(0, np.arange(7))
    past = len(plan.shared.union["w"])
    for client, places in enumerate(plan.own.places["w"]):
        assert (places < past).sum() <= traffic.rows_up["w"][client] <= len(held_by(client))
    assert sum(traffic.rows_up["w"]) < sum(len(held_by(client)) for client in range(7))


def test_refusals() -> None:
    for wrong in (Answers(1.5), Answers(0.0, 0.0, 1.0, 0.0)):
        with pytest.raises(InputError, match="four probabilities"):
            fs.stage.secure(7, answers=wrong)


def test_a_deployed_clients_answers_have_the_same_law() -> None:
    """The simulation draws by hashes what a device draws by its secret."""
    own, others = np.arange(0, 200, 2), np.arange(400)
    device = np.zeros(400)
    for client in range(60):
        secret = bytes([client]) * 32
        device[answers(DENIABLE, own, others, secret, 3, "w")] += 1
    held = np.isin(others, own)
    for expected, some in ((DENIABLE.p5, held), (DENIABLE.p6, ~held)):
        share = device[some].mean() / 60
        assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / some.sum() / 60)


def test_tables_have_answers_of_their_own() -> None:
    """The same client, the same row ids, two tables: answers agree by chance only."""
    population = fs.Population.from_arrays(
        np.repeat(np.arange(40), 30), item=np.tile(np.arange(30), 40)
    )
    space = population.submodels(("item",), 30)
    key, cohort = np.array([5], np.uint64), np.arange(40)
    half = Answers(0.5, 0.5, 1.0, 0.0)
    one, two = (take_part(half, key, space, population, cohort, 0, place).yes for place in (0, 1))
    assert abs((one == two).mean() - 0.5) < 4.5 * 0.5 / np.sqrt(len(one))
    again = take_part(half, key, space, population, cohort, 7, 0).yes
    np.testing.assert_array_equal(one, again)  # for good
