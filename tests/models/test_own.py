"""The models for own data against their formulas, written out example by example in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.models.own import own, score

IDS = np.array(
    [[0, 2, 4, 5], [1, -1, 5, -1], [3, 3, -1, -1]]
)  # places 2 and 3: a history of place 0
NUMBERS = np.array([[0.5, -1.0], [0.0, 2.0], [1.5, 0.25]], np.float32)
LAYOUT = ((0, 1, -1), (1, 1, -1), (2, 2, 0))
BATCH = {"features": IDS, "numbers": NUMBERS, "label": np.array([0.0, 1.0, 1.0], np.float32)}
RNG = np.random.default_rng(0)


def params(name: str, classes: int = 0) -> dict:
    model = own(name, 6, "classes" if classes else "binary", classes, 2, 3, LAYOUT)
    leaves = jax.eval_shape(model.init, jax.random.key(0))
    tables = {n: np.zeros((6, *table.shape)) for n, table in model.tables.items()}
    return jax.tree.map(
        lambda leaf: RNG.normal(size=leaf.shape).astype(np.float32), {**leaves, **tables}
    )


def scored(name: str, p: dict, classes: int = 0) -> np.ndarray:
    of = score(name, 2, classes, LAYOUT)
    return np.asarray(of(jax.tree.map(jnp.asarray, p), BATCH))


def linear(p: dict, n: int) -> np.ndarray:
    return p["bias"] + sum(p["weight"][i] for i in IDS[n] if i >= 0) + NUMBERS[n] @ p["slope"]


@pytest.mark.parametrize("classes", [0, 4])
def test_lr(classes: int) -> None:
    p = params("lr", classes)
    expected = np.stack([linear(p, n) for n in range(3)])
    assert scored("lr", p, classes) == pytest.approx(expected, abs=1e-5)


def test_fm_counts_each_pair_once() -> None:
    p = params("fm")
    for n in range(3):
        vectors = [p["factor"][i] for i in IDS[n] if i >= 0]
        vectors += [NUMBERS[n][j] * p["number_factor"][j] for j in range(2)]
        pairs = sum(a @ b for k, a in enumerate(vectors) for b in vectors[:k])
        expected = linear(p, n) + pairs
        assert scored("fm", p)[n] == pytest.approx(expected, abs=1e-4)


def test_mf_is_the_product_of_user_and_item() -> None:
    p = params("mf")
    for n in range(3):
        item = sum(p["factor"][i] for i in IDS[n] if i >= 0)
        expected = linear(p, n) + p["user_bias"] + p["user"] @ item
        assert scored("mf", p)[n] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("classes", [0, 3])
def test_din_attends_to_the_history_and_passes_over_padding(classes: int) -> None:
    p = params("din", classes)
    (first, last), table = p["attention"][0], p["embedding"]
    for n in range(3):
        target = table[IDS[n][0]]
        history = [table[i] for i in IDS[n][2:] if i >= 0]
        scores = []
        for entry in history:
            x = np.concatenate([target, entry, target - entry, target * entry])
            hidden = 1 / (1 + np.exp(-(x @ first["weight"] + first["bias"])))
            scores.append((hidden @ last["weight"] + last["bias"])[0])
        weight = np.exp(scores) / np.sum(np.exp(scores)) if scores else []
        interest = sum((w * e for w, e in zip(weight, history, strict=True)), np.zeros(3))
        second = table[IDS[n][1]] if IDS[n][1] >= 0 else np.zeros(3)
        x = np.concatenate([target, second, interest, NUMBERS[n]])
        for layer in p["tower"][:-1]:
            x = np.maximum(x @ layer["weight"] + layer["bias"], 0)
        deep = x @ p["tower"][-1]["weight"] + p["tower"][-1]["bias"]
        expected = linear(p, n) + (deep if classes else deep[0])
        found = scored("din", p, classes)[n]
        assert found == pytest.approx(expected, abs=1e-4)


def test_losses_and_figures_of_each_kind_of_label() -> None:
    p = params("lr")
    s = np.array([linear(p, n) for n in range(3)])
    y = BATCH["label"]
    binary = own("lr", 6, numbers=2)
    chance = 1 / (1 + np.exp(-s))
    expected = -(y * np.log(chance) + (1 - y) * np.log(1 - chance))
    assert np.asarray(binary.loss(jax.tree.map(jnp.asarray, p), BATCH)) == pytest.approx(
        expected, abs=1e-5
    )
    number = own("lr", 6, "number", numbers=2, spread=10.0)
    assert np.asarray(number.loss(jax.tree.map(jnp.asarray, p), BATCH)) == pytest.approx(
        (s - y) ** 2, abs=1e-4
    )
    rmse = number.figures["rmse"]
    pair = [np.asarray(x) for x in rmse.values(jax.tree.map(jnp.asarray, p), BATCH)]
    assert rmse.figure(*pair) == pytest.approx(10 * np.sqrt(np.mean((s - y) ** 2)), rel=1e-5)
    p = params("lr", 4)
    s = np.stack([linear(p, n) for n in range(3)])
    classes = own("lr", 6, "classes", 4, numbers=2)
    labels = np.array([2, 0, 3])
    expected = np.log(np.exp(s).sum(1)) - s[np.arange(3), labels]
    assert np.asarray(
        classes.loss(jax.tree.map(jnp.asarray, p), {**BATCH, "label": labels})
    ) == pytest.approx(expected, abs=1e-5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="lr, fm, mf, din"):
        own("svm", 3)
    for name in ("fm", "mf"):
        with pytest.raises(InputError, match="not 3 classes: use lr or din"):
            own(name, 3, "classes", 3)
    with pytest.raises(InputError, match="dimension"):
        own("fm", 3, dimension=0)
