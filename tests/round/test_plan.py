"""Plans decode back to the data they were made from."""

from itertools import permutations
from typing import Any

import jax
import numpy as np
import pytest
from problems import ROWS, arrays, people

from fedslice.data.population import Population
from fedslice.round.plan import Planner, bucket
from fedslice.types import Answers, Work

FIELDS = ("item", "history")


def planner_of(
    population: Population, work: Work, seed: int = 0, rows: str = "touched", **more: Any
) -> Planner:
    space = population.submodels(FIELDS, ROWS)
    return Planner(population, {"w": space}, [work], seed, rows, more.pop("memory", False), **more)


WORKS = [Work(steps=3, batch=4), Work(epochs=2, batch=4)]
each_work = pytest.mark.parametrize("work", WORKS, ids=["steps", "epochs"])


@each_work
@pytest.mark.parametrize("rows", ["touched", "held"])
@pytest.mark.parametrize("cohort", [[0, 2, 3, 6], [1], list(range(7))], ids=str)
def test_batches_decode_to_the_clients_own_examples(
    work: Work, rows: str, cohort: list[int]
) -> None:
    """Position among the client's rows -> place in the union -> slot -> row id gives the original
    ids."""
    population = people()
    planner = planner_of(population, work, rows=rows, memory=True)
    chosen = np.array(cohort)
    plan, traffic = planner.plan(5, chosen)
    examples, sizes, steps = planner._examples(0, 5, chosen, population.counts[chosen])
    (phase,) = plan.own.phases
    assert np.array_equal(phase.steps[: len(cohort)], steps)
    assert np.array_equal(phase.sizes[: len(cohort)], sizes)
    ids, space = population.submodels(FIELDS, ROWS).ids, population.submodels(FIELDS, ROWS)
    union, places, held = plan.shared.union["w"], plan.own.places["w"], plan.own.held["w"]
    real = union[union < len(ids)]
    assert len(set(real.tolist())) == len(real)
    touched: set[int] = set()
    for k, client in enumerate(cohort):
        own = places[k][places[k] < len(union)]
        assert (union[own] < len(ids)).all()
        assert len(set(own.tolist())) == len(own)
        assert np.array_equal(space.slots[held[k][: len(own)]], union[own])
        for s in range(steps[k]):
            numbers = examples[k, s, : sizes[k, s]]
            assert (population.owners[numbers] == client).all()
            for field in FIELDS:
                position = phase.batches[field][k, s, : sizes[k, s]]
                original = population.columns[field][numbers]
                assert np.array_equal(position < 0, original < 0)
                decoded = np.where(position < 0, -1, ids[union[places[k][np.maximum(position, 0)]]])
                assert np.array_equal(decoded, original)
                touched |= set(original[original >= 0].tolist())
            assert np.array_equal(
                phase.batches["x"][k, s, : sizes[k, s]], population.columns["x"][numbers]
            )
    if rows == "touched":
        assert set(ids[real].tolist()) == touched
    else:
        held_by = np.concatenate(
            [space.slots[space.offsets[c] : space.offsets[c + 1]] for c in cohort]
        )
        assert set(real.tolist()) == set(held_by.tolist())
    assert plan.own.weight[: len(cohort)].tolist() == population.counts[chosen].tolist()
    assert traffic.clients == [len(cohort)]
    assert traffic.examples == [sizes.sum()]
    assert traffic.rows_down["w"].tolist() == space.sizes[chosen].tolist()
    assert traffic.rows_up["w"].tolist() == [(p < len(union)).sum() for p in places[: len(cohort)]]
    assert (places[len(cohort) :] == len(union)).all()


@each_work
def test_padding_points_past_the_end(work: Work) -> None:
    population = people()
    planner = planner_of(population, work, memory=True)
    planner.plan(0, np.arange(7))  # a larger cohort makes room
    plan, _ = planner.plan(0, np.arange(5))
    space = population.submodels(FIELDS, ROWS)
    assert plan.own.place.tolist() == [0, 1, 2, 3, 4, 7, 7]  # 7 is past the last one
    (phase,) = plan.own.phases
    for part in (plan.own.weight, phase.steps, phase.sizes):
        assert not part[5:].any()
    assert phase.sizes[:5].any()
    assert (plan.own.places["w"][5:] == len(plan.shared.union["w"])).all()
    assert (plan.own.held["w"][5:] == len(space.slots)).all()
    spare = plan.shared.union["w"] >= len(space.ids)
    assert (np.diff(spare.astype(int)) >= 0).all()  # all at the end


