"""What app is to be written: the task, the settings and the nodes that the options ask for, checked
before anything is."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.deployment import app, vocabulary
from fedslice.cli.deployment.recipe import recipe, telling
from fedslice.cli.printing import say
from fedslice.cli.settings import Settings
from fedslice.cli.text import change_of
from fedslice.cli.wanted import task_of
from fedslice.cli.workloads import usual_algorithm
from fedslice.data.population import Population
from fedslice.deploy.session import PATIENCE
from fedslice.errors import InputError
from fedslice.tasks import own
from fedslice.tasks.base import Task
from fedslice.tasks.logistic import logistic
from fedslice.types import Algorithm

TASK, SCALE, DEADLINE = "movielens-lr", 0.05, 120.0


def write(options: argparse.Namespace, folder: Path) -> None:
    """Write it into a new folder."""
    if options.task is None and options.vocabulary is None:
        options.task = "lr" if options.data else TASK
        options.synthetic = options.synthetic or not (options.data or options.data_dir)
        if options.synthetic and options.scale is None:
            options.scale = SCALE
    words = agreed(options)
    task = task_of(options) if words is None else _to_come(words, options.nodes or 4)
    name = options.algorithm or usual_algorithm(task.name)
    if find_method(name).pooled:
        raise InputError(f"{name} trains on the data of all: there is nothing to deploy")
    people = chosen(task.train, 4 if options.nodes is None else options.nodes)
    settings = fitting(settings_for(task, name, options.set), options.set, len(people))
    if settings.values.get("available", "always") != "always":
        raise InputError("available: a deployment sees who is there; leave this setting out")
    algorithm = recipe(name, task.model, people, settings.values)  # or it is refused here
    check_heat(algorithm, settings.values)
    client = algorithm.client
    personal = client.adapt is not None or client.serve is not None
    config = {
        "rounds": options.rounds or 3,
        "seed": options.seed or 0,
        "nodes": len(people),
        "deadline": options.deadline or DEADLINE,
        "patience": PATIENCE,
        "least": 0,
        "spare": 0,
        "folder": str(folder.resolve() / app.SERVER),
        "authenticated": False,
        "trial": bool(options.trial),
        "publish": options.publish or ("held" if personal else "no"),
    }
    there = None if words is not None else people
    app.write(folder, task.model, name, settings.values, there, config, words)
    if words is None:
        of_whom = f"{len(people)} of {len(task.train):,} clients are nodes, with"
        said = f"{of_whom} {people.examples:,} examples"
    else:
        said = f"{words.rows:,} values; {len(people)} nodes bring files of their own"
    say(f"{folder}: {name} on {task.name} ({task.source}); {said}")


def agreed(options: argparse.Namespace) -> vocabulary.Vocabulary | None:
    """The vocabulary that is asked for, if nodes bring files of their own."""
    if options.vocabulary is None:
        return None
    given = options.client, options.label, options.features
    if options.data or options.data_dir or options.synthetic or options.task not in (None, "lr"):
        raise InputError(
            "--vocabulary is for nodes with files of their own and the task lr: leave --data,"
            " --data-dir, --synthetic and --task out"
        )
    if None in given:
        raise InputError(
            "--vocabulary goes with the columns of the nodes' files: --client user --label clicked"
            " --features item,category"
        )
    names = [name.strip() for name in options.features.split(",") if name.strip()]
    text = [name.strip() for name in options.text.split(",") if name.strip()]
    return vocabulary.agree(options.vocabulary, options.client, options.label, names, text)


def _to_come(words: vocabulary.Vocabulary, nodes: int) -> Task:
    """A task of which the model is known, and of the nodes only how many there will be."""
    if nodes < 1:
        raise InputError(f"--nodes {nodes}: give 1 or more")
    width = len(words.features)
    features = np.zeros((nodes, width), np.int32)
    label = np.zeros(nodes, np.float32)
    blank = Population.from_arrays(np.arange(nodes), features=features, label=label)
    settings, rates = own.settings_of("lr"), {"": own.RATES["lr"]}
    source = "files of the nodes' own"
    return Task("lr", logistic(words.rows), blank, blank, settings, rates, source=source)


def chosen(people: Population, nodes: int) -> Population:
    """The first clients that have any data, as a population of their own.

    >>> people = Population.from_arrays([5, 7, 7, 9], x=[1.0, 2.0, 3.0, 4.0])
    >>> chosen(people, 2).clients.tolist()
    [5, 7]
    """
    able = np.flatnonzero(people.counts)
    if not 1 <= nodes <= len(able):
        raise InputError(f"--nodes {nodes}: there are {len(able)} clients with data")
    return people.subset(able[:nodes]).renumbered()


def fitting(settings: Settings, changes: Sequence[str], nodes: int) -> Settings:
    """A cohort of more than there are becomes all of them, unless it was asked for; and below a
    secure sum, whose room nodes must know without knowing how many they are, so many are drawn.

    >>> fitting(Settings({"cohort": 50, "sampler": "full"}), [], 4).cohort
    4
    >>> fitting(Settings({"cohort": 50, "sampler": "full", "secure": "yes"}), [], 4).sampler
    'uniform'
    """
    asked = {change_of(change)[1] for change in changes}
    values = dict(settings.values)
    if values.get("cohort", 0) > nodes and "cohort" not in asked:
        values["cohort"] = nodes
    if values.get("secure", "no") != "no" and values.get("sampler") in ("full", "poisson"):
        if "sampler" in asked and values["sampler"] == "poisson":
            raise InputError(
                "sampler=poisson draws any number of nodes, and a node cannot know for how many a"
                " secure sum must have room: use sampler=uniform"
            )
        if values["sampler"] == "full":
            values["cohort"] = nodes
        values["sampler"] = "uniform"
    return Settings(values, settings.said)


def check_heat(algorithm: Algorithm, settings: Mapping[str, Any]) -> None:
    """Heat must come from those who know it: from rows that nodes name, or from the nodes that hide
    them, privately."""
    way = str(settings.get("heat_privacy", "exact"))
    if not settings.get("heat"):
        return
    told = telling(settings) is not None
    if algorithm.rows == "named" and told:
        raise InputError(
            f"heat_privacy={way}: nodes name their rows to the server here, which then needs no"
            " private answers about them. Hide them (secure=yes or noise_by=shares:LEAST), or use"
            " heat_privacy=public"
        )
    if algorithm.rows != "named" and not told:
        raise InputError(
            f"heat_privacy={way}: nodes hide their rows here, so that the server cannot count who"
            " holds which. Let nodes tell it privately: --set heat_privacy=response:2 or"
            " heat_privacy=sum:NOISE:ROWS; heat that is public knowledge goes into the app's"
            " method.py, as privacy.heat.public(...)"
        )
