"""One node: its own data, its own memory, the same algorithm.  It knows nobody else.

    reply = node.receive(letter)

is all there is.  A node says once who it is, then answers invitations with
:func:`fedslice.round.protocol.answer`, as a simulation does, on arrays of the sizes that the
invitation names: the same bits.  It believes a coordinator no more than it must: a letter of
another program, of another run, or for a memory that it does not have is refused, in words.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import Letter
from fedslice.deploy.memory import Memory
from fedslice.deploy.program import VERSIONS, Program, columns_of
from fedslice.deploy.rows import put, take
from fedslice.deploy.schema import pack_registration
from fedslice.errors import FedsliceError, InputError
from fedslice.files.writing import atomic_write
from fedslice.round import protocol
from fedslice.round.engine import PER_CLIENT
from fedslice.round.plan import Plan, Planner, bucket
from fedslice.types import Algorithm, Message, PyTree

INVITATION = "invitation.bin"
MOST_STEPS = 1 << 20  # that an invitation may ask room for


class Task(NamedTuple):
    """What an invitation asks for."""

    round: int
    seed: int
    plan: Plan
    invitation: Any
    key: Any


class Node:
    """A client with its ``data``, a population of one.  ``folder`` keeps its memory; ``number`` is
    what its randomness hangs on, by default the population's.  Nodes in one process may share a
    :class:`Program`.

    >>> import optax, fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5))
    >>> node = Node(method, task.train.subset([2]), getfixture("tmp_path"))
    >>> node.number, letters.unpack(node.receive(b"what")).kind == letters.REFUSED
    (2, True)
    """

    def __init__(
        self,
        algorithm: Algorithm | Program,
        data: Population,
        folder: str | Path,
        number: int | None = None,
    ) -> None:
        if len(data) != 1:
            raise InputError(f"a node is one client, this data has {len(data)}: give it its own")
        if number is not None:
            data = Population(
                data.columns, data.offsets, data.clients, data.names, np.array([number])
            )
        model = (algorithm.algorithm if isinstance(algorithm, Program) else algorithm).client.model
        meet(model, data)
        columns = columns_of(model, data)
        if not isinstance(algorithm, Program):
            algorithm = Program(algorithm, columns)
        elif dict(algorithm.columns) != columns:
            raise InputError(f"the program is for {algorithm.columns}, this data has {columns}")
        self.program, self.data, self.folder = algorithm, data, Path(folder)
        self.number = int(data.numbers[0])
        self.spaces = data.spaces(model)
        self.held = {name: len(space.slots) for name, space in self.spaces.items()}
        self.rows = {name: space.ids[space.slots] for name, space in self.spaces.items()}
        self._planners: dict[int, Planner] = {}
        self._memory: Memory | None = None

    def receive(self, letter: bytes) -> bytes:
        """The reply to a letter; to one that is wrong, why it is."""
        head = Letter(letters.REFUSED, 0, letters.NONE, letters.NONE, self.program.fingerprint)
        try:
            head = letters.unpack(letter)
            return self._reply(head, letter).pack()
        except FedsliceError as error:
            return head.reply(letters.REFUSED, self.program.fingerprint, str(error).encode()).pack()

    def _reply(self, head: Letter, letter: bytes) -> Letter:
        program = self.program
        if head.kind == letters.REGISTER:
            examples = int(self.data.counts[0])
            given = self.number, examples, program.columns, VERSIONS, self.rows
            body = pack_registration(program.wire, *given)
            return head.reply(letters.REGISTERED, program.fingerprint, body)
        if head.program != program.fingerprint:
            raise InputError(
                f"the coordinator runs {head.program}, this node {program.fingerprint} with"
                f" {VERSIONS}: both need the same model, client settings and versions"
            )
        if head.kind == letters.NEWS:
            if program.remembers:
                seed = int.from_bytes(head.body[:4], "little")
                self._remembered(seed).settle(head.accepted, head.round)
            return head.reply(letters.NOTED, program.fingerprint)
        if head.kind == letters.INVITE and program.algorithm.survey is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / INVITATION, letter)
            message, task = self._looks(head)
            body = self._pack(task, message, survey=True)
            return head.reply(letters.LOOK, program.fingerprint, body)
        if head.kind == letters.INVITE:
            return self._answers(head, self._task(head.body), ())
        if head.kind == letters.FOUND and program.algorithm.survey is not None:
            return self._after_survey(head)
        raise InputError(f"a letter of kind {head.kind}, which this node does not know")

    # -- what it is asked --------------------------------------------------------------------------

    def _task(self, body: bytes) -> Task:
        """Read an invitation and draw the batches of its round."""
        wire = self.program.wire
        round, seed, room, invitation = wire.unpack_invitation(body, self.held)
        planner = self._planner(seed)
        self._check_room(planner, room)
        planner.capacity = {**planner.capacity, **room, "clients": 1}
        plan, _ = planner.plan(round, np.array([0]))
        mine = take(self.program.tags.invitation, invitation, _mine(plan))
        own_key = jax.random.fold_in(jax.random.key(seed), 1)
        key = protocol.key_of(own_key, jnp.uint32(round), jnp.uint32(self.number))
        return Task(round, seed, plan, mine, key)

    def _planner(self, seed: int) -> Planner:
        if seed not in self._planners:
            algorithm, data = self.program.algorithm, self.data
            self._planners = {
                seed: Planner(
                    data,
                    self.spaces,
                    self.program.works,
                    seed,
                    algorithm.client.rows,
                    memory=True,
                    fields=self.program.columns,
                )
            }
        return self._planners[seed]

    def _check_room(self, planner: Planner, room: dict[str, int]) -> None:
        """Less room than its batches need would train on less, and far more would fill memory."""
        for phase, (work, pool) in enumerate(zip(planner.works, planner.pools, strict=True)):
            name = f"batch {phase}"
            if not min(work.batch, pool.most) <= room[name] <= work.batch:
                raise InputError(f"an invitation has room for {room[name]} examples a batch")
            if room.get(f"steps {phase}", 0) > MOST_STEPS:
                raise InputError(f"an invitation has room for {room[f'steps {phase}']:,} steps")
        for name, rows in self.program.wire.spaces.items():
            if room[f"{name} rows"] > bucket(rows):
                raise InputError(f"an invitation has room for more rows than {name!r} has")

    def _looks(self, head: Letter) -> tuple[Message, Task]:
        task = self._task(head.body)
        phases = task.plan.own.phases[: self._surveyed()]
        given = phases, task.plan.own.weight, np.int32(task.round), task.key, task.invitation
        return self.program.look(*given), task

    def _after_survey(self, head: Letter) -> Letter:
        """The second trip; the invitation was kept, for this may be another process."""
        file = self.folder / INVITATION
        first = letters.unpack(file.read_bytes()) if file.exists() else None
        if first is None or head.body[: len(letters.NONE)] != first.nonce:
            raise InputError("a survey's result came to a node that was not asked in this round")
        found = self.program.wire.unpack_found(head.body[len(letters.NONE) :], self.held)
        task = self._task(first.body)
        return self._answers(head, task, take(self.program.tags.found, found, _mine(task.plan)))

    def _answers(self, head: Letter, task: Task, found: PyTree) -> Letter:
        """Its message; what it would remember is written before the message leaves."""
        program, own = self.program, task.plan.own
        drawers = {PER_CLIENT: np.int32(0), **_mine(task.plan)}
        value: PyTree = program.tags.memory
        if program.remembers:
            memory = self._remembered(task.seed)
            memory.settle(head.accepted, head.round)
            value = self._first(task.seed) if memory.value is None else memory.value
        remembered = take(program.tags.memory, value, drawers)
        phases = own.phases[self._surveyed() :]
        told = np.int32(task.round), task.key, task.invitation
        given = phases, own.weight, *told, found, remembered
        message, after = program.answer(*given)
        if program.remembers:
            kept = jax.tree.map(np.array, value)
            memory.propose(put(program.tags.memory, kept, drawers, after), head.nonce, head.round)
        body = self._pack(task, message, survey=False)
        return head.reply(letters.ANSWER, program.fingerprint, body)

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

    @property
    def memory(self) -> PyTree:
        """What it remembers, of rounds that counted; None before the first."""
        return self._memory.value if self._memory is not None else None

    def _remembered(self, seed: int) -> Memory:
        if self._memory is None or self._memory.owner["seed"] != seed:
            owner = {"seed": seed, "number": self.number, "program": self.program.fingerprint}
            self._memory = Memory(self.folder, self.program.tags.memory, owner)
        return self._memory

    def _first(self, seed: int) -> PyTree:
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
