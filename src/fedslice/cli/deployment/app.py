"""A Flower app as files: what ``fedslice deploy init`` writes, and what a trial reads again.

    pyproject.toml              Flower's, with the settings of the run
    fedslice_app/method.py      model and algorithm: the same on the server and on every node
    fedslice_app/server_app.py, client_app.py
    fedslice_app/vocabulary.json   where nodes bring files of their own: what values mean which id
    nodes/0/data ...            each node's own data: to be moved to where the node is
    server/                     made by the server: schema, checkpoint, reports, model
    README.md                   how to start it, here and on several machines

Nothing but the Python files, and the vocabulary, goes to SuperLink and SuperNodes.
"""

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.cli.deployment.texts import (
    BROUGHT,
    CLIENT_APP,
    CLIENT_APP_OF_FILES,
    GIVEN,
    METHOD,
    PROJECT,
    README,
    SERVER_APP,
)
from fedslice.cli.deployment.vocabulary import NAME as VOCABULARY
from fedslice.cli.deployment.vocabulary import Vocabulary
from fedslice.data.population import Population
from fedslice.deploy import own
from fedslice.errors import InputError, MissingDataError
from fedslice.files.writing import atomic_write
from fedslice.model import Model

PACKAGE, NODES, SERVER = "fedslice_app", "nodes", "server"
FILES = "pyproject.toml", "README.md", f"{PACKAGE}/method.py"


def write(
    folder: Path,
    model: Model,
    algorithm: str,
    settings: Mapping[str, Any],
    people: Population | None,
    config: Mapping[str, Any],
    vocabulary: Vocabulary | None = None,
) -> None:
    """Write the app for these ``people``, each of whom becomes a node; or for nodes that bring
    files of their own, in the terms of a vocabulary."""
    if there := [file for file in FILES if (folder / file).exists()]:
        raise InputError(f"{folder / there[0]} is there already: give another folder")
    origin = model.origin
    if origin is None or not _plain(origin.arguments):
        raise InputError(
            "this model does not say how it was made, so that a server without data could make it,"
            " too: write an app by hand, as docs/how-to/deploy.md shows"
        )
    home = folder.resolve()
    words = {
        "name": _name(home.name),
        "package": PACKAGE,
        "module": origin.module,
        "function": origin.function,
        "call": origin.call,
        "algorithm": algorithm,
        "settings": "".join(f'    "{key}": {_written(each)},\n' for key, each in settings.items()),
        "config": "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items()),
        "nodes": config["nodes"],
        "folder": home,
        "more": "" if vocabulary is None else f', "{PACKAGE}/{VOCABULARY}"',
        "whence": GIVEN if vocabulary is None else BROUGHT.replace("<<folder>>", str(home)),
        "digest": "" if vocabulary is None else vocabulary.digest,
    }
    texts = {
        "pyproject.toml": PROJECT,
        "README.md": README,
        f"{PACKAGE}/__init__.py": '"""A federation, by fedslice and Flower."""\n',
        f"{PACKAGE}/method.py": METHOD,
        f"{PACKAGE}/server_app.py": SERVER_APP,
        f"{PACKAGE}/client_app.py": CLIENT_APP if vocabulary is None else CLIENT_APP_OF_FILES,
    }
    (home / PACKAGE).mkdir(parents=True, exist_ok=True)
    for place, one in enumerate([] if people is None else _apart(people)):
        own.write(one, home / NODES / str(place) / "data")
    if vocabulary is not None:
        vocabulary.write(home / PACKAGE)
    for file, text in texts.items():
        atomic_write(home / file, _filled(text, words).encode())


def _apart(people: Population) -> list[Population]:
    return [people.subset(np.array([place])) for place in range(len(people))]


def _filled(text: str, words: Mapping[str, Any]) -> str:
    """``<<name>>`` in a text, which may have braces of its own."""
    return re.sub(r"<<(\w+)>>", lambda found: str(words[found.group(1)]), text)


def _written(value: Any) -> str:
    """As a formatter would have it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _plain(arguments: Mapping[str, object]) -> bool:
    try:
        return all(ast.literal_eval(repr(value)) == value for value in arguments.values())
    except (ValueError, SyntaxError):
        return False


def _name(text: str) -> str:
    """A name that Flower takes for an app.

    >>> _name("My trial, 2"), _name("...")
    ('my-trial-2', 'fedslice-app')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-") or "fedslice-app"


def nodes_of(folder: Path) -> list[Path]:
    """The folders of its nodes, by number."""
    found = [each for each in (folder / NODES).glob("*") if (each / "data" / own.ABOUT).exists()]
    if not found:
        raise MissingDataError(
            f"{folder} has no nodes/0/data, nodes/1/data, ...: give the folder of an app that"
            " fedslice deploy init wrote; one with a vocabulary gets them from nodes' files, by"
            f" fedslice deploy data {folder} FILE {folder}/nodes/0"
        )
    return sorted(found, key=lambda place: (len(place.name), place.name))


def people_of(nodes: list[Path]) -> Population:
    """All nodes' data as one population: for the comparison with a simulation, and nothing else."""
    parts = sorted((own.read(place / "data") for place in nodes), key=lambda one: one.numbers[0])
    names = list(parts[0].columns)
    columns = {name: np.concatenate([one.columns[name] for one in parts]) for name in names}
    ends = np.append(0, np.cumsum([one.examples for one in parts]))
    clients = np.concatenate([one.clients for one in parts])
    return Population(columns, ends, clients, {}, np.concatenate([one.numbers for one in parts]))


def method_of(folder: Path) -> Any:
    """The app's module ``method``, with MODEL, SAMPLER and algorithm(population)."""
    file = folder / PACKAGE / "method.py"
    if not file.exists():
        raise MissingDataError(f"there is no {file}: give the folder of an app")
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.method", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module
