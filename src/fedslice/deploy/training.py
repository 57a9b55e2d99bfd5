"""What a node does with an invitation: batches of its own data, its memory, the client's half.

The invitation names the sizes of all arrays, so that a node computes on arrays as large as a
simulation's, with :func:`fedslice.round.protocol.answer`: the same bits.  Where rows are hidden a
node makes room for itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter
from fedslice.deploy.memory import Memory
from fedslice.deploy.program import Program
from fedslice.deploy.rows import places_in, put, take
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write
from fedslice.round import protocol
from fedslice.round.plan import Plan, Planner, bucket
from fedslice.round.store import PER_CLIENT
from fedslice.types import Message, PyTree

INVITATION = "invitation.bin"
MOST_STEPS = 1 << 20  # that an invitation may ask room for


class Task(NamedTuple):
    """What an invitation asks for."""

    round: int
    seed: int
    plan: Plan
    invitation: Any
    key: Any


class Trainer:
    """The training of a client with its ``data``, a population of one, whose memory is in
    ``folder``."""

    def __init__(self, program: Program, data: Population, folder: Path) -> None:
        self.program, self.data, self.folder = program, data, folder
        self.number = int(data.numbers[0])
        self.spaces = data.spaces(program.model)
        self.held = {name: len(space.slots) for name, space in self.spaces.items()}
        self.rows = {name: space.ids[space.slots] for name, space in self.spaces.items()}
        self._planners: dict[int, tuple[Planner, dict[str, int]]] = {}
        self.memory: Memory | None = None

    def task(self, body: bytes, rows: Mapping[str, np.ndarray] | None = None) -> Task:
        """Read an invitation, for its own rows or for these, and draw the batches of its round."""
        wire = self.program.wire
        offered = self.rows if rows is None else rows
        count = {name: len(ids) for name, ids in offered.items()}
        round, seed, room, invitation = wire.unpack_invitation(body, count)
        planner, own = self._planner(seed)
        self._check_room(planner, room)
        if wire.hides:  # it makes room for itself: to refuse would tell how much it needs
            room = {name: max(size, own.get(name, 0)) for name, size in room.items() if size}
        planner.capacity = {**own, **room, "clients": 1}
        plan, _ = planner.plan(round, np.array([0]))
        mine = {
            name: places_in(offered[name], self.rows[name])[places]
            for name, places in _mine(plan).items()
        }
        own_key = jax.random.fold_in(jax.random.key(seed), 1)
        key = protocol.key_of(own_key, jnp.uint32(round), jnp.uint32(self.number))
        return Task(round, seed, plan, take(self.program.tags.invitation, invitation, mine), key)

    def _planner(self, seed: int) -> tuple[Planner, dict[str, int]]:
        """The planner of a run, and the sizes that it has before any invitation."""
        if seed not in self._planners:
            algorithm, data = self.program.algorithm, self.data
            made = Planner(
                data,
                self.spaces,
                self.program.works,
                seed,
                algorithm.client.rows,
                memory=True,
                fields=self.program.columns,
            )
            self._planners = {seed: (made, dict(made.capacity))}
        return self._planners[seed]

    def _check_room(self, planner: Planner, room: dict[str, int]) -> None:
        """Less room than its batches need would train on less, and far more would fill memory."""
        hides = self.program.wire.hides
        for phase, (work, pool) in enumerate(zip(planner.works, planner.pools, strict=True)):
            name = f"batch {phase}"
            needed = 0 if hides else min(work.batch, pool.most)
            if not needed <= room[name] <= work.batch:
                raise InputError(f"an invitation has room for {room[name]} examples a batch")
            if room.get(f"steps {phase}", 0) > MOST_STEPS:
                raise InputError(f"an invitation has room for {room[f'steps {phase}']:,} steps")
        for name, rows in self.program.wire.spaces.items():
            if room[f"{name} rows"] > bucket(rows):
                raise InputError(f"an invitation has room for more rows than {name!r} has")

    def look(self, head: Letter, letter: bytes) -> Letter:
        """Its part in a survey; the invitation is kept, for the second trip may reach another
        process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self.folder / INVITATION, letter)
        task = self.task(head.body)
        phases = task.plan.own.phases[: self._surveyed()]
        given = phases, task.plan.own.weight, np.int32(task.round), task.key, task.invitation
        body = self._pack(task, self.program.look(*given), survey=True)
        return head.reply(letters.LOOK, self.program.fingerprint, body)

    def after_survey(self, head: Letter) -> Letter:
        """The second trip."""
        file = self.folder / INVITATION
        first = letters.unpack(file.read_bytes()) if file.exists() else None
        if first is None or head.body[: len(letters.NONE)] != first.nonce:
            raise InputError("a survey's result came to a node that was not asked in this round")
        found = self.program.wire.unpack_found(head.body[len(letters.NONE) :], self.held)
        task = self.task(first.body)
        mine = take(self.program.tags.found, found, _mine(task.plan))
        return self.answer(head, task, mine)

    def answer(self, head: Letter, task: Task, found: PyTree = ()) -> Letter:
        """Its message for its own rows."""
        body = self._pack(task, self.trained(head, task, found), survey=False)
        return head.reply(letters.ANSWER, self.program.fingerprint, body)

    def trained(self, head: Letter, task: Task, found: PyTree = ()) -> Message:
        """Its message; what it would remember is written before the message leaves."""
        if task.round != head.round:
            raise InputError("an invitation to another round than its letter's")
        program, own = self.program, task.plan.own
        drawers = {PER_CLIENT: np.int32(0), **_mine(task.plan)}
        value: PyTree = program.tags.memory
        if program.remembers:
            memory = self.remembered(task.seed)
            memory.settle(head.accepted, head.round)
            value = self.first(task.seed) if memory.value is None else memory.value
        remembered = take(program.tags.memory, value, drawers)
        phases = own.phases[self._surveyed() :]
        told = np.int32(task.round), task.key, task.invitation
        given = phases, own.weight, *told, found, remembered
        message, after = program.answer(*given)
        if program.remembers:
            kept = jax.tree.map(np.array, value)
            memory.propose(put(program.tags.memory, kept, drawers, after), head.nonce, head.round)
        return message

    def _surveyed(self) -> int:
        survey = self.program.algorithm.survey
        return len(survey.work) if survey else 0

    def _pack(self, task: Task, message: Message, survey: bool) -> bytes:
        own, rows, ids = task.plan.own, {}, {}
        for name in self.spaces:
            past = len(task.plan.shared.union[name])
            rows[name] = np.flatnonzero((own.sent or own.places)[name][0] < past)
            ids[name] = self.rows[name][own.held[name][0][rows[name]]]
        return self.program.wire.pack_message(task.round, message, rows, ids, survey)

    # -- what it remembers -------------------------------------------------------------------------

    def remembered(self, seed: int) -> Memory:
        """Its memory of the run with this seed."""
        if self.memory is None or self.memory.owner["seed"] != seed:
            owner = {"seed": seed, "number": self.number, "program": self.program.fingerprint}
            self.memory = Memory(self.folder, self.program.tags.memory, owner)
        return self.memory

    def first(self, seed: int) -> PyTree:
        """Its memory as it starts, from the first model, whose rows follow from the seed."""
        shapes, server = self.program.keyed(seed), self.program.algorithm.server
        filled = {
            name: np.append(ids, np.zeros(bucket(len(ids)) - len(ids), np.int64))
            for name, ids in self.rows.items()
        }
        params = shapes.model.params(shapes.key, filled)
        rows = {table: filled[space] for table, space in shapes.model.space_of.items()}
        first = self.program.remember(server.params(server.init(params, rows)))
        return jax.tree.map(
            lambda tag, leaf: np.asarray(leaf)[
                None if tag == PER_CLIENT else slice(self.held[tag])
            ],
            self.program.tags.memory,
            first,
        )


def _mine(plan: Plan) -> dict[str, np.ndarray]:
    """Which of its rows the round's arrays have."""
    return {name: places[0] for name, places in plan.own.held.items()}
