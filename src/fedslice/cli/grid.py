"""A grid over settings: which cells there are, and how it grows where the best one lies at its
edge.

    --grid client_rate=0.03,0.1,0.3 --grid server_rate=0.1,1 --grid fedprox:mu=0.01,0.1

is, for each algorithm, the product of the axes that it has.  An axis that names an algorithm is for
that one alone.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.settings import Settings
from fedslice.cli.text import change_of
from fedslice.errors import InputError, nearest
from fedslice.report.selection import Edge
from fedslice.tasks.base import Task

MOST = 100_000  # cells; more are a slip of the fingers


class Axis(NamedTuple):
    """The ``values`` of a setting that are tried, as text; for all algorithms or for one."""

    algorithm: str
    setting: str
    values: tuple[str, ...]


class Cell(NamedTuple):
    """One algorithm with one choice of the grid's values."""

    algorithm: str
    given: Mapping[str, str]
    settings: Settings

    @property
    def name(self) -> str:
        """What it was given, as a folder is called."""
        return ",".join(f"{key}={value}" for key, value in self.given.items()) or "as-published"


def axis(text: str) -> Axis:
    """An axis as it is written.

    >>> axis("fedprox:mu=0.01, 0.1")
    Axis(algorithm='fedprox', setting='mu', values=('0.01', '0.1'))
    """
    try:
        name, key, values = change_of(text)
    except InputError:
        raise InputError(
            f"--grid {text}: write a setting and its values, client_rate=0.03,0.1,0.3"
        ) from None
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not found:
        raise InputError(f"--grid {text}: give the values to try, separated by commas")
    if len(set(found)) < len(found):
        raise InputError(f"--grid {text}: a value is named twice")
    return Axis(name, key, found)


def cells(
    task: Task, algorithms: Sequence[str], changes: Sequence[str], axes: Sequence[Axis]
) -> list[Cell]:
    """All cells, algorithm by algorithm; an axis that none of them has is refused."""
    found: list[Cell] = []
    used: set[Axis] = set()
    for name in algorithms:
        method = find_method(name)
        plain = settings_for(task, name, changes, several=len(algorithms) > 1)
        own = [one for one in axes if one.algorithm in ("", name)]
        own = [
            one
            for one in own
            if one.algorithm == name
            or (one.setting in plain.values and one.setting not in method.fixed)
        ]
        used |= set(own)
        for values in itertools.product(*(one.values for one in own)):
            given = {one.setting: value for one, value in zip(own, values, strict=True)}
            chosen = [f"{name}:{key}={value}" for key, value in given.items()]
            settings = settings_for(task, name, [*changes, *chosen], len(algorithms) > 1)
            found.append(Cell(name, given, settings))
    for one in axes:
        if one not in used:
            raise InputError(_unused(one, algorithms, found))
    if len(found) > MOST:
        raise InputError(f"{len(found):,} cells: a grid has {MOST:,} at most; try fewer values")
    return found


def _unused(one: Axis, algorithms: Sequence[str], found: Sequence[Cell]) -> str:
    if one.algorithm and one.algorithm not in algorithms:
        return (
            f"--grid {one.algorithm}:{one.setting}: it is not among those compared,"
            f" {', '.join(algorithms)}"
        )
    known = dict.fromkeys(key for cell in found for key in cell.settings.values)
    return f"--grid {one.setting}: no algorithm here has it; {nearest(one.setting, known)}"


def beyond(axes: Sequence[Axis], edges: Iterable[Edge]) -> list[Axis]:
    """Axes with one more value beyond each edge at which an optimum lies: the next of the geometric
    row that its last two values begin.  The same list if there is nothing to try.

    >>> beyond([axis("client_rate=0.1,0.3")], [Edge("fedavg", "client_rate", 0.3, False)])
    [Axis(algorithm='', setting='client_rate', values=('0.1', '0.3', '0.9'))]
    """
    grown = list(axes)
    for edge in edges:
        for place, one in enumerate(grown):
            if one.setting != edge.setting or one.algorithm not in ("", edge.algorithm):
                continue
            tried = sorted(map(float, one.values))
            last, before = (tried[0], tried[1]) if edge.lowest else (tried[-1], tried[-2])
            if last != edge.value or last <= 0 or before <= 0:
                continue  # it has grown already, or has no next one
            value = last * last / before
            whole = all(text.lstrip("+-").isdigit() for text in one.values)
            text = f"{round(value)}" if whole else f"{value:.4g}"
            if text not in one.values:
                grown[place] = one._replace(values=(*one.values, text))
    return grown


def of_table(table: Mapping[str, Any]) -> list[Axis]:
    """Axes from TOML: ``client_rate = [0.03, 0.1]``, and ``[grid.fedprox]`` for one algorithm.

    >>> of_table({"client_rate": [0.1, 1], "fedprox": {"mu": [0.01]}})  # doctest: +ELLIPSIS
    [Axis(algorithm='', setting='client_rate', values=('0.1', '1')), Axis(algorithm='fedprox', ...)]
    """
    found = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found += [one._replace(algorithm=key) for one in of_table(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            found.append(Axis("", key, tuple(map(str, value))))
        else:
            raise InputError(f"grid: {key} = {value!r}: give a list of the values to try")
    return found
