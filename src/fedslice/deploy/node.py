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

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.deploy import letter as letters
from fedslice.deploy import served
from fedslice.deploy.alone import alone
from fedslice.deploy.discretion import Discretion
from fedslice.deploy.given import Given
from fedslice.deploy.letter import Letter
from fedslice.deploy.noisy import answer_noisily
from fedslice.deploy.program import VERSIONS, Program, columns_of
from fedslice.deploy.schema import pack_registration
from fedslice.deploy.served import Served
from fedslice.deploy.training import Trainer
from fedslice.deploy.vault import Trial, Vault
from fedslice.errors import FedsliceError, InputError
from fedslice.files.writing import atomic_write
from fedslice.privacy.heat import Response, Summed
from fedslice.types import Algorithm, PyTree

TRAINED = "model.safetensors"


class InSums(Protocol):
    """A node's part in secure sums, which needs what fedslice[privacy] brings."""

    @property
    def public(self) -> bytes:
        """The key by which other nodes know it."""
        ...

    def turn(self, head: Letter, letter: bytes) -> Letter:
        """The reply to a letter of a turn."""
        ...

    def leave(self, round: int) -> None:
        """Delete what it had for sums of rounds before this one."""
        ...


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
        self.trainer = Trainer(algorithm, data, self.folder)
        self.number = self.trainer.number
        self.given = Given(self.folder, rounds)
        vault = Trial(self.folder) if trial else Vault(self.folder)
        self.discretion = Discretion(vault, self.given, heat, dict(trusted or {}))

    def receive(self, letter: bytes) -> bytes:
        """The reply to a letter; to one that is wrong, why it is."""
        head = Letter(letters.REFUSED, 0, letters.NONE, letters.NONE, self.program.fingerprint)
        try:
            head = letters.unpack(letter)
            with alone(self.folder):
                return self._reply(head, letter).pack()
        except FedsliceError as error:
            return head.reply(letters.REFUSED, self.program.fingerprint, str(error).encode()).pack()

    def _reply(self, head: Letter, letter: bytes) -> Letter:
        program, kind = self.program, head.kind
        if kind == letters.REGISTER:
            return head.reply(letters.REGISTERED, program.fingerprint, self._registration())
        if kind == letters.HEAT:
            return head.reply(letters.HEATED, head.program, self._says_of_rows(head.body))
        if kind == letters.TURN and self._adds_up:
            return self.sums.turn(head, letter)
        if head.program != program.fingerprint:
            raise InputError(
                f"the coordinator runs {head.program}, this node {program.fingerprint} with"
                f" {VERSIONS}: both need the same model, client settings and versions"
            )
        if kind == letters.NEWS:
            return self._notes(head)
        if kind == letters.MODEL:
            return self._keeps(head)
        if kind == letters.INVITE:
            return self._invited(head, letter)
        if kind == letters.FOUND and program.algorithm.survey is not None:
            return self.trainer.after_survey(head)
        raise InputError(f"a letter of kind {kind}, which this node does not know")

    def _invited(self, head: Letter, letter: bytes) -> Letter:
        program = self.program
        if program.algorithm.survey is not None:
            return self.trainer.look(head, letter)
        if program.summed:
            raise InputError(
                "this node answers in secure sums alone: to an invitation by itself it would send"
                " its update to be read"
            )
        if program.wire.hides:
            return answer_noisily(self.trainer, self.discretion, head)
        return self.trainer.answer(head, self.trainer.task(head.body))

    # -- what it tells -----------------------------------------------------------------------------

    @property
    def _adds_up(self) -> bool:
        """Whether it takes part in any secure sums."""
        return self.program.summed or isinstance(self.discretion.heat, Summed)

    @cached_property
    def sums(self) -> InSums:
        """Its part in secure sums."""
        from fedslice.deploy.contribution import Contribution

        return Contribution(self.trainer, self.discretion)

    def _registration(self) -> bytes:
        """What it says of itself: its rows only where its algorithm names rows."""
        program, examples = self.program, int(self.data.counts[0])
        key = self.sums.public if self._adds_up else b""
        rows = None if program.wire.hides else self.trainer.rows
        given = self.number, examples, program.columns, VERSIONS, rows, key
        return pack_registration(program.wire, *given)

    def _says_of_rows(self, body: bytes) -> bytes:
        """Randomised responses about all rows, the same whenever it is asked."""
        from fedslice.deploy.counting import responses

        how, vault = self.discretion.heat, self.discretion.vault
        if not isinstance(how, Response):
            raise InputError(
                "this node gives no randomised responses about its rows: its owner must say so,"
                " Node(..., heat=privacy.heat.symmetric(1.0))"
            )
        return responses(how, body, self.trainer.rows, self.program.wire.spaces, vault)

    # -- what it keeps -----------------------------------------------------------------------------

    def _notes(self, head: Letter) -> Letter:
        """Which of its answers counted."""
        if self.program.remembers:
            seed = int.from_bytes(head.body[:4], "little")
            self.trainer.remembered(seed).settle(head.accepted, head.round)
        if self.program.summed:
            self.sums.leave(head.round)
        return head.reply(letters.NOTED, self.program.fingerprint)

    def _keeps(self, head: Letter) -> Letter:
        """A trained model, for :meth:`model`."""
        published = served.unpack(head.body, self.program.model)
        if self.program.remembers:
            self.trainer.remembered(published.seed).settle(head.accepted, head.round)
        atomic_write(self.folder / TRAINED, head.body)
        return head.reply(letters.NOTED, self.program.fingerprint)

    def model(self) -> Served:
        """The model that it would serve: the one that the coordinator published last, with its own
        local leaves, rebuilt on its examples or kept from its rounds."""
        file = self.folder / TRAINED
        if not file.exists():
            raise InputError(f"{file} is not there: the coordinator has published no model yet")
        return served.of(self.trainer, served.unpack(file.read_bytes(), self.program.model))

    @property
    def memory(self) -> PyTree:
        """What it remembers, of rounds that counted; None before the first."""
        return None if self.trainer.memory is None else self.trainer.memory.value
