"""An Equinox module gives the model that one would split by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frameworks.two_towers import ITEMS, USERS, WIDTH, by_hand, people, trained

import fedslice as fs
from fedslice.errors import InputError


class TwoTowers(eqx.Module):
    user: eqx.nn.Embedding
    item: eqx.nn.Embedding
    tower: eqx.nn.Linear
    name: str = "two towers"

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.user = eqx.nn.Embedding(USERS, WIDTH, key=keys[0])
        self.item = eqx.nn.Embedding(ITEMS, WIDTH, key=keys[1])
        self.tower = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, user: Any, item: Any, history: Any) -> Any:
        many = jnp.maximum(jnp.sum(history >= 0), 1)
        both = jnp.concatenate([self.item(item), jax.vmap(self.item)(history).sum(0) / many])
        return jnp.dot(self.user(user), jax.nn.relu(self.tower(both)))


def loss(net: Any, batch: Any) -> Any:
    logit = jax.vmap(net)(batch["user"], batch["item"], batch["history"])
    return jax.nn.softplus(logit) - batch["label"] * logit


def test_it_equals_the_model_split_by_hand() -> None:
    data, module = people(), TwoTowers(jax.random.key(4))
    model = fs.equinox.model(module, loss, data)
    assert {name: table.fields for name, table in model.tables.items()} == {
        "user.weight": ("user",),
        "item.weight": ("history", "item"),
    }
    first = {
        "user": np.asarray(module.user.weight),
        "item": np.asarray(module.item.weight),
        "weight": np.asarray(module.tower.weight),
        "bias": np.asarray(module.tower.bias),
    }
    run, hand = trained(model, data), trained(by_hand(first), data)
    ours, theirs = run.params(), hand.params()
    pairs = {"user.weight": "user", "item.weight": "item", "tower.weight": "weight"}
    for name, other in {**pairs, "tower.bias": "bias"}.items():
        np.testing.assert_allclose(ours[name], theirs[other], atol=1e-6)
    after = fs.equinox.trained(module, run)
    assert type(after) is TwoTowers
    held = run.spaces["item.weight"].ids
    np.testing.assert_array_equal(after.item.weight[held], ours["item.weight"])
    np.testing.assert_array_equal(after.item.weight[0], module.item.weight[0])  # nobody's
    batch = {name: jnp.asarray(column) for name, column in data.columns.items()}
    whole = float(jnp.mean(loss(after, {**batch, "history": jnp.maximum(batch["history"], 1)})))
    assert np.isfinite(whole)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="has no arrays"):
        fs.equinox.model(eqx.nn.Identity(), lambda net, b: b["x"], {"x": np.ones(2)})
