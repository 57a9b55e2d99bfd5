"""Every reduction against plain NumPy, row by row over the clients that hold the row."""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few, few_rows
from problems import assert_params_close, logistic, people, run_of
from scipy.optimize import minimize

import fedslice as fs
from fedslice.types import Client, ClientReport, Cohort, Reduce

CLIENTS, UNION, WIDTH = 9, 8, 5
EMPTY = 7  # the last place of the union is padding that nobody holds
DEAD = 4  # a client of weight zero
WEIGHT = np.array([1, 2, 1, 3, 0, 1, 5, 2, 1], np.float32)
HELD = [
    [0, 1, 2, 3],
    [2, 0],
    [1, 2, 4, 0, 5],
    [0, 2],
    [0, 1, 2],
    [3, 2, 0],
    [4, 0, 2],
    [2],
    [5, 2, 0],
]
ALIVE = [i for i in range(CLIENTS) if i != DEAD]
# holders of weight above zero: row 0 has 7, row 1 two, row 2 eight, rows 3 to 5 two, rows 6 and 7
# none


def told(loss: jax.Array) -> ClientReport:
    """A report of which a reduction may read the first loss."""
    return ClientReport(loss, loss, np.ones_like(loss), np.ones_like(loss))


class Updates:
    """What the clients want to send, plainly: ``table[i]`` maps rows to vectors, ``dense[i]`` is a
    vector."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.table = [{row: rng.normal(size=2).astype(np.float32) for row in rows} for rows in HELD]
        self.dense = [rng.normal(size=3).astype(np.float32) for _ in HELD]
        self.loss = rng.normal(size=CLIENTS).astype(np.float32)

    def cohort(self) -> Cohort:
        places = np.full((CLIENTS, WIDTH), UNION, np.int32)
        table, dense = np.zeros((CLIENTS, WIDTH, 2), np.float32), np.zeros((CLIENTS, 3), np.float32)
        for i, rows in enumerate(HELD):
            places[i, : len(rows)] = rows
            table[i, : len(rows)] = [WEIGHT[i] * self.table[i][row] for row in rows]
            dense[i] = WEIGHT[i] * self.dense[i]
        values = {"update": {"w": table, "b": dense}}
        tags = {"update": {"w": "w", "b": ""}}
        return Cohort(values, WEIGHT, told(self.loss), tags, {"w": places}, {"w": UNION})

    def holders(self, row: int) -> list[int]:
        return [i for i in ALIVE if row in self.table[i]]

    def per_row(
        self, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """``rule(updates [n, d], weights [n])`` of each row over its holders, and of the dense leaf
        over all."""
        table = np.zeros((UNION, 2))
        for row in range(UNION):
            if who := self.holders(row):
                table[row] = rule(np.stack([self.table[i][row] for i in who]), WEIGHT[who])
        return table, rule(np.stack([self.dense[i] for i in ALIVE]), WEIGHT[ALIVE])


def apply(reduce: Reduce, cohort: Cohort) -> Any:
    """In one program, as in a round."""
    names = cohort._replace(values=(), weight=(), report=(), places=())
    compiled = jax.jit(lambda arrays: reduce.apply(names._replace(**arrays)))
    return compiled(
        {name: getattr(cohort, name) for name in ("values", "weight", "report", "places")}
    )


def applied(reduce: Reduce, updates: Updates) -> tuple[np.ndarray, np.ndarray, float]:
    values, weight = apply(reduce, updates.cohort())
    return np.asarray(values["update"]["w"]), np.asarray(values["update"]["b"]), float(weight)


def check(
    reduce: Reduce, updates: Updates, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    table, dense, weight = applied(reduce, updates)
    expected_table, expected_dense = updates.per_row(rule)
    np.testing.assert_allclose(table, expected_table, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dense, expected_dense, rtol=1e-5, atol=1e-5)
    assert weight == WEIGHT.sum()


def cut(share: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def rule(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        drop = int(np.floor(round(share * len(x), 6)))
        return np.sort(x, axis=0)[drop : len(x) - drop].mean(0) * w.sum()

    return rule


def weighted_sum(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (w[:, None] * x).sum(0)


# -- sum, trimmed mean, median ---------------------------------------------------------------------


def test_sum() -> None:
    check(fs.reduce.total(), Updates(), weighted_sum)


def test_trimmed_of_nothing_is_the_sum() -> None:
    check(fs.reduce.trimmed(0.0), Updates(), weighted_sum)


@pytest.mark.parametrize("share", few([0.2, 0.3, 0.49], 0.2, 0.49))
def test_trimmed(share: float) -> None:
    """Of 8 holders 0.2 drops one on each side, 0.3 two, 0.49 three; of two holders none."""
    assert [len(Updates().holders(row)) for row in range(UNION)] == [7, 2, 8, 2, 2, 2, 0, 0]
    check(fs.reduce.trimmed(share, quorum=0), Updates(), cut(share))


def test_median_of_odd_and_even_numbers_of_holders() -> None:
    check(fs.reduce.median(quorum=0), Updates(), lambda x, w: np.median(x, axis=0) * w.sum())


@pytest.mark.parametrize("quorum", few([2, 3, 8, 9], 3, 8))
def test_rows_of_few_holders_are_bounded_by_the_median_client(quorum: int) -> None:
    """Row 0 has 7 holders, row 2 and the dense leaf 8, the others two: those below the quorum are
    cut from bounded updates, the others as if there were no bound."""
    updates, bounded = Updates(), Updates()
    norms = {
        i: np.linalg.norm(np.concatenate([*updates.table[i].values(), updates.dense[i]]))
        for i in ALIVE
    }
    middle = np.median(list(norms.values()))
    for i in ALIVE:
        factor = np.float32(min(1, middle / norms[i]))
        bounded.dense[i] = bounded.dense[i] * factor
        bounded.table[i] = {row: x * factor for row, x in bounded.table[i].items()}
    free, held = (
        each.per_row(lambda x, w: np.median(x, axis=0) * w.sum()) for each in (updates, bounded)
    )
    table, dense, _ = applied(fs.reduce.median(quorum), updates)
    few = np.array([len(updates.holders(row)) < quorum for row in range(UNION)])
    np.testing.assert_allclose(
        table, np.where(few[:, None], held[0], free[0]), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        dense, (held if len(ALIVE) < quorum else free)[1], rtol=1e-5, atol=1e-5
    )


def test_a_lone_attacker_on_a_cold_row_moves_it_no_more_than_an_honest_client_could() -> None:
    updates = Updates()
    honest = np.median(
        [
            np.linalg.norm(np.concatenate([*updates.table[i].values(), updates.dense[i]]))
            for i in ALIVE
        ]
    )
    updates.table[3][6] = np.full(2, 1e6, np.float32)  # only client 3 holds row 6
    HELD[3].append(6)
    try:
        table, _, _ = applied(fs.reduce.median(), updates)
    finally:
        HELD[3].remove(6)
    assert np.linalg.norm(table[6] / WEIGHT[3]) <= 1.5 * honest


@pytest.mark.parametrize(
    "reduce", [fs.reduce.trimmed(0.2), fs.reduce.median()], ids=lambda r: r.name
)
def test_one_far_update_stays_within_the_honest_range(reduce: Reduce) -> None:
    """With one of n holders dropped on each side, what is left lies between honest numbers,
    whatever was sent."""
    updates = Updates()
    honest = np.stack([updates.dense[i] for i in ALIVE if i != 6])
    updates.dense[6] = np.full(3, 1e6, np.float32)
    _, dense, weight = applied(reduce, updates)
    assert np.all(dense / weight >= honest.min(0) - 1e-5)
    assert np.all(dense / weight <= honest.max(0) + 1e-5)


# -- geometric median ------------------------------------------------------------------------------


def stacked(updates: Updates) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every living client: where its numbers stand in one long vector of table and dense, and
    the numbers."""
    out = []
    for i in ALIVE:
        places = [np.arange(2) + 2 * row for row in updates.table[i]] + [np.arange(3) + 2 * UNION]
        out.append(
            (np.concatenate(places), np.concatenate([*updates.table[i].values(), updates.dense[i]]))
        )
    return out


