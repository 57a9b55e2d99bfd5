"""Adapting a model to clients: ReconEval and fine-tuning against NumPy, the axes, and the gains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import assert_params_close, run_of

import fedslice as fs
from fedslice.cli import experiment
from fedslice.cli.catalogue import settings_for
from fedslice.client import finetune, reconstruction
from fedslice.data import halves
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.evaluation import gain as personal
from fedslice.evaluation.gain import Gain, Personal, adapted, model_of
from fedslice.evaluation.scores import Evaluator, Scores
from fedslice.metrics import root
from fedslice.model import Model, Table

ITEMS, SIZE, RATE = 14, 3, 0.2
COUNTS = (6, 1, 9, 4, 2, 12, 5)


def squares(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (
        jnp.sum(params["item"][batch["item"]] * params["user"], -1)
        + params["bias"]
        - batch["rating"]
    ) ** 2


def close(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return (squares(params, batch) < 1).astype(jnp.float32)


def matrix_model(local: str | tuple[str, ...] = "user", **more: Any) -> Model:
    """Film vectors in a table, a dense bias, and a user's vector, drawn or, where it is global,
    fixed."""

    def init(key: jax.Array) -> dict[str, Any]:
        return {"user": jax.random.uniform(key, (SIZE,)), "bias": jnp.array(0.5)}

    table = Table(rows=ITEMS, fields="item", shape=(SIZE,), init=jax.nn.initializers.normal(0.5))
    return Model(
        init, squares, {"item": table}, local, {"rmse": root(squares), "close": close}, **more
    )


def raters(counts: tuple[int, ...] = COUNTS, items: int = ITEMS) -> Population:
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(len(counts)), counts)
    item = np.concatenate([rng.permutation(items)[:count] for count in counts])
    rating = rng.integers(1, 11, len(owner)) / 2
    return Population.from_arrays(owner, item=item, rating=rating, time=rng.permutation(len(owner)))


def params_for(model: Model, population: Population) -> dict[str, Any]:
    return model.params(
        jax.random.key(9), {name: space.ids for name, space in population.spaces(model).items()}
    )


def by_hand(
    judge: Personal, params: dict[str, Any], split: Any, trained: set[str], steps: int = 1000
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Squared errors of each client's query examples before and after SGD on the support batches,
    in NumPy."""
    population, columns = judge.population, judge.population.columns
    ids = judge.ids()["item"]
    table = np.zeros((ITEMS, SIZE))
    table[ids] = params["item"]
    part = halves.assign(population, split)
    counts = judge.planner.pools[0].counts
    everyone = np.arange(len(population))
    examples, sizes, taken = judge.planner._examples(0, 0, everyone, counts)
    before, after = {}, {}
    for client in everyone:
        fresh = judge.model.fresh(jax.random.fold_in(jax.random.key(0), client))
        start = {
            **{name: np.asarray(leaf, float) for name, leaf in {**params, **fresh}.items()},
            "item": table,
        }
        now = {name: leaf.copy() for name, leaf in start.items()}

        def errors(leaves: Any, numbers: Any) -> np.ndarray:
            return (
                leaves["item"][columns["item"][numbers]] @ leaves["user"]
                + leaves["bias"]
                - columns["rating"][numbers]
            )

        for s in range(min(steps, taken[client])):
            numbers = examples[client, s, : sizes[client, s]]
            residual, items = 2 * errors(now, numbers) / len(numbers), columns["item"][numbers]
            grads = {
                "item": np.zeros_like(table),
                "user": residual @ now["item"][items],
                "bias": residual.sum(),
            }
            np.add.at(grads["item"], items, residual[:, None] * now["user"])
            now = {
                name: leaf - RATE * grads[name] * (name in trained) for name, leaf in now.items()
            }
        query = np.flatnonzero((part == halves.QUERY) & (population.owners == client))
        before[client], after[client] = errors(start, query) ** 2, errors(now, query) ** 2
    return before, after


