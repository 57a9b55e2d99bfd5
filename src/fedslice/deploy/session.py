"""A server's whole run over a link: wait for the nodes, know them, train, and write down what
happened.

    folder/schema.safetensors      who the nodes are: asked once, before the first round
    folder/heat.safetensors        how many hold each row, where they tell it privately: once, too
    folder/checkpoint.safetensors  the model and the round
    folder/reports.jsonl           a line for every try of a round

Started again with the same folder it goes on, with the nodes that it knows.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.deploy import heated
from fedslice.deploy.coordinator import Coordinator
from fedslice.deploy.counting import collect
from fedslice.deploy.link import Link
from fedslice.deploy.report import Report
from fedslice.deploy.schema import NAME, Schema, register
from fedslice.errors import InputError
from fedslice.files.strict import as_json, parsed
from fedslice.model import Model
from fedslice.privacy.heat import Response, Summed
from fedslice.types import Algorithm

REPORTS = "reports.jsonl"
PATIENCE = 120.0  # seconds until all nodes must have come


def coordinate(
    link: Link,
    model: Model,
    algorithm: Callable[[Population], Algorithm],
    sampler: Sampler,
    *,
    folder: str | Path,
    nodes: int,
    patience: float = PATIENCE,
    deadline: float | None = None,
    heat: Response | Summed | None = None,
    tell: Callable[[str], None] = print,
    **settings: Any,
) -> Coordinator:
    """The coordinator of ``nodes`` nodes, or of those that ``folder`` knows; further ``settings``
    are the coordinator's.

    ``algorithm`` is made from what nodes said of themselves: a population with S(i) and numbers of
    examples, and without data.  Of nodes that name no rows it has the heat that they tell by
    ``heat``, as each of them was given it.
    """
    home = Path(folder)
    known = (home / NAME).exists()
    if known:
        schema = Schema.read(home)
        there = wait_for(link, len(schema.nodes), patience, set(schema.nodes))
        absent = [name for name in schema.nodes if name not in there]
        if absent:
            tell(f"not there: {', '.join(absent)}; whoever comes later takes part again")
        for line in strangers(link, schema):
            tell(line)
    else:
        there = wait_for(link, nodes, patience)
        if len(there) < nodes:
            raise InputError(
                f"{len(there)} of {nodes} nodes came within {patience:g} seconds"
                f" ({', '.join(there) or 'none'}): start the others, each with a name of its own,"
                " or ask for fewer"
            )
        schema = register(link, model, deadline)
        schema.write(home)
    for name, why in schema.refused.items():
        tell(f"{name} takes no part: {why}")
    tell(f"{len(schema.nodes)} nodes {'are known' if known else 'registered'}")
    if heat is not None and any(node.hidden for node in schema.nodes.values()):
        _hear(link, schema, model, heat, home, deadline, tell)
    method = algorithm(population_of(home, schema, model))
    given = {"sampler": sampler, "folder": home, "deadline": deadline, **settings}
    return Coordinator(method, schema, link, **given)


def _hear(
    link: Link,
    schema: Schema,
    model: Model,
    how: Response | Summed,
    home: Path,
    deadline: float | None,
    tell: Callable[[str], None],
) -> None:
    """Have nodes tell the heat, once and for all."""
    if not (home / heated.NAME).exists():
        heated.write(collect(link, schema, model, how, folder=home, deadline=deadline), home)
    release = heated.read(home).release
    assert release is not None
    said = release.epsilon, release.multiplier, release.rows
    if said != ((how.epsilon, None, 1) if isinstance(how, Response) else (None, *how[:2])):
        raise InputError(
            f"the heat in {home} was told in another way ({release.text}): go on with that, or"
            " begin with new folders"
        )
    tell(f"nodes told the heat of rows by {release.text}")


def population_of(home: Path, schema: Schema, model: Model) -> Population:
    """The nodes as a server with this folder knows them."""
    known = schema.population(model)
    return heated.heated(known, heated.read(home)) if (home / heated.NAME).exists() else known


def wait_for(link: Link, count: int, patience: float, names: set[str] | None = None) -> list[str]:
    """Those that are there once ``count`` of them (or of ``names``) are, or patience ends.

    >>> from fedslice.deploy import InProcess
    >>> wait_for(InProcess({}), 2, patience=0.0)
    []
    """
    end = time.monotonic() + patience
    while True:
        there = [name for name in link.nodes() if names is None or name in names]
        if len(there) >= count or time.monotonic() >= end:
            return there
        time.sleep(0.2)


def strangers(link: Link, schema: Schema) -> list[str]:
    """A line about each node that came after the start; slots, heat and the fixed order of sums
    are those of the nodes that were there."""
    return [
        f"{name} came after the start of this run, and takes no part in it: a new run, with a new"
        " folder, will know it"
        for name in link.nodes()
        if name not in schema.nodes and name not in schema.refused
    ]


def train(
    server: Coordinator, rounds: int, tell: Callable[[str], None] = print
) -> Iterator[Report]:
    """Go on to the last of ``rounds`` rounds in all; each report is written down, and told."""
    noted: set[str] = set()
    if server.folder is None:
        raise InputError("a session needs a coordinator with a folder")
    with (server.folder / REPORTS).open("a", encoding="utf-8") as sink:
        if sink.tell():
            sink.write("\n")  # a kill may have left half a line
        for report in server.rounds(max(0, rounds - server.round)):
            sink.write(as_json(report._asdict()) + "\n")
            sink.flush()
            tell(str(report))
            for line in strangers(server.link, server.schema):
                if line not in noted:
                    tell(line)
                    noted.add(line)
            yield report


def reports(folder: str | Path) -> list[Report]:
    """What was written down so far."""
    file = Path(folder) / REPORTS
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(_report(parsed(line)))
        except ValueError:  # half a line, or none
            continue
    return found


def _report(line: Mapping[str, Any]) -> Report:
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in line.items()
    }
    return Report(**given)
