"""Partitioners: every example once, sizes, what the parameters do, repeatability, and what is
refused."""

from collections.abc import Callable

import numpy as np
import pytest

from fedslice.data.partition import dirichlet, iid, pachinko, shards, shuffle
from fedslice.data.population import Population
from fedslice.errors import InputError

LABELS = np.random.default_rng(7).integers(10, size=4003)
FINE = np.random.default_rng(8).integers(20, size=2000)
COARSE = FINE // 4

Partition = Callable[[int], np.ndarray]
EQUAL: dict[str, Partition] = {
    "iid": lambda seed: iid(4003, 17, seed),
    "dirichlet": lambda seed: dirichlet(LABELS, 17, 0.5, seed),
    "dirichlet, extreme": lambda seed: dirichlet(LABELS, 17, 1e-9, seed),
    "pachinko": lambda seed: pachinko(COARSE, FINE, 17, 0.1, 10.0, seed),
    "pachinko, extreme": lambda seed: pachinko(COARSE, FINE, 17, 1e-9, 1e-9, seed),
}


def table(owner: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Examples of each client (row) and label (column)."""
    found = np.zeros((owner.max() + 1, labels.max() + 1), np.int64)
    np.add.at(found, (owner, labels), 1)
    return found


def entropy(counts: np.ndarray) -> np.ndarray:
    """Of each row's shares, in nats."""
    share = counts / counts.sum(-1, keepdims=True)
    return -np.sum(share * np.log(np.where(share > 0, share, 1)), -1)


@pytest.mark.parametrize("name", EQUAL)
def test_every_example_has_one_client_and_clients_have_equal_sizes(name: str) -> None:
    owner = EQUAL[name](0)
    assert owner.dtype == np.int32
    assert owner.shape in ((4003,), (2000,))
    sizes = np.bincount(owner, minlength=17)
    assert len(sizes) == 17
    assert sizes.max() - sizes.min() <= 1
    people = Population.from_arrays(owner, place=np.arange(len(owner)))
    assert sorted(people.columns["place"].tolist()) == list(range(len(owner)))


@pytest.mark.parametrize("name", [*EQUAL, "shards"])
def test_the_seed_decides(name: str) -> None:
    partition = EQUAL.get(name, lambda seed: shards(LABELS, 17, 2, seed))
    assert np.array_equal(partition(3), partition(3))
    assert not np.array_equal(partition(3), partition(4))


def test_iid_clients_look_like_the_whole() -> None:
    found = table(iid(len(LABELS), 4), LABELS)
    expected = np.bincount(LABELS) / 4
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected.max())


def test_dirichlet_goes_from_one_label_to_the_prior() -> None:
    labels = np.repeat(np.arange(10), 400)
    spread = [
        entropy(table(dirichlet(labels, 10, alpha), labels)).mean()
        for alpha in (1e-6, 0.5, 5.0, 50.0, 1e6)
    ]
    assert spread == sorted(spread)
    assert spread[-1] > 0.98 * np.log(10)
    few = table(dirichlet(labels, 10, 1e-6), labels)
    assert (few[0] > 0).sum() == 1  # 400 examples of one label: exactly the first client's size
    # A client that finds its label used up takes another one: two labels for most clients at worst,
    # never many.
    assert (few > 0).sum(1).max() <= 4


def test_large_alpha_gives_the_shares_of_the_labels() -> None:
    labels = np.repeat([0, 1, 2], [3000, 900, 100])
    found = table(dirichlet(labels, 4, 1e7), labels)
    # With shares fixed at the prior the first client's 1,000 draws are multinomial: 5 standard
    # deviations.
    expected = 1000 * np.array([0.75, 0.225, 0.025])
    assert (np.abs(found[0] - expected) < 5 * np.sqrt(expected)).all()


def test_first_clients_shares_have_the_moments_of_the_dirichlet() -> None:
    """Var q = p (1 - p) / (A + 1) for Dir(A p), and of the counts of n draws n p (1 - p) (A + n) /
    (A + 1)."""
    labels = np.repeat(np.arange(5), 200)
    for alpha, prior, total in ((4.0, None, 4.0), (1.0, np.ones(5), 5.0)):
        counts = np.array(
            [table(dirichlet(labels, 10, alpha, s, prior=prior), labels)[0] for s in range(400)]
        )
        variance = 100 * 0.2 * 0.8 * (total + 100) / (total + 1)
        assert counts.var() == pytest.approx(variance, rel=0.15)


def test_prior_tilts_the_draw() -> None:
    labels = np.repeat(np.arange(2), 5000)
    first = [table(dirichlet(labels, 50, 1e6, seed, prior=[9, 1]), labels)[0] for seed in range(5)]
    assert np.mean(first, axis=0) / 200 == pytest.approx([0.9, 0.1], abs=0.03)


def test_draws_after_a_label_is_used_up_keep_the_proportions_of_the_others() -> None:
    """Two clients, alpha large, prior 98 : 1 : 1, but a hundredth of the stock: the first takes all
    of label 0."""
    labels = np.repeat(np.arange(3), [10, 495, 495])
    taken = np.array(
        [table(dirichlet(labels, 2, 1e9, s, prior=[98, 1, 1]), labels)[0] for s in range(20)]
    )
    assert (taken[:, 0] == 10).all()
    assert taken[:, 1].mean() == pytest.approx(245, abs=4 * np.sqrt(490 / 4 / 20))


