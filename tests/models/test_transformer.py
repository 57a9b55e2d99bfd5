"""The Field Guide's transformer: its size, its equations in NumPy, what each place may see,
dropout, and learning."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import compiled

import fedslice as fs
from fedslice.errors import InputError
from fedslice.models.transformer import transformer

WORDS, WIDTH, HEADS = 7, 12, 3
SMALL = {"layers": 2, "width": WIDTH, "hidden": 20, "heads": HEADS}


@cache
def small(dropout=0.0, **changes):
    return compiled(transformer(WORDS, **{**SMALL, **changes}, dropout=dropout))


def params_of(model, seed=0):
    """All leaves moved away from their first values, so that no bias or scale goes untested."""
    first = model.params(
        jax.random.key(seed), {"embedding": np.arange(model.tables["embedding"].rows)}
    )
    rng = np.random.default_rng(seed)
    noise = lambda shape: 0.2 * rng.normal(size=shape).astype(np.float32)  # noqa: E731
    moved = jax.tree.map(lambda leaf: np.asarray(leaf) + noise(leaf.shape), first)
    return jax.device_put(moved)


def batch_of(tokens, following):
    return {"tokens": np.asarray(tokens, np.int32), "next": np.asarray(following, np.int32)}


TOKENS = [[7, 0, 3, 5, 8, 2], [7, 6, 1, -1, -1, -1]]
NEXT = [[0, 3, 5, 8, 2, 7], [6, 1, 7, -1, -1, -1]]


def test_the_size_is_what_the_papers_widths_give():
    model = transformer(10_000)
    assert model.tables["embedding"].rows * model.tables["embedding"].width == 10_002 * 96
    attention = 4 * (
        96 * 8 * 12 + 96
    )  # query, key, value of 8 heads of 12, and the map that mixes them
    feed = (96 * 1536 + 1536) + (1536 * 96 + 96)
    norms = 2 * (96 + 96)
    dense = jax.eval_shape(model.dense, jax.random.key(0))
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(dense))
    assert count == 3 * (attention + feed + norms) + (96 * 10_002 + 10_002)
    assert 3 * (attention + feed + norms) == 1_002_528
    assert model.noisy


def reference(params, tokens, heads):
    """Scores of every next id by the equations, place by place, in double precision."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    width = p["embedding"].shape[1]
    head = width // heads

    def affine(part, x):
        return x @ part["weight"] + part["bias"]

    def norm(part, x):
        spread = np.sqrt(x.var() + 1e-6)
        return part["scale"] * (x - x.mean()) / spread + part["shift"]

    out = []
    for text in tokens:
        xs = []
        for place, token in enumerate(text):
            wave = [place / 10_000 ** (2 * (k // 2) / width) for k in range(width)]
            sines = np.array([np.cos(w) if k % 2 else np.sin(w) for k, w in enumerate(wave)])
            xs.append((p["embedding"][token] if token >= 0 else 0) * np.sqrt(width) + sines)
        for n in range(sum(name.startswith("layer") for name in p)):
            layer, new = p[f"layer{n}"], []
            for place, x in enumerate(xs):
                seen = [k for k in range(place + 1) if text[k] >= 0]
                query, parts = affine(layer["query"], x), []
                for h in range(heads):
                    cut = slice(h * head, (h + 1) * head)
                    score = [
                        query[cut] @ affine(layer["key"], xs[k])[cut] / np.sqrt(head) for k in seen
                    ]
                    weight = np.exp(score) / np.sum(np.exp(score))
                    values = [affine(layer["value"], xs[k])[cut] for k in seen]
                    parts.append(sum(w * v for w, v in zip(weight, values, strict=True)))
                x = norm(layer["norm1"], x + affine(layer["mix"], np.concatenate(parts)))
                new.append(
                    norm(
                        layer["norm2"],
                        x + affine(layer["out"], np.maximum(affine(layer["in"], x), 0)),
                    )
                )
            xs = new
        out.append([affine(p["output"], x) for x in xs])
    return np.array(out)


def test_loss_and_accuracy_are_those_of_the_equations():
    model = small()
    params = params_of(model)
    scores = reference(params, TOKENS, HEADS)
    surprise = (
        np.log(np.exp(scores).sum(-1))
        - np.take_along_axis(scores, np.maximum(NEXT, 0)[..., None], -1)[..., 0]
    )
    wanted = [surprise[0].mean(), surprise[1, :3].mean()]
    np.testing.assert_allclose(model.loss(params, batch_of(TOKENS, NEXT)), wanted, rtol=2e-5)
    guess = scores.argmax(-1)
    right = np.array(NEXT)
    right[0, 1], right[1, 0] = guess[0, 1], guess[1, 0]  # so that some are right
    counted = (right >= 0) & (right < WORDS)  # neither padding nor the two special ids
    assert counted.sum() < (right >= 0).sum()
    hits, words = model.metrics["accuracy"].values(params, batch_of(TOKENS, right))
    np.testing.assert_array_equal(hits, (counted & (guess == right)).sum(1))
    np.testing.assert_array_equal(words, counted.sum(1))


def test_no_place_sees_a_later_one():
    model = small()
    params = params_of(model)
    for place in range(5):
        only = np.full((1, 6), -1)
        only[0, place] = 4  # the loss is that of this place alone
        before = model.loss(params, batch_of(TOKENS[:1], only))
        later, earlier = np.array(TOKENS[:1]), np.array(TOKENS[:1])
        later[0, place + 1 :] = [1, 6, 4, 0, 3][: 5 - place]
        earlier[0, place] = 6
        assert model.loss(params, batch_of(later, only)) == before
        assert model.loss(params, batch_of(earlier, only)) != before


def test_padding_changes_nothing_and_an_empty_example_costs_nothing():
    model = small()
    params = params_of(model)
    short = model.loss(params, batch_of([TOKENS[1][:3]], [NEXT[1][:3]]))
    np.testing.assert_allclose(model.loss(params, batch_of(TOKENS[1:], NEXT[1:])), short, rtol=1e-6)
    hole, filled = [[7, -1, 3]], [[7, 2, 3]]  # padding in the middle is not looked at either
    at_end = [[-1, -1, 4]]
    np.testing.assert_allclose(
        model.loss(params, batch_of(hole, at_end)),
        _surprise(reference(params, hole, HEADS)[0, 2], 4),
        rtol=2e-5,
    )
    assert model.loss(params, batch_of(hole, at_end)) != model.loss(
        params, batch_of(filled, at_end)
    )
    empty = batch_of(np.full((1, 6), -1), np.full((1, 6), -1))
    value, slope = jax.jit(jax.value_and_grad(lambda p: model.loss(p, empty)[0]))(params)
    assert value == 0
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(slope))


def _surprise(scores, target):
    return np.log(np.exp(scores).sum()) - scores[target]


def test_dropout_acts_in_training_only_and_is_new_in_each_step():
    model, batch = small(dropout=0.5), batch_of(TOKENS, NEXT)
    params = params_of(model)
    plain = model.loss(params, batch)
    np.testing.assert_array_equal(plain, small().loss(params, batch))
    first, again, second = (
        model.loss(params, {**batch, "step_key": jax.random.key(n)}) for n in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(first != plain)
    assert np.all(first != second)
    assert not small().noisy
    np.testing.assert_array_equal(
        small().loss(params, {**batch, "step_key": jax.random.key(0)}), plain
    )


def test_dropout_zeroes_its_share_and_keeps_the_mean():
    model = transformer(
        WORDS, layers=0, width=WIDTH, heads=HEADS, dropout=0.25
    )  # drop, then the output layer
    params = params_of(model)
    batch = batch_of([[7]], [[2]])
    params["output"] = {"weight": jnp.zeros((WIDTH, 9)).at[:, 2].set(1.0), "bias": jnp.zeros(9)}
    step = lambda n: model.loss(params, {**batch, "step_key": jax.random.key(n)})[0]  # noqa: E731
    losses = jax.jit(jax.vmap(step))(jnp.arange(4000))
    x = np.asarray(
        params["embedding"][7] * np.sqrt(WIDTH) + np.tile([0.0, 1.0], WIDTH // 2), np.float64
    )
    score = -np.log(np.expm1(np.asarray(losses, np.float64)) / 8)  # the sum of x after dropout
    spread = np.sqrt((x**2).sum() * 0.25 / 0.75)
    assert abs(score.mean() - x.sum()) < 4 * spread / np.sqrt(4000)
    assert score.std() == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "said"), [({"heads": 5}, "heads"), ({"dropout": 1.0}, "dropout")]
)
def test_impossible_shapes_are_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        transformer(WORDS, **{**SMALL, **wrong})


@pytest.mark.every
def test_it_learns_what_only_the_word_before_last_tells():
    rng = np.random.default_rng(0)
    first, middle = rng.integers(3, size=(2, 240))
    tokens = np.stack([np.full(240, 7), first, 3 + middle], 1).astype(np.int32)
    following = np.stack([np.full(240, -1), np.full(240, -1), first], 1).astype(np.int32)
    people = fs.Population.from_arrays(np.arange(240) // 12, tokens=tokens, next=following)
    model = small(dropout=0.1, layers=1)
    method = fs.recipes.fedavg(model, optax.sgd(0.3), fs.Work(epochs=2, batch=4))
    run = fs.simulate(method, people, sampler=fs.sampling.uniform(10))
    before = fs.evaluate(run, people).pooled
    run.train(12)
    after = fs.evaluate(run, people).pooled
    assert before["loss"] > 1.5
    assert after["loss"] < 0.2
    assert after["accuracy"] == 1
