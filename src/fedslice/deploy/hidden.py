"""A round of which the coordinator sees sums alone: which rows, then the updates on them.

    union of rows (a secure sum)  ->  which of them each takes  ->  invitations  ->  their sum
                                      `------- turns of the second sum -------'

With rows="all" there is no union: all rows are those of the round.  Every step goes through the
journal, so that a coordinator that is killed goes on in the same sum.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedslice.deploy.cohort import Cohort, Tally
from fedslice.deploy.journal import Journal
from fedslice.deploy.office import Ended, Office
from fedslice.deploy.post import Post
from fedslice.deploy.program import Program
from fedslice.deploy.schema import Schema
from fedslice.deploy.sums import Summed, add_up, ignore
from fedslice.deploy.turns import (
    LOSS,
    ROWS,
    SUM,
    Opening,
    fewest,
    loss_scale,
    pack_ids,
    parts_of,
    union_parts,
    unpack_taken,
)
from fedslice.errors import InputError
from fedslice.privacy.rows import plan_union
from fedslice.types import Answers

FEWEST = 3  # of two, each knows the other's numbers by the sum


class Cohorts(NamedTuple):
    """Who may come to how small a round: of each table's rows at most ``union`` (None: all) are
    those of a cohort."""

    least: int
    union: Mapping[str, int]


class Hidden:
    """The rounds of a program whose messages are added up unseen."""

    def __init__(
        self,
        program: Program,
        schema: Schema,
        office: Office,
        post: Post,
        journal: Journal,
        terms: Cohorts,
    ) -> None:
        self.program, self.schema, self.office = program, schema, office
        self.post, self.journal, self.terms = post, journal, terms
        self.spaces = program.wire.spaces
        self.noise = program.algorithm.noise
        needed = 0 if self.noise is None else int(self.noise.details.get("least", 0))
        self.least = max(terms.least, needed)
        answers = program.algorithm.answers or Answers()
        self.everything = answers.everything
        # rows that only nodes hold that have left would move, and in a simulation would not
        partly = program.wire.travel == "union" and not office.whole
        self.all_or_none = partly and program.shapes.restless()
        if self.all_or_none and terms.union:
            raise InputError(
                f"the server of {program.algorithm.name} moves rows whose update is zero, also"
                " those that a Bloom filter takes for members of the union: leave union out, or"
                " use a server optimizer without momentum, such as optax.sgd"
            )

    def train(
        self, round: int, cohort: Cohort, tally: Tally
    ) -> tuple[tuple[str, ...], Ended | None]:
        """Who counted, and the state after the round; None: it is to be tried again.

        With noise a try is accounted for once numbers have left their nodes: then it counts, and
        without its sum nothing moves but what moves by itself.
        """
        names = tuple(cohort.times)
        few = len(names) < FEWEST or len(names) < fewest(len(names), self.least)
        if few:
            return (), self._nothing(round) if self.noise is not None else None
        union = {name: np.arange(rows) for name, rows in self.spaces.items()}
        if self.program.wire.travel == "union":
            found = self._union(round, names, tally)
            if found is None:
                return (), None
            union, names = found
        summed = self._sum(round, names, union, tally)
        if summed.total is None:
            lost = self.noise is not None and summed.masked
            return (), self._nothing(round) if lost else None
        if self.all_or_none and set(summed.stayed) != set(names):
            return summed.stayed, None
        return summed.stayed, self._ended(round, summed, union)

    # -- the two sums ------------------------------------------------------------------------------

    def _opening(self, purpose: str, round: int, names: tuple[str, ...]) -> Opening:
        seed = self.journal.once(f"seed {purpose}", lambda: secrets.token_bytes(32))
        nodes = [self.schema.nodes[name] for name in names]
        roster = {node.number: bytes.fromhex(node.key) for node in nodes}
        least = fewest(len(names), self.least)
        return Opening(purpose, self.office.seed, round, self.journal.attempt, seed, least, roster)

    def _named(self, names: tuple[str, ...]) -> dict[int, str]:
        return {self.schema.nodes[name].number: name for name in names}

    def _union(
        self, round: int, names: tuple[str, ...], tally: Tally
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]] | None:
        """The rows that somebody of the cohort holds, and who is in it."""
        plans = tuple(
            plan_union(rows, min(rows, self.terms.union.get(name, rows)), seed=round)
            for name, rows in self.spaces.items()
        )
        if not plans:
            return {}, names
        opening = self._opening(ROWS, round, names)._replace(plans=plans)
        given = self.post, self.journal, tally, opening, self._named(names)
        summed = add_up(*given, lambda: union_parts(plans))
        if summed.total is None:
            tally.why = summed.why
            return None
        union = {
            name: plan.members({"rows": summed.total[str(place)]})
            for place, (name, plan) in enumerate(zip(self.spaces, plans, strict=True))
        }
        return union, summed.stayed

    def _sum(
        self, round: int, names: tuple[str, ...], union: Mapping[str, np.ndarray], tally: Tally
    ) -> Summed:
        if len(names) < fewest(len(names), self.least):
            tally.why = f"{len(names)} nodes are left"
            return Summed(None, why=tally.why)
        taken: dict[str, Mapping[str, np.ndarray]] = {}
        opening = self._opening(SUM, round, names)
        told = pack_ids(union) if self.program.wire.travel == "union" else b""
        room = 0 if self.everything else sum(-(-len(rows) // 8) for rows in union.values())

        def beside(turn: int, name: str) -> bytes:
            if turn == 0:
                return told
            return self.office.invitation(round, taken.get(name, union))

        def seen(name: str, said: bytes) -> None:
            taken[name] = unpack_taken(said, union)

        summed = add_up(
            self.post,
            self.journal,
            tally,
            opening,
            self._named(names),
            lambda: parts_of(self.program.wire.message, union, self.noise is None),
            beside,
            ignore if self.everything else seen,
            room,
        )
        tally.why = summed.why
        return summed

    # -- the end of a round ------------------------------------------------------------------------

    def _ended(self, round: int, summed: Summed, union: Mapping[str, np.ndarray]) -> Ended | None:
        assert summed.total is not None
        layout = self.program.wire.message
        leaves = [
            summed.total[str(place)].view(np.int32).reshape(-1, *leaf.like.shape[1:])
            if leaf.tag
            else summed.total[str(place)].view(np.int32).reshape(leaf.like.shape)
            for place, leaf in enumerate(layout.leaves)
        ]
        counted, loss = len(summed.stayed), float("nan")
        if LOSS in summed.total:
            scale, _ = loss_scale(summed.asked)
            loss = float(summed.total[LOSS].view(np.int32)[0]) / scale / counted
        values = layout.tree.unflatten(leaves)
        ended = self.office.conclude(values, counted, union, round)
        return None if ended is None else ended._replace(loss=loss, nonces=summed.nonces)

    def _nothing(self, round: int) -> Ended:
        """A round without a sum."""
        union = {name: np.zeros(0, np.int64) for name in self.spaces}
        layout = self.program.wire.message
        leaves = [
            np.zeros((0, *leaf.like.shape[1:]) if leaf.tag else leaf.like.shape, np.int32)
            for leaf in layout.leaves
        ]
        ended = self.office.conclude(layout.tree.unflatten(leaves), 0, union, round)
        if ended is None:
            raise InputError(f"round {round + 1} is not finite without any answer")
        return ended._replace(loss=float("nan"))
