"""Support and query: every split, and batches that come from one part alone."""

import numpy as np
import pytest
from problems import ROWS, people

import fedslice as fs
from fedslice.data.halves import NEITHER, QUERY, SUPPORT, assign, query, support
from fedslice.data.halves import heat as sent_heat
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.round.batches import check_query, pools
from fedslice.round.plan import Planner
from fedslice.types import Work


def per_client(population: Population, part: np.ndarray) -> list[list[int]]:
    return [
        part[a:b].tolist()
        for a, b in zip(population.offsets[:-1], population.offsets[1:], strict=True)
    ]


def test_half_is_the_larger_half_at_random_and_stays_so() -> None:
    population = people(counts=tuple(range(1, 12)) + (200,))
    part = assign(population, "half")
    for client, own in enumerate(per_client(population, part)):
        assert own.count(SUPPORT) == -(-len(own) // 2), client
    assert np.array_equal(part, assign(population, "half"))
    last = part[-200:]
    runs = (last[1:] != last[:-1]).sum()
    assert 70 < runs < 130  # 199 neighbours, half of them differ by chance: standard deviation 7
    fewer = population.subset(np.arange(5))
    # does not depend on who else is there
    assert np.array_equal(assign(fewer, "half"), part[: fewer.examples])


def test_half_is_uniform() -> None:
    """2,000 clients of 4: each of 6 halves 333 times; 5 degrees of freedom, 0.05 % beyond 22."""
    population = people(counts=(4,) * 2000)
    codes = assign(population, "half").reshape(-1, 4) @ [8, 4, 2, 1]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 2000 / 6) ** 2 / (2000 / 6)).sum() < 22


def test_time_is_the_earlier_half() -> None:
    stamps = [5, 1, 3, 2, 9, 7, 7, 7, 4]
    population = Population.from_arrays(
        [0] * 5 + [1] * 3 + [2], time=stamps, stamp=np.negative(stamps)
    )
    assert per_client(population, assign(population, "time")) == [[0, 1, 1, 1, 0], [1, 1, 0], [1]]
    assert per_client(population, assign(population, "time:stamp")) == [
        [1, 0, 1, 0, 1],
        [1, 1, 0],
        [1],
    ]


def test_a_function_decides() -> None:
    population = people()
    part = assign(population, lambda given: given.columns["x"] > 0)
    assert np.array_equal(part == SUPPORT, population.columns["x"] > 0)
    three = np.resize([1, 0, -1], population.examples)
    assert np.array_equal(assign(population, lambda given: three), three)
    assert query(population, lambda given: three).examples == (three == 0).sum()
    assert support(population, lambda given: three).examples == (three == 1).sum()


@pytest.mark.parametrize(
    "split", ["half", "time", lambda given: given.columns["x"] > 0], ids=["half", "time", "f"]
)
def test_fewer_support_examples_leave_query_as_it_is(split: object) -> None:
    columns = dict(people(counts=(9, 1, 6)).columns)
    owner = np.repeat(np.arange(3), (9, 1, 6))
    population = Population.from_arrays(
        owner, **columns, time=np.random.default_rng(1).permutation(16)
    )
    whole = assign(population, split)  # type: ignore[arg-type]
    before = np.zeros(16, bool)
    for most in (0, 1, 2, 3, 20):
        part = assign(population, split, most)  # type: ignore[arg-type]
        assert np.array_equal(part == QUERY, whole == QUERY)
        counts = np.bincount(owner[part == SUPPORT], minlength=3)
        assert (
            counts.tolist()
            == np.minimum(np.bincount(owner[whole == SUPPORT], minlength=3), most).tolist()
        )
        assert ((part == SUPPORT) >= before).all()  # two are the first one and another
        assert np.array_equal(part == NEITHER, (whole == SUPPORT) & (part != SUPPORT))
        before = part == SUPPORT
    if split == "time":
        first = assign(population, split, 1)[:9]
        assert np.argmax(first == SUPPORT) == population.columns["time"][:9].argmin()