def test_capacity_only_grows() -> None:
    planner = planner_of(people(), WORKS[1])
    seen: dict[str, int] = {}
    for cohort in ([1], [3, 5], [1], [0, 1, 2, 3, 4, 5, 6], [4]):
        plan, _ = planner.plan(0, np.array(cohort))
        assert all(planner.capacity[name] >= size for name, size in seen.items())
        seen = dict(planner.capacity)
        assert plan.own.place.shape[0] == seen["clients"]
        assert plan.own.phases[0].sizes.shape[1] == seen["steps 0"]
        assert plan.shared.union["w"].shape[0] == seen["w union"]
        assert plan.own.places["w"].shape[1] == seen["w rows"]
    assert seen["clients"] == 7


@each_work
def test_batches_do_not_depend_on_who_else_is_there(work: Work) -> None:
    population = people()
    planner = planner_of(population, work)

    def batches(cohort: list[int], round: int = 3) -> dict[int, list[list[int]]]:
        chosen = np.array(cohort)
        examples, sizes, steps = planner._examples(0, round, chosen, population.counts[chosen])
        return {
            c: [examples[k, s, : sizes[k, s]].tolist() for s in range(steps[k])]
            for k, c in enumerate(cohort)
        }

    alone, together = batches([3]), batches([0, 1, 2, 3, 4, 5, 6])
    assert alone[3] == together[3]
    assert batches([2, 3, 5])[5] == together[5]
    assert batches([3], round=4)[3] != alone[3]
    other = planner_of(population, work, seed=1)
    moved, sizes, steps = other._examples(0, 3, np.array([3]), population.counts[[3]])
    assert [moved[0, s, : sizes[0, s]].tolist() for s in range(steps[0])] != alone[3]


def test_independent_draws_are_uniform() -> None:
    """20,000 draws from 20 examples: chi-square has 19 degrees of freedom; 99.98 % are within 4.5
    .. 50."""
    population = people(counts=(5, 20, 3))
    work = Work(steps=20, batch=10)
    planner = planner_of(population, work)
    chosen = np.array([1])
    draws = (
        np.concatenate(
            [np.ravel(planner._examples(0, r, chosen, np.array([20]))[0]) for r in range(100)]
        )
        - 5
    )
    assert draws.min() == 0
    assert draws.max() == 19
    counts = np.bincount(draws)
    assert 4.5 < ((counts - 1000) ** 2 / 1000).sum() < 50
    # successive draws are independent: 399 degrees
    pairs = np.bincount(draws[:-1] * 20 + draws[1:], minlength=400)
    assert 290 < ((pairs - 50) ** 2 / 50).sum() < 520


@pytest.mark.parametrize("batch", [5, 10**9])
def test_a_batch_needs_no_more_than_the_data(batch: int) -> None:
    """Clients with no more than a batch go through all they have, once; others draw; the largest
    one sets the room."""
    population = people(counts=(5, 8, 3))
    work = Work(steps=2, batch=batch)
    examples, sizes, steps = planner_of(population, work)._examples(
        0, 4, np.arange(3), population.counts
    )
    assert examples.shape == (3, 2, min(batch, 8))
    assert sizes.tolist() == [[min(batch, count)] * 2 for count in (5, 8, 3)]
    assert steps.tolist() == [2, 2, 2]
    for client, count in ((0, 5), (2, 3)):
        own = np.arange(count) + population.offsets[client]
        assert all(batches[:count].tolist() == own.tolist() for batches in examples[client])
    passes = Work(epochs=1, batch=batch)
    assert planner_of(population, passes)._examples(0, 4, np.arange(3), population.counts)[0].shape[
        2
    ] == min(batch, 8)