def centre(reduce: Reduce, updates: Updates) -> np.ndarray:
    """What a reduction stands for, as one long vector: each row divided by its holders' weight."""
    table, dense, weight = applied(reduce, updates)
    mass = np.array([max(1, WEIGHT[updates.holders(row)].sum()) for row in range(UNION)])
    return np.concatenate([(table / mass[:, None]).ravel(), dense / weight]).astype(np.float64)


def test_geometric_median_minimises_the_sum_of_distances() -> None:
    """f(z) = sum_i w_i ||delta_i - z on S(i)||, convex: compared with BFGS, and its gradient
    vanishes:

    sum_i w_i (z - delta_i) / ||delta_i - z|| = 0 in every row, over its holders.
    """
    updates = Updates()
    clients, weights = stacked(updates), WEIGHT[ALIVE]

    def value_and_gradient(z: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = 0.0, np.zeros(len(z))
        for (places, delta), w in zip(clients, weights, strict=True):
            gap = z[places] - delta
            total += w * np.linalg.norm(gap)
            slope[places] += w * gap / np.linalg.norm(gap)
        return total, slope

    found = centre(fs.reduce.geometric(steps=30), updates)
    best = minimize(
        value_and_gradient, np.zeros(len(found)), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    assert np.abs(value_and_gradient(found)[1]).max() < 1e-3
    start = centre(fs.reduce.total(), updates)
    assert value_and_gradient(start)[0] > best.fun + 0.01  # the mean is not it
    few = value_and_gradient(centre(fs.reduce.geometric(), updates))[0]
    assert few - best.fun < 0.05 * (
        value_and_gradient(start)[0] - best.fun
    )  # the default 8 steps go most of the way


def numbers(*values: float, **extra: Any) -> Cohort:
    """Clients of weight one that send a dense number each."""
    column = np.asarray(values, np.float32)
    count = len(values)
    report = ClientReport(*[np.zeros(count, np.float32)] * 4)
    tags = {"update": "", **dict.fromkeys(extra, "")}
    along = {name: np.asarray(given, np.float32) for name, given in extra.items()}
    weight = np.ones(count, np.float32)
    return Cohort({"update": column, **along}, weight, report, tags, {}, {})


def weiszfeld(values: list[float], steps: int) -> float:
    """From zero: the mean by one over the distance, so many times."""
    centre = 0.0
    for _ in range(steps):
        trust = [1 / max(abs(value - centre), 1e-6) for value in values]
        centre = sum(t * v for t, v in zip(trust, values, strict=True)) / sum(trust)
    return centre


@pytest.mark.parametrize("steps", few([1, 2, 3, 8], 2, 8))
def test_geometric_takes_as_many_steps_as_it_is_told(steps: int) -> None:
    """Of 1, 2, 6 from zero by hand: trust 1, 1/2, 1/6, so 3 / (5 / 3) = 1.8 after one step."""
    assert weiszfeld([1.0, 2.0, 6.0], 1) == pytest.approx(1.8)
    total, weight = apply(fs.reduce.geometric(steps), numbers(1.0, 2.0, 6.0))
    assert float(total["update"] / weight) == pytest.approx(weiszfeld([1, 2, 6], steps), rel=1e-4)
    if steps == 8:  # the default
        again, _ = apply(fs.reduce.geometric(), numbers(1.0, 2.0, 6.0))
        assert float(again["update"]) == float(total["update"])


def test_what_comes_along_with_updates_is_not_bounded_as_they_are() -> None:
    """Three clients are below the quorum: updates 1, 2, 30 are cut to the median norm 2, of which
    the median is 2; steps taken are numbers of their own, whose median is 7."""
    total, _ = apply(fs.reduce.median(quorum=10), numbers(1.0, 30.0, 2.0, steps=[7.0, 7.0, 5.0]))
    assert float(total["update"]) == pytest.approx(3 * 2)
    assert float(total["steps"]) == pytest.approx(3 * 7)


def test_the_quorum_is_ten_unless_said_otherwise() -> None:
    """Of nine holders a number 100 times as large is bounded first, of ten it is not; the mean of
    what is left shows which."""
    for count, kept in ((9, 1.0), (10, 100.0)):
        sent = [1.0] * (count - 1) + [100.0]
        total, weight = apply(fs.reduce.trimmed(1e-3), numbers(*sent))
        assert float(total["update"] / weight) == pytest.approx((count - 1 + kept) / count)


@pytest.mark.parametrize(
    ("share", "count", "cut"),
    few_rows([(0.42, 150, 63), (0.3, 10, 3), (0.29, 100, 29)], (0.42, 150, 63)),
)
def test_shares_are_not_rounded_down_by_32_bits(share: float, count: int, cut: int) -> None:
    """0.42 of 150 are 63, though 62.999996 in 32 bits.  So many zeros and so many large numbers are
    cut off, and ones are left."""
    sent = [0.0] * cut + [1.0] * (count - 2 * cut) + [1e6] * cut
    total, weight = apply(fs.reduce.trimmed(share, quorum=0), numbers(*sent))
    assert float(total["update"] / weight) == pytest.approx(1)


@pytest.mark.parametrize(
    "reduce",
    [
        fs.reduce.total(),
        fs.reduce.trimmed(0.2),
        fs.reduce.median(),
        fs.reduce.geometric(),
        fs.reduce.krum(0.2, keep=3),
        fs.reduce.worst(0.5),
    ],
    ids=lambda reduce: reduce.name,
)
def test_what_stands_in_padding_is_nothing(reduce: Reduce) -> None:
    """A client does not send rows that it only read: their places are past the end, whatever stands
    in them."""
    updates = Updates()
    clean = updates.cohort()
    padding = (clean.places["w"] >= UNION)[:, :, None]
    noise = np.where(padding, np.float32(50), clean.values["update"]["w"])
    dirty = clean._replace(values={"update": {**clean.values["update"], "w": noise}})
    assert padding.any()
    for one, other in zip(
        *(jax.tree.leaves(apply(reduce, cohort)) for cohort in (clean, dirty)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_one_far_update_hardly_moves_the_geometric_median() -> None:
    """A Weiszfeld step multiplies the pull of a far outlier with the share a of the weight by about
    a / (1 - a), here 1 / 15."""
    updates = Updates()
    before = centre(fs.reduce.geometric(), updates)
    updates.dense[0] = np.full(3, 1e4, np.float32)
    updates.table[0] = {row: np.full(2, 1e4, np.float32) for row in updates.table[0]}
    moved = np.abs(centre(fs.reduce.geometric(), updates) - before)
    shared = [2 * row + k for row in (0, 2) for k in (0, 1)] + list(range(2 * UNION, 2 * UNION + 3))
    assert moved[shared].max() < 0.5  # rows that many hold
    assert np.abs(centre(fs.reduce.total(), updates) - before)[shared].min() > 500


# -- Krum, superquantile ---------------------------------------------------------------------------


def krum_order(updates: Updates, bad: float) -> list[int]:
    """Blanchard et al. 2017: clients by the sum of their n - f - 2 smallest gaps; a gap is the mean
    square of what both hold."""
    count = len(ALIVE)
    near = max(1, count - int(np.floor(bad * count)) - 2)
    scores = {}
    for i in ALIVE:
        gaps = []
        for j in ALIVE:
            if i != j:
                both = [
                    updates.table[i][r] - updates.table[j][r]
                    for r in updates.table[i]
                    if r in updates.table[j]
                ]
                gaps.append(
                    np.mean(np.concatenate([*both, updates.dense[i] - updates.dense[j]]) ** 2)
                )
        scores[i] = np.sum(np.sort(gaps)[:near])
    return sorted(ALIVE, key=lambda i: scores[i])


@pytest.mark.parametrize(
    ("bad", "keep"), few_rows(product((0.0, 0.25), (1, 3, 8)), (0.0, 1), (0.25, 3))
)
@pytest.mark.parametrize("seed", few([0, 1], 0))
def test_krum(bad: float, keep: int, seed: int) -> None:
    """Kept clients are averaged by weight; every row stands for all of its holders, none kept: it
    stays."""
    updates = Updates(seed)
    kept = krum_order(updates, bad)[:keep]
    table, dense, weight = applied(fs.reduce.krum(bad, keep), updates)
    for row in range(UNION):
        who = [i for i in updates.holders(row) if i in kept]
        mean = (
            np.average([updates.table[i][row] for i in who], axis=0, weights=WEIGHT[who])
            if who
            else np.zeros(2)
        )
        np.testing.assert_allclose(
            table[row], mean * WEIGHT[updates.holders(row)].sum(), rtol=1e-4, atol=1e-5
        )
    mean = np.average([updates.dense[i] for i in kept], axis=0, weights=WEIGHT[kept])
    np.testing.assert_allclose(dense, mean * weight, rtol=1e-4, atol=1e-5)
    assert weight == WEIGHT.sum()


def test_krum_picks_an_honest_client() -> None:
    """Two colluding clients far away are near to each other, but n - f - 2 = 4 neighbours take them
    to honest ones."""
    updates = Updates()
    for i in (0, 2):
        updates.dense[i] = np.full(3, 50.0, np.float32)
    _, dense, weight = applied(fs.reduce.krum(0.25), updates)
    assert any(
        np.allclose(dense / weight, updates.dense[i], atol=1e-5) for i in ALIVE if i not in (0, 2)
    )


def test_krum_picks_an_honest_client_however_large_the_attack() -> None:
    """1e25 squared is infinite in 32 bits: such a client must be the worst, not the best."""
    updates = Updates()
    updates.dense[6] = np.full(3, 1e25, np.float32)
    _, dense, weight = applied(fs.reduce.krum(0.25), updates)
    assert np.abs(dense / weight).max() < 10


def test_krum_does_not_prefer_a_client_that_nobody_can_compare() -> None:
    """Without dense leaves, a client whose rows no other holds has no gaps at all."""
    values = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    places = jnp.asarray([[0, 1]] * 5 + [[2, 3]])
    cohort = Cohort(
        {"update": jnp.asarray(values)},
        jnp.ones(6),
        told(jnp.zeros(6)),
        {"update": "w"},
        {"w": places},
        {"w": 4},
    )
    out = np.asarray(apply(fs.reduce.krum(0.2), cohort)[0]["update"])
    assert np.all(out[:2] != 0)
    assert not out[2:].any()


def test_worst_share_is_not_rounded_up_by_32_bits() -> None:
    report = told(jnp.arange(50.0))
    cohort = Cohort({"b": jnp.ones((50, 1))}, jnp.ones(50), report, {"b": ""}, {}, {})
    assert float(apply(fs.reduce.worst(0.3), cohort)[1]) == 15


@pytest.mark.parametrize(
    ("share", "count"),
    few_rows([(0.1, 1), (0.25, 2), (0.5, 4), (0.6, 5), (1.0, 8)], (0.1, 1), (0.6, 5)),
)
def test_worst_counts_only_the_highest_losses(share: float, count: int) -> None:
    """ceil(share n) of the living; the weight shrinks with them, so the mean after it is theirs."""
    updates = Updates()
    updates.loss[DEAD] = 100.0
    chosen = sorted(ALIVE, key=lambda i: -updates.loss[i])[:count]
    table, dense, weight = applied(fs.reduce.worst(share), updates)
    assert weight == WEIGHT[chosen].sum()
    np.testing.assert_allclose(
        dense, sum(WEIGHT[i] * updates.dense[i] for i in chosen), rtol=1e-5, atol=1e-5
    )
    for row in range(UNION):
        parts = [WEIGHT[i] * updates.table[i][row] for i in chosen if row in updates.table[i]]
        np.testing.assert_allclose(
            table[row], np.sum(parts, axis=0) if parts else np.zeros(2), rtol=1e-5, atol=1e-5
        )


# -- in an algorithm -------------------------------------------------------------------------------

ROBUST = {
    "trimmed": fs.reduce.trimmed(0.3, quorum=0),
    "median": fs.reduce.median(quorum=0),
    "geometric": fs.reduce.geometric(),
    "krum": fs.reduce.krum(0.2, keep=2),
    "worst": fs.reduce.worst(0.5),
}


@pytest.mark.every
def test_trimmed_of_nothing_is_fedavg() -> None:
    one = fs.recipes.fedavg(logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4))
    two = fs.recipes.fedavg(
        logistic(), optax.sgd(0.3), fs.Work(steps=2, batch=4), reduce=fs.reduce.trimmed(0.0)
    )
    assert_params_close(
        run_of(one, people(), 3).params(), run_of(two, people(), 3).params(), rtol=0, atol=0
    )


def same_for_all(client: Client) -> Client:
    """Every client sends 0.1 in every number that it holds."""

    def run(offer: Any, memory: Any, data: Any, key: Any) -> Any:
        message, memory = client.run(offer, memory, data, key)
        return (
            message._replace(update=jax.tree.map(lambda x: jnp.full_like(x, 0.1), message.update)),
            memory,
        )

    return client._replace(run=run)


@cache
def move(name: str | None) -> Any:
    """How far one round of equal updates moves each parameter."""
    reduce = None if name is None else ROBUST[name]
    method = fs.recipes.fedavg(logistic(), optax.sgd(0.3), fs.Work(steps=1, batch=4), reduce=reduce)
    run = run_of(method._replace(client=same_for_all(method.client)), people())
    first = jax.tree.map(np.array, run.params())
    run.train(1, progress=False)
    return jax.tree.map(lambda new, old: np.asarray(new) - old, run.params(), first)


@pytest.mark.parametrize("name", few(ROBUST, "trimmed", "krum"))
def test_identical_updates_give_fedavg(name: str) -> None:
    """Any mean of equal numbers over a row's holders is that number, which counts with the weight
    of the holders.

    Krum may keep no holder of a row, and the superquantile looks at the worst clients alone, so
    with them only what everyone holds is the same."""
    plain, robust = move(None), move(name)
    assert plain["dense"]["bias"] == pytest.approx(0.1, rel=1e-4)
    assert np.ptp(plain["w"]) > 0.01  # rows of few holders move less
    if name in ("krum", "worst"):
        plain, robust = plain["dense"], robust["dense"]
    assert_params_close(robust, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "reduction",
    [fs.reduce.geometric(), fs.reduce.krum(0.2, keep=3), fs.reduce.median()],
    ids=["geometric", "krum", "median"],
)
def test_clients_are_judged_by_their_updates_alone(reduction: Any) -> None:
    """Extras of another size (steps, losses, memberships) must not decide whom to trust."""
    rng = np.random.default_rng(1)
    update = jnp.asarray(rng.normal(size=(7, 3)).astype(np.float32))
    results = []
    for scale in (0.0, 1e4):
        values = {"update": update, "steps": jnp.asarray(scale * rng.random(7).astype(np.float32))}
        cohort = Cohort(
            values, jnp.ones(7), told(jnp.zeros(7)), {"update": "", "steps": ""}, {}, {}
        )
        results.append(np.asarray(apply(reduction, cohort)[0]["update"]))
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (7,), (40, 50)])  # the last is added client by client
def test_dense_leaves_are_summed_whatever_their_size(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    cohort = Cohort(
        {"update": jnp.asarray(values)}, jnp.ones(6), told(jnp.zeros(6)), {"update": ""}, {}, {}
    )
    found = apply(fs.reduce.total(), cohort)[0]["update"]
    np.testing.assert_allclose(found, values.astype(np.float64).sum(0), rtol=1e-5, atol=1e-6)
