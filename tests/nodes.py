"""Deployments in one process, and the simulation of the clients that counted."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from laws import method_of
from problems import people, run_of

import fedslice as fs
from fedslice.deploy import Coordinator, InProcess, Node, Program, columns_of, register
from fedslice.deploy.rows import take
from fedslice.round.program import once
from fedslice.round.store import PER_CLIENT
from fedslice.simulation.run import Run

SEED = 5


class Told(fs.sampling.Sampler):
    """The clients that it was told, round by round; nobody beyond."""

    def cohort(self, seed: int, round: int, counts: np.ndarray) -> np.ndarray:
        return np.array(self.rounds[round] if round < len(self.rounds) else [], np.int64)


def told(rounds: list[list[int]]) -> Told:
    sampler = Told("told", lambda rng, counts: counts)
    sampler.rounds = rounds
    return sampler


def program_of(method: Any, columns: Any) -> Program:
    """Of deployments with the same algorithm one and the same, compiled once."""
    return once(method, "program of tests", lambda: Program(method, columns))


class Deployment:
    """Seven nodes, one for each client, and their coordinator.  ``restart`` makes both anew from
    their folders, as after a kill."""

    def __init__(
        self, name: str, home: Path, method: Any = None, node: Any = None, **settings: Any
    ) -> None:
        self.population, self.home, self.own = people(), home, node or {}
        self.method = method or method_of(name)
        columns = columns_of(self.method.client.model, self.population)
        self.program = program_of(self.method, columns)
        self.link = InProcess({str(i): self.node(i) for i in range(len(self.population))})
        self.schema = register(self.link, self.program.model)
        self.settings = {"sampler": fs.sampling.full(), "seed": SEED, "secret": SEED} | settings
        self.server = self.coordinator()

    def node(self, place: int) -> Node:
        alone = self.population.subset(np.array([place]))
        return Node(self.program, alone, self.home / "nodes" / str(place), **self.own)

    def restart(self, place: int) -> None:
        self.link.members[str(place)] = self.node(place)

    def coordinator(self) -> Coordinator:
        folder = self.home / "server"
        return Coordinator(self.program, self.schema, self.link, folder=folder, **self.settings)

    def simulation(self, rounds: list[list[int]]) -> Run:
        """Of these clients, with the coordinator's padded sizes."""
        settings: dict[str, Any] = {"engine": "map", "threads": 1, "seed": SEED}
        run = run_of(self.method, self.population, sampler=told(rounds), **settings)
        run.planner.capacity = dict(self.server.office.room)
        return run

    def same(self, run: Run) -> bool:
        return bits(self.server.office.store.state) == bits(run.store.state)

    def same_model(self, run: Run) -> bool:
        """For coordinators that know no slots: on all rows of the tables."""
        rows = {space: np.arange(table.rows) for space, table in self.program.model.tables.items()}
        return bits(self.server.params(rows)) == bits(run.params(rows))

    def same_memory(self, run: Run, place: int) -> bool:
        drawer = {PER_CLIENT: np.array([place])}
        for space, rows in run.spaces.items():
            drawer[space] = np.arange(rows.offsets[place], rows.offsets[place + 1])
        kept = self.link.members[str(place)].memory
        return bits(kept) == bits(take(run.shapes.tags.memory, run.memory, drawer))


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
