"""The deep interest network: sizes as published, values against plain NumPy, and what must not
matter."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.client.local import mean_loss
from fedslice.models.din import attend, dice, din

USERS, ITEMS, CATEGORIES, WIDTH = 5, 30, 4, 3
FIELDS = ("user", "item", "history", "label", "category", "history_category")


@lru_cache
def made(categories=CATEGORIES):
    """The compiled loss of a small model, parameters (no special values) and a batch of six,"""
    model, rng = din(USERS, ITEMS, categories, WIDTH), np.random.default_rng(0)
    dense = jax.eval_shape(model.init, jax.random.key(0))
    shapes = {
        **dense,
        **{name: jnp.zeros((table.rows, WIDTH)) for name, table in model.tables.items()},
    }
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes)
    history = rng.integers(ITEMS, size=(6, 4))
    history[np.arange(4) >= np.array([4, 3, 1, 0, 2, 4])[:, None]] = -1
    kind = rng.integers(max(1, categories), size=ITEMS)
    item = rng.integers(ITEMS, size=6)
    columns = rng.integers(USERS, size=6), item, history, rng.integers(2, size=6).astype(np.float32)
    batch = dict(
        zip(FIELDS, (*columns, kind[item], np.where(history < 0, -1, kind[history])), strict=True)
    )
    return jax.jit(model.loss), params, batch


def sizes(model):
    dense = sum(
        leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    )
    return dense, dense + sum(table.rows * table.width for table in model.tables.values())


def test_alibaba_has_the_published_number_of_parameters():
    entry = 18 + 18  # an item and its category
    attention = (4 * entry * 80 + 80) + (80 * 40 + 40) + (40 * 1 + 1)
    inputs = 18 + 4 * entry  # user; target, sum, product, attention
    tower = (
        2 * inputs + (inputs * 200 + 200) + 200 + (200 * 80 + 80) + 80 + (80 * 2 + 2)
    )  # with scale, shift and slopes
    assert attention + tower == 64_327
    rows = 49_023 + 143_534 + 4_815
    assert 18 * rows + 64_327 == 3_617_023
    assert sizes(din(49_023, 143_534, 4_815)) == (64_327, 3_617_023)


def test_amazon_has_no_categories():
    attention = (72 * 80 + 80) + (80 * 40 + 40) + 41
    tower = 2 * 90 + (90 * 200 + 200) + 200 + (200 * 80 + 80) + 80 + 162
    assert sizes(din(1_870, 29_500)) == (
        attention + tower,
        attention + tower + 18 * (1_870 + 29_500),
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(params, batch, place, categories):
    """The loss of one example as the papers write it: entry by entry, without padding."""

    def entry(item, category):
        parts = (
            [params["item"][item], params["category"][category]]
            if categories
            else [params["item"][item]]
        )
        return np.concatenate(parts)

    def linear(layer, x):
        return x @ layer["weight"] + layer["bias"]

    q = entry(batch["item"][place], batch["category"][place])
    pairs = zip(batch["history"][place], batch["history_category"][place], strict=True)
    history = [entry(item, category) for item, category in pairs if item >= 0]
    total, interest = np.zeros_like(q), np.zeros_like(q)
    if history:
        scores = []
        for k in history:
            x = np.concatenate([q, k, q - k, q * k])
            for layer in params["attention"][:-1]:
                x = sigmoid(linear(layer, x))
            scores.append(linear(params["attention"][-1], x)[0])
        weight = np.exp(scores) / np.sum(np.exp(scores))
        total, interest = np.sum(history, 0), weight @ np.array(history)
    x = np.concatenate([params["user"][batch["user"][place]], q, total, q * total, interest])
    x = params["input"]["scale"] * x + params["input"]["shift"]
    for layer in params["tower"][:-1]:
        x = linear(layer, x)
        p = sigmoid((x - x.mean()) / np.sqrt(x.var() + 1e-8))
        x = x * (p + layer["slope"] * (1 - p))
    out = linear(params["tower"][-1], x)
    return np.log(np.exp(out).sum()) - out[int(batch["label"][place])]


@pytest.mark.parametrize("categories", [0, CATEGORIES])
def test_loss_is_the_papers_formula(categories):
    loss, params, batch = made(categories)
    exact = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    expected = [by_hand(exact, batch, place, categories) for place in range(6)]
    np.testing.assert_allclose(loss(params, batch), expected, rtol=2e-5)


def test_an_empty_history_is_zeros_and_its_gradient_finite():
    loss, params, batch = made()
    empty = {**batch, "history": np.full((6, 4), -1), "history_category": np.full((6, 4), -1)}
    slopes = jax.jit(jax.grad(lambda p: jnp.sum(loss(p, empty))))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert all(np.abs(leaf).max() == 0 for leaf in jax.tree.leaves(slopes["attention"]))
    found = jax.jit(attend)(
        params["attention"], np.ones((2, 6)), np.ones((2, 4, 6)), np.zeros((2, 4), bool)
    )
    assert np.abs(found).max() == 0


def test_large_scores_do_not_overflow():
    loss, params, batch = made()
    large = {**params, "attention": jax.tree.map(lambda leaf: 1e4 * leaf, params["attention"])}
    assert np.isfinite(loss(large, batch)).all()


def test_an_example_counts_for_itself_whatever_stands_beside_it():
    loss, params, batch = made()
    whole = loss(params, batch)
    for place in range(6):
        alone = {name: value[place : place + 1] for name, value in batch.items()}
        np.testing.assert_allclose(loss(params, alone)[0], whole[place], rtol=1e-5)
    others = {name: np.concatenate([value[:1], value[:0:-1]]) for name, value in batch.items()}
    np.testing.assert_allclose(loss(params, others), np.append(whole[0], whole[:0:-1]), rtol=1e-5)


def test_padding_of_short_batches_does_not_train():
    _, params, batch = made()
    model = din(USERS, ITEMS, CATEGORIES, WIDTH)
    grad = jax.jit(jax.grad(lambda p, b: mean_loss(model, p, b, jnp.array(2))))
    changed = {
        name: np.concatenate([value[:2], np.zeros_like(value[2:])]) for name, value in batch.items()
    }
    for one, two in zip(
        jax.tree.leaves(grad(params, batch)), jax.tree.leaves(grad(params, changed)), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_order_and_padding_of_a_history_do_not_matter():
    loss, params, batch = made()
    whole = loss(params, batch)
    for change in (lambda x: x[:, ::-1], lambda x: np.pad(x, ((0, 0), (0, 3)), constant_values=-1)):
        other = {**batch, **{name: change(batch[name]) for name in ("history", "history_category")}}
        np.testing.assert_allclose(loss(params, other), whole, rtol=1e-5)


def test_dice_follows_the_scale_and_is_the_identity_for_slope_one():
    x, zero, compiled = (
        np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32),
        np.zeros(50),
        jax.jit(dice),
    )
    np.testing.assert_allclose(
        compiled(0.1 * x, zero), 0.1 * compiled(x, zero), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(compiled(x, zero + 1), x, rtol=1e-6)


@pytest.mark.every
def test_a_user_row_and_a_cold_item_are_learned():
    """Two users of opposite tastes: only their own rows, and the items', can tell them apart."""
    rng = np.random.default_rng(0)
    user, item = np.repeat(np.arange(2), 40), rng.integers(10, size=80)
    columns = {"history": np.full((80, 2), -1), "label": ((item % 2) == user).astype(np.float32)}
    people = fs.Population.from_arrays(user, user=user, item=item, **columns)
    model = din(2, 10)
    method = fs.recipes.fedsubavg(
        model, optax.sgd(0.5), fs.Work(epochs=10, batch=16), heat=people.heat(model)
    )
    run = fs.simulate(method, people, sampler=fs.sampling.full())
    before = fs.evaluate(run, people).pooled
    run.train(10, progress=False)
    after = fs.evaluate(run, people).pooled
    assert after["loss"] < 0.2 < before["loss"]
    assert after["auc"] > 0.98