REFUSED = {
    "unknown": ("thirds", "split='thirds' is not known here: use 'half', 'fresh', 'time'"),
    "no time": ("time", r"goes by the column 'time'.*name one of them as split='time:COLUMN'"),
    "wide column": ("time:item", "goes by the column 'item', one number for each example"),
    "short": (lambda given: np.ones(3), "must give true, false or -1 for each of the 29 examples"),
    "other numbers": (lambda given: np.full(given.examples, 2), "must give true, false or -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    split, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        assign(people(), split)  # type: ignore[arg-type]


WORKS = [Work(steps=4, batch=3), Work(epochs=2, batch=3), Work(steps=3, epochs=2, batch=3)]


@pytest.mark.parametrize("work", WORKS, ids=["steps", "epochs", "both"])
@pytest.mark.parametrize(
    "split", ["half", lambda given: given.owners % 2 == 0], ids=["half", "by client"]
)
def test_a_phase_draws_from_its_part_alone(work: Work, split: object) -> None:
    """``by client`` leaves every client without support or without query."""
    population = people()
    works = [work._replace(part=part, split=split) for part in ("support", "query", "all")]
    space = population.submodels(("item",), ROWS)
    planner = Planner(population, {"w": space}, works, seed=3)
    cohort = np.arange(len(population))
    plan, traffic = planner.plan(2, cohort)
    part = assign(population, split)  # type: ignore[arg-type]
    trained: list[set[int]] = [set() for _ in cohort]
    read: list[set[int]] = [set() for _ in cohort]
    for place, wanted in enumerate(({SUPPORT}, {QUERY}, {SUPPORT, QUERY})):
        mine = np.isin(part, list(wanted))
        counts = np.bincount(population.owners[mine], minlength=len(population))
        phase = plan.own.phases[place]
        assert phase.examples.tolist() == counts.tolist()
        drawn, sizes, steps = planner._examples(place, 2, cohort, counts)
        passes = -(-counts // 3)
        limit = {
            WORKS[0]: 4 * (counts > 0),
            WORKS[1]: 2 * passes,
            WORKS[2]: np.minimum(3, 2 * passes),
        }[work]
        assert steps.tolist() == limit.tolist() == phase.steps.tolist()
        assert not sizes[np.arange(sizes.shape[1]) >= steps[:, None]].any()
        for k in cohort:
            numbers = np.concatenate(
                [drawn[k, s, : sizes[k, s]] for s in range(steps[k])] or [np.zeros(0, int)]
            )
            assert (population.owners[numbers] == k).all()
            assert mine[numbers].all()
            if work is WORKS[1]:
                assert np.array_equal(
                    np.bincount(numbers, minlength=population.examples)[
                        mine & (population.owners == k)
                    ],
                    [2] * counts[k],
                )
            items = set(population.columns["item"][numbers].ravel().tolist())
            read[k] |= items
            if place:
                trained[k] |= items
    sent, union, ids = plan.own.sent["w"], plan.shared.union["w"], space.ids
    for k in cohort:
        assert {int(ids[union[p]]) for p in plan.own.places["w"][k] if p < len(union)} == read[k]
        assert {int(ids[union[p]]) for p in sent[k] if p < len(union)} == trained[k]
        assert traffic.rows_up["w"][k] == len(trained[k])


def test_both_steps_and_epochs_are_the_first_batches_of_the_passes() -> None:
    population = people()
    cohort = np.arange(len(population))
    space = {"w": population.submodels(("item",), ROWS)}

    def drawn(work: Work) -> list[list[list[int]]]:
        planner = Planner(population, space, [work], seed=0)
        examples, sizes, steps = planner._examples(0, 1, cohort, population.counts)
        return [[examples[k, s, : sizes[k, s]].tolist() for s in range(steps[k])] for k in cohort]

    passes, cut = drawn(Work(epochs=3, batch=2)), drawn(Work(steps=4, epochs=3, batch=2))
    assert cut == [batches[:4] for batches in passes]
    assert max(map(len, passes)) > 4 > min(map(len, passes))


# -- halves drawn anew in each round ---------------------------------------------------------------


def fresh_planner(population: Population, batch: int = 3) -> Planner:
    works = [Work(epochs=1, batch=batch, part=part, split="fresh") for part in ("support", "query")]
    return Planner(population, {"w": population.submodels(("item",), ROWS)}, works, seed=3)


def halves(planner: Planner, round: int, cohort: np.ndarray) -> list[list[set[int]]]:
    """By phase and client, the examples of one pass."""
    counts = [pool.counts[cohort] for pool in planner.pools]
    drawn = [planner._examples(p, round, cohort, count) for p, count in enumerate(counts)]
    return [
        [
            {int(e) for s in range(steps[k]) for e in examples[k, s, : sizes[k, s]]}
            for k in range(len(cohort))
        ]
        for examples, sizes, steps in drawn
    ]


def test_fresh_halves_are_halves_and_other_ones_each_round() -> None:
    population = people(counts=(1, 2, 7, 40))
    planner, everybody = fresh_planner(population), np.arange(4)
    rounds = [halves(planner, r, everybody) for r in range(12)]
    for support_part, query_part in rounds:
        for k, (one, other) in enumerate(zip(support_part, query_part, strict=True)):
            own = set(range(population.offsets[k], population.offsets[k + 1]))
            assert one | other == own
            assert not one & other
            assert len(one) == -(-len(own) // 2)
    assert len({frozenset(q[3]) for _, q in rounds}) == 12
    # every example trains sooner or later
    assert set().union(*(q[2] for _, q in rounds)) == set(range(3, 10))
    # whoever else is there
    assert halves(planner, 5, np.array([1, 3])) == [[part[1], part[3]] for part in rounds[5]]
    assert planner.plan(5, everybody)[0].own.phases[1].examples.tolist() == [0, 1, 3, 20]


def test_fresh_halves_are_uniform() -> None:
    """A client of 4 in 1,200 rounds: each of the 6 halves 200 times; 5 degrees of freedom, 0.05 %
    beyond 22."""
    planner = fresh_planner(people(counts=(3, 4)), batch=4)
    found = [tuple(sorted(halves(planner, r, np.array([1]))[1][0])) for r in range(1200)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 200) ** 2 / 200).sum() < 22


def test_without_a_round_fresh_is_half() -> None:
    population = people()
    assert np.array_equal(assign(population, "fresh"), assign(population, "half"))


def test_the_heat_of_fresh_halves() -> None:
    """Any row of S(i) may be sent, with floor(n / 2) query examples behind it; who has one example
    sends nothing."""
    model = fs.Model(lambda key: {}, lambda p, b: b["x"], {"w": fs.Table(rows=3, fields="item")})
    population = Population.from_arrays([0, 0, 0, 1, 1, 2], item=[0, 0, 1, 1, 1, 2], x=np.zeros(6))
    heat = sent_heat(population, "fresh", model)
    assert (heat.clients, heat.examples) == (2, 2.0)
    assert heat.coefficient("w", np.arange(3), "uniform").tolist() == [2, 1, 1]
    assert heat.coefficient("w", np.arange(3), "examples").tolist() == [2, 1, 1]
    fixed = sent_heat(population, "half", model)
    assert fixed.examples == query(population, "half").heat(model).examples == 2


def test_the_heat_of_query_examples_of_all_rows_and_of_clients_drawn_by_examples() -> None:
    """By time client 0 has items 0 and 1 as support, 1 as query; client 1 has 1 as support and 2 as
    query; client 2 has one example, which is support.  Rows of query examples are 1 and 2; full
    MAML sends rows of support too, with as much behind them; clients drawn in proportion to their
    examples count for all of them, 3 and 2, if they have a query."""
    model = fs.Model(lambda key: {}, lambda p, b: b["x"], {"w": fs.Table(rows=4, fields="item")})
    population = Population.from_arrays(
        [0, 0, 0, 1, 1, 2], item=[0, 1, 1, 1, 2, 3], time=np.arange(6), x=np.zeros(6)
    )
    plain = sent_heat(population, "time", model)
    assert plain.ids["w"].tolist() == [1, 2]
    assert (plain.clients, plain.examples) == (2, 2)
    whole = sent_heat(population, "time", model, all_rows=True)
    assert whole.ids["w"].tolist() == [0, 1, 2]
    assert whole.mass["w"].tolist() == [[1, 1], [2, 2], [1, 1]]
    assert (whole.clients, whole.examples) == (2, 2)
    drawn = sent_heat(population, "time", model, all_rows=True, drawn=True)
    assert drawn.mass["w"].tolist() == [[1, 3], [2, 5], [1, 2]]
    assert (drawn.clients, drawn.examples) == (2, 5)


def test_fresh_halves_and_what_is_drawn_from_them_are_independent() -> None:
    """One example of the support of four, in 2,400 rounds: 6 halves times 2 examples, 200 times
    each; 11 degrees of freedom, 0.02 % beyond 35."""
    population = people(counts=(3, 4))
    works = [
        Work(steps=1, batch=1, part="support", split="fresh"),
        Work(epochs=1, batch=4, part="query", split="fresh"),
    ]
    planner = Planner(population, {"w": population.submodels(("item",), ROWS)}, works, seed=3)
    found = []
    for round in range(2400):
        ((one,),), (asked,) = (part for part in halves(planner, round, np.array([1])))
        found.append((one, *sorted(asked)))
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 12
    assert ((counts - 200) ** 2 / 200).sum() < 35


def test_only_where_nobody_has_a_query_is_it_refused() -> None:
    works = [Work(steps=1, batch=1, part=part, split="time") for part in ("support", "query")]
    some = Population.from_arrays([0, 0, 1], time=[1, 2, 3])  # client 1 has none
    check_query(works, pools(some, works))
    nobody = Population.from_arrays([0, 1], time=[1, 2])
    with pytest.raises(InputError, match="no client has a query example with split='time'"):
        check_query(works, pools(nobody, works))
