"""The server of a deployment: draws nodes, writes letters, checks replies, concludes, keeps a copy.

It never opens a data file.  It knows nodes by what they registered, and a round is

    invite  ->  (looks, found)  ->  answers, checked  ->  conclude  ->  checkpoint  ->  next letters

Only after the checkpoint is on the disk do letters say which answers counted: so no node remembers
a round that a restarted coordinator does not.

**Secrets.**  The run's seed travels in invitations, since a client's batches hang on it.  The
server's own randomness must not: who knows it can take the noise of a private mean off, and who
knows beforehand who will be drawn gets no amplification by sampling.  So a coordinator has a
``secret`` of 64 bits that its noise hangs on, and with noise the cohorts too; it is drawn once and
kept in its folder, for its owner alone.  Noise is JAX's threefry with a key of 64 bits: more than
can be tried out, less than a cipher gives.

Where nodes hide their rows, a round is one of secure sums (:mod:`fedslice.deploy.hidden`), or of
updates on all rows with noise of the nodes' own.
"""

import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedslice.data.sampling import Sampler
from fedslice.deploy import keeping, served
from fedslice.deploy import letter as letters
from fedslice.deploy.cohort import Cohort, Tally, draw
from fedslice.deploy.journal import NAME as JOURNAL
from fedslice.deploy.journal import Journal
from fedslice.deploy.letter import Letter
from fedslice.deploy.link import Link
from fedslice.deploy.named import Named, known
from fedslice.deploy.office import Ended, Office
from fedslice.deploy.post import Post
from fedslice.deploy.program import VERSIONS, Program
from fedslice.deploy.report import Report
from fedslice.deploy.schema import Schema
from fedslice.deploy.terms import check_terms
from fedslice.errors import InputError, RoundError
from fedslice.privacy.accounting.account import Guarantee
from fedslice.privacy.ledger import spent
from fedslice.safeguards import check_rounds
from fedslice.types import Algorithm, Params

AGAIN = 1 << 24  # rounds after which the draws of a second try begin


class Rounds(Protocol):
    """How rounds go: with messages that are seen, or in secure sums."""

    def train(
        self, round: int, cohort: Cohort, tally: Tally
    ) -> tuple[tuple[str, ...], Ended | None]:
        """Who counted, and the state after the round; None: it is to be tried again."""
        ...


