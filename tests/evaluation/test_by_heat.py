"""Held-out figures by heat, against a loop over examples and against the pooled figures."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.errors import InputError
from fedslice.evaluation.by_heat import coldest, heat_groups

MODEL = fs.Model(
    init=lambda key: {"bias": jnp.zeros(())},
    loss=lambda params, batch: (
        (
            params["bias"]
            + params["item"][batch["item"]]
            + jnp.sum(fs.lookup(params["tag"], batch["tags"]), axis=1)
            - batch["label"]
        )
        ** 2
    ),
    tables={"item": fs.Table(rows=40, fields="item"), "tag": fs.Table(rows=30, fields="tags")},
)


def people(seed, clients, examples, items, tags):
    rng = np.random.default_rng(seed)
    return fs.Population.from_arrays(
        np.sort(rng.integers(clients, size=examples)),
        item=rng.integers(items, size=examples) // (1 + rng.integers(4, size=examples)),
        tags=rng.integers(-1, tags, size=(examples, 3)),
        label=rng.random(examples).astype(np.float32),
    )


TRAIN, TEST = people(0, 12, 150, 30, 20), people(1, 9, 300, 40, 24)
HEAT = TRAIN.heat(MODEL)


def by_hand():
    """n_m counted client by client, then the least over what each test example reads."""
    held = {"item": [], "tags": []}
    for client in range(len(TRAIN)):
        mine = slice(TRAIN.offsets[client], TRAIN.offsets[client + 1])
        for field, sets in held.items():
            sets.append(set(TRAIN.columns[field][mine].ravel().tolist()))
    return [
        min(
            [
                sum(value in one for one in sets)
                for field, sets in held.items()
                for value in np.ravel(TEST.columns[field][example]).tolist()
                if value >= 0
            ]
        )
        for example in range(TEST.examples)
    ]


def test_an_example_is_as_cold_as_the_coldest_row_that_it_reads():
    np.testing.assert_array_equal(coldest(MODEL, TEST, HEAT), by_hand())


def test_an_example_that_reads_no_row_is_as_hot_as_can_be():
    model = fs.Model(
        init=lambda key: {},
        loss=lambda params, batch: jnp.sum(fs.lookup(params["tag"], batch["tags"]), axis=1),
        tables={"tag": fs.Table(rows=30, fields="tags")},
    )
    data = fs.Population.from_arrays([0, 1], tags=[[2, -1], [-1, -1]])
    assert coldest(model, data, data.heat(model)).tolist() == [1, 2]


def test_groups_hold_their_shares_and_keep_equal_heat_together():
    cold = np.array(by_hand())
    groups = heat_groups(MODEL, TEST, HEAT)
    assert groups.names == ("unseen", "cold", "warm", "hot")
    assert groups.spans[0] == (0, 0)
    assert (groups.of == 0).sum() == (cold == 0).sum()
    for (_, high), (low, _) in zip(groups.spans[:-1], groups.spans[1:], strict=True):
        assert high < low
    seen = np.sort(cold[cold > 0])
    for place, share in enumerate((1 / 3, 2 / 3), 1):
        last = groups.spans[place][1]
        below, upto = (seen < last).sum(), (seen <= last).sum()
        assert below < share * len(seen) <= upto


def test_figures_of_a_group_are_those_of_its_examples_alone():
    groups, evaluator = heat_groups(MODEL, TEST, HEAT), fs.Evaluator(MODEL, TEST)
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"bias": jnp.float32(0.3)} | {
        name: jax.random.normal(key, (len(evaluator.ids()[name]),))
        for name, key in zip(("item", "tag"), keys, strict=True)
    }
    found = groups.scores(MODEL, evaluator.numbers(params)).clients["loss"]
    pooled = evaluator(params).pooled["loss"]
    assert np.sum(found * groups.sizes) / TEST.examples == pytest.approx(pooled, rel=1e-6)
    for place in range(len(groups.names)):
        part = TEST.select(groups.of == place)
        alone = fs.Evaluator(MODEL, part)
        where = {
            name: np.searchsorted(evaluator.ids()[name], ids) for name, ids in alone.ids().items()
        }
        own = {"bias": params["bias"]} | {name: params[name][at] for name, at in where.items()}
        assert alone(own).pooled["loss"] == pytest.approx(found[place], rel=1e-5)


def test_fedavg_and_fedsubavg_differ_among_the_cold_alone():
    """Example 1 of Ding et al.: after r rounds of FedAvg the weight that one client of N holds is
    (1 - 1/N)^r of its first value, all else is learned at once; FedSubAvg learns both at once."""
    task, rounds = fs.tasks.quadratic.example1(clients=4), 3
    heat = task.train.heat(task.model)
    groups = heat_groups(task.model, task.train, heat, shares=(0.25,))
    evaluator = fs.Evaluator(task.model, task.train)

    def losses(method, after):
        run = fs.simulate(method, task.train, sampler=fs.sampling.full())
        for _ in run.rounds(after):
            pass
        return groups.scores(task.model, evaluator.numbers(run.params(evaluator.ids()))).clients[
            "loss"
        ]

    plain = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    corrected = fs.recipes.fedsubavg(task.model, optax.sgd(0.5), heat=heat, weights="uniform")
    one, left = losses(corrected, 1), losses(plain, rounds)
    assert left[1] == pytest.approx(one[1], abs=1e-6)
    first = losses(plain, 0) - one  # what there is to learn
    assert left[0] - one[0] == pytest.approx(
        (first[0] - first[1]) * (1 - 1 / 4) ** (2 * rounds), rel=1e-5
    )


def test_wrong_shares_and_foreign_heat_are_refused():
    with pytest.raises(InputError, match="ascending numbers between 0 and 1"):
        heat_groups(MODEL, TEST, HEAT, shares=(0.5, 0.5))
    nobody = fs.Population.from_arrays([0], item=[39], tags=[[29, -1, -1]], label=[1.0])
    assert heat_groups(MODEL, nobody, HEAT).names == ("unseen",)
    task = fs.tasks.quadratic.example1(clients=4)
    with pytest.raises(InputError, match="the heat is of tables"):
        heat_groups(MODEL, TEST, task.train.heat(task.model))
