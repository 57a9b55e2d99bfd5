"""Synthetic(alpha, beta): the definition, what its two numbers do, and that it can be learned."""

import jax
import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.tasks import synthetic_glm
from fedslice.tasks.synthetic_glm import generate, softmax_regression
from fedslice.types import Params


def of(people: Population, column: str, client: int) -> np.ndarray:
    return people.columns[column][people.offsets[client] : people.offsets[client + 1]]


def test_sizes_follow_the_power_law() -> None:
    """50 + floor(exp(N(4, 2^2))): the logarithm of what is above 50 has mean 4 and deviation 2."""
    counts = np.concatenate([generate(60, seed=seed).counts for seed in range(5)])
    assert counts.min() >= 50
    logarithm = np.log(counts - 50 + 0.5)
    assert np.median(logarithm) == pytest.approx(4, abs=0.3)
    low, high = np.percentile(logarithm, [16, 84])
    assert (high - low) / 2 == pytest.approx(2, abs=0.25)


def test_features_have_the_published_covariance() -> None:
    people = generate(40, seed=1)
    client = int(np.argmax(people.counts))
    x = of(people, "x", client)
    assert len(x) > 1000
    wanted = np.arange(1, 61) ** -1.2
    assert x.var(0) == pytest.approx(wanted, rel=6 * np.sqrt(2 / len(x)))
    correlation = np.corrcoef(x.T)[~np.eye(60, dtype=bool)]
    assert np.abs(correlation).max() < 6 / np.sqrt(len(x))


def test_beta_moves_the_clients_data_apart() -> None:
    """The mean of v_k over its 60 coordinates is N(0, beta^2 + 1 / 60) over clients, plus little
    from sampling."""
    for beta in (0.0, 3.0):
        people = generate(150, beta=beta, seed=2)
        centres = np.add.reduceat(people.columns["x"].mean(1), people.offsets[:-1]) / people.counts
        assert centres.std() == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.2)


def fit(people: Population, client: int) -> Params:
    """A softmax regression of one client's data, by full-batch Adam."""
    model, descent = softmax_regression(), optax.adam(0.1)
    batch = {"x": of(people, "x", client), "label": of(people, "label", client)}

    def step(
        carry: tuple[Params, optax.OptState], _: None
    ) -> tuple[tuple[Params, optax.OptState], None]:
        params, state = carry
        grads = jax.grad(lambda p: model.loss(p, batch).mean())(params)
        updates, state = descent.update(grads, state)
        return (optax.apply_updates(params, updates), state), None

    start = model.init(jax.random.key(0))
    return jax.lax.scan(step, (start, descent.init(start)), length=300)[0][0]


def accuracy(params: Params, people: Population, client: int) -> float:
    batch = {"x": of(people, "x", client), "label": of(people, "label", client)}
    return float(softmax_regression().metrics["accuracy"](params, batch).mean())


def test_labels_are_linear_in_each_client_and_another_client_has_other_ones() -> None:
    for iid in (False, True):
        people = generate(20, beta=0.0, iid=iid, seed=0)
        one, other = np.argsort(people.counts)[-2:]
        params = fit(people, one)
        assert accuracy(params, people, one) > 0.95
        assert (accuracy(params, people, other) > 0.6) == iid


def test_iid_clients_share_model_and_data() -> None:
    task = synthetic_glm.synthetic(iid=True)
    people = task.train
    first = [of(people, "x", k).mean(0) for k in range(len(people))]
    assert np.abs(np.mean(first, axis=0)).max() < 0.1
    assert np.std(first, axis=0)[0] < 0.2  # only from sampling: 1 / root(40) at most
    shares = np.bincount(people.columns["label"], minlength=10) / people.examples
    large = np.flatnonzero(people.counts > 200)
    for client in large:
        own = np.bincount(of(people, "label", client), minlength=10) / people.counts[client]
        assert np.abs(own - shares).max() < 5 * np.sqrt(0.25 / people.counts[client]) + 0.02


def test_a_fifth_of_each_client_is_held_out() -> None:
    task = synthetic_glm.synthetic()
    whole = generate()
    assert (task.test.counts == whole.counts // 5).all()
    assert (task.train.counts + task.test.counts == whole.counts).all()
    rows = np.concatenate([task.train.columns["x"], task.test.columns["x"]])
    assert np.array_equal(np.unique(rows[:, 0]), np.unique(whole.columns["x"][:, 0]))


def test_seed_and_scale() -> None:
    assert len(synthetic_glm.synthetic(scale=2).train) == 60
    one, same, other = (generate(seed=seed).columns["x"] for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert one.shape != other.shape or not np.array_equal(one, other)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="clients=0"):
        generate(0)
    with pytest.raises(InputError, match="alpha=-1"):
        generate(alpha=-1)


@pytest.mark.every
def test_it_trains_at_the_published_settings() -> None:
    task = synthetic_glm.synthetic()
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(task.model.init(jax.random.key(0))))
        == 60 * 10 + 10
    )
    settings = dict(task.settings)
    sampler = fs.sampling.uniform(settings.pop("cohort"))
    rate, weights = optax.sgd(task.learning_rates[""]), settings.pop("weights")
    method = fs.recipes.fedavg(task.model, rate, fs.Work(**settings), weights=weights)
    run = fs.simulate(method, task.train, sampler=sampler)
    before = fs.evaluate(run, task.test).pooled
    assert before["loss"] == pytest.approx(np.log(10), abs=1e-5)
    run.train(10, progress=False)
    after = fs.evaluate(run, task.test).pooled
    assert after["loss"] < 0.6 * before["loss"]
    assert after["accuracy"] > before["accuracy"] + 0.2


def test_workload() -> None:
    workload = synthetic_glm.WORKLOAD
    assert workload.name == "synthetic-glm"
    assert workload.synthetic(seed=1, scale=0.5).name == workload.name