class Coordinator:
    """A run over the nodes of ``schema``.  With a ``folder`` every round is kept, and a coordinator
    that is made anew with the same parts goes on where the last one was killed.

    Args:
        algorithm: as for a simulation.
        schema: who the nodes are (:func:`fedslice.deploy.register`).
        link: the way to them.
        sampler: who takes part.
        seed: what the first model, batches and (without noise) cohorts hang on; nodes are told.
        folder: for checkpoints and the secret.
        deadline: seconds that nodes have for a reply; None waits for all.
        least: with fewer answers that count, a round is thrown away and tried again (default: 1;
            with noise 0, for its denominator is fixed; all, where the algorithm needs everyone).
        spare: so many more are asked than are needed, and the first to answer count.
        tries: of one round, before the coordinator gives up.
        secret: of the server's own randomness, 64 bits; by default drawn anew.  With ``seed``
            itself the noise is that of a simulation, and no secret.
        room: padded sizes (default: from what nodes registered); with those of a simulation,
            ``run.planner.capacity``, all results are the simulation's to the bit.  Nodes that hide
            their rows make room for themselves, and take these for the least.
        union: where a union of rows is found by a secure sum, the most rows of each table that it
            can have, if that is known: a Bloom filter then takes the place of a number a row.

    >>> import optax, fedslice as fs
    >>> from fedslice.deploy import Coordinator, InProcess, Node, Program, columns_of, register
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> method = fs.recipes.fedavg(task.model, optax.sgd(0.5), weights="uniform")
    >>> program, home = Program(method, columns_of(task.model, task.train)), getfixture("tmp_path")
    >>> nodes = {f"n{i}": Node(program, task.train.subset([i]), home / f"{i}") for i in range(4)}
    >>> link = InProcess(nodes)
    >>> schema = register(link, task.model)
    >>> server = Coordinator(program, schema, link, sampler=fs.sampling.uniform(2))
    >>> [(report.round, len(report.counted)) for report in server.rounds(2)]
    [(1, 2), (2, 2)]
    """

    def __init__(
        self,
        algorithm: Algorithm | Program,
        schema: Schema,
        link: Link,
        *,
        sampler: Sampler,
        seed: int = 0,
        folder: str | Path | None = None,
        deadline: float | None = None,
        least: int | None = None,
        spare: int = 0,
        tries: int = 3,
        secret: int | None = None,
        room: Mapping[str, int] | None = None,
        union: Mapping[str, int] | None = None,
    ) -> None:
        if not isinstance(algorithm, Program):
            algorithm = Program(algorithm, schema.columns)
        self.program, self.algorithm = algorithm, algorithm.algorithm
        self.schema, self.link, self.sampler, self.seed = schema, link, sampler, seed
        self.folder = None if folder is None else Path(folder)
        self.deadline, self.spare, self.tries = deadline, spare, tries
        self.names = [name for name, node in schema.nodes.items() if node.examples]
        check_terms(self.program, schema, sampler, seed, least, spare)
        usual = 0 if self.algorithm.noise is not None else 1
        everyone = self.algorithm.client.everyone
        self.least = len(self.names) if everyone else usual if least is None else least
        self._secret = keeping.secret(self.folder) if secret is None else secret
        given = sampler, spare, seed, self._secret, room
        self.office = Office(self.program, schema, *given)
        self.round, self.attempt = 0, 0
        self.accepted: dict[str, bytes] = {}  # the nonce of each node's last answer that counted
        self.totals = {"bytes_down": 0, "bytes_up": 0}
        self.asked: dict[str, int] = {}  # in how many rounds each node was
        if self.folder is not None and keeping.there(self.folder):
            self._restore(self.folder)
        self.post = Post(link, deadline, self.program.fingerprint, self.accepted)
        self.journal: Journal | None = None  # of secure sums, which cannot begin again
        if self.program.summed:
            self.journal = Journal(None if self.folder is None else self.folder / JOURNAL)
        self.way = self._rounds(union or {})

    def _rounds(self, union: Mapping[str, int]) -> Rounds:
        """Those whose messages are seen, or those of secure sums, which need what fedslice[privacy]
        brings."""
        given = self.program, self.schema, self.office, self.post
        if self.journal is None:
            return Named(*given, self.least)
        from fedslice.deploy.hidden import Cohorts, Hidden

        return Hidden(*given, self.journal, Cohorts(self.least, union))

    # -- rounds ------------------------------------------------------------------------------------

    def rounds(self, count: int) -> Iterator[Report]:
        """Run ``count`` rounds; there is a report of every try, also of those thrown away."""
        goal = self.round + count
        while self.round < goal:
            report = self.step()
            yield report
            if not report.accepted and self.attempt == self.tries:
                few = f"fewer than {self.least} nodes counted"
                if self.program.summed:
                    few = "its secure sum was not opened"
                raise RoundError(
                    f"round {report.round} was tried {self.tries} times, and {few}. Last: {report}."
                    " Nothing is lost: go on when more nodes are there, or allow fewer (least)"
                )
        self.tell()

    def step(self) -> Report:
        """One try of one round."""
        check_rounds(self.algorithm, self.round + 1)
        if self.journal is not None:
            self.journal.begin(self.round)
        cohort, tally = self._cohort(), Tally()
        asked = tuple(cohort.times)
        counted, ended = self.way.train(self.round, cohort, tally)
        late = tuple(dict.fromkeys(tally.late))  # in one turn or in several
        given = asked, counted, dict(tally.excluded), late, tuple(tally.spare)
        moved = tally.down, tally.up
        self.totals = {
            "bytes_down": self.totals["bytes_down"] + tally.down,
            "bytes_up": self.totals["bytes_up"] + tally.up,
        }
        if ended is None:
            self.attempt += 1
            if self.journal is not None:
                self.journal.again()
            return Report(self.round + 1, False, *given, 0.0, 0.0, *moved, tally.why)
        self.office.keep(ended)
        self.round, self.attempt = self.round + 1, 0
        self.accepted |= ended.nonces
        self.asked |= {name: self.asked.get(name, 0) + 1 for name in asked}
        self._save()
        return Report(self.round, True, *given, ended.loss, ended.size, *moved, tally.why)

    def _cohort(self) -> Cohort:
        """Who is asked.  A second try draws anew, but with noise, whose draws are accounted for."""
        counts = {name: self.schema.nodes[name].examples for name in self.names}
        private = self.algorithm.noise is not None
        attempt = self.attempt if self.journal is None else self.journal.attempt
        number = self.round + (0 if private else attempt * AGAIN * self.sampler.cycle)
        seed = self._secret if private else self.seed
        cohort = draw(self.sampler, seed, number, counts, self.spare)
        most = self.algorithm.most
        if most is not None and len(cohort.times) > most:
            raise InputError(f"a round has {len(cohort.times)} nodes, and the sum room for {most}")
        return cohort

    def tell(self) -> None:
        """Tell all nodes which of their answers counted, so that they keep their memories and
        delete what they had for a secure sum; whoever misses it hears it with its next letter."""
        if not (self.program.remembers or self.program.summed):
            return
        body = self.seed.to_bytes(4, "little")
        sent = {}
        for name, nonce in self.accepted.items():
            own = secrets.token_bytes(len(letters.NONE))
            given = self.round, own, nonce, self.program.fingerprint, body
            sent[name] = Letter(letters.NEWS, *given).pack()
        self.link.exchange(sent, self.deadline)

    def publish(self, rows: str = "held") -> list[str]:
        """Send all nodes the model as it is, for their own use; who noted it is returned.

        ``rows="held"`` sends each the rows that it holds, ``"all"`` those of everybody: what a node
        needs to score items that it has never seen.  Nodes that hide their rows are sent all.
        """
        if rows not in ("held", "all"):
            raise InputError(f"rows={rows!r}: held or all")
        if self.algorithm.server.several:
            raise InputError(
                f"{self.algorithm.name} has several models, and a node has to choose: that is for"
                " simulations"
            )
        sent, nonces = {}, {}
        for name in self.names:
            ids = (
                known(self.schema.nodes[name], self.office).rows
                if rows == "held"
                else self.office.ids
            )
            body = served.pack(self.params(dict(ids)), ids, self.seed)
            nonces[name] = secrets.token_bytes(len(letters.NONE))
            given = nonces[name], self.accepted.get(name, letters.NONE), self.program.fingerprint
            sent[name] = Letter(letters.MODEL, self.round, *given, body).pack()
        replies = self.link.exchange(sent, self.deadline)
        return [name for name in sent if _noted(replies.get(name, b""), nonces[name])]

    # -- keeping -----------------------------------------------------------------------------------

    def params(self, ids: dict[str, np.ndarray] | None = None) -> Params:
        """The model: dense leaves, and of each table the rows ``ids`` (by space; default: all rows
        that any node holds)."""
        rows = self.office.store.rows(lambda state: state.server, self.office.ids | (ids or {}))
        return self.algorithm.server.params(rows)

    def spent(self, delta: float | None = None) -> Guarantee | None:
        """What the rounds so far tell about any one node, whoever came to them; None without noise.
        A round that was thrown away after numbers had left their nodes is among them."""
        often = max(self.asked.values(), default=0)
        return spent(self.algorithm, len(self.names), self.round, delta, often)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "algorithm": self.algorithm.name,
            "seed": self.seed,
            "sampler": self.sampler.name,
            "work": [work.identity() for work in self.program.works],
            "schema": self.schema.fingerprint(),
            "program": self.program.shapes.program(),
            "versions": VERSIONS,
        }

    def _save(self) -> None:
        if self.folder is not None:
            standing = keeping.Standing(self.round, self.accepted, self.totals, self.asked)
            keeping.write(self.folder, self.identity, self.office, standing)

    def _restore(self, folder: Path) -> None:
        standing = keeping.read(folder, self.identity, self.office)
        self.round, self.accepted = standing.round, dict(standing.accepted)
        self.totals, self.asked = dict(standing.totals), dict(standing.asked)


def _noted(reply: bytes, nonce: bytes) -> bool:
    """Whether a reply says that its letter was noted."""
    try:
        letter = letters.unpack(reply)
    except InputError:
        return False
    return (letter.kind, letter.nonce) == (letters.NOTED, nonce)