def test_labels_may_be_text_and_need_not_be_numbered_from_0() -> None:
    text = np.array(["cat", "dog", "emu"])[LABELS % 3]
    assert np.array_equal(dirichlet(text, 5, 0.3), dirichlet(5 + 10 * (LABELS % 3), 5, 0.3))


def test_pachinko_concentrates_coarse_labels_and_spreads_the_fine_ones_in_them() -> None:
    fine = np.repeat(np.arange(100), 500)
    owner = pachinko(fine // 5, fine, 500)
    first = table(owner, fine)[:100]  # before much is used up
    coarse = first.reshape(100, 20, 5).sum(2)
    assert entropy(coarse).mean() < 0.5 * np.log(20)
    large = coarse.max(1)
    inner = first.reshape(100, 20, 5)[np.arange(100), coarse.argmax(1)]
    assert entropy(inner[large > 50]).mean() > 0.85 * np.log(5)
    even = table(pachinko(fine // 5, fine, 500, alpha=1e6), fine)[:100].reshape(100, 20, 5).sum(2)
    assert entropy(even).mean() > 0.9 * np.log(20)


def test_a_used_up_fine_label_leaves_its_coarse_label_as_likely_as_before() -> None:
    """Coarse 0 has fine 0, which is rare, and 1; coarse 1 has fine 2.  Both levels are even: half
    of each."""
    fine = np.repeat([0, 1, 2], [5, 1995, 2000])
    firsts = [table(pachinko(fine // 2, fine, 10, 1e9, 1e9, seed), fine)[0] for seed in range(20)]
    taken = np.mean(firsts, axis=0)
    assert taken[0] == 5
    assert taken[2] == pytest.approx(200, abs=4 * np.sqrt(400 / 4 / 20))


def test_shards_give_few_labels_a_client() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    owner = shards(labels, 50, 2)
    found = table(owner, labels)
    assert (found.sum(1) == 20).all()  # 100 shards of 10, each of one label
    assert set(np.unique(found)) <= {0, 10, 20}
    assert (found > 0).sum(1).max() <= 2
    assert (shards(labels, 10, 1) != shards(labels, 10, 1, seed=1)).any()
    assert (table(shards(labels, 10, 1), labels) > 0).sum(1).tolist() == [1] * 10


def test_shards_of_a_number_that_does_not_divide() -> None:
    sizes = np.bincount(shards(LABELS, 17, 3))
    assert sizes.sum() == len(LABELS)
    assert sizes.max() - sizes.min() <= 3


def natural() -> Population:
    """Forty clients of different sizes, each with a label of its own."""
    sizes = np.arange(10, 50)
    owner = np.repeat(np.arange(40), sizes)
    return Population.from_arrays(owner, x=np.arange(sizes.sum()), label=owner)


def test_shuffle_keeps_sizes_names_and_every_example() -> None:
    people = natural()
    for factor in (0.0, 0.3, 1.0):
        mixed = shuffle(people, factor)
        assert np.array_equal(mixed.offsets, people.offsets)
        assert np.array_equal(mixed.clients, people.clients)
        assert sorted(mixed.columns["x"].tolist()) == list(range(people.examples))
        # rows stay whole
        assert np.array_equal(people.columns["label"][mixed.columns["x"]], mixed.columns["label"])


def test_shuffle_interpolates() -> None:
    people = natural()
    assert np.array_equal(shuffle(people, 0.0).columns["x"], people.columns["x"])
    stay = [
        np.mean(shuffle(people, f, seed=1).columns["label"] == people.owners)
        for f in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    chance = np.sum((people.counts / people.examples) ** 2)  # to be given back to one's own client
    assert stay == pytest.approx(
        [1 - f * (1 - chance) for f in (0.0, 0.25, 0.5, 0.75, 1.0)], abs=0.03
    )


def test_shuffle_is_repeatable() -> None:
    people = natural()
    one, same, other = (shuffle(people, 0.5, seed).columns["x"] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(3, 4), "3 examples cannot be divided among 4 clients"),
        (lambda: iid(3, 0), "among 0 clients"),
        (lambda: dirichlet([0, 1], -1, 1.0), "among -1 clients"),
        (lambda: dirichlet([], 1, 1.0), "0 examples"),
        (lambda: dirichlet([0, 1], 1, 0.0), "alpha=0.0 must be a positive number"),
        (lambda: dirichlet([0, 1], 1, float("nan")), "alpha=nan"),
        (lambda: dirichlet([[0, 1]], 1, 1.0), "one label for each example"),
        (lambda: dirichlet([0, 1], 1, 1.0, prior=[1.0]), "2 positive numbers"),
        (lambda: dirichlet([0, 1], 1, 1.0, prior=[1.0, 0.0]), "2 positive numbers"),
        (lambda: pachinko([0, 1], [0, 0], 1), "fine label 0 is under two coarse labels"),
        (lambda: pachinko([0], [0, 0], 1), "1 coarse and 2 fine"),
        (lambda: pachinko([0, 0], [0, 0], 1, beta=-1), "beta=-1"),
        (lambda: shards([0, 1, 2], 2, 2), "cannot be cut into 2 clients x 2 shards"),
        (lambda: shards([0, 1, 2], 2, 0), "at least one of each"),
        (lambda: shuffle(natural(), 1.5), "from 0"),
        (lambda: shuffle(natural(), float("nan")), "from 0"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