def assert_scores(scores: Scores, errors: dict[int, np.ndarray]) -> None:
    everything = np.concatenate(list(errors.values()))
    assert scores.pooled["loss"] == pytest.approx(everything.mean(), rel=1e-4)
    assert scores.pooled["rmse"] == pytest.approx(np.sqrt(everything.mean()), rel=1e-4)
    assert scores.pooled["close"] == pytest.approx((everything < 1).mean())
    each = [own.mean() if len(own) else np.nan for own in errors.values()]
    np.testing.assert_allclose(scores.clients["loss"], each, rtol=2e-4)
    np.testing.assert_allclose(scores.clients["rmse"], np.sqrt(each), rtol=2e-4)


@pytest.mark.parametrize("engine", ["vmap", "map"])
@pytest.mark.parametrize("split", few(["half", "time"], "half"))
def test_recon_eval_is_the_reference(
    split: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        personal, "TOGETHER", 4
    )  # seven clients, one of them without query: a full cohort and a rest
    monkeypatch.setattr(
        personal, "SCORED", 4
    )  # clients with more query examples than are scored at once
    model, population = matrix_model(), raters()
    adaptation = reconstruction(
        model, optax.sgd(RATE), fs.Work(epochs=2, steps=4, batch=2), split=split
    )
    judge = Personal(population, adaptation, engine=engine)
    assert [len(cohort) for cohort in judge.cohorts] == [4, 2]
    params = params_for(model, population)
    assert "user" not in params
    gain = judge(params)
    before, after = by_hand(judge, params, split, {"user"})
    assert_scores(gain.before, before)
    assert_scores(gain.after, after)
    assert np.isnan(gain.clients("loss")).tolist() == [False, True] + [False] * 5
    assert gain.spread("loss")["mean"] > 0.1


@pytest.mark.parametrize(
    ("local", "leaves"),
    [
        pytest.param("user", None, id="local user-all"),
        pytest.param((), ("item", "bias"), id="no local-item bias"),
        pytest.param("user", ("user", "bias"), id="local user-user bias"),
        pytest.param((), None, id="no local-all", marks=pytest.mark.every),
        pytest.param("user", ("item", "bias"), id="local user-item bias", marks=pytest.mark.every),
        pytest.param((), ("user", "bias"), id="no local-user bias", marks=pytest.mark.every),
    ],
)
def test_fine_tuning_is_sgd_by_hand(leaves: Any, local: Any) -> None:
    model, population = matrix_model(local), raters()
    judge = Personal(
        population, finetune(model, optax.sgd(RATE), fs.Work(epochs=1, batch=3), leaves=leaves)
    )
    params = params_for(model, population)
    gain = judge(params)
    before, after = by_hand(judge, params, "half", set(leaves or ("item", "user", "bias")))
    assert_scores(gain.before, before)
    assert_scores(gain.after, after)


def test_before_is_evaluation_on_the_query_part() -> None:
    model, population = matrix_model(local=()), raters()
    judge = Personal(population, finetune(model, optax.sgd(0.0), fs.Work(steps=2, batch=3)))
    gain = judge(params_for(model, population))
    query = halves.query(population, "half")
    scores = Evaluator(model, query)(params_for(model, query))
    for found in (gain.before, gain.after):
        assert found.pooled == pytest.approx(scores.pooled, rel=1e-5)
        np.testing.assert_allclose(found.clients["loss"], scores.clients["loss"], rtol=1e-5)


# -- axes ------------------------------------------------------------------------------------------


