"""Compression: unbiased where it says so, exact where it can be, with error feedback, and its
bytes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, logistic, people, run_of

import fedslice as fs
from fedslice.stage.codes import opened
from fedslice.stage.compression import Compressor
from fedslice.types import ClientReport, Message

VALUES = jnp.array([3.0, -1.0, 0.5, 0.0, -0.25, 2.0, 0.0, 0.01])


def coded(compressor: Compressor, values: jax.Array, key: int = 0) -> Any:
    """A leaf as it is sent the first time."""
    code = jax.jit(lambda x, key: compressor.leaf(x, compressor.remember(x), key)[0])
    return code(values, jax.random.key(key))


def compressed(compressor: Compressor, values: jax.Array, key: int = 0) -> np.ndarray:
    return np.asarray(jax.jit(opened)(coded(compressor, values, key)))


def many(compressor: Compressor, values: jax.Array, count: int = 20000) -> np.ndarray:
    """The same values sent with so many keys."""
    keys = jax.random.split(jax.random.key(1), count)
    return np.asarray(
        jax.jit(jax.vmap(lambda key: opened(compressor.leaf(values, (), key)[0])))(keys)
    )


def packed(compressor: Compressor, values: jax.Array) -> int:
    """Bytes of what is sent, which are those that are counted; and it comes back as it was."""
    code = coded(compressor, values)
    data = code.pack(None)
    assert len(data) == code.size(None, int(code.items(None)))
    for left, right in zip(*map(jax.tree.leaves, (code.unpack(data, None), code)), strict=True):
        assert np.array_equal(left, right)
    return len(data)


def a_message(update: Any) -> Message:
    return Message(update, jnp.ones(()), ClientReport(*[jnp.zeros(())] * 4))


# -- quantisation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 4])
def test_quantise_is_unbiased_and_on_the_levels(levels: int) -> None:
    """Each number is size/levels times floor(s + U): mean s, variance below 1/4, so 5 sigma of the
    mean are 2.5 size / levels / sqrt(count)."""
    sent, size = many(fs.stage.quantise(levels), VALUES), float(jnp.linalg.norm(VALUES))
    np.testing.assert_allclose(sent.mean(0), VALUES, atol=2.5 * size / levels / np.sqrt(len(sent)))
    steps = sent / size * levels
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert set(np.unique(np.round(np.abs(steps)))) <= set(range(levels + 1))
    assert sent.std(0).max() > 0.1 * size / levels  # it does round


def test_many_levels_are_no_compression() -> None:
    """The error is below one step, ||v|| / levels."""
    for levels in (100, 10**4):
        error = np.abs(compressed(fs.stage.quantise(levels), VALUES) - VALUES).max()
        assert error <= float(jnp.linalg.norm(VALUES)) / levels * 1.01
    sent = compressed(fs.stage.quantise(10**5), VALUES)
    np.testing.assert_allclose(sent, VALUES, atol=1e-4)
    assert not compressed(fs.stage.quantise(3), jnp.zeros(4)).any()


def test_rounding_never_goes_beyond_the_last_level() -> None:
    """10^6 + U is rounded to a sixteenth in 32 bits, so that floor gives one level too many for one
    key in thirty; 127 levels would be -128 in a byte then."""
    sent = many(fs.stage.quantise(10**6), jnp.array([2.0]), 2000)
    assert set(sent.ravel().tolist()) == {2.0}


@pytest.mark.parametrize(
    ("levels", "omega"), [(100, 6 / 100**2), (2, 6**0.5 / 2), (1, 6**0.5)], ids=str
)
def test_omega_of_quantise(levels: int, omega: float) -> None:
    """min(d / levels^2, sqrt(d) / levels); six of the eight numbers are not zero."""
    bound = fs.stage.quantise(levels).omega
    assert bound is not None
    assert float(bound(VALUES)) == pytest.approx(omega, rel=1e-6)


def test_omega_of_random() -> None:
    """E (v / p - v)^2 p + v^2 (1 - p) = v^2 (1 / p - 1)."""
    bound = fs.stage.random(0.25).omega
    assert bound is not None
    assert float(bound(VALUES)) == 3
    assert fs.stage.random(0.25, unbiased=False).omega is None


def test_leaves_have_randomness_of_their_own() -> None:
    """Of two equal leaves other numbers are kept; of 64 the same ones by a chance of 2^-64."""
    stage = fs.stage.compress(fs.stage.random(0.5))
    update = {"a": jnp.ones(64), "b": jnp.ones(64)}
    sent, _ = stage.encode((), stage.remember(update, ()), a_message(update), jax.random.key(0))
    assert not np.array_equal(sent.update["a"].kept, sent.update["b"].kept)


@pytest.mark.parametrize(
    ("levels", "bits"),
    [
        (1, 2),
        pytest.param(3, 3, marks=pytest.mark.every),
        pytest.param(7, 4, marks=pytest.mark.every),
        (127, 8),
        (128, 9),
    ],
)
def test_bytes_of_quantise(levels: int, bits: int) -> None:
    """2 levels + 1 values a number: 3, 7, 15, 255, 257 of them; then the norm in 4 bytes."""
    for count in (10, 3):
        values = jax.random.normal(jax.random.key(count), (count,))
        assert packed(fs.stage.quantise(levels), values) == np.ceil(count * bits / 8) + 4


# -- sparsification, sign --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.01, 1),
        (0.34, 3),
        pytest.param(0.5, 3, marks=pytest.mark.every),
        pytest.param(0.67, 5, marks=pytest.mark.every),
        pytest.param(1.0, 6, marks=pytest.mark.every),
    ],
)
def test_largest_keeps_exactly_its_share_of_what_is_not_zero(share: float, kept: int) -> None:
    """Six numbers are not zero; ceil(share 6) are kept, as they are."""
    sent = compressed(fs.stage.largest(share), VALUES)
    largest = np.argsort(-np.abs(np.asarray(VALUES)))[:kept]
    expected = np.zeros(len(VALUES), np.float32)
    expected[largest] = VALUES[largest]
    assert np.array_equal(sent, expected)
    assert packed(fs.stage.largest(share), VALUES) == 4 + 4 * kept + 1  # a mask of 8 bits


@pytest.mark.parametrize(("share", "count", "kept"), [(0.3, 50, 15), (0.15, 100, 15)])
def test_largest_is_not_rounded_up_by_32_bits(share: float, count: int, kept: int) -> None:
    """0.3 of 50 are 15, though 15.000001 in 32 bits."""
    sent = compressed(fs.stage.largest(share), jnp.arange(1.0, count + 1))
    assert np.count_nonzero(sent) == kept


def test_few_kept_numbers_tell_their_places_and_many_a_mask() -> None:
    """Of 1,000 numbers, 4 bytes for each place below 32 kept ones, 125 bytes of mask above."""
    values = jax.random.normal(jax.random.key(0), (1000,))
    for kept in (1, 31, 32, 500):
        size = packed(fs.stage.largest(kept / 1000), values)
        assert size == 4 + 4 * kept + min(4 * kept, 125)


@pytest.mark.parametrize("share", few([0.1, 0.3, 0.9], 0.3))
def test_largest_of_equal_numbers_sends_what_it_bills(share: float) -> None:
    """30 numbers of three sizes, ten each: the first of those that tie, to the number."""
    values = jnp.tile(jnp.array([2.0, -1.0, 3.0]), 10)
    sent = compressed(fs.stage.largest(share), values)
    assert np.count_nonzero(sent) == round(30 * share)
    assert packed(fs.stage.largest(share), values) == 4 + 4 * round(30 * share) + 4
    order = np.lexsort((np.arange(30), -np.abs(np.asarray(values))))
    assert set(np.flatnonzero(sent)) == set(order[: round(30 * share)])


def test_random_is_unbiased_and_keeps_its_share() -> None:
    sent = many(fs.stage.random(0.3), VALUES)
    sigma = np.abs(VALUES) * np.sqrt(0.7 / 0.3 / len(sent))
    assert np.all(np.abs(sent.mean(0) - VALUES) <= 5 * sigma)
    assert np.mean(sent[:, 0] != 0) == pytest.approx(0.3, abs=0.02)
    plain = many(fs.stage.random(0.3, unbiased=False), VALUES, 100)
    assert set(np.unique(plain[:, 0])) == {0.0, 3.0}
    kept = jax.random.bernoulli(jax.random.key(0), 0.3, VALUES.shape)
    assert packed(fs.stage.random(0.3), VALUES) == 4 + 4 * int(kept.sum()) + 1


def test_sign() -> None:
    """Six numbers that are not zero, of mean size 6.76 / 6; two bits for each number, which may be
    zero, and the size."""
    np.testing.assert_allclose(
        compressed(fs.stage.sign(), VALUES), np.sign(VALUES) * 6.76 / 6, rtol=1e-6
    )
    assert not compressed(fs.stage.sign(), jnp.zeros(3)).any()
    assert packed(fs.stage.sign(), VALUES) == 2 + 4
    assert packed(fs.stage.sign(), VALUES.at[0].set(-1)[:5]) == 2 + 4


# -- low rank --------------------------------------------------------------------------------------


def test_low_rank_is_exact_for_a_matrix_of_that_rank() -> None:
    """M Q spans the columns of M for almost any Q, so P P^T M = M at once."""
    rng = np.random.default_rng(0)
    matrix = jnp.asarray(rng.normal(size=(12, 2)) @ rng.normal(size=(2, 9)), jnp.float32)
    np.testing.assert_allclose(compressed(fs.stage.low_rank(2), matrix), matrix, atol=1e-4)
    assert np.abs(compressed(fs.stage.low_rank(1), matrix) - matrix).max() > 0.1


def test_low_rank_becomes_the_truncated_svd() -> None:
    """Power iteration on the same matrix round after round; the gap of the singular values is 3 :
    1."""
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(n, 6)))[0] for n in (12, 9))
    matrix = jnp.asarray(left @ np.diag([9.0, 6.0, 2.0, 1.0, 0.5, 0.2]) @ right.T, jnp.float32)
    best = left[:, :2] @ np.diag([9.0, 6.0]) @ right[:, :2].T
    compressor = fs.stage.low_rank(2)
    memory, errors = compressor.remember(matrix), []
    for _ in range(8):
        code, memory = compressor.leaf(matrix, memory, jax.random.key(0))
        sent = opened(code)
        errors.append(float(jnp.linalg.norm(sent - matrix)))
    np.testing.assert_allclose(sent, best, atol=1e-3)
    floor = float(
        np.linalg.norm([2.0, 1.0, 0.5, 0.2])
    )  # Eckart and Young: no rank-2 matrix is nearer
    assert errors[0] > 1.05 * floor
    assert errors[-1] == pytest.approx(floor, rel=1e-3)


def test_low_rank_sends_the_rest_as_it_is() -> None:
    """Vectors, rows of tables, and matrices that would not become smaller: 2 (3 + 3) >= 9."""
    for shape in ((5,), (3, 3), ()):
        values = jax.random.normal(jax.random.key(2), shape)
        assert np.array_equal(compressed(fs.stage.low_rank(2), values), values)
    for shape in ((12, 9), (12, 3, 3)):
        values = jax.random.normal(jax.random.key(3), shape)
        assert packed(fs.stage.low_rank(2), values) == 4 * 2 * (12 + 9)


def test_low_rank_leaves_rows_of_tables_alone() -> None:
    """Clients' rows of 4 numbers do not have rank 1: with the table sent as it is, training is
    FedAvg."""
    table = fs.Table(rows=24, shape=(4,), fields=("item",), init=jax.nn.initializers.normal(0.5))

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return jnp.sum(params["w"][batch["item"]].sum(1) ** 2, axis=-1) * batch["x"] ** 2

    model = fs.Model(lambda key: {}, loss, {"w": table})
    stages = [fs.stage.compress(fs.stage.low_rank(1))]
    one, two = (
        run_of(
            fs.recipes.fedavg(model, optax.sgd(0.05), fs.Work(steps=1, batch=4), **more),
            people(),
            1,
        )
        for more in ({}, {"stages": stages})
    )
    assert_params_close(two.params(), one.params())


# -- error feedback --------------------------------------------------------------------------------

BIASED = {
    "largest": fs.stage.largest(0.3),
    "random": fs.stage.random(0.3),
    "random-biased": fs.stage.random(0.3, unbiased=False),
    "sign": fs.stage.sign(),
    "low_rank": fs.stage.low_rank(1),
    "quantise": fs.stage.quantise(3),
}


@pytest.mark.parametrize("name", few(BIASED, "largest", "random", "sign", "low_rank", "quantise"))
def test_what_is_sent_and_what_is_left_are_what_was_wanted(name: str) -> None:
    """sent_t + e_t = update_t + e_{t-1}; summed: sum of sent = sum of updates - e_T, and e_T stays
    bounded."""
    stage = fs.stage.compress(BIASED[name], feedback=True)
    params = {"m": jnp.zeros((6, 5)), "v": jnp.zeros(7)}
    memory = stage.remember(params, ())
    encode = jax.jit(lambda memory, update, key: stage.encode((), memory, a_message(update), key))
    opening = jax.jit(opened)
    wanted, sent, norms = (
        jax.tree.map(np.zeros_like, params),
        jax.tree.map(np.zeros_like, params),
        [],
    )
    rng, keys = np.random.default_rng(3), jax.random.split(jax.random.key(3), 60)
    for key in keys:
        update = {name: 1 + rng.normal(size=leaf.shape) for name, leaf in params.items()}
        update = {name: leaf.astype(np.float32) for name, leaf in update.items()}
        before = memory[0]
        message, memory = encode(memory, update, key)
        arrived = opening(message.update)
        for leaf in params:
            np.testing.assert_allclose(
                arrived[leaf] + memory[0][leaf],
                update[leaf] + before[leaf],
                rtol=1e-5,
                atol=1e-5,
            )
            wanted[leaf] += np.asarray(update[leaf])
            sent[leaf] += np.asarray(arrived[leaf])
        norms.append(sum(float(jnp.sum(leaf**2)) for leaf in memory[0].values()) ** 0.5)
    size = sum(float(np.sum(leaf**2)) for leaf in wanted.values()) ** 0.5
    gap = sum(float(np.sum((wanted[leaf] - sent[leaf]) ** 2)) for leaf in params) ** 0.5
    assert gap == pytest.approx(norms[-1], rel=1e-2, abs=1e-3)
    assert norms[-1] > 0
    assert gap < 0.25 * size  # without feedback most of the smaller numbers would be lost for good


@pytest.mark.parametrize(
    ("compressor", "omega"),
    [
        (fs.stage.quantise(8), 1000**0.5 / 8),  # 3.95, where d / 8^2 is 15.6
        pytest.param(fs.stage.quantise(100), 0.1, marks=pytest.mark.every),  # d / 10^4
        (fs.stage.random(0.1), 9.0),
    ],
    ids=["few levels", "many levels", "random"],
)
def test_under_feedback_what_is_sent_is_a_contraction(compressor: Compressor, omega: float) -> None:
    """E||C(v)/(1 + omega) - v||^2 <= omega / (1 + omega) ||v||^2, padding of zeros or not.  The
    mean of 300 draws of a figure that spreads by less than its size is within a fifth of it; what
    is left after many rounds of the same update stays below sqrt(omega (1 + omega)) times 2 of it
    (Karimireddy et al. 2019, lemma 3)."""
    stage = fs.stage.compress(compressor, feedback=True)
    update = {"v": jnp.concatenate([jax.random.normal(jax.random.key(0), (1000,)), jnp.zeros(500)])}
    blank = stage.remember(update, ())

    def encode(memory: Any, key: jax.Array) -> Any:
        return stage.encode((), memory, a_message(update), key)[1]

    keys = jax.random.split(jax.random.key(1), 300)
    size = float(jnp.sum(update["v"] ** 2))
    left = jax.jit(jax.vmap(lambda key: jnp.sum(encode(blank, key)[0]["v"] ** 2)))(keys)
    assert float(left.mean()) <= 1.2 * omega / (1 + omega) * size
    last, _ = jax.lax.scan(lambda memory, key: (encode(memory, key), ()), blank, keys)
    assert float(jnp.sum(last[0]["v"] ** 2)) <= 4 * omega * (1 + omega) * size


def test_feedback_with_few_levels_does_not_diverge() -> None:
    """F = 1/2 |x|^2 in 1,000 dimensions, 8 levels, rate .1: without the division the loss grows a
    hundredfold in some ten rounds."""
    model = fs.Model(
        lambda key: {"x": jnp.ones(1000)}, lambda p, b: 0.5 * jnp.sum(p["x"] ** 2) + 0 * b["c"]
    )
    stages = [fs.stage.compress(fs.stage.quantise(8), feedback=True)]
    method = fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=1), stages=stages)
    run = run_of(method, fs.Population.from_arrays([0, 1], c=np.zeros(2, np.float32)), 40)
    assert float(jnp.sum(run.params()["x"] ** 2)) < 1000 / 10


def test_errors_are_kept_for_each_client_and_row() -> None:
    """One round: the error of a client's row changes if and only if the client is drawn and its
    batches touch it."""
    half = Compressor(lambda values, memory, key: (values / 2, memory))
    method = fs.recipes.fedavg(
        logistic(),
        optax.sgd(0.3),
        fs.Work(steps=1, batch=2),
        stages=[fs.stage.compress(half, feedback=True)],
    )
    population = people()
    run = run_of(method, population, 4, sampler=fs.sampling.uniform(3))
    space = run.spaces["w"]
    before = jax.tree.map(np.array, run.memory[1][0][0])
    assert before["w"].shape == (len(space.slots),)  # one for each row that each client holds
    assert before["dense"]["bias"].shape == (len(population),)
    cohort = run.cohort(run.round)
    plan, traffic = run.planner.plan(run.round, cohort)
    run.train(1, progress=False)
    after = jax.tree.map(np.array, run.memory[1][0][0])
    touched = np.zeros(len(space.slots) + 1, bool)
    touched[np.asarray(plan.own.held["w"]).ravel()] = True
    touched = touched[:-1]
    owners = np.repeat(np.arange(len(population)), np.diff(space.offsets))
    assert set(owners[touched]) == set(cohort)
    assert touched.sum() == traffic.rows_up["w"].sum() < np.isin(owners, cohort).sum()
    assert np.array_equal(before["w"][~touched], after["w"][~touched])
    assert np.any(before["w"][~touched] != 0)
    assert np.all(before["w"][touched] != after["w"][touched])
    changed = before["dense"]["bias"] != after["dense"]["bias"]
    assert np.flatnonzero(changed).tolist() == cohort.tolist()


# -- bytes of a run --------------------------------------------------------------------------------


def kept(share: float) -> Any:
    """Bytes of a leaf of so many numbers of which a share is kept, all of them not zero."""
    return lambda n: 4 + 4 * np.ceil(share * n) + np.minimum(np.ceil(n / 8), 4 * np.ceil(share * n))


@pytest.mark.parametrize(
    ("compressor", "numbers"),
    [
        pytest.param(None, lambda n: 4 * n, marks=pytest.mark.every),
        pytest.param(
            fs.stage.quantise(7), lambda n: np.ceil(n / 2) + 4, marks=pytest.mark.every
        ),  # as many bytes as `packed` has above; those that are kept are counted in a round
        (fs.stage.largest(0.25), kept(0.25)),
        pytest.param(fs.stage.random(1.0), kept(1.0), marks=pytest.mark.every),
        pytest.param(fs.stage.sign(), lambda n: np.ceil(n / 4) + 4, marks=pytest.mark.every),
    ],
    ids=["plain", "quantise", "largest", "random", "sign"],
)
def test_bytes_up_of_a_round(compressor: Compressor | None, numbers: Any) -> None:
    """Clients hold {0, 1, 2}, {2} and {3, 4}, rows of 3 numbers; a full pass touches all of them.
    Up go, for each client, its rows' numbers in one leaf, a matrix of 2 x 5, a number, 4 bytes a
    row to say which they are, and a head of 36.  In its first round S(i) goes too, 4 bytes a row
    and a head of 12."""
    item = np.array([0, 1, 2, 2, 2, 3, 4, 4])
    owner = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    population = fs.Population.from_arrays(owner, item=item, y=np.arange(8.0, dtype=np.float32) / 8)

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return (
            params["w"][batch["item"]].sum(-1) + params["b"] + params["m"].sum() - batch["y"]
        ) ** 2

    table = fs.Table(rows=6, shape=(3,), fields=("item",))
    model = fs.Model(lambda key: {"b": jnp.zeros(()), "m": jnp.ones((2, 5))}, loss, {"w": table})
    stages = [] if compressor is None else [fs.stage.compress(compressor)]
    method = fs.recipes.fedavg(model, optax.sgd(0.01), fs.Work(epochs=1, batch=2), stages=stages)
    run = run_of(method, population)
    report = run.train(1, progress=False)
    rows = np.array([3, 1, 2])
    expected = np.sum(numbers(3 * rows)) + 3 * (numbers(10) + numbers(1))
    expected += 4 * rows.sum() + 3 * 36
    assert report.bytes_up == expected + 4 * rows.sum() + 3 * 12
    assert run.train(1, progress=False).bytes_up == expected
    assert report.bytes_down == 4 * (3 * rows.sum() + 3 * 11) + 3 * 28
    assert run.totals["bytes_up"] == 2 * expected + 4 * rows.sum() + 3 * 12


# -- training --------------------------------------------------------------------------------------


@pytest.mark.every
def test_feedback_converges_where_biased_compression_stalls() -> None:
    """Two clients, F_i = 1/2 |x - c_i|^2 with c = (4, 1), (-4, 1): the first numbers of the
    gradients cancel and are the larger ones whenever |x_1| < 3, so top-1 of 2 never sends the
    second, whose optimum is 1.  With feedback it is sent whenever its error has grown beyond the
    first."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return 0.5 * jnp.sum((params["x"] - batch["c"]) ** 2, axis=-1)

    model = fs.Model(lambda key: {"x": jnp.zeros(2)}, loss)
    population = fs.Population.from_arrays(
        [0, 1], c=np.array([[4.0, 1.0], [-4.0, 1.0]], np.float32)
    )
    ends = []
    for feedback in (False, True):
        stages = [fs.stage.compress(fs.stage.largest(0.5), feedback=feedback)]
        method = fs.recipes.fedavg(model, optax.sgd(0.05), fs.Work(steps=1, batch=1), stages=stages)
        ends.append(np.asarray(run_of(method, population, 150).params()["x"]))
    np.testing.assert_allclose(ends[0], [0, 0], atol=1e-5)
    np.testing.assert_allclose(ends[1], [0, 1], atol=0.1)


@pytest.mark.parametrize("size", few([1e-25, 1e-12, 1e12, 1e25], 1e-25, 1e25))
def test_quantise_does_not_depend_on_the_size_of_the_numbers(size: float) -> None:
    """Squares of the smallest are zero in 32 bits, and those of the largest infinite."""
    plain = compressed(fs.stage.quantise(4), VALUES, key=2)
    assert plain.any()
    np.testing.assert_allclose(
        compressed(fs.stage.quantise(4), size * VALUES, key=2) / size, plain, rtol=1e-5
    )
