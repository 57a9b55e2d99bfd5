"""The written-out backward pass against autodiff and finite differences; the two models built on
it."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import compiled

import fedslice as fs
from fedslice.errors import InputError
from fedslice.models import lstm
from fedslice.models.classifier_lstm import classifier_lstm
from fedslice.models.language_lstm import language_lstm


@contextmanager
def precision(double: bool) -> Iterator[None]:
    """Numbers of 64 bits for a while; jax.enable_x64 is only in newer versions."""
    jax.config.update("jax_enable_x64", double)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@jax.jit
def plain(layer, inputs):
    """The equations, step by step, for autodiff."""
    size = layer["hidden"].shape[0]

    def step(carry, x):
        hidden, cell = carry
        z = x @ layer["input"] + hidden @ layer["hidden"] + layer["bias"]
        into, keep, out = (jax.nn.sigmoid(z[:, n * size : (n + 1) * size]) for n in range(3))
        cell = keep * cell + into * jnp.tanh(z[:, 3 * size :])
        hidden = out * jnp.tanh(cell)
        return (hidden, cell), hidden

    zero = jnp.zeros((inputs.shape[1], size), inputs.dtype)
    return jax.lax.scan(step, (zero, zero), inputs)[1]


def random_case(length, batch, width, size, dtype=np.float32, seed=0):
    """A layer, inputs and a gradient from outside, of ordinary size, none of them zero."""
    rng = np.random.default_rng(seed)
    make = lambda *shape: rng.normal(size=shape).astype(dtype)  # noqa: E731
    weights = {
        "input": make(width, 4 * size) / np.sqrt(width),
        "hidden": make(size, 4 * size) / np.sqrt(size),
    }
    return (
        {**weights, "bias": make(4 * size)},
        make(length, batch, width),
        make(length, batch, size),
    )


def gradients(function, layer, inputs, outer):
    value, pull = jax.vjp(function, layer, inputs)
    return value, pull(outer)


@jax.jit
def both(layer, inputs, outer):
    """States and gradients by the written-out backward pass, and by autodiff."""
    return gradients(lstm.lstm, layer, inputs, outer), gradients(plain, layer, inputs, outer)


def assert_close(got, wanted, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(np.abs(b).max()))


SHAPES = [(25, 5, 25, 100), (1, 5, 3, 4), (7, 1, 3, 4), (1, 1, 1, 1), (6, 3, 13, 7)]


TOLERANCES = {np.float64: 1e-13, np.float32: 1e-5}
# in double precision a text of one step and the odd sizes; in single one alone and the real size
USUAL = {(np.float64, SHAPES[1]), (np.float64, SHAPES[4]), *((np.float32, s) for s in SHAPES[:3:2])}


@pytest.mark.parametrize(
    ("dtype", "tolerance", "shape"),
    [
        pytest.param(dtype, tolerance, s, marks=[] if (dtype, s) in USUAL else [pytest.mark.every])
        for dtype, tolerance in TOLERANCES.items()
        for s in SHAPES
    ],
)
def test_backward_is_autodiff(shape, dtype, tolerance):
    with precision(dtype == np.float64):
        found, wanted = both(*random_case(*shape, dtype=dtype))
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(dtype)}
        assert_close(found, wanted, tolerance)


@pytest.mark.every
def test_backward_is_the_slope():
    """Independent of autodiff: central differences in double precision along a random direction."""
    with precision(True):
        layer, inputs, outer = random_case(5, 2, 3, 4, np.float64)
        direction = random_case(5, 2, 3, 4, np.float64, seed=1)[:2]
        move = lambda t: jax.tree.map(lambda a, d: a + t * d, (layer, inputs), direction)  # noqa: E731
        height = lambda t: float(jnp.sum(outer * lstm.lstm(*move(t))))  # noqa: E731
        slope = sum(
            float(jnp.sum(g * d))
            for g, d in zip(
                jax.tree.leaves(gradients(lstm.lstm, layer, inputs, outer)[1]),
                jax.tree.leaves(direction),
                strict=True,
            )
        )
        assert slope == pytest.approx((height(1e-5) - height(-1e-5)) / 2e-5, rel=1e-8)


def test_one_step_by_hand():
    """All weights zero but one bias: i = f = o = 1/2, g = tanh(b), c = g/2, h = tanh(g/2)/2."""
    layer = {
        "input": jnp.zeros((2, 4)),
        "hidden": jnp.zeros((1, 4)),
        "bias": jnp.array([0.0, 0, 0, 0.8]),
    }
    cell = np.tanh(0.8) / 2
    states = lstm.lstm(layer, jnp.ones((2, 1, 2)))
    np.testing.assert_allclose(
        states[:, 0, 0], [np.tanh(cell) / 2, np.tanh(1.5 * cell) / 2], rtol=1e-6
    )


def test_under_vmap_and_jit():
    """Layers of many clients side by side, and one layer for many inputs."""
    cases = [random_case(6, 3, 5, 4, seed=seed) for seed in range(4)]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *cases)
    found, _ = jax.vmap(both)(*together)
    wanted = jax.tree.map(lambda *leaves: np.stack(leaves), *(both(*case)[1] for case in cases))
    assert_close(found, wanted, 1e-5)
    shared, _ = jax.vmap(both, (None, 0, 0))(cases[0][0], *together[1:])
    for place, case in enumerate(cases):
        one = jax.tree.map(lambda leaf: leaf[place], shared)
        assert_close(one, both(cases[0][0], *case[1:])[1], 1e-5)


def test_saturated_gates_stay_finite():
    layer, inputs, outer = random_case(6, 3, 5, 4)
    huge = jax.tree.map(lambda leaf: np.float32(1e4) * np.asarray(leaf), layer)
    found, _ = both(huge, inputs, outer)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_first_values():
    layer = jax.tree.map(np.asarray, lstm.init(jax.random.key(0), 30, 20))
    np.testing.assert_allclose(
        layer["hidden"] @ layer["hidden"].T, np.eye(20), atol=1e-5
    )  # orthogonal rows
    assert np.abs(layer["input"]).max() <= np.sqrt(6 / (30 + 80))
    np.testing.assert_array_equal(layer["bias"].reshape(4, 20)[:, 0], [0, 1, 0, 0])


# -- the classifier --------------------------------------------------------------------------------


def params_of(model, rows):
    """All leaves with random numbers, ``rows`` of each table."""
    rng = np.random.default_rng(0)
    tables = {name: np.zeros((rows[name], *table.shape)) for name, table in model.tables.items()}
    shapes = {**jax.eval_shape(model.init, jax.random.key(0)), **tables}
    return jax.tree.map(lambda leaf: (rng.normal(size=leaf.shape) * 0.5).astype(np.float32), shapes)


def numbers(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_size_of_the_sent140_model():
    """A layer has 4 (inputs + hidden + 1) hidden numbers; then 25 a word, and 100 + 1 for the
    answer."""
    model = classifier_lstm(vocabulary=1000)
    dense = numbers(jax.eval_shape(model.init, jax.random.key(0)))
    assert dense == 4 * (25 + 100 + 1) * 100 + 4 * (100 + 100 + 1) * 100 + 100 + 1 == 130_901
    assert model.tables["embedding"].rows * model.tables["embedding"].width == 25_000


def test_padding_changes_nothing():
    """A text's loss depends on its tokens alone: not on the padding, the padded width, or the texts
    beside it."""
    model = compiled(classifier_lstm(vocabulary=9, embedding=3, hidden=4))
    params, loss = params_of(model, {"embedding": 9}), jax.jit(model.loss)
    label = np.array([1.0, 0.0, 1.0])
    padded = np.array([[4, 1, 7, -1, -1, -1], [8, -1, -1, -1, -1, -1], [-1, -1, -1, -1, -1, -1]])
    losses = np.asarray(loss(params, {"tokens": padded, "label": label}))
    for place, length in enumerate([3, 1]):
        alone = {"tokens": padded[place, None, :length], "label": label[place, None]}
        np.testing.assert_allclose(losses[place], loss(params, alone)[0], rtol=1e-6)
    empty = np.logaddexp(0, params["bias"]) - params["bias"]  # no token: the hidden state is zero
    assert losses[2] == pytest.approx(float(empty))
    assert abs(losses[0] - empty) > 1e-3


def test_classifier_is_the_two_layers_by_hand():
    model = compiled(classifier_lstm(vocabulary=9, embedding=3, hidden=4))
    params = params_of(model, {"embedding": 9})
    tokens = np.array([[4, 1, -1], [2, 8, 5]])
    first, second = params["lstm"]
    states = np.asarray(plain(second, plain(first, params["embedding"][tokens.T])))
    z = np.array([states[1, 0], states[2, 1]]) @ params["weight"] + params["bias"]
    batch = {"tokens": tokens, "label": np.array([1.0, 0.0])}
    wanted = [np.logaddexp(0, -z[0]), np.logaddexp(0, z[1])]
    np.testing.assert_allclose(model.loss(params, batch), wanted, rtol=1e-5)
    np.testing.assert_array_equal(model.metrics["accuracy"](params, batch), [z[0] > 0, z[1] <= 0])


@pytest.mark.every
def test_classifier_learns_which_words_are_good():
    """A text is positive if its second token is an even word: the last state must remember it."""
    rng = np.random.default_rng(0)
    tokens = np.where(
        np.arange(6) < rng.integers(2, 7, size=(400, 1)), rng.integers(20, size=(400, 6)), -1
    )
    people = fs.Population.from_arrays(
        np.arange(400) // 20,
        tokens=tokens.astype(np.int32),
        label=(tokens[:, 1] % 2 == 0).astype(np.float32),
    )
    model = classifier_lstm(20, embedding=8, hidden=16)
    method = fs.recipes.fedsubavg(
        model, optax.adam(0.02), fs.Work(steps=20, batch=10), heat=people.heat(model)
    )
    run = fs.simulate(method, people, sampler=fs.sampling.full())
    run.train(12, progress=False)
    right = model.metrics["accuracy"](
        run.params(), {name: people.columns[name] for name in ("tokens", "label")}
    )
    assert float(jnp.mean(right)) > 0.9


# -- the language model ----------------------------------------------------------------------------


def test_size_of_the_stack_overflow_model():
    """Reddi et al. (2021) have 4,050,748 numbers with ten thousand words, padding, begin, end and
    the unknown word."""
    model = language_lstm(10_000, specials=4)
    count = (
        numbers(jax.eval_shape(model.init, jax.random.key(0))) + model.tables["embedding"].rows * 96
    )
    assert (
        count
        == 10_004 * 96 + 4 * (96 + 670 + 1) * 670 + (670 + 1) * 96 + (96 + 1) * 10_004
        == 4_050_748
    )


def test_size_of_the_shakespeare_model():
    """Two layers of 256 over 8 numbers a letter, 90 letters and marks: 820,522, as Reddi et al.
    count."""
    model = language_lstm(86, specials=4, embedding=8, hidden=256, layers=2, project=None)
    dense = numbers(jax.eval_shape(model.init, jax.random.key(0)))
    assert dense + 90 * 8 == 4 * (8 + 257) * 256 + 4 * (256 + 257) * 256 + 257 * 90 + 720 == 820_522


SMALL = {"specials": 2, "embedding": 3, "hidden": 4, "project": 3}
TOKENS = np.array([[5, 0, 3, -1], [5, 2, -1, -1], [5, -1, -1, -1]])
NEXT = np.array([[0, 3, 5, -1], [2, 6, 4, -1], [-1, -1, -1, -1]])


def test_language_loss_and_accuracy_by_hand():
    """Softmax by NumPy over logits from the plain layer; targets 5 and 6 are special, -1 is none at
    all."""
    model = compiled(language_lstm(5, **SMALL, layers=2))
    params = params_of(model, {"embedding": 7})
    x = np.where((TOKENS.T < 0)[..., None], np.float32(0), params["embedding"][TOKENS.T])
    states = np.asarray(plain(params["lstm"][1], plain(params["lstm"][0], x)))
    x = states @ params["project"]["weight"] + params["project"]["bias"]
    logits = np.asarray(x @ params["output"] + params["bias"], np.float64)
    surprise = (
        np.log(np.exp(logits).sum(-1))
        - np.take_along_axis(logits, np.maximum(NEXT.T, 0)[..., None], 2)[..., 0]
    )
    wanted = [surprise[:3, 0].mean(), surprise[:3, 1].mean(), 0.0]
    batch = {"tokens": TOKENS, "next": NEXT}
    np.testing.assert_allclose(model.loss(params, batch), wanted, rtol=1e-5)
    right, counted = model.metrics["accuracy"].values(params, batch)
    np.testing.assert_array_equal(counted, [2, 2, 0])
    answer = logits.argmax(-1)
    np.testing.assert_array_equal(
        right, [(answer[:2, 0] == [0, 3]).sum(), (answer[[0, 2], 1] == [2, 4]).sum(), 0]
    )


def test_accuracy_counts_right_words_only():
    """A bias makes word 3 the answer everywhere: right at one of the four places that count."""
    model = compiled(language_lstm(5, **SMALL))
    params = params_of(model, {"embedding": 7})
    params["bias"][3] = 100.0
    metric = model.metrics["accuracy"]
    right, counted = (
        np.asarray(v) for v in metric.values(params, {"tokens": TOKENS, "next": NEXT})
    )
    assert metric.figure(right, counted) == 0.25


@pytest.mark.parametrize("local", [False, True])
def test_buckets_stand_in_for_unknown_words(local):
    """A bucket with the vector of word 2 does what word 2 does; where bucket and token are -1
    nothing comes in."""
    model = compiled(language_lstm(5, **SMALL, buckets=4, local_buckets=local))
    assert ("buckets" in model.tables) is not local
    params = params_of(model, {"embedding": 7, "buckets": 4})
    params["buckets"][1] = params["embedding"][2]
    none = np.full(TOKENS.shape, -1)
    known = np.asarray(model.loss(params, {"tokens": TOKENS, "bucket": none, "next": NEXT}))
    hidden = TOKENS == 2
    unknown = {
        "tokens": np.where(hidden, -1, TOKENS),
        "bucket": np.where(hidden, 1, none),
        "next": NEXT,
    }
    np.testing.assert_allclose(model.loss(params, unknown), known, rtol=1e-6)
    other = {**unknown, "bucket": np.where(hidden, 3, none)}
    assert np.abs(np.asarray(model.loss(params, other)) - known).max() > 1e-6


def test_as_targets_buckets_are_classes_of_their_own_that_do_not_count():
    """Five words, two specials, four buckets: a bias makes bucket 1, class 8, sure; it is no word,
    so never counted."""
    model = compiled(language_lstm(5, **SMALL, buckets=4))
    params = params_of(model, {"embedding": 7, "buckets": 4})
    assert params["bias"].shape == (11,)
    params["bias"][8] = 100.0
    batch = {
        "tokens": TOKENS[:1],
        "bucket": np.full((1, 4), -1),
        "next": np.array([[8, 8, 3, -1]]),
    }
    sure = model.loss(params, {**batch, "next": np.array([[8, 8, 8, -1]])})
    np.testing.assert_allclose(sure, 0, atol=1e-6)
    right, counted = model.metrics["accuracy"].values(params, batch)
    assert (float(right[0]), float(counted[0])) == (0.0, 1.0)


def test_local_buckets_never_reach_the_server():
    model = language_lstm(5, **SMALL, buckets=4, local_buckets=True)
    first_values = jax.jit(model.fresh)
    fresh = [first_values(jax.random.key(seed))["buckets"] for seed in (0, 1)]
    assert fresh[0].shape == (4, 3)
    assert not np.array_equal(*fresh)
    assert "buckets" not in model.dense(jax.random.key(0))
    people = fs.Population.from_arrays(
        [0, 0, 1],
        tokens=TOKENS,
        next=NEXT,
        bucket=np.where(TOKENS == -1, 2, -1),
    )
    method = fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(steps=3, batch=2))
    run = fs.simulate(method, people, sampler=fs.sampling.full())
    reports = list(run.rounds(5))
    assert "buckets" not in run.params()
    assert reports[-1].loss < reports[0].start_loss


def test_tied_output_is_the_embedding():
    model = compiled(language_lstm(5, **SMALL, tied=True))
    assert not model.tables
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0)))
    separate = compiled(language_lstm(5, **SMALL))
    batch = {"tokens": TOKENS, "next": NEXT}
    wanted = separate.loss({**params, "output": params["embedding"].T}, batch)
    np.testing.assert_allclose(model.loss(params, batch), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_buckets": True}, "buckets="),
        ({"buckets": -1}, "negative"),
        ({"tied": True, "buckets": 4}, "no row among"),
        ({"tied": True, "project": 5}, "project=3"),
        ({"tied": True, "project": None}, "project=3"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        language_lstm(5, **{**SMALL, **options})