def test_steps_are_an_axis() -> None:
    """Stopping after k steps is the reference stopped there, and an adaptation of k steps."""
    model, population = matrix_model(), raters()
    params = params_for(model, population)
    judge = Personal(population, reconstruction(model, optax.sgd(RATE), fs.Work(epochs=4, batch=2)))
    losses = []
    for steps in (0, 1, 3, 1000):
        gain = judge(params, steps)
        assert_scores(gain.after, by_hand(judge, params, "half", {"user"}, steps)[1])
        losses.append(gain.after.pooled["loss"])
        if steps in (1, 3):
            cut = reconstruction(model, optax.sgd(RATE), fs.Work(steps=steps, epochs=4, batch=2))
            assert Personal(population, cut)(params).after.pooled == pytest.approx(
                gain.after.pooled, rel=1e-5
            )
    assert judge(params).after.pooled["loss"] == losses[-1]
    assert losses[0] == gain.before.pooled["loss"]
    assert len(set(losses)) == 4


@pytest.mark.parametrize("split", few(["half", "time"], "time"))
def test_support_examples_are_an_axis(split: str) -> None:
    model, population = matrix_model(), raters()
    params = params_for(model, population)
    adaptation = reconstruction(model, optax.sgd(RATE), fs.Work(epochs=3, batch=2), split=split)
    whole = Personal(population, adaptation)(params)
    for most in (0, 1, 2, 100):
        judge = Personal(population, adaptation, support=most)
        gain = judge(params)
        assert_scores(gain.after, by_hand(judge, params, split, {"user"})[1])
        assert gain.before.pooled == pytest.approx(
            whole.before.pooled, rel=1e-6
        )  # the same query examples
        if most == 0:
            assert gain.clients("loss")[~np.isnan(gain.clients("loss"))].tolist() == [0.0] * 6
        counts = judge.planner.pools[0].counts
        assert counts.tolist() == np.minimum(-(-population.counts // 2), most).tolist()
    assert gain.after.pooled == pytest.approx(whole.after.pooled, rel=1e-6)


def test_the_split_can_be_another_than_in_training() -> None:
    model, population = matrix_model(), raters()
    params = params_for(model, population)
    none = reconstruction(
        model, optax.sgd(RATE), fs.Work(epochs=1, batch=2), split="none"
    )  # as trained: support is query
    half = reconstruction(model, optax.sgd(RATE), fs.Work(epochs=1, batch=2), split="half")
    first = Personal(population, half)(params).after.pooled
    assert Personal(population, none)(params).after.pooled == pytest.approx(first)
    timed = Personal(population, none, split="time")(params).after.pooled
    assert timed != pytest.approx(first)
    assert Personal(population, half, split="time")(params).after.pooled == pytest.approx(timed)
    with pytest.raises(InputError, match="split='none' is not known"):
        Personal(population, half, split="none")


# -- from a run ------------------------------------------------------------------------------------


@pytest.mark.every
def test_fedrecon_teaches_what_reconstruction_needs() -> None:
    """Films have two hidden properties that users weigh differently.  From five ratings of an
    unseen user the trained films tell the other five, the first ones nothing; without
    reconstruction the trained ones do not either."""
    rng = np.random.default_rng(0)
    films = rng.normal(size=(ITEMS, 2))

    def users(count: int) -> Population:
        owner = np.repeat(np.arange(count), 10)
        item = np.concatenate([rng.permutation(ITEMS)[:10] for _ in range(count)])
        taste = rng.normal(size=(count, 2))
        return Population.from_arrays(
            owner, item=item, rating=np.sum(films[item] * taste[owner], 1)
        )

    model, train, test = matrix_model(), users(60), users(30)
    method = fs.recipes.fedrecon(
        model,
        optax.sgd(0.3),
        fs.Work(epochs=1, batch=5),
        reconstruction=optax.sgd(0.2),
        recover=fs.Work(epochs=8, batch=5),
    )
    run = run_of(method, train, sampler=fs.sampling.uniform(20))
    first = adapted(run, test)
    run.train(100, progress=False)
    last = adapted(run, test)
    assert last.after.pooled["loss"] < 0.1 * first.after.pooled["loss"]
    assert last.after.pooled["loss"] < 0.2 * last.before.pooled["loss"]
    assert last.spread("loss")["share"] > 0.9


def test_rows_that_nobody_trained_are_as_they_were_made() -> None:
    model = matrix_model()
    train = raters((4, 4), items=5)
    run = run_of(fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=2)), train, 1)
    test = raters()
    assert not np.isin(test.columns["item"], train.columns["item"]).all()
    judge = Personal(test, finetune(model, optax.sgd(RATE), fs.Work(epochs=1, batch=3)))
    params = run.params(judge.ids())
    before, after = by_hand(judge, params, "half", {"item", "user", "bias"})
    gain = adapted(run, test, judge.adaptation)
    assert_scores(gain.before, before)
    assert_scores(gain.after, after)


