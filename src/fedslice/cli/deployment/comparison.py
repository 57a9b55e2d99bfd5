"""Is it the same?  The simulation of the clients that counted, beside the model that was trained
over nodes."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.cli.deployment import app
from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.deploy import Coordinator, InProcess, Schema
from fedslice.deploy.cohort import draw
from fedslice.deploy.coordinator import AGAIN
from fedslice.deploy.report import Report
from fedslice.deploy.session import population_of, reports
from fedslice.deploy.trial import drawn_apart
from fedslice.round.store import RamStore
from fedslice.simulation.run import simulate
from fedslice.types import Algorithm


class Counted(Sampler):
    """The clients that counted, round by round; nobody beyond."""

    rounds: list[list[int]]

    def cohort(self, seed: int, round: int, counts: np.ndarray) -> np.ndarray:
        """Those of this round."""
        return np.array(self.rounds[round] if round < len(self.rounds) else [], np.int64)


def compare(folder: Path, seed: int, trial: bool = False) -> str:
    """In a sentence, how the model in ``folder`` differs from the simulation's.  In a ``trial``
    noise comes from the seed on both sides."""
    home = folder / app.SERVER
    method, schema = app.method_of(folder), Schema.read(home)
    algorithm = method.algorithm(population_of(home, schema, method.MODEL))
    given = {"sampler": method.SAMPLER, "seed": seed, "folder": home}
    server = Coordinator(algorithm, schema, InProcess({}), **given, secret=seed if trial else None)
    if algorithm.noise is not None and not trial:
        return (
            "not compared: the noise hangs on secrets, as it must; --trial draws it from the seed,"
            " on generated data or to see that all is well"
        )
    told = [each for each in reports(home) if each.accepted]
    if [each.round for each in told] != list(range(1, server.round + 1)):
        return "not compared: the report of a round was lost when the server was killed"
    people = app.people_of(app.nodes_of(folder))
    known = np.isin(people.numbers, [node.number for node in schema.nodes.values()])
    return _difference(*_both(server, algorithm, people.subset(np.flatnonzero(known))))


def _both(server: Coordinator, algorithm: Algorithm, people: Population) -> tuple[Any, Any]:
    """What was trained over nodes, and in a simulation of those that counted."""
    assert server.folder is not None
    sampler = Counted(*server.sampler)
    sampler.rounds = _cohorts(server, reports(server.folder))
    numbers = people.numbers.tolist()
    counted = [[numbers[place] for place in places] for places in sampler.rounds]
    method = drawn_apart(algorithm, counted, numbers, server.seed)
    run = simulate(method, people, sampler=sampler, seed=server.seed, engine="map", threads=1)
    hidden = server.program.wire.hides
    if not hidden:  # those make room for themselves
        run.planner.capacity = dict(server.office.room)
    for _ in run.rounds(server.round):
        pass
    if not hidden:
        assert isinstance(run.store, RamStore)
        return server.office.store.state, run.store.state
    rows = {name: np.arange(rows) for name, rows in server.program.wire.spaces.items()}
    return server.params(rows), run.params(rows)


def _cohorts(server: Coordinator, told: list[Report]) -> list[list[int]]:
    """Of each accepted round the places of those that counted, as often as they were drawn."""
    names = list(server.schema.nodes)
    examples = {name: server.schema.nodes[name].examples for name in server.names}
    found, tries = [], 0
    for report in told:
        if report.accepted:
            # with noise a second try has the cohort of the first
            tries = 0 if server.algorithm.noise is not None else tries
            number = report.round - 1 + tries * AGAIN * server.sampler.cycle
            times = draw(server.sampler, server.seed, number, examples, server.spare).times
            counted = [[names.index(name)] * times.get(name, 1) for name in report.counted]
            found.append([place for each in counted for place in each])
        tries = 0 if report.accepted else tries + 1
    return found


def _difference(deployed: Any, simulated: Any) -> str:
    """Bit for bit, or by how much.

    >>> _difference({"w": np.ones(2)}, {"w": np.ones(2)})
    'bit for bit the model of the simulation of the same clients'
    >>> _difference({"w": np.ones(2)}, {"w": np.ones(2) + 0.5})[:53]
    'not the same: the largest difference to the simulatio'
    """
    pairs = [
        (np.asarray(one), np.asarray(two))
        for one, two in zip(jax.tree.leaves(deployed), jax.tree.leaves(simulated), strict=True)
    ]
    if all(one.tobytes() == two.tobytes() for one, two in pairs):
        return "bit for bit the model of the simulation of the same clients"
    gaps = [np.abs(one - two).max(initial=0) for one, two in pairs if one.dtype.kind == "f"]
    most = max(map(float, gaps), default=0.0)
    return (
        f"not the same: the largest difference to the simulation of the same clients is {most:.3g}."
        " Up to rounding that is the compiler's choice of instructions in two programs; more is"
        " another version or processor on a node, or a mistake"
    )
