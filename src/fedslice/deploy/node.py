"""One node: its own data, its own memory, the same algorithm.  It knows nobody else.

    reply = node.receive(letter)

is all there is.  A node says once who it is, then answers invitations with
:func:`fedslice.round.protocol.answer`, as a simulation does, on arrays of the sizes that the
invitation names: the same bits.  It believes a coordinator no more than it must: a letter of
another program, of another run, or for a memory that it does not have is refused, in words.

Where the algorithm hides rows, a node names none, pads its arrays itself and says nothing that
follows from its data but through secure sums (:mod:`fedslice.deploy.contribution`) or under noise
of its own: its algorithm decides that, not what it is asked.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.deploy import letter as letters
from fedslice.deploy import served
from fedslice.deploy.given import Given
from fedslice.deploy.letter import Letter
from fedslice.deploy.memory import Memory
from fedslice.deploy.noisy import answer_noisily
from fedslice.deploy.program import VERSIONS, Program, columns_of
from fedslice.deploy.rows import places_in, put, take
from fedslice.deploy.schema import pack_registration
from fedslice.deploy.served import Served
from fedslice.deploy.vault import Trial, Vault
from fedslice.errors import FedsliceError, InputError
from fedslice.files.lock import hold
from fedslice.files.writing import atomic_write
from fedslice.privacy.heat import Response, Summed
from fedslice.round import protocol
from fedslice.round.engine import PER_CLIENT
from fedslice.round.plan import Plan, Planner, bucket
from fedslice.types import Algorithm, Message, PyTree

if TYPE_CHECKING:
    from fedslice.deploy.contribution import Contribution

INVITATION, TRAINED, LOCK = "invitation.bin", "model.safetensors", "lock"
PATIENCE = 30.0  # seconds to wait for another process in the same folder
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

    Args:
        algorithm: as for a simulation; it decides what the node tells.
        data: its own.
        folder: for its memory and its secret; for its owner alone.
        number: of the client.
        heat: how it tells which rows it holds for the heat, ``privacy.heat.symmetric(1.0)`` or
            ``privacy.heat.Summed(4.0, most=200, kind="skellam")``; by default not at all.
        trusted: the public keys of the nodes, by number, that it adds up with; by default those
            that the coordinator names.
        rounds: how often at all, in whichever runs, it gives updates where rows are hidden: a
            guarantee is for so many rounds, and the coordinator alone says how many there were.  By
            default as often as it is asked.
        trial: draw noise and answers from the run's seed, as a simulation does: to compare the two,
            and never with data that matter, for everybody knows the seed.

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
        *,
        heat: Response | Summed | None = None,
        trusted: Mapping[int, bytes] | None = None,
        rounds: int | None = None,
        trial: bool = False,
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
        self.heat, self.trusted = heat, dict(trusted or {})
        self.given = Given(self.folder, rounds)
        self.vault = Trial(self.folder) if trial else Vault(self.folder)
        self._planners: dict[int, tuple[Planner, dict[str, int]]] = {}
        self._memory: Memory | None = None

    def receive(self, letter: bytes) -> bytes:
        """The reply to a letter; to one that is wrong, why it is."""
        head = Letter(letters.REFUSED, 0, letters.NONE, letters.NONE, self.program.fingerprint)
        try:
            head = letters.unpack(letter)
            with self._alone():
                return self._reply(head, letter).pack()
        except FedsliceError as error:
            return head.reply(letters.REFUSED, self.program.fingerprint, str(error).encode()).pack()

    def _reply(self, head: Letter, letter: bytes) -> Letter:
        program = self.program
        if head.kind == letters.REGISTER:
            return head.reply(letters.REGISTERED, program.fingerprint, self._registration())
        if head.kind == letters.HEAT:
            return head.reply(letters.HEATED, head.program, self._says_of_rows(head.body))
        if head.kind == letters.TURN and (program.summed or isinstance(self.heat, Summed)):
            return self.contribution.turn(head, letter)
        if head.program != program.fingerprint:
            raise InputError(
                f"the coordinator runs {head.program}, this node {program.fingerprint} with"
                f" {VERSIONS}: both need the same model, client settings and versions"
            )
        if head.kind == letters.NEWS:
            if program.remembers:
                seed = int.from_bytes(head.body[:4], "little")
                self._remembered(seed).settle(head.accepted, head.round)
            if program.summed:
                self.contribution.sitting.leave(head.round)
            return head.reply(letters.NOTED, program.fingerprint)
        if head.kind == letters.MODEL:
            return self._keeps(head)
        if head.kind == letters.INVITE and program.algorithm.survey is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / INVITATION, letter)
            message, task = self._looks(head)
            body = self._pack(task, message, survey=True)
            return head.reply(letters.LOOK, program.fingerprint, body)
        if head.kind == letters.INVITE and program.summed:
            raise InputError(
                "this node answers in secure sums alone: to an invitation by itself it would send"
                " its update to be read"
            )
        if head.kind == letters.INVITE and program.wire.hides:
            return answer_noisily(self, head)
        if head.kind == letters.INVITE:
            return self._answers(head, self.task(head.body), ())
        if head.kind == letters.FOUND and program.algorithm.survey is not None:
            return self._after_survey(head)
        raise InputError(f"a letter of kind {head.kind}, which this node does not know")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else works in its folder: two processes would mix their memories up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + PATIENCE
        try:
            while (lock := hold(self.folder / LOCK)) is None and time.monotonic() < end:
                time.sleep(0.05)
        except OSError as error:
            raise InputError(
                f"{self.folder} is on a file system that cannot lock ({error}): use another"
            ) from error
        if lock is None:
            raise InputError(
                f"another process works in {self.folder}: give each node a folder of its own"
            )
        with lock:
            yield

    # -- what it is asked --------------------------------------------------------------------------

    def _registration(self) -> bytes:
        """What it says of itself: its rows only where its algorithm names rows."""
        program, examples = self.program, int(self.data.counts[0])
        key = b""
        if program.summed or isinstance(self.heat, Summed):
            key = self.contribution.public
        rows = None if program.wire.hides else self.rows
        given = self.number, examples, program.columns, VERSIONS, rows, key
        return pack_registration(program.wire, *given)

    @cached_property
    def contribution(self) -> "Contribution":
        """Its part in secure sums."""
        from fedslice.deploy.contribution import Contribution

        return Contribution(self)

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

    def _looks(self, head: Letter) -> tuple[Message, Task]:
        task = self.task(head.body)
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
        task = self.task(first.body)
        return self._answers(head, task, take(self.program.tags.found, found, _mine(task.plan)))

    def _answers(self, head: Letter, task: Task, found: PyTree) -> Letter:
        """Its message for its own rows."""
        body = self._pack(task, self.trained(head, task, found), survey=False)
        return head.reply(letters.ANSWER, self.program.fingerprint, body)

    def trained(self, head: Letter, task: Task, found: PyTree = ()) -> Message:
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
        return message

    def _says_of_rows(self, body: bytes) -> bytes:
        """Randomised responses about all rows, the same whenever it is asked."""
        from fedslice.deploy.counting import responses

        if not isinstance(self.heat, Response):
            raise InputError(
                "this node gives no randomised responses about its rows: its owner must say so,"
                " Node(..., heat=privacy.heat.symmetric(1.0))"
            )
        return responses(self.heat, body, self.rows, self.program.wire.spaces, self.vault)

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

    # -- what it was trained for -------------------------------------------------------------------

    def _keeps(self, head: Letter) -> Letter:
        """A trained model, for :meth:`model`."""
        published = served.unpack(head.body, self.program.model)
        if self.program.remembers:
            self._remembered(published.seed).settle(head.accepted, head.round)
        atomic_write(self.folder / TRAINED, head.body)
        return head.reply(letters.NOTED, self.program.fingerprint)

    def model(self) -> Served:
        """The model that it would serve: the one that the coordinator published last, with its own
        local leaves, rebuilt on its examples or kept from its rounds."""
        file, client = self.folder / TRAINED, self.program.algorithm.client
        if not file.exists():
            raise InputError(f"{file} is not there: the coordinator has published no model yet")
        published, model = served.unpack(file.read_bytes(), client.model), client.model
        if client.serve is not None:
            where = served.places_of(published, self.rows)
            tags = served.tags_of(model, published.params)
            mine = take(tags, published.params, where)
            memory = self._remembered(published.seed).value
            value = self._first(published.seed) if memory is None else memory
            drawer = {PER_CLIENT: np.int32(0), **{n: np.arange(k) for n, k in self.held.items()}}
            own = take(self.program.tags.memory, value, drawer)[0]
            key = jax.random.fold_in(jax.random.key(published.seed), self.number)
            params = served.merged(tags, published.params, where, client.serve(mine, own, key))
        elif client.adapt is not None:
            params = served.adapted(client.adapt, published, self.data)
        else:
            params = published.params
        return Served(model, params, published.ids)

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