def test_some_of_the_clients_can_be_judged() -> None:
    """Their own figures are those of judging all; the pooled ones are of their examples alone."""
    model, population = matrix_model(), raters()
    run = run_of(
        fs.recipes.fedrecon(
            model, optax.sgd(0.1), fs.Work(batch=2), reconstruction=optax.sgd(RATE)
        ),
        population,
        1,
    )
    judge = Personal(population, run.algorithm.client.adapt)
    params, chosen = (
        run.params(judge.ids()),
        np.array([0, 1, 3, 5]),
    )  # client 1 has no query example
    whole, some = judge(params).after, judge(params, clients=chosen).after
    mine = whole.clients["loss"][[0, 3, 5]]
    np.testing.assert_allclose(some.clients["loss"][[0, 3, 5]], mine, rtol=1e-6)
    assert np.isnan(some.clients["loss"][[1, 2, 4, 6]]).all()
    counts = np.array([3, 2, 6])  # query examples
    assert some.pooled["loss"] == pytest.approx(counts @ mine / counts.sum(), rel=1e-6)
    assert some.pooled["loss"] != pytest.approx(whole.pooled["loss"], rel=1e-3)


def test_a_task_can_be_judged_by_a_few_users_drawn_anew() -> None:
    """Two evaluations of one model at different rounds judge different users; without ``judged``
    they are the same."""
    found = {}
    for judged in (0, 3):
        task = fs.tasks.movielens_mf.synthetic(scale=0.02, judged=judged)
        run = experiment.Experiment(
            task, "fedrecon", settings_for(task, "fedrecon", ["cohort=10"]), 1
        ).start()
        scorer = experiment.Scorer(task)
        first = scorer(run)
        run.round = 1
        found[judged] = first["test_loss"], scorer(run)["test_loss"]
    assert found[0][0] == found[0][1]
    assert len({*found[0], *found[3]}) == 3
    for wrong in ({"judged": -1}, {"judged": 3, "local": False}):
        with pytest.raises(InputError, match="judged="):
            fs.tasks.movielens_mf.synthetic(scale=0.02, **wrong)


def test_a_run_whose_clients_do_not_adapt_asks_how() -> None:
    model = matrix_model(local=())
    run = run_of(fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=2)), raters())
    with pytest.raises(
        InputError, match=r"clients of fedavg do not adapt the model: say how.*client\.finetune"
    ):
        adapted(run, raters())
    with pytest.raises(InputError, match=r"there are no leaves \['users'\] to fine-tune"):
        adapted(run, raters(), finetune(model, optax.sgd(0.1), leaves=["users"]))


