"""The recipes that the laws are about, one of every kind, on a small model."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from problems import ROWS, people

import fedslice as fs
from fedslice.data.population import Population
from fedslice.model import Model
from fedslice.types import Algorithm


def squares(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    """Least squares: cheap to trace and compile, which is most of what these tests do."""
    return (fs.lookup(params["w"], batch["history"]).sum(1) + params["bias"] - batch["x"]) ** 2


def bias(key: jax.Array) -> dict[str, Any]:
    return {"bias": jnp.zeros(())}


MODEL = Model(bias, squares, {"w": fs.Table(rows=ROWS, fields=("history",))})
WORK: dict[str, Any] = {"work": fs.Work(steps=3, batch=4)}


def avg(**settings: Any) -> Callable[[Model, Population], Algorithm]:
    return lambda model, population: fs.recipes.fedavg(
        model, optax.sgd(0.3), **{**WORK, **settings}
    )


def sub(
    optimizer: optax.GradientTransformation, **settings: Any
) -> Callable[[Model, Population], Algorithm]:
    return lambda model, population: fs.recipes.fedsubavg(
        model, optimizer, heat=population.heat(model), **{**WORK, **settings}
    )


def built(
    recipe: Callable[..., Algorithm], first: Any, *told: str, **settings: Any
) -> Callable[[Model, Population], Algorithm]:
    """A recipe by its optimizer or rate and settings; it is ``told`` the population or its heat."""

    def make(model: Model, population: Population) -> Algorithm:
        extra: dict[str, Any] = {"population": population} if "population" in told else {}
        if "heat" in told and model.tables:
            extra["heat"] = population.heat(model)
        return recipe(model, first, **{**WORK, **settings, **extra})

    return make


def posterior(model: Model, population: Population) -> Algorithm:
    return fs.recipes.fedpa(model, optax.sgd(0.1), samples=2, window=1, burn_in=1, batch=4)


def recon(**settings: Any) -> Callable[[Model, Population], Algorithm]:
    """The bias is local; the table is global."""
    return lambda model, population: fs.recipes.fedrecon(
        replace(model, local=("bias",)),
        optax.sgd(0.1),
        reconstruction=optax.sgd(0.2),
        **{**WORK, **settings},
    )


R = fs.recipes
MOMENTUM = optax.sgd(0.05, momentum=0.5)
TOP = fs.stage.compress(fs.stage.largest(0.3), feedback=True)
EVERYTHING: dict[str, Any] = {
    "server": optax.yogi(0.1, b2=0.99, eps=1e-3),
    "stages": [fs.stage.compress(fs.stage.quantise(127))],
    "reduce": fs.reduce.trimmed(0.1),
}
RECIPES: dict[str, Callable[[Model, Population], Algorithm]] = {
    "fedavg": avg(weights="uniform"),
    "fedavg-weighted": avg(),
    "fedavg-epochs": avg(work=fs.Work(epochs=2, batch=4)),
    "fedavgm": avg(server=optax.sgd(1.0, momentum=0.9)),
    "fedadam": avg(server=optax.adam(0.1, b2=0.99, eps=1e-3)),
    "fedyogi": avg(server=optax.yogi(0.1, b2=0.99, eps=1e-3)),
    "fedsubavg": sub(optax.sgd(0.1), weights="uniform"),
    "fedsubavg-weighted": sub(optax.sgd(0.1)),
    "fedsubavg-adam": sub(optax.sgd(0.1), server=optax.adam(0.1, b2=0.99, eps=1e-3)),
    "fedsgd": lambda model, _: fs.recipes.fedsgd(model, optax.sgd(0.5)),
    "fedsgd-heat": lambda model, p: fs.recipes.fedsgd(model, optax.sgd(0.2), heat=p.heat(model)),
    "central": lambda model, _: fs.recipes.central(
        model, optax.sgd(0.3), fs.Work(steps=3, batch=8)
    ),
    "fedprox": built(R.fedprox, optax.sgd(0.1), mu=0.5),
    "fednova": lambda model, _: R.fednova(model, 0.1, fs.Work(epochs=2, batch=4), momentum=0.5),
    "fedexp": built(R.fedexp, optax.sgd(0.1)),
    "fedexp-heat": built(R.fedexp, optax.sgd(0.1), "heat", weights="uniform", eps=0.0),
    "scaffold-1": built(
        R.scaffold,
        0.05,
        "population",
        work=fs.Work(epochs=1, batch=4),
        option=1,
        weights="examples",
    ),
    "scaffold-2": built(R.scaffold, 0.05, "population", option=2, server_rate=0.5),
    "scaffold-heat": built(R.scaffold_heat, 0.05, "population"),
    "scaffold-approximate": built(
        R.scaffold_approximate, optax.sgd(0.1), "population", sampler=fs.sampling.uniform(4)
    ),
    "mime": built(R.mime, MOMENTUM, "heat"),
    "mimelite": built(R.mimelite, MOMENTUM),
    "feddane": built(R.feddane, optax.sgd(0.05), "heat", mu=0.5),
    "feddyn": built(R.feddyn, optax.sgd(0.1), "population", mu=0.5),
    "fedpd": built(R.fedpd, optax.sgd(0.1), mu=0.5),
    "fedpa": posterior,
    "fedmid": built(R.fedmid, 0.1, regulariser=fs.prox.l1(0.05)),
    "feddualavg": built(R.feddualavg, 0.1, regulariser=fs.prox.l1(0.05)),
    "qffl": built(R.qffl, 0.1, q=1.0),
    "afl": built(R.afl, optax.sgd(0.1), weight_rate=0.5),
    "superquantile": built(R.superquantile, optax.sgd(0.1), share=0.5),
    "ifca": built(R.ifca, optax.sgd(0.1), models=2, spread=0.5),
    "fedrecon": recon(recover=fs.Work(steps=2, batch=4)),
    "fedrecon-joint": recon(
        split="none",
        recover=fs.Work(epochs=1, batch=4),
        work=fs.Work(steps=2, epochs=2, batch=4),
        joint=True,
        server=optax.adagrad(0.1),
    ),
    "maml": built(R.maml, optax.sgd(0.1), inner_rate=0.1),
    "maml-full": built(
        R.maml, optax.sgd(0.1), inner_rate=0.1, first_order=False, weights="examples"
    ),
    "reptile": built(R.reptile, optax.sgd(0.1), server_rate=0.5),
    "ditto": built(R.ditto, optax.sgd(0.1), personal=optax.sgd(0.05), pull=0.5),
    "fedper": lambda model, _: R.fedper(replace(model, local=("bias",)), optax.sgd(0.1), **WORK),
    "everything": sub(optax.chain(fs.client.proximal(0.1), optax.sgd(0.1)), **EVERYTHING),
    "fedavg-topk": avg(stages=[TOP]),
}


PEOPLE = people()


@lru_cache(maxsize=8)
def method_of(name: str) -> Algorithm:
    """The recipe for the clients that most tests are about, one and the same value: what was traced
    and compiled for it is there for the next run."""
    return RECIPES[name](MODEL, PEOPLE)


def sampler_of(name: str) -> fs.sampling.Sampler:
    return (
        fs.sampling.full() if name in ("central", "fedpd") else fs.sampling.uniform(4)
    )  # FedPD: everybody, always
