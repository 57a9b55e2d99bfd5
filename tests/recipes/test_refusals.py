"""What cannot work is refused when it is put together, with a message that says what to do."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from problems import logistic, people, run_of

import fedslice as fs
from fedslice.cli import main as cli
from fedslice.errors import InputError
from fedslice.types import Client

MODEL = logistic()
SGD = optax.sgd(0.1)


def dense() -> fs.Model:
    return fs.Model(lambda key: {"b": jnp.zeros(())}, lambda p, b: (p["b"] - b["x"]) ** 2)


def local(model: fs.Model = MODEL) -> Client:
    return fs.client.sgd(model, SGD)


# -- stages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "count"),
    [
        ([], 0),
        ([fs.stage.clip(1.0), fs.stage.agnostic(0.1)], 0),
        ([fs.stage.mean(), fs.stage.mean()], 2),
        ([fs.stage.mean(), fs.stage.qffl(1.0, 0.1)], 2),
    ],
)
def test_exactly_one_mean(stages: list[Any], count: int) -> None:
    with pytest.raises(
        InputError, match=f"exactly one stage that turns the sum into a mean, got {count}: put"
    ):
        fs.algorithm(local(), stages, fs.server.optimize())


def test_a_second_mean_in_a_recipe_is_found_too() -> None:
    with pytest.raises(InputError, match="got 2"):
        fs.recipes.fedavg(MODEL, SGD, stages=[fs.stage.mean()])


@pytest.mark.parametrize(
    "make", [fs.stage.mean, lambda w: fs.recipes.fedavg(MODEL, SGD, weights=w)]
)
def test_unknown_weights(make: Callable[[str], Any]) -> None:
    with pytest.raises(
        InputError,
        match=re.escape("weights='size' is not known: use one of ['examples', 'uniform']"),
    ):
        make("size")


def test_heat_needs_weights_that_it_knows() -> None:
    with pytest.raises(InputError, match="heat correction needs weights='examples' or 'uniform'"):
        fs.stage.mean(lambda message: message.weight, people().heat(MODEL))


def test_heat_of_another_model() -> None:
    other = fs.Model(MODEL.init, MODEL.loss, {"v": MODEL.tables["w"]})
    with pytest.raises(InputError, match=r"the heat is of tables \['v'\], the model has \['w'\]"):
        fs.recipes.fedsubavg(MODEL, SGD, heat=people().heat(other))
    longer = fs.Model(MODEL.init, MODEL.loss, {"w": replace(MODEL.tables["w"], rows=1000)})
    for recipe in (fs.recipes.fedsubavg, fs.recipes.qffl):
        with pytest.raises(InputError, match="another table 'w' than the model's"):
            recipe(MODEL, 0.1 if recipe is fs.recipes.qffl else SGD, heat=people().heat(longer))
    bare = fs.stage.mean("uniform", people().heat(other))
    method = fs.algorithm(fs.client.sgd(MODEL, SGD), [bare], fs.server.optimize())
    with pytest.raises(InputError, match=r"the heat is of tables \['v'\], the model has"):
        fs.simulate(method, people(), sampler=fs.sampling.full())


def test_heat_with_nothing_to_correct() -> None:
    with pytest.raises(InputError, match="no tables, so heat has nothing to correct: use fedavg"):
        fs.recipes.fedsubavg(dense(), SGD, heat=people().heat(dense()))
    assert cli.main(["run", "synthetic-glm", "--scale", "0.1", "--algorithm", "fedsubavg"]) == 2


@pytest.mark.parametrize("sampler", [20, "uniform", None])
def test_a_sampler_is_no_number(sampler: Any) -> None:
    hint = "uniform(20)" if sampler == 20 else "uniform(50)"
    with pytest.raises(InputError, match=rf"no sampler: .* sampler=sampling.{re.escape(hint)}"):
        fs.simulate(fs.recipes.fedavg(MODEL, SGD), people(), sampler=sampler)


# -- variates on tables ----------------------------------------------------------------------------

VARIATES: dict[str, Callable[..., Any]] = {
    "Mime": lambda model, **more: fs.recipes.mime(model, SGD, **more),
    "FedDANE": lambda model, **more: fs.recipes.feddane(model, SGD, **more),
}


@pytest.mark.parametrize("name", VARIATES)
def test_variates_on_tables_need_heat(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} on tables needs heat=population.heat\(model\)"):
        VARIATES[name](MODEL)
    assert VARIATES[name](MODEL, heat=people().heat(MODEL)).client.model is MODEL
    assert VARIATES[name](dense()).client.rows  # a model without tables needs none


def test_mimelite_needs_no_heat() -> None:
    assert fs.recipes.mimelite(MODEL, SGD).survey is None


def test_what_a_recipe_does_not_take_is_not_in_its_signature() -> None:
    """AFL, IFCA and SCAFFOLD have no heat, FedDyn, FedPD and Reptile no weights, and so on."""
    heat = people().heat(MODEL)
    for recipe, first in (("afl", SGD), ("ifca", SGD), ("scaffold", 0.1)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'heat'"):
            getattr(fs.recipes, recipe)(MODEL, first, heat=heat)
    for recipe in ("afl", "feddyn", "fedpd", "reptile"):
        with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
            getattr(fs.recipes, recipe)(MODEL, SGD, weights="uniform")


@pytest.mark.parametrize("recipe", few(["scaffold", "scaffold_heat", "feddyn"], "scaffold_heat"))
def test_a_heat_is_as_good_as_its_population(recipe: str) -> None:
    whole, make = people(), getattr(fs.recipes, recipe)
    first = SGD if recipe == "feddyn" else 0.1
    both = [make(MODEL, first, population=given) for given in (whole, whole.heat(MODEL))]
    one, two = (run_of(method, whole, 2).params() for method in both)
    assert all(np.array_equal(one[name], two[name]) for name in one)


# -- reductions that are not a sum -----------------------------------------------------------------


@pytest.mark.parametrize(
    "reduce", [fs.reduce.median(), fs.reduce.krum(), fs.reduce.worst(0.5)], ids=lambda r: r.name
)
@pytest.mark.parametrize(
    "make",
    [
        lambda more: fs.recipes.scaffold(dense(), 0.1, population=people(), **more),
        lambda more: fs.recipes.feddyn(dense(), SGD, population=people(), **more),
        lambda more: fs.recipes.fedpd(dense(), SGD, **more),
        lambda more: fs.algorithm(
            local(), [fs.stage.qffl(1.0, 0.1)], fs.server.optimize(), name="qffl", **more
        ),
    ],
    ids=["scaffold", "feddyn", "fedpd", "qffl"],
)
def test_state_that_is_a_mean_needs_the_plain_sum(make: Callable[[Any], Any], reduce: Any) -> None:
    with pytest.raises(
        InputError, match=f"works on the plain sum .* which {re.escape(reduce.name)} is not: use"
    ):
        make({"reduce": reduce})
    assert make({"reduce": fs.reduce.total()}).reduce.name == "sum"
    assert make({}).reduce.name == "sum"


def test_fedpd_needs_everyone() -> None:
    method = fs.recipes.fedpd(dense(), SGD, fs.Work(steps=1, batch=2))
    with pytest.raises(
        InputError, match=r"fedpd needs every client in every round: use sampling.full\(\)"
    ):
        fs.simulate(method, people(), sampler=fs.sampling.uniform(2))


# -- values of parts -------------------------------------------------------------------------------

VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "trimmed half": (
        lambda: fs.reduce.trimmed(0.5),
        r"trimmed\(0.5\): the share .* below one half",
    ),
    "median of nobody": (lambda: fs.reduce.median(quorum=-1), "quorum=-1 must be 0"),
    "trimmed negative": (lambda: fs.reduce.trimmed(-0.1), r"trimmed\(-0.1\): the share"),
    "geometric": (lambda: fs.reduce.geometric(0), r"geometric\(steps=0.*steps must be at least 1"),
    "krum bad": (
        lambda: fs.reduce.krum(0.5),
        r"krum\(bad=0.5, keep=1\): bad must be from 0 to below one half",
    ),
    "krum keep": (lambda: fs.reduce.krum(0.2, 0), r"krum\(bad=0.2, keep=0\): .* keep at least 1"),
    "worst none": (lambda: fs.reduce.worst(0), r"worst\(0\): give the share of clients that count"),
    "worst more": (lambda: fs.reduce.worst(1.1), r"worst\(1.1\): give the share"),
    "clip zero": (lambda: fs.stage.clip(0), r"clip\(0\): the bound must be positive"),
    "clip nan": (lambda: fs.stage.clip(math.nan), r"clip\(nan\): the bound must be positive"),
    "quantise": (lambda: fs.stage.quantise(0), r"quantise\(0\): give a whole number of levels"),
    "largest": (
        lambda: fs.stage.largest(0),
        "a share of 0 is not possible: give a number above 0, up to 1",
    ),
    "random": (lambda: fs.stage.random(1.5), "a share of 1.5 is not possible"),
    "low_rank": (lambda: fs.stage.low_rank(0), r"low_rank\(0\): the rank must be at least 1"),
    "qffl q": (
        lambda: fs.stage.qffl(-1, 0.1),
        "q-FFL needs q >= 0 and a positive client rate, got q=-1",
    ),
    "qffl rate": (lambda: fs.recipes.qffl(MODEL, 0.0), "a client rate of 0.0 is not possible"),
    "proximal": (lambda: fs.recipes.fedprox(MODEL, SGD, mu=-1), "mu=-1 must not be negative"),
    "dynamic": (
        lambda: fs.recipes.feddyn(MODEL, SGD, mu=0, population=people()),
        "mu=0 must be positive",
    ),
    "number of clients": (
        lambda: fs.recipes.feddyn(MODEL, SGD, population=4),
        "population=4 must be the population that is trained on, or its heat",
    ),
    "nobody": (lambda: fs.server.scaffold(0), "clients=0 must be the number"),
    "scaffold weights": (
        lambda: fs.recipes.scaffold(MODEL, 0.1, population=people(), weights=lambda message: 1),
        "the variate is a mean by them",
    ),
    "scaffold optimizer": (
        lambda: fs.recipes.scaffold(MODEL, SGD, population=people()),
        "for SGD alone: give its learning rate",
    ),
    "approximate": (lambda: fs.server.approximate(-1), "participation=-1 must be"),
    "work": (lambda: fs.recipes.fedavg(MODEL, SGD, 10), r"given as fs.Work\(steps=10, batch=5\)"),
    "extrapolation": (lambda: fs.recipes.fedexp(MODEL, SGD, eps=-1), "eps=-1 must not be negative"),
    "option": (
        lambda: fs.client.scaffold(MODEL, 0.1, option=3),
        "option=3: SCAFFOLD has options 1 .* and 2",
    ),
    "posterior": (
        lambda: fs.recipes.fedpa(MODEL, SGD, samples=0),
        "FedPA needs samples >= 1, window >= 1",
    ),
    "window": (lambda: fs.recipes.fedpa(MODEL, SGD, window=0), "FedPA needs"),
    "shrinkage": (
        lambda: fs.recipes.fedpa(MODEL, SGD, shrinkage=-0.1),
        "FedPA needs .* shrinkage >= 0",
    ),
    "models": (lambda: fs.recipes.ifca(MODEL, SGD, models=0), "models=0.*at least one model"),
    "l1": (lambda: fs.prox.l1(-1), "a strength of -1 is not possible"),
    "group": (lambda: fs.prox.group(-1), "a strength of -1 is not possible"),
    "box": (lambda: fs.prox.box(1, 0), r"box\(1, 0\): the lower bound must not be above the upper"),
    "no steps": (
        lambda: fs.recipes.fedavg(MODEL, SGD, fs.Work(steps=0)),
        "steps=0 must be at least 1",
    ),
    "no epochs": (
        lambda: fs.recipes.fedavg(MODEL, SGD, fs.Work(epochs=0)),
        "epochs=0 must be at least 1",
    ),
    "no batch": (
        lambda: fs.recipes.fedavg(MODEL, SGD, fs.Work(batch=0)),
        "batch=0 must be at least 1",
    ),
    "cohort": (lambda: fs.sampling.uniform(0), "a cohort of 0 clients is not possible"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_make_no_sense(name: str) -> None:
    make, message = VALUES[name]
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("recipe", ["fedavg", "fedprox", "mimelite", "ifca", "fedpa", "fedpd"])
def test_a_rate_is_not_an_optimizer(recipe: str) -> None:
    with pytest.raises(
        InputError, match=r"an optax optimizer is needed, such as optax.sgd\(0.1\), got 0.1"
    ):
        getattr(fs.recipes, recipe)(MODEL, 0.1)


# Accepted today, though no training comes of them: each becomes a refusal, and then moves up into
# VALUES.
ACCEPTED: dict[str, Callable[[], Any]] = {
    "gradient batch": lambda: fs.client.gradient(MODEL, batch=0),
    "server rate": lambda: fs.recipes.fedavg(MODEL, SGD, server=0.1),
    "agnostic": lambda: fs.stage.agnostic(-1.0),
    "nova momentum": lambda: fs.stage.nova(momentum=-1.0),
    "nova proximal": lambda: fs.stage.nova(proximal=2.0),
    "dane mu": lambda: fs.client.dane(MODEL, SGD, mu=-1.0),
    "server mu": lambda: fs.server.dynamic(0.0, 0.5),
    "floor": lambda: fs.reduce.geometric(floor=-1.0),
    "spread": lambda: fs.server.cluster(MODEL, 2, spread=-1.0),
    "fractional levels": lambda: fs.stage.quantise(1.5),  # type: ignore[arg-type]
    "scaffold rate": lambda: fs.client.scaffold(MODEL, -0.1),
    "mirror rate": lambda: fs.client.mirror(MODEL, 0.0, regulariser=fs.prox.l1(0.1)),
    "dual rate": lambda: fs.client.dual(MODEL, 0.0, regulariser=fs.prox.l1(0.1)),
    "clip after the mean": lambda: fs.algorithm(
        local(), [fs.stage.mean(), fs.stage.clip(1.0)], fs.server.optimize()
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_values_that_should_be_refused(name: str) -> None:
    with pytest.raises(InputError):
        ACCEPTED[name]()


def test_feedback_of_clusters_works_or_is_refused_at_once() -> None:
    stages = [fs.stage.compress(fs.stage.largest(0.5), feedback=True)]
    try:
        method = fs.recipes.ifca(MODEL, SGD, fs.Work(steps=1, batch=4), stages=stages)
    except InputError:
        return
    run = fs.simulate(method, people(), sampler=fs.sampling.full(), engine="vmap")
    run.train(2, progress=False)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params()))
