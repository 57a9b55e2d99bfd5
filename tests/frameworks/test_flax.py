"""A Flax module gives the model that one would split by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from frameworks.two_towers import ITEMS, USERS, WIDTH, by_hand, people, trained

import fedslice as fs
from fedslice.errors import InputError


class TwoTowers(linen.Module):
    @linen.compact
    def __call__(self, user: Any, item: Any, history: Any) -> Any:
        items = linen.Embed(ITEMS, WIDTH, name="item")
        many = jnp.maximum(jnp.sum(history >= 0, 1, keepdims=True), 1)
        both = jnp.concatenate([items(item), items(history).sum(1) / many], -1)
        tower = linen.relu(linen.Dense(WIDTH, name="tower")(both))
        return jnp.sum(linen.Embed(USERS, WIDTH, name="user")(user) * tower, -1)


def loss(net: Any, batch: Any) -> Any:
    logit = net(batch["user"], batch["item"], batch["history"])
    return jax.nn.softplus(logit) - batch["label"] * logit


def test_it_equals_the_model_split_by_hand() -> None:
    data = people()
    model = fs.flax.model(TwoTowers(), loss, data, seed=5)
    dense = model.init(jax.random.key(0))
    tables = {name: table.values for name, table in model.tables.items()}
    assert {name: table.fields for name, table in model.tables.items()} == {
        "item.embedding": ("history", "item"),
        "user.embedding": ("user",),
    }
    first = {
        "user": np.asarray(tables["user.embedding"]),
        "item": np.asarray(tables["item.embedding"]),
        "weight": np.asarray(dense["tower.kernel"]).T,
        "bias": np.asarray(dense["tower.bias"]),
    }
    run, theirs = trained(model, data), trained(by_hand(first), data).params()
    ours = run.params()
    for name, other in {"user.embedding": "user", "item.embedding": "item"}.items():
        np.testing.assert_allclose(ours[name], theirs[other], atol=1e-6)
        assert np.abs(np.asarray(ours[name])).max() > 0.1
    np.testing.assert_allclose(ours["tower.kernel"].T, theirs["weight"], atol=1e-6)
    np.testing.assert_allclose(ours["tower.bias"], theirs["bias"], atol=1e-6)
    whole = fs.flax.variables(run)
    batch = {name: jnp.asarray(column) for name, column in data.columns.items()}
    batch["history"] = jnp.maximum(batch["history"], 1)  # without padding Flax itself agrees
    net = lambda *given: TwoTowers().apply(whole, *given)  # noqa: E731
    full = {**ours, **{f"{n}.embedding": whole["params"][n]["embedding"] for n in ("user", "item")}}
    np.testing.assert_allclose(loss(net, batch), model.loss(full, batch), rtol=1e-5)


def test_a_tied_embedding_is_dense_and_read_as_it_is() -> None:
    """``attend`` reads the whole weight: no table, and no zeros in its place."""

    class Tied(linen.Module):
        @linen.compact
        def __call__(self, item: Any) -> Any:
            embed = linen.Embed(ITEMS, WIDTH, name="item")
            return embed.attend(embed(item))

    data = {"item": np.array([1, 2]), "label": np.array([3, 4])}

    def chosen(net: Any, batch: Any) -> Any:
        logits = jax.nn.log_softmax(net(batch["item"]))
        return -jnp.take_along_axis(logits, batch["label"][:, None], 1)[:, 0]

    model = fs.flax.model(Tied(), chosen, data)
    weight = model.init(jax.random.key(0))["item.embedding"]
    assert not model.tables
    logits = jax.nn.log_softmax(weight[np.array([1, 2])] @ weight.T)
    batch = {name: jnp.asarray(column) for name, column in data.items()}
    expected = [-logits[0, 3], -logits[1, 4]]
    np.testing.assert_allclose(model.loss({"item.embedding": weight}, batch), expected, rtol=1e-5)


def test_dropout_is_drawn_in_training_alone() -> None:
    class Dropped(linen.Module):
        @linen.compact
        def __call__(self, x: Any, deterministic: bool) -> Any:
            return linen.Dense(1)(linen.Dropout(0.5)(x, deterministic=deterministic))[:, 0]

    def squared(net: Any, batch: Any) -> Any:
        return (net(batch["x"], deterministic="step_key" not in batch) - batch["y"]) ** 2

    data = fs.Population.from_arrays([0, 0], x=np.ones((2, 8), np.float32), y=[1.0, 2.0])
    model = fs.flax.model(Dropped(), squared, data, noisy=True)
    params, batch = model.init(jax.random.key(0)), dict(data.columns)
    batch["x"] = jnp.asarray(batch["x"])
    drawn = [model.loss(params, {**batch, "step_key": jax.random.key(k)}) for k in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.any(drawn[0] != drawn[2])
    work = fs.Work(steps=1, batch=2)
    run = fs.simulate(
        fs.recipes.fedavg(model, optax.sgd(0.1), work), data, sampler=fs.sampling.full()
    )
    run.train(1, progress=False)


def test_what_cannot_be_is_refused() -> None:
    data = {"x": np.ones((2, 3), np.float32)}

    class Normal(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.BatchNorm(use_running_average=False)(x).sum(-1)

    with pytest.raises(InputError, match="keeps batch_stats"):
        fs.flax.model(Normal(), lambda net, b: net(b["x"]), data)
    with pytest.raises(InputError, match="never calls the module"):
        fs.flax.model(Normal(), lambda net, b: b["x"].sum(-1), data)
    with pytest.raises(InputError, match=r"a module of flax\.linen, got int"):
        fs.flax.model(3, lambda net, b: net(b["x"]), data)
    with pytest.raises(InputError, match="for 3 examples it gives the shape"):
        fs.flax.model(linen.Dense(1), lambda net, b: net(b["x"]).mean(), data)