def test_shuffled_epochs_visit_every_example_once() -> None:
    population = people()
    work = Work(epochs=3, batch=4)
    planner = planner_of(population, work)
    chosen = np.array([0, 3, 5])
    examples, sizes, steps = planner._examples(0, 2, chosen, population.counts[chosen])
    for k, client in enumerate(chosen):
        own = list(range(population.offsets[client], population.offsets[client + 1]))
        passes = -(-len(own) // 4)
        assert steps[k] == 3 * passes
        orders = []
        for epoch in range(3):
            at = range(epoch * passes, (epoch + 1) * passes)
            assert [int(sizes[k, s]) for s in at] == [4] * (len(own) // 4) + [len(own) % 4] * (
                len(own) % 4 > 0
            )
            orders.append([int(e) for s in at for e in examples[k, s, : sizes[k, s]]])
            assert sorted(orders[-1]) == own
        if len(own) > 4:
            assert orders[0] != orders[1] != orders[2]
    assert not sizes[0, steps[0] :].any()


def test_shuffles_are_uniform() -> None:
    """6,000 shuffles of 3 examples: each of the 6 orders 1,000 times; 5 degrees of freedom, 0.05 %
    beyond 22."""
    population = people(counts=(3,) * 60)
    work = Work(epochs=1, batch=3)
    planner = planner_of(population, work)
    chosen = np.arange(60)
    drawn = [planner._examples(0, r, chosen, population.counts)[0] for r in range(100)]
    orders = np.concatenate([examples[:, 0] - population.offsets[:-1, None] for examples in drawn])
    assert sorted(set(map(tuple, orders.tolist()))) == sorted(permutations(range(3)))
    counts = np.unique(orders @ [9, 3, 1], return_counts=True)[1]
    assert ((counts - 1000) ** 2 / 1000).sum() < 22


def test_phases_draw_independently() -> None:
    """Three phases of the same work draw other batches, and shuffle in other orders, each."""
    population = people(counts=(5, 40))
    space = {"w": population.submodels(FIELDS, ROWS)}
    chosen = np.array([1])
    for work in (Work(steps=3, batch=4), Work(epochs=1, batch=4)):
        planner = Planner(population, space, [work] * 3, seed=0)
        drawn = [
            planner._examples(phase, 2, chosen, population.counts[chosen])[0].tobytes()
            for phase in range(3)
        ]
        assert len(set(drawn)) == 3


def test_room_grows_with_an_eighth_to_spare_up_to_the_most() -> None:
    """So that the next cohorts, a little larger, do not compile anew: 16 and its eighth are 18, the
    next size is 20."""
    planner = planner_of(people(), WORKS[0])
    assert [planner._grow("x", need) for need in (16, 20, 3, 21)] == [20, 20, 20, 24]
    assert [planner._grow("y", need, most=22) for need in (16, 21, 22)] == [20, 22, 22]
    assert planner._grow("z", 100) == bucket(112) == 112


def test_a_batch_has_room_for_what_is_there_alone() -> None:
    planner = planner_of(people(counts=(3, 9)), Work(steps=1, batch=50))
    assert planner.capacity == {"batch 0": 9}


def test_columns_are_computed_with_in_32_bits() -> None:
    """Small integers are kept small and widened in the batch; truth is a number."""
    population = Population.from_arrays(
        [0, 0],
        small=np.array([1, 255], np.uint8),
        true=np.array([True, False]),
        half=np.array([0.5, 1.5], np.float16),
        long=np.array([1, 2**31 - 1]),
        unsigned=np.array([1, 2**31 - 1], np.uint32),
    )
    planner = Planner(population, {}, [Work(steps=1, batch=2)], 0)
    assert planner.plain["small"] is population.columns["small"]
    (phase,) = planner.plan(0, np.array([0]))[0].own.phases
    kinds = {name: column.dtype for name, column in phase.batches.items()}
    assert {name for name, kind in kinds.items() if kind == np.float32} == {"true", "half"}
    assert {name for name, kind in kinds.items() if kind == np.int32} == {
        "small",
        "long",
        "unsigned",
    }
    assert phase.batches["small"][0, 0].tolist() == [1, 255]
    assert phase.batches["true"][0, 0].tolist() == [1, 0]


def test_weights_are_all_of_a_clients_examples_whatever_it_draws_from() -> None:
    """Its phases say how many of them they draw from; traffic counts what all phases go through."""
    population = people(counts=(3, 8))
    works = [Work(epochs=1, batch=4, part=part, split="half") for part in ("support", "query")]
    planner = Planner(population, {"w": population.submodels(FIELDS, ROWS)}, works, seed=0)
    plan, traffic = planner.plan(0, np.arange(2))
    assert plan.own.weight.tolist() == [3, 8]
    assert [phase.examples.tolist() for phase in plan.own.phases] == [[2, 4], [1, 4]]
    assert traffic.examples == [11]


def test_orders_of_any_number_of_clients_come_from_one_sort() -> None:
    """By client first, in the uppermost bits: 3, 5, 9, 17 and 33 clients need one bit more each."""
    for clients in (1, 2, 3, 5, 9, 17, 33):
        population = people(counts=(6,) * clients)
        work = Work(epochs=1, batch=6)
        everybody = np.arange(clients)
        drawn = planner_of(population, work)._examples(0, 0, everybody, population.counts)[0]
        own = population.offsets[:-1, None] + np.arange(6)
        assert np.array_equal(np.sort(drawn[:, 0], axis=1), own)


def test_padding_is_of_examples_that_are_in_the_batches() -> None:
    """With fewer steps than a pass has batches a client's first example may not come up: its rows
    must not travel as padding."""
    population = Population.from_arrays(np.zeros(40, int), item=np.arange(40), x=np.zeros(40))
    work = Work(steps=2, epochs=1, batch=3)
    planner = Planner(population, {"w": population.submodels(("item",), 40)}, [work], seed=0)
    for round in range(5):
        plan, traffic = planner.plan(round, np.array([0]))
        assert plan.own.phases[0].sizes[0, :2].tolist() == [3, 3]
        assert plan.own.phases[0].sizes.shape[1] > 2  # there is padding
        assert traffic.rows_up["w"].tolist() == [6]


def test_a_cohort_of_nobody_and_rounds_that_touch_no_row() -> None:
    columns = arrays()
    columns["item"][:] = -1
    columns["history"][:] = -1
    columns["item"][-1] = 3
    population = Population.from_arrays(columns.pop("client"), **columns)
    plan, traffic = planner_of(population, WORKS[0]).plan(0, np.array([0, 1]))
    assert traffic.rows_up["w"].tolist() == [0, 0]
    assert (plan.own.phases[0].batches["item"] < 0).all()
    plan, traffic = planner_of(population, WORKS[0]).plan(0, np.zeros(0, np.int64))
    assert traffic.clients == traffic.examples == [0]
    assert not plan.own.weight.any()


def test_bucket() -> None:
    sizes = sorted({bucket(need) for need in range(1, 41)})
    assert sizes == [8, 10, 12, 14, 16, 20, 24, 28, 32, 40]
    for need in range(1, 3000):
        assert need <= bucket(need) <= max(8, 1.25 * need)
        assert bucket(bucket(need)) == bucket(need)


BLOCKS: dict[str, dict[str, Any]] = {
    "steps": {"works": [WORKS[0]]},
    "epochs": {"works": [WORKS[1]]},
    "several phases": {"works": [WORKS[0], WORKS[1]]},
    "fresh halves": {
        "works": [Work(1, None, 2, "support", "fresh"), Work(2, 1, 4, "query", "fresh")],
    },
    "memory, all of S(i)": {"works": [WORKS[0]], "memory": True, "rows": "held"},
    "repeats": {"works": [WORKS[0]], "repeats": True},
    "all rows": {"works": [WORKS[0]], "whole": True},
    "answers": {"works": [WORKS[0]], "answers": Answers(0.9, 0.2, 0.8, 0.1)},
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_rounds_planned_together_are_those_planned_one_by_one(kind: str) -> None:
    """Plans, what they move, and the rounds in which padded sizes grow; a block ends before a round
    that asks for more room, and nobody may come."""
    population = people()
    spaces = {
        "w": population.submodels(("history",), ROWS),
        "v": population.submodels(("item",), ROWS),
    }
    draws = np.random.default_rng(1)
    sizes = [2, 1, 2, 0, 2, 3, 3, 1, 5, 2, 7, 6, 4, 3, 5, 0, 2, 1]
    cohorts = [np.sort(draws.choice(7, size, replace=kind == "repeats")) for size in sizes]
    given: dict[str, Any] = {"seed": 3, **BLOCKS[kind]}
    works = given.pop("works")
    one, many = (Planner(population, spaces, works, **given) for _ in range(2))
    cuts, done = [], 0
    while done < len(cohorts):
        block = many.block(done, cohorts[done : done + 4], room=4)
        cuts.append(block.rounds)
        traffic = block.traffic
        for turn in range(block.rounds):
            plan, alone = one.plan(done + turn, cohorts[done + turn])
            assert jax.tree.structure(plan) == jax.tree.structure(block.plans)
            for left, right in zip(
                jax.tree.leaves(plan), jax.tree.leaves(block.plans), strict=True
            ):
                assert left.dtype == right.dtype
                assert right.shape == (4, *left.shape)
                assert np.array_equal(left, right[turn])
            assert (alone.clients, alone.examples) == (
                [traffic.clients[turn]],
                [traffic.examples[turn]],
            )
            span = slice(*traffic.turns.ends[turn : turn + 2])
            for name in spaces:
                assert np.array_equal(alone.rows_up[name], traffic.rows_sent(turn)[name])
                assert np.array_equal(alone.rows_down[name], traffic.rows_down[name][span])
        assert one.capacity == many.capacity
        done += block.rounds
    assert min(cuts) < 4 <= max(cuts)
    assert sum(cuts) == len(cohorts)