def test_noise_is_for_adapting_not_for_judging() -> None:
    """The loss has 100 more in training, and its gradient with respect to the bias is 1 instead of
    -1."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        noise = batch.get("step_key")
        sign = -1.0 if noise is None else 1.0
        return sign * params["bias"] + 0 * batch["rating"] + (0.0 if noise is None else 100.0)

    for noisy, expected in ((True, 1.0), (False, -1.0)):
        model = Model(lambda key: {"bias": jnp.zeros(())}, loss, noisy=noisy)
        gain = adapted_once(model, raters())
        assert gain.before.pooled["loss"] == 0.0
        assert gain.after.pooled["loss"] == pytest.approx(expected)


def adapted_once(model: Model, population: Population) -> Gain:
    return Personal(population, finetune(model, optax.sgd(1.0), fs.Work(steps=1, batch=3)))(
        params_for(model, population)
    )


def test_the_model_of_one_client() -> None:
    model, population = matrix_model(), raters()
    params = params_for(model, population)
    adaptation = reconstruction(
        model, optax.sgd(RATE), fs.Work(epochs=3, batch=100)
    )  # full batches: no randomness
    for client in (0, 1, 3):
        own = model_of(adaptation, params, population, client)
        space = population.spaces(model)["item"]
        rows = np.asarray(params["item"])[
            space.slots[space.offsets[client] : space.offsets[client + 1]]
        ]
        assert np.array_equal(own["item"], rows)
        user = np.asarray(model.fresh(jax.random.fold_in(jax.random.key(0), client))["user"], float)
        mine = slice(*population.offsets[client : client + 2])
        item, rating = population.columns["item"][mine], population.columns["rating"][mine]
        vectors = np.asarray(params["item"], float)[np.searchsorted(space.ids, item)]
        for _ in range(3):
            user = user - RATE * 2 * (vectors @ user + 0.5 - rating) @ vectors / len(rating)
        np.testing.assert_allclose(own["user"], user, rtol=1e-5)
        alone = population.subset(np.array([client]))  # its randomness goes with it
        rows = {**params, "item": rows}
        np.testing.assert_array_equal(model_of(adaptation, rows, alone)["user"], own["user"])
    tuned = model_of(
        finetune(model, optax.sgd(RATE), fs.Work(epochs=1, batch=100)), params, population, 0
    )
    assert not np.allclose(
        tuned["item"], model_of(adaptation, params, population, 0)["item"], atol=1e-3
    )


# -- gains -----------------------------------------------------------------------------------------


def test_gains_over_clients() -> None:
    before = Scores(
        {"loss": 2.0},
        {"loss": np.array([4.0, 2.0, 1.0, np.nan, 3.0]), "close": np.array([0, 0, 1, np.nan, 0.5])},
    )
    after = Scores(
        {"loss": 1.0},
        {"loss": np.array([1.0, 2.0, 3.0, np.nan, 2.0]), "close": np.array([1, 0, 0.5, np.nan, 1])},
    )
    gain = Gain(before, after)
    assert str(gain) == "loss 2.0000 to 1.0000"
    assert gain.clients("loss")[[0, 1, 2, 4]].tolist() == [3.0, 0.0, -2.0, 1.0]
    assert gain.clients("close", more=True)[[0, 1, 2, 4]].tolist() == [1.0, 0.0, -0.5, 0.5]
    found = gain.spread("loss")
    assert found["mean"] == 0.5
    assert found["median"] == 0.5
    assert found["worst"] == -2.0
    assert found["share"] == 0.5  # two of four; the one that stays as it is does not gain
    assert (found["p10"], found["p90"]) == pytest.approx((-1.4, 2.4))


def test_nobody_to_judge() -> None:
    model, population = matrix_model(), raters((1, 1, 1))
    with pytest.raises(InputError, match="no client has a query example"):
        Personal(population, reconstruction(model, optax.sgd(RATE), fs.Work(steps=1)))


def test_clients_ruined_by_adapting_count_as_the_worst() -> None:
    """Steps of 1 on a loss of curvature 2 s^2: with s = 1000 they overflow, with s = 0.5 they
    converge."""

    def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
        return (batch["s"] * params["l"] + params["g"] - batch["a"]) ** 2

    model = Model(lambda key: {"g": jnp.zeros(()), "l": jnp.zeros(())}, loss, local="l")
    s = np.repeat([0.5, 0.5, 0.5, 1000.0], 4)
    people = Population.from_arrays(
        np.repeat(np.arange(5), [4, 4, 4, 4, 1]), s=np.append(s, 1.0), a=np.full(17, 3.0)
    )
    gain = Personal(people, reconstruction(model, optax.sgd(1.0), fs.Work(steps=30)))(
        {"g": jnp.zeros(())}
    )
    assert gain.clients("loss").tolist() == [pytest.approx(9.0)] * 3 + [
        -np.inf,
        pytest.approx(np.nan, nan_ok=True),
    ]
    spread = gain.spread("loss")
    assert (spread["share"], spread["worst"], spread["p10"]) == (0.75, -np.inf, -np.inf)
    assert spread["median"] == pytest.approx(9.0)
    with pytest.raises(InputError, match="there is no figure 'los'; did you mean 'loss'"):
        gain.spread("los")


def test_what_cannot_be_judged_is_refused() -> None:
    model, population = matrix_model(), raters()
    with pytest.raises(InputError, match="support=-1"):
        Personal(population, reconstruction(model, optax.sgd(RATE), fs.Work(steps=1)), support=-1)
    with pytest.raises(InputError, match="steps=-1"):
        Personal(population, reconstruction(model, optax.sgd(RATE), fs.Work(steps=1)))(
            params_for(model, population), steps=-1
        )
    for split in (0.5, None, "none"):
        with pytest.raises(InputError, match="only training takes 'none'"):
            halves.check(split)  # type: ignore[arg-type]
    run = run_of(
        fs.recipes.fedavg(matrix_model(local=()), optax.sgd(RATE), fs.Work(epochs=1)), population, 1
    )
    with pytest.raises(InputError, match="of another model"):
        adapted(run, population, reconstruction(model, optax.sgd(RATE), fs.Work(steps=1)))


def test_a_leaf_to_fine_tune_may_be_named_alone() -> None:
    model, population = matrix_model(local=()), raters()
    one, two = (
        finetune(model, optax.sgd(RATE), fs.Work(steps=1), leaves=leaves)
        for leaves in ("bias", ["bias"])
    )
    figures = [
        Personal(population, way)(params_for(model, population)).after.pooled for way in (one, two)
    ]
    assert figures[0] == figures[1]


@pytest.mark.every
def test_same_seed_same_figures() -> None:
    model, population = matrix_model(), raters()
    params = params_for(model, population)
    adaptation = reconstruction(model, optax.sgd(RATE), fs.Work(steps=2, batch=2))
    one, two, other = (Personal(population, adaptation, seed=seed)(params) for seed in (3, 3, 4))
    assert one.after.pooled == two.after.pooled != other.after.pooled
    assert_params_close(one.after.clients, two.after.clients, rtol=0, atol=0)


def test_all_algorithms_of_a_task_are_judged_on_the_same_examples() -> None:
    """By the task's split, here time: FedPer and Ditto, which have none of their own, as FedRecon.
    The untrained model gives them all the same losses before adapting; that of the later examples
    differs from a random half's."""
    population = raters((6, 8, 5, 7))
    task = fs.tasks.Task(
        "toy", matrix_model(), population, population.subset(np.arange(3)), {"split": "time"}
    )
    work = {"work": fs.Work(epochs=1, batch=4)}
    methods = [
        fs.recipes.fedrecon(
            task.model, optax.sgd(RATE), reconstruction=optax.sgd(RATE), split="half", **work
        ),
        fs.recipes.fedper(task.model, optax.sgd(RATE), **work),
        fs.recipes.ditto(task.model, optax.sgd(RATE), pull=0.1, **work),
    ]
    runs = [run_of(method, population) for method in methods]
    judged = [
        experiment.Scorer(task)._adapting(run)["test"]().before.clients["loss"] for run in runs
    ]
    np.testing.assert_array_equal(judged[0], judged[1])
    np.testing.assert_array_equal(judged[0], judged[2])
    assert not np.array_equal(judged[0], adapted(runs[0], task.test).before.clients["loss"])
