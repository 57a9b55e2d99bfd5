"""What the method of a written app is made with: an algorithm by name and its settings, and no data
of anybody else's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli import export
from fedslice.cli.catalogue import find_method
from fedslice.cli.deployment import vocabulary
from fedslice.cli.settings import Settings
from fedslice.cli.text import built
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.deploy.coordinator import Coordinator
from fedslice.deploy.flower import Flower
from fedslice.deploy.heated import Heated
from fedslice.deploy.session import PATIENCE, coordinate, train
from fedslice.model import Model
from fedslice.privacy.heat import Response, Summed, symmetric
from fedslice.tasks.base import Task
from fedslice.types import Algorithm


def recipe(
    name: str, model: Model, population: Population, settings: Mapping[str, Any]
) -> Algorithm:
    """The algorithm of this name for a population: on a node its own data, on the server what nodes
    said of theirs.

    >>> from fedslice.cli.catalogue import settings_for
    >>> from fedslice.tasks import quadratic
    >>> task = quadratic.example1(clients=4)
    >>> recipe("fedsubavg", task.model, task.train, settings_for(task, "fedsubavg", []).values).name
    'fedsubavg'
    """
    task = Task("deployed", model, population, population, {})
    if isinstance(population, Heated):  # private as it is
        settings = {**settings, "heat_privacy": "exact"}
    return find_method(name).build(task, Settings(settings))


def sampling(name: str, settings: Mapping[str, Any]) -> Sampler:
    """Who takes part in a round.

    >>> sampling("fedavg", {"sampler": "uniform", "cohort": 3}).name
    'uniform(3)'
    """
    return find_method(name).sampler(Settings(settings))


def telling(settings: Mapping[str, Any]) -> Response | Summed | None:
    """How nodes whose rows are hidden tell which they hold, for the heat; None: not at all.

    >>> telling({"heat_privacy": "sum:4:200"})
    Summed(multiplier=4.0, most=200, kind='skellam')
    """
    kinds: dict[str, Any] = {
        "exact": lambda: None,
        "public": lambda: None,
        "response": lambda epsilon="1": symmetric(float(epsilon)),
        "sum": lambda noise, rows: Summed(float(noise), int(rows), "skellam"),
    }
    return built("heat_privacy", settings.get("heat_privacy", "exact"), kinds)


def serve(
    grid: Any,
    config: Mapping[str, Any],
    model: Model,
    algorithm: Any,
    sampler: Sampler,
    heat: Response | Summed | None = None,
    package: Path | None = None,
) -> Coordinator:
    """The server's part of a Flower app, from the first node to the trained model in its folder;
    ``package`` is where the app's files are, perhaps with a vocabulary."""
    link = Flower(grid, authenticated=bool(config.get("authenticated", False)))
    seed = int(config.get("seed", 0))
    asked = {name: int(config.get(name, 0)) for name in ("least", "spare")}
    chosen: dict[str, Any] = {name: number for name, number in asked.items() if number}
    if config.get("trial", False):
        print("a trial: noise is drawn from the seed, which everybody knows, and hides nothing")
        chosen["secret"] = seed
    server = coordinate(
        link,
        model,
        algorithm,
        sampler,
        folder=str(config["folder"]),
        nodes=int(config["nodes"]),
        patience=float(config.get("patience", PATIENCE)),
        deadline=float(config.get("deadline", 0)) or None,
        seed=seed,
        heat=heat,
        **chosen,
    )
    for _ in train(server, int(config["rounds"])):
        pass
    if (rows := str(config.get("publish", "no"))) != "no":
        print(f"the model is with {', '.join(server.publish(rows)) or 'no node'}")
    assert server.folder is not None
    worded = package is not None and (package / vocabulary.NAME).exists()
    names = vocabulary.read(package).names if worded and package is not None else {}
    export.write_model(trained(server, names), server.folder)
    return server


def trained(server: Coordinator, names: Mapping[str, np.ndarray]) -> export.Exported:
    """The model with the rows that nodes hold, or with all where they hide them; ``names`` of rows
    by field, where there is a vocabulary: else only nodes know what rows are called."""
    model, office = server.program.model, server.office
    population = server.schema.population(model)
    spaces = population.spaces(model)
    if office.hides:
        spaces = {name: each.whole(model.tables[name].rows) for name, each in spaces.items()}
    ids = {name: space.ids for name, space in spaces.items()}
    several = server.algorithm.server.several
    params = office.store.rows(lambda state: state.server, ids) if several else server.params(ids)
    given = population.columns, population.offsets, population.clients, names, population.numbers
    return export.assembled(params, model, spaces, Population(*given))
