"""Heat that nodes told privately, kept beside the server's other things: it is asked for once.

    folder/heat.safetensors

A population of nodes that name no rows has it in the place of a count of its own.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedslice.data.population import Population
from fedslice.files.sealed import load, seal
from fedslice.heat import Heat, Release
from fedslice.model import Model

NAME = "heat.safetensors"
_PLAIN = ("clients", "examples", "widths", "dense", "rows", "floor")
_ARRAYS = ("ids", "mass", "errors")


@dataclass(frozen=True, eq=False)
class Heated(Population):
    """Nodes whose rows nobody knows, with the heat that they ``told`` together."""

    told: Heat = field(default_factory=lambda: Heat(0, 0.0, {}, {}))

    def heat(self, model: Model, counts: np.ndarray | None = None) -> Heat:
        """What they told."""
        return self.told


def heated(population: Population, heat: Heat) -> Heated:
    """The clients of a population that tells nothing of its rows, with this heat.

    >>> nodes = Population({}, np.array([0, 1, 2]), np.array(["a", "b"]))
    >>> heated(nodes, Heat(2, 2.0, {}, {})).heat(None).clients
    2
    """
    given = population.columns, population.offsets, population.clients, population.names
    return Heated(*given, population.numbers, told=heat)


def write(heat: Heat, folder: Path) -> None:
    """Keep it."""
    about = {name: getattr(heat, name) for name in _PLAIN}
    about["fields"] = {name: list(fields) for name, fields in heat.fields.items()}
    about["release"] = None if heat.release is None else heat.release._asdict()
    leaves = {
        f"{name} {table}": np.asarray(array)
        for name in _ARRAYS
        for table, array in getattr(heat, name).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    seal(folder / NAME, {"heat": about}, leaves)


def read(folder: Path) -> Heat:
    """The heat that was kept there.

    >>> mass, errors = {"w": np.array([[4.0, 0.0]])}, {"w": np.array([[0.5, np.nan]])}
    >>> release = Release("by responses", epsilon=1.0)
    >>> heat = Heat(4, 4.0, {"w": np.array([0])}, mass, errors=errors, release=release)
    >>> write(heat, getfixture("tmp_path"))
    >>> again = read(getfixture("tmp_path"))
    >>> again.release == release, again.coefficient("w", np.array([0]), "uniform").tolist()
    (True, [1.0])
    """
    about, leaves = load(folder / NAME)
    told = about["heat"]
    arrays: dict[str, Any] = {name: {} for name in _ARRAYS}
    for name, array in leaves.items():
        kind, _, table = name.partition(" ")
        arrays[kind][table] = array
    fields = {name: tuple(each) for name, each in told.pop("fields").items()}
    release = told.pop("release")
    known = None if release is None else Release(**release)
    return Heat(**told, **arrays, fields=fields, release=known)
