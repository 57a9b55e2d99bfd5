"""What the recipes share: how parts become an algorithm, and what they ask of a population."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import optax

from fedslice.compose import algorithm
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.stage import mean as mean_of
from fedslice.types import Algorithm, Array, Client, Message, Reduce, Server, Stage

Optimizer: TypeAlias = optax.GradientTransformation
Weights: TypeAlias = str | Callable[[Message], Array]


def compose(
    name: str,
    local: Client,
    server: Server,
    weights: Weights = "examples",
    heat: Heat | None = None,
    coefficient: str | None = None,
    stages: Sequence[Stage] = (),
    reduce: Reduce | None = None,
    survey: Client | None = None,
) -> Algorithm:
    """Client, stages, mean and server as an algorithm; stages that act on the sum stand after the
    mean, the others before it, bounds last of these.  A mean of a fixed denominator among the
    stages (``privacy.central``) takes the place of the recipe's own."""
    check_heat(local.model, heat)
    given = [stage for stage in stages if stage.weighs and stage.denominator]
    means = given or [mean_of(weights, heat, coefficient)]
    after = [stage for stage in stages if stage.on_sum]
    rest = [stage for stage in stages if stage not in (*given, *after)]
    before = sorted(rest, key=lambda stage: stage.bound is not None)
    made = algorithm(local, [*before, *means, *after], server, reduce, name, survey)
    for each in given:
        _check_given(each, weights, heat)
    return made


def _check_given(mean: Stage, weights: Weights, heat: Heat | None) -> None:
    """Weights and heat that the recipe was given must be those of the mean among its stages."""
    if weights != mean.weights:
        raise InputError(
            f"the mean among the stages counts clients by {mean.weights!r}, the recipe by"
            f" {weights!r}: give it weights={mean.weights!r} (--set weights={mean.weights})"
        )
    if heat is not None and mean.heat is not heat:
        raise InputError(
            "the mean among the stages has not the heat that the recipe was given: give it the"
            " same one, privacy.central(..., heat=heat)"
        )


def check_heat(model: Model, heat: Heat | None) -> None:
    """Refuse the heat of another model."""
    if heat is not None:
        heat.check({name: table.rows for name, table in model.tables.items()})


def need_heat(model: Model, heat: Heat | None, name: str) -> None:
    """A row's correction averages to zero over its holders; its mean update must then be theirs,
    which needs n_m."""
    if model.tables and heat is None:
        raise InputError(
            f"{name} on tables needs heat=population.heat(model): its corrections are means over"
            " rows' holders"
        )


def clients_of(population: Population | Heat) -> int:
    """N, the clients that have examples.

    >>> clients_of(Population.from_arrays([7, 7, 9], item=[0, 2, 2]))
    2
    """
    if isinstance(population, Heat):
        return population.clients
    if not isinstance(population, Population):
        raise InputError(
            f"population={population!r} must be the population that is trained on, or its heat"
        )
    return int((population.counts > 0).sum())


def weight_of_all(population: Population | Heat, weights: str) -> float:
    """The weight of all clients together: N, or their examples.

    >>> people = Population.from_arrays([7, 7, 9], item=[0, 2, 2])
    >>> weight_of_all(people, "uniform"), weight_of_all(people, "examples")
    (2, 3)
    """
    clients = clients_of(population)
    if weights not in ("uniform", "examples"):
        raise InputError("weights must be 'uniform' or 'examples': the variate is a mean by them")
    return clients if weights == "uniform" else population.examples
